"""AdaMatch: unlabeled scores aligned with the labeled ones, and a threshold relative to the labeled confidence."""

import torch
from torch import Tensor

from percentmatch.distributed.group import StepSums
from percentmatch.labelers.base import Labeler, align, check_between, confidence, labeled_scores
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class AdaMatch(Labeler):
    """Distribution alignment and relative confidence thresholds (AdaMatch, Berthelot et al. 2022).

    threshold: fraction of the labeled images' mean confidence that an aligned score must exceed (AdaMatch's code
        has 0.9)
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
        chance = torch.full_like(self.weights, self.chance)
        self._sums = StepSums()
        # labeled mean p, labeled mean q, unlabeled mean p; before the first batch nothing is aligned and q is 1
        self.register_buffer("means", torch.stack([chance, torch.ones_like(chance), chance]))  # (3, c)
        self.register_buffer("steps_learnt", torch.zeros_like(self.means))  # in which each mean had something to learn

    def forward(self, scores: Scores) -> PseudoLabels:
        labeled_mean, labeled_confidence, weak_mean = self.means  # (c,) each, from the state before this batch
        labeled_mean = labeled_mean.where(self.steps_learnt[0] > 0, weak_mean)  # before a label is known: not aligned
        aligned = align(scores.weak, weak_mean, labeled_mean, self.task)  # (u, c)
        least = self.threshold * labeled_confidence
        if self.task == "multi-label":
            least = least.clamp(min=0.5)
        pseudo = self.thresholded(aligned, least, 1 - least)
        if self.training:
            self._learn(scores)
        return pseudo

    @torch.no_grad()
    def _learn(self, scores: Scores) -> None:
        """Plain means of the first batches, then moving ones; a class without known labels learns nothing of them."""
        labeled, known = labeled_scores(scores)
        weak = scores.weak.float()
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
