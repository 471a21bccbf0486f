"""Bootstrap intervals of AP and AUC, calibration, and the thresholds that make labels of probabilities."""

from dataclasses import dataclass

import torch
from torch import Tensor

from percentmatch.scoring.calibration import FALLBACK

RESAMPLES, FEWEST = 1000, 200  # of up to 1,000 classes, of very many
ENOUGH = 10  # positives from which on the gain of a class has an interval: below, too many miss 0 by chance
AT_ONCE = 4_000_000  # pairs of image and resample held in memory


@dataclass(frozen=True)
class Resampled:
    """AP and AUC of every class in every resample, NaN where a resample has no positive, or no negative."""

    ap: Tensor  # (r, c)
    auc: Tensor  # (r, c)

    @property
    def mean_ap(self) -> Tensor:
        return self.ap.nanmean(dim=1)  # (r,)

    @property
    def mean_auc(self) -> Tensor:
        return self.auc.nanmean(dim=1)  # (r,)


@dataclass(frozen=True)
class Calibration:
    """Predicted against observed share of positives in equal bins of the probability, class by class."""

    counts: Tensor  # (c, k)
    predicted: Tensor  # (c, k) sums of the probabilities
    observed: Tensor  # (c, k) numbers of positives

    def pooled(self) -> "Calibration":
        """All classes as one."""
        return Calibration(*(x.sum(dim=0, keepdim=True) for x in (self.counts, self.predicted, self.observed)))

    def errors(self) -> Tensor:
        """ECE: the mean distance of the two shares, bins weighted by their pairs; NaN without any: (c,)."""
        return (self.predicted - self.observed).abs().sum(dim=1) / self.counts.sum(dim=1)


def resamples_of(num_classes: int) -> int:
    """How many resamples of so many classes take a bearable time."""
    return max(FEWEST, min(RESAMPLES, 1000 * RESAMPLES // num_classes))


def bootstrap(
    scores: Tensor, targets: Tensor, known: Tensor, *, resamples: int = RESAMPLES, seed: int = 0
) -> Resampled:
    """AP and AUC of resampled images: (n, c) each. The same seed and number of images draw the same images.

    An image drawn twice weighs two. Equal scores enter the ranking at once, as in `metrics.score`.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for size in _chunks(resamples, max(AT_ONCE // max(len(scores), 1), 1)):
        drawn = torch.randint(len(scores), (size, len(scores)), generator=generator)
        weights = torch.zeros(size, len(scores)).scatter_add_(1, drawn, torch.ones(()).expand_as(drawn))
        parts.append(_weighted(scores, targets, known, weights.T.contiguous()))
    return Resampled(*(torch.cat(each) for each in zip(*parts, strict=True)))


def plain(scores: Tensor, targets: Tensor, known: Tensor) -> Resampled:
    """AP and AUC of the images themselves, as one resample."""
    return Resampled(*_weighted(scores, targets, known, torch.ones(len(scores), 1)))


def interval(values: Tensor, level: float = 0.95, *, around: Tensor | None = None) -> list[tuple[float, float] | None]:
    """The percentile interval of each column (r, c), None where no resample has a value.

    With `around` (c,), scores from 0 to 1 of the images themselves, it is moved by what a resample's score is too high
    on average: AP is, the more the fewer positives, and a mean over classes does not cancel it.
    """
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=values.dtype)
    found = values.nanquantile(ends, dim=0)
    if around is not None:
        found = (found - values.nanmean(0) + around).clamp(0, 1)
    return [(a, b) if a == a else None for a, b in zip(*found.tolist(), strict=True)]


def calibrate(scores: Tensor, targets: Tensor, known: Tensor, *, num_bins: int = 10) -> Calibration:
    """Count the known pairs (n, c) of each class in `num_bins` bins."""
    counted = known.double()
    bin_of = (scores * num_bins).long().clamp(max=num_bins - 1)  # (n, c)
    empty = torch.zeros(scores.shape[1], num_bins, dtype=torch.float64)
    sums = (counted, counted * scores, counted * targets)
    return Calibration(*(empty.scatter_add(1, bin_of.T, each.T) for each in sums))


def decision_thresholds(scores: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """For each class the score whose choice as a threshold has the best F1, FALLBACK without a positive: (c,)."""
    counted = known.double()
    order = scores.masked_fill(known == 0, -1).argsort(dim=0, descending=True, stable=True)  # (n, c)
    ranked = scores.gather(0, order)
    hits = (targets * counted).gather(0, order).cumsum(dim=0)
    chosen = counted.gather(0, order).cumsum(dim=0)
    f1 = 2 * hits / (chosen + hits[-1:])  # NaN only if nothing is known
    more = torch.cat([ranked[1:] == ranked[:-1], torch.zeros_like(ranked[:1], dtype=torch.bool)])
    best = f1.nan_to_num(0).masked_fill(more, -1).argmax(dim=0, keepdim=True)
    return torch.where(hits[-1] > 0, ranked.gather(0, best)[0], FALLBACK)


def _weighted(scores: Tensor, targets: Tensor, known: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """AP and AUC when image i counts weights[i, r] times in resample r: (n, c) and (n, r) -> (r, c) each."""
    columns = [
        _weighted_class(scores[rows, column], targets[rows, column] > 0, weights[rows])
        for column in range(scores.shape[1])
        for rows in [known[:, column] > 0]
    ]
    ap, auc = zip(*columns, strict=True)
    return torch.stack(ap, dim=1), torch.stack(auc, dim=1)


def _weighted_class(scores: Tensor, positive: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The same for one class: (m,), (m,) and (m, r) -> (r,), (r,)."""
    if not positive.any():
        nothing = torch.full(weights.shape[1:], torch.nan, dtype=torch.float64)
        return nothing, nothing
    order = scores.argsort(descending=True)
    ranked, positive = scores[order], positive[order]
    _, group, sizes = ranked.unique_consecutive(return_inverse=True, return_counts=True)  # equal scores
    ends = sizes.cumsum(0)  # (g,) how many stand in or above each group
    counts = weights[order]
    above = torch.cat([torch.zeros_like(counts[:1]), counts.cumsum(dim=0)])  # (m + 1, r) whole numbers: exact
    mine = counts[positive].double()  # (p, r)
    hits = torch.cat([torch.zeros_like(mine[:1]), mine.cumsum(dim=0)])  # (p + 1, r)
    places = group[positive]  # (p,)
    in_group = places.bincount(minlength=len(sizes))  # (g,) positives of each group
    hit_ends = in_group.cumsum(0)
    hit, hit_before = hits[hit_ends[places]], hits[(hit_ends - in_group)[places]]
    chosen, before = above[ends[places]].double(), above[(ends - sizes)[places]].double()
    total, negatives = hits[-1], above[-1].double() - hits[-1]  # (r,)
    ap = (mine * hit / chosen.clamp(min=1)).sum(dim=0) / total
    wrong_in, wrong_before = chosen - hit, before - hit_before  # negatives in or above the group, and above it
    auc = (mine * (negatives - (wrong_in + wrong_before) / 2)).sum(dim=0) / (total * negatives)
    return ap, auc


def _chunks(total: int, most: int) -> list[int]:
    return [min(most, total - first) for first in range(0, total, most)]
