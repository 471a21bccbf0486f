"""AdaMatch: unlabeled scores aligned with the labeled ones, and a threshold relative to the labeled confidence."""

from dataclasses import replace

import torch
from torch import Tensor

from percentmatch.distributed.group import StepSums
from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, align, check_between, confidence, select
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class AdaMatch(Labeler):
    """Distribution alignment and relative confidence thresholds (AdaMatch, Berthelot et al. 2022).

    threshold: share of the labeled images' mean confidence that an aligned score must exceed
    momentum: of the moving means
    weight: of the unlabeled loss
    """

    reads_labeled = True

    means: Tensor
    steps_learnt: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        threshold: float = 0.95,
        momentum: float = 0.999,
        weight: float = 1.0,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_between(0, 1, threshold=threshold, momentum=momentum)
        self.threshold, self.momentum = threshold, momentum
        c = facts.num_classes
        half = torch.full((c,), 1 / c if task == "single-label" else 0.5)
        self._sums = StepSums()
        # labeled mean p, labeled mean q, unlabeled mean p; before the first batch nothing is aligned and q is 1
        self.register_buffer("means", torch.stack([half, torch.ones(c), half]))  # (3, c)
        self.register_buffer("steps_learnt", torch.zeros(3, c))  # steps in which each mean had something to learn

    def forward(self, scores: Scores) -> PseudoLabels:
        labeled_mean, labeled_confidence, weak_mean = self.means  # (c,) each, from the state before this batch
        labeled_mean = labeled_mean.where(self.steps_learnt[0] > 0, weak_mean)  # before a label is known: not aligned
        aligned = align(scores.weak, weak_mean, labeled_mean, self.task)  # (u, c)
        least = self.threshold * labeled_confidence
        if self.task == "multi-label":
            least = least.clamp(min=0.5)
        upper = least.masked_fill(self.unseen, torch.inf)  # (c,) of aligned scores
        lower = torch.zeros_like(least) if self.task == "single-label" else 1 - least
        pseudo = select(aligned, upper, lower, self.weights, self.task, meet=True)
        if self.training:
            self._learn(scores)
        return replace(pseudo, gap=upper - lower)

    @torch.no_grad()
    def _learn(self, scores: Scores) -> None:
        """Plain means of the first batches, then moving ones; a class without known labels learns nothing of them."""
        if scores.labeled is None:
            raise UserError("adamatch aligns scores with those of labeled images: give Scores its labeled")
        labeled, weak = scores.labeled.float(), scores.weak.float()
        known = torch.ones_like(labeled) if scores.known is None else scores.known.float()
        sure = confidence(labeled, self.task)
        totals = torch.stack([(labeled * known).sum(0), (sure * known).sum(0), weak.sum(0)])  # (3, c)
        counts = torch.stack([known.sum(0), known.sum(0), torch.ones_like(weak).sum(0)])  # (3, c)
        sums = self._sums.add(torch.stack([totals, counts]), last=scores.last)  # (2, 3, c)
        if sums is None:
            return
        totals, counts = sums
        learns = counts > 0
        self.steps_learnt.add_(learns)
        rate = (1 / self.steps_learnt.clamp(min=1)).clamp(min=1 - self.momentum) * learns  # (3, c)
        self.means.lerp_(totals / counts.clamp(min=1e-12), rate)  # of mixed images, less than one label may be known
