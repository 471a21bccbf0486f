"""FlexMatch: a class's thresholds rise with the number of images of the pool it is sure of."""

import torch
from torch import Tensor

from percentmatch.distributed.group import StepRows
from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, check_between
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class FlexMatch(Labeler):
    """Curriculum pseudo-labels (FlexMatch, Zhang et al. 2021), for positives and negatives apart.

    The memory holds the last sure answer for each image of the pool and each class: 1 present, 2 absent, 0 none yet.

    threshold: scores above it are sure positives, those below 1 - threshold sure negatives; the thresholds of a class
        reach these values when it is sure of as many images as the labeled set leads one to expect
    weight: of the unlabeled loss
    """

    needs_pool = True

    memory: Tensor
    expected: Tensor

    def __init__(
        self, facts: Facts, *, task: Task = "multi-label", threshold: float = 0.95, weight: float = 1.0
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_between(0.5, 1, threshold=threshold)
        self.threshold = threshold
        n, c = facts.num_unlabeled or 0, facts.num_classes
        self._rows = StepRows()
        fractions = torch.stack([facts.prevalence, facts.negative_ratio])  # (2, c) pi and 1 - pi
        self.register_buffer("memory", torch.zeros(n, c, dtype=torch.uint8))  # (N, c)
        self.register_buffer("expected", (n * fractions).float(), persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        counts = torch.stack([(self.memory == 1).sum(dim=0), (self.memory == 2).sum(dim=0)])  # (2, c) sigma
        fraction = counts / self.expected.clamp(min=1e-6)
        beta = torch.where(self.expected > 0, fraction, 1.0).clamp(max=1)  # nothing expected: the full threshold
        reach = (self.threshold - self.chance) * beta / (2 - beta)  # (2, c) the convex map M
        pseudo = self.thresholded(scores.weak, self.chance + reach[0], self.chance - reach[1])
        if self.training:
            self._learn(scores)
        return pseudo

    @torch.no_grad()
    def _learn(self, scores: Scores) -> None:
        """Remember the sure answers of a step. An image seen twice in it votes, and a tie changes nothing."""
        if scores.index is None:
            raise UserError("flexmatch remembers every unlabeled image: give Scores the index of each in the pool")
        weak = scores.weak.float()
        if self.task == "single-label":
            best = weak.argmax(dim=1, keepdim=True)  # (u, 1)
            sure = weak.gather(1, best) > self.threshold
            votes = (torch.full_like(weak, -1.0).scatter_(1, best, 1.0) * sure).long()  # (u, c)
        else:
            votes = (weak > self.threshold).long() - (weak < 1 - self.threshold).long()  # (u, c)
        rows = self._rows.add(torch.cat([scores.index[:, None], votes], dim=1), last=scores.last)
        if rows is None:
            return
        index, votes = rows[:, 0], rows[:, 1:].float()  # of all micro-batches and ranks
        same = (index[:, None] == index).float()  # (u, u)
        majority = same @ votes  # (u, c) equal in all rows of an image
        answer = torch.where(majority > 0, 1, torch.where(majority < 0, 2, self.memory[index]))
        self.memory[index] = answer.to(torch.uint8)
