"""How well probabilities are calibrated: predicted and observed fractions of positives, and their distance (ECE)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from percentmatch.records import Task

BINS = 10


@dataclass(frozen=True)
class Reliability:
    """Sums over the pairs in equal bins of the probability, column by column: (c, k) each."""

    counts: Tensor
    apart: Tensor  # of probability - truth
    observed: Tensor  # of positives

    @property
    def errors(self) -> Tensor:
        """ECE: the mean distance of predicted and observed fraction, bins weighted by their pairs: (c,)."""
        return self.apart.abs().sum(1) / self.counts.sum(1)

    def points(self, column: int, least: int = 5) -> list[tuple[float, float]]:
        """Mean probability and fraction of positives of each bin with at least so many pairs."""
        sums = (each[column].tolist() for each in (self.counts, self.apart + self.observed, self.observed))
        return [(p / n, o / n) for n, p, o in zip(*sums, strict=True) if n >= least]


def reliability(
    scores: Tensor, targets: Tensor, known: Tensor, *, pooled: bool = False, bins: int = BINS
) -> Reliability:
    """Of the known pairs (n, c) of each class, or of all as one column."""
    columns = 1 if pooled else scores.shape[1]
    bin_of = (scores * bins).long().clamp(max=bins - 1) + (0 if pooled else bins * torch.arange(columns))  # (n, c)
    bin_of, scores, truth = (table[known > 0] for table in (bin_of, scores.double(), targets.double()))
    sums = (torch.ones_like(scores), scores - truth, truth)
    empty = torch.zeros(columns * bins, dtype=torch.float64)
    return Reliability(*(empty.index_add(0, bin_of, each).view(columns, bins) for each in sums))


def calibration_error(scores: Tensor, targets: Tensor, known: Tensor, task: Task) -> float:
    """The ECE of all known pairs as one set.

    With one label an image, of the best class of each image whose class is known.
    """
    if task == "single-label":
        rows = (targets * known).sum(1) > 0
        best = scores[rows].max(dim=1, keepdim=True)
        scores, targets, known = best.values, targets[rows].gather(1, best.indices), torch.ones_like(best.values)
    return float(reliability(scores, targets, known, pooled=True).errors)
