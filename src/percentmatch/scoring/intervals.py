"""Bootstrap intervals of metrics, and of what one model gains over another on the same images. Wilson's of shares."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from percentmatch.scoring.metrics import Ranking, measured, resampled_metrics

RESAMPLES, FEWEST = 1000, 200  # of up to 1,000 classes, of very many
ENOUGH = 10  # positives from which on the gain of a class has an interval: below, too many miss 0 by chance
AT_ONCE = 4_000_000  # pairs of image and resample held in memory
LEVEL = 0.95

Ends = tuple[float, float]


@dataclass(frozen=True)
class Resampled:
    """Metrics of every class in every resample, NaN where a resample has no positive, or for AUC no negative."""

    classes: dict[str, Tensor]  # by the names of CLASS_METRICS: (r, c)

    def mean(self, metric: str) -> Tensor:
        return self.classes[metric].nanmean(dim=1)  # (r,)


def resamples_of(num_classes: int) -> int:
    """How many resamples of so many classes take a bearable time."""
    return max(FEWEST, min(RESAMPLES, 1000 * RESAMPLES // num_classes))


def bootstrap(
    scores: Tensor, targets: Tensor, known: Tensor, *, resamples: int = RESAMPLES, seed: int = 0
) -> Resampled:
    """The metrics of resampled images: (n, c) each. The same seed and number of images draw the same images.

    An image drawn twice weighs two.
    """
    chunks = [_weighted(scores, targets, known, weights) for weights in draws(len(scores), resamples, seed=seed)]
    return Resampled({name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]})


def draws(number: int, resamples: int, *, seed: int = 0) -> Iterator[Tensor]:
    """How often each of so many images counts in each resample, some resamples at a time: (number, r)."""
    generator = torch.Generator().manual_seed(seed)
    most = max(AT_ONCE // max(number, 1), 1)
    for first in range(0, resamples, most):
        size = min(most, resamples - first)
        drawn = torch.randint(number, (size, number), generator=generator)
        yield torch.zeros(size, number).scatter_add_(1, drawn, torch.ones(()).expand_as(drawn)).T.contiguous()


def plain(scores: Tensor, targets: Tensor, known: Tensor) -> Resampled:
    """The metrics of the images themselves, as one resample."""
    return Resampled(_weighted(scores, targets, known, torch.ones(len(scores), 1)))


def _weighted(scores: Tensor, targets: Tensor, known: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The metrics when image i counts weights[i, r] times in resample r: (n, c) and (n, r) -> (r, c) each."""
    metrics = resampled_metrics()
    found = {name: torch.full((weights.shape[1], scores.shape[1]), torch.nan).double() for name in metrics}
    for column in range(scores.shape[1]):
        rows = known[:, column] > 0
        positive = targets[rows, column] > 0
        if positive.any():
            ranking = Ranking.weighted(scores[rows, column], positive, weights[rows])
            for name, values in measured(ranking, metrics).items():
                found[name][:, column] = values
    return found


def interval(values: Tensor, level: float = LEVEL, *, around: Tensor | None = None) -> list[Ends | None]:
    """The percentile interval of each column (r, c), None where no resample has a value.

    With `around` (c,), scores from 0 to 1 of the images themselves, it is moved by what a resample's score is too high
    on average: AP is, the more the fewer positives, and a mean over classes does not cancel it.
    """
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=values.dtype)
    found = values.nanquantile(ends, dim=0)
    if around is not None:
        found = (found - values.nanmean(0) + around).clamp(0, 1)
    return [(a, b) if a == a else None for a, b in zip(*found.tolist(), strict=True)]


def wilson(hits: Tensor, trials: Tensor, level: float = LEVEL) -> tuple[Tensor, Tensor]:
    """The ends of the interval of a share (Wilson's), which also holds for few trials; NaN without any."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, slack = hits / trials, z**2 / trials
    half = z * (share * (1 - share) / trials + slack / (4 * trials)).sqrt()
    return tuple(((share + slack / 2 + side * half) / (1 + slack)).clamp(0, 1) for side in (-1, 1))  # ty: ignore[invalid-return-type]


def mean_interval(drawn: Resampled, exact: Resampled, metric: str) -> Ends | None:
    """Of the mean over the classes."""
    return interval(drawn.mean(metric)[:, None], around=exact.mean(metric))[0]


def mean_gain(first: Resampled, second: Resampled, metric: str) -> Ends | None:
    """What the mean of the second is above that of the first, in the same resamples."""
    return interval((second.mean(metric) - first.mean(metric))[:, None])[0]


def class_gains(first: Resampled, second: Resampled, metric: str, positives: Tensor) -> list[Ends | None]:
    """The same class by class; None for a class with fewer than ENOUGH positives."""
    found = interval(second.classes[metric] - first.classes[metric])
    return [ends if number >= ENOUGH else None for ends, number in zip(found, positives.tolist(), strict=True)]
