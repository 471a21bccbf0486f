"""Gates: how well the model separates the images of a class decides how much the class weighs."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from percentmatch.distributed.group import StepSums
from percentmatch.errors import UserError
from percentmatch.labelers.base import check_choice
from percentmatch.labelers.histogram import LOGIT_RANGE, bins_of
from percentmatch.records import Scores

Measure = Literal["gap", "logit-gap", "auc", "none"]
Range = tuple[float, float]  # of a measure: up to the first a class has no weight, from the second on the full weight
AUC_BINS = 256  # equal in logit space whatever the loss does to the scores
FORGOTTEN = 1e-6  # labeled images that weigh less than this together are ignored


class Gate:
    """The weight of each class (Eq. 5), by the chosen `measure` and its range."""

    def __init__(self, measure: Measure, *, gap: Range, logit_gap: Range, auc: Range) -> None:
        check_choice(Measure, gate=measure)
        if not 0 <= auc[0] <= auc[1] <= 1:
            raise UserError(f"auc_start ({auc[0]}) and auc_full ({auc[1]}) must rise within 0 and 1")
        for name, (start, full) in (("gap", gap), ("logit_gap", logit_gap)):
            if not -math.inf < start <= full < math.inf:
                raise UserError(f"{name}_start ({start}) must be finite and not exceed {name}_full ({full})")
        self.measure = measure
        self.range = {"gap": gap, "logit-gap": logit_gap, "auc": auc}.get(measure)

    def opened(self, upper: Tensor, lower: Tensor, labeled_auc: "LabeledAuc | None") -> Tensor:
        """The fraction of the full weight that each class has, by its thresholds (c,) or its AUC: (c,)."""
        if self.range is None:
            return torch.ones_like(upper)
        if labeled_auc is not None:
            return ramp(labeled_auc.auc(), *self.range)
        return ramp(upper - lower if self.measure == "gap" else logit_gap(upper, lower), *self.range)


class LabeledAuc(nn.Module):
    """Moving score histograms of the labeled positives and negatives of each class, and the AUC between them."""

    masses: Tensor

    def __init__(self, num_classes: int, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self._sums = StepSums()
        self.register_buffer("masses", torch.zeros(2, num_classes, AUC_BINS))  # of positives, of negatives

    @torch.no_grad()
    def update(self, scores: Scores) -> None:
        """Learn from the labeled images of one batch, summed over ranks and micro-batches; unknown labels do not count.

        A mixed image counts by how far its target is from one half, which counts as neither.
        """
        if scores.labeled is None or scores.targets is None:
            raise UserError("gate 'auc' learns from labeled images: give Scores its labeled and targets")
        targets = scores.targets.float()
        known = torch.ones_like(targets) if scores.known is None else scores.known.float()
        bin_of = bins_of(scores.labeled, AUC_BINS, "logit")[0].T.expand(2, -1, -1)  # (2, c, b)
        lean = (2 * targets - 1) * known  # (b, c) from -1, surely a negative, to 1
        weights = torch.stack([lean, -lean]).clamp(min=0).mT  # (2, c, b)
        counts = self._sums.add(torch.zeros_like(self.masses).scatter_add_(2, bin_of, weights), last=scores.last)
        if counts is not None:
            self.masses.lerp_(counts, 1 - self.momentum)

    def auc(self) -> Tensor:
        """P(positive > negative) + P(tie) / 2 over the bins: (c,); 0 where either side is missing."""
        positives, negatives = self.masses  # (c, k) each
        below = negatives.cumsum(dim=1) - negatives / 2  # (c, k) negatives that a positive in each bin beats
        totals = self.masses.sum(dim=2)  # (2, c)
        auc = (positives * below).sum(dim=1) / totals.clamp(min=FORGOTTEN).prod(dim=0)
        return torch.where((totals > FORGOTTEN).all(dim=0), auc, 0.0)


def logit_gap(upper: Tensor, lower: Tensor) -> Tensor:
    """The gap of two thresholds (c,) in logits, each kept inside the range of the histogram: (c,)."""
    return upper.logit().clamp(-LOGIT_RANGE, LOGIT_RANGE) - lower.logit().clamp(-LOGIT_RANGE, LOGIT_RANGE)


def ramp(measure: Tensor, start: float, full: float) -> Tensor:
    """0 up to `start`, 1 from `full` on, linear between (Eq. 5): (c,) -> (c,)."""
    return ((measure - start) / max(full - start, 1e-12)).clamp(0, 1)
