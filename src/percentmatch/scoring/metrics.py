"""Metrics, one function and one row each: of a class, from its ranking, or of all classes at once.

AP is the sum of precision x gain in recall down the ranking, where equal scores enter at once; AUC is the fraction of
(positive, negative) pairs in the right order, where equal scores count half. AP is not interpolated (it equals
scikit-learn's), except where it is called 11-point.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.errors import UserError
from percentmatch.records import Task

BINS = 10  # of the probability, to measure calibration
CHUNK, AT_ONCE = 256, 1 << 23  # classes, and pairs of image and class, that are ranked at a time


@dataclass(frozen=True)
class Ranking:
    """Known pairs from the highest score down, class by class or resample by resample, of k columns.

    A row without a threshold, since the next score is the same, repeats the counts of the row above.
    """

    right: Tensor  # (t, k) positives down to and with each row
    wrong: Tensor  # (t, k) negatives
    positives: Tensor  # (k,) all of them
    negatives: Tensor  # (k,)

    @classmethod
    def of(cls, scores: Tensor, positive: Tensor, known: Tensor) -> "Ranking":
        """Of some classes: (n, k) each. Counts are whole numbers."""
        scores, order = scores.sort(dim=0, descending=True)
        known = known.gather(0, order)
        positive = positive.gather(0, order) & known
        last = torch.ones_like(known)  # (n, k) the last of equal scores
        last[:-1] = scores[:-1] != scores[1:]
        right, wrong = positive.cumsum(0), (known & ~positive).cumsum(0)
        at_last = [torch.where(last, counts, 0).cummax(0).values for counts in (right, wrong)]  # counts never fall
        return cls(*at_last, positive.sum(0), known.sum(0) - positive.sum(0))

    @classmethod
    def weighted(cls, scores: Tensor, positive: Tensor, weights: Tensor) -> "Ranking":
        """Of one class, (m,) each, when image i counts weights[i, r] times in resample r: r columns.

        Only thresholds at which positives enter, or just above these, have a row: between them precision only falls.
        """
        order = scores.argsort(descending=True)
        positive, weights = positive[order], weights[order]
        ends = scores[order].unique_consecutive(return_counts=True)[1].cumsum(0)  # (g,) how many down to each threshold
        hits = positive.cumsum(0)[ends - 1]  # (g,) positives among them
        enters = hits.diff(prepend=hits.new_zeros(1)) > 0
        rows = enters | enters.roll(-1)
        rows[-1] = True
        counts = weights.cumsum(0)[ends[rows] - 1].double()  # (t, r) whole numbers: exact
        right = F.pad(weights[positive].double().cumsum(0), (0, 0, 1, 0))[hits[rows]]  # (t, r)
        return cls(right, counts - right, right[-1], counts[-1] - right[-1])

    @cached_property
    def precision(self) -> Tensor:
        return self.right / (self.right + self.wrong).clamp(min=1).double()  # (t, k)

    @cached_property
    def recall(self) -> Tensor:
        return self.right / self.positives.double()  # (t, k)

    @cached_property
    def new_right(self) -> Tensor:
        """Positives that each row adds."""
        return self.right.diff(dim=0, prepend=torch.zeros_like(self.right[:1]))  # (t, k)


def average_precision(ranking: Ranking) -> Tensor:
    return (ranking.precision * ranking.new_right).sum(0) / ranking.positives


def auc(ranking: Ranking) -> Tensor:
    new_wrong = ranking.wrong.diff(dim=0, prepend=torch.zeros_like(ranking.wrong[:1]))  # (t, k)
    ordered = new_wrong * (ranking.right - ranking.new_right.double() / 2)
    return ordered.sum(0) / (ranking.positives * ranking.negatives)


def eleven_point_ap(ranking: Ranking) -> Tensor:
    """VOC's until 2009: the best precision at a recall of at least 0, 0.1, ..., 1, and the mean of these."""
    return torch.stack([(ranking.precision * (ranking.recall >= step / 10)).amax(0) for step in range(11)]).mean(0)


def accuracy_top1(probabilities: Tensor, targets: Tensor, known: Tensor | None = None) -> float | None:
    """The share of images whose most probable class is the true one; single-label data: (n, c), (n, c) one-hot.

    Images whose class is not known are left out: no label that is `known` is 1, and not all are. None if none is left.
    """
    known = torch.ones_like(targets, dtype=torch.bool) if known is None else known.bool()  # (n, c)
    check_probabilities(probabilities, targets, known)
    positive = (targets == 1) & known  # (n, c)
    judged = positive.any(1) | known.all(1)  # (n,)
    best = probabilities.argmax(dim=1, keepdim=True)  # (n, 1)
    right = positive.gather(1, best).squeeze(1)[judged]
    return float(right.double().mean()) if len(right) else None


@dataclass(frozen=True)
class ClassMetric:
    """A row of CLASS_METRICS: a value of each class, and its mean over the classes that have one."""

    mean: str  # name of the mean in files
    function: Callable[[Ranking], Tensor]  # (k,), NaN where a class has no value; one without positives never has
    title: str  # above the values of classes
    mean_title: str
    needs: str = ""  # what a class without a value lacks; if given, files name these classes under left_out_NAME
    resampled: bool = True  # whether report and compare show it, with intervals from resampled images


@dataclass(frozen=True)
class OverallMetric:
    """A row of OVERALL_METRICS: one value of all classes."""

    function: Callable[[Tensor, Tensor, Tensor], float | None]  # of probabilities, targets and known: (n, c) each
    title: str
    task: Task | None = None  # None: both


CLASS_METRICS = {  # by the name of a class's value in files
    "AP": ClassMetric("mAP", average_precision, "AP", "mAP", needs="positives"),
    "AUC": ClassMetric("AUC", auc, "AUC", "AUC", needs="positives or negatives"),
    "AP_11point": ClassMetric("mAP_11point", eleven_point_ap, "11-point AP", "11-point mAP", resampled=False),
}
OVERALL_METRICS = {"accuracy": OverallMetric(accuracy_top1, "accuracy", task="single-label")}


def resampled_metrics() -> dict[str, ClassMetric]:
    return {name: metric for name, metric in CLASS_METRICS.items() if metric.resampled}


def measured(ranking: Ranking, metrics: dict[str, ClassMetric]) -> dict[str, Tensor]:
    """The value of each metric, NaN in a column without positives: (k,) each."""
    there = ranking.positives > 0
    return {name: torch.where(there, metric.function(ranking), torch.nan) for name, metric in metrics.items()}


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


def pseudo_label_quality(
    pseudo_targets: Tensor, mask: Tensor, truth: Tensor, known: Tensor | None = None
) -> dict[str, Tensor]:
    """Counts (c,) of the pseudo-labels (u, c) of each class against the truth (u, c), where it is known.

    A pair is selected where `mask` is above 0, as a positive if its target is 0.5 or more. Precision of positives is
    positives_right / positives_selected, recall positives_right / positives_true. Counts add up over batches and ranks;
    they stay on the device, and nothing here waits for it.
    """
    counted = torch.ones_like(mask, dtype=torch.bool) if known is None else known > 0
    selected = (mask > 0) & counted
    says, is_true = pseudo_targets >= 0.5, truth > 0.5
    pairs = {
        "positives_right": selected & says & is_true,
        "positives_selected": selected & says,
        "negatives_right": selected & ~says & ~is_true,
        "negatives_selected": selected & ~says,
        "positives_true": counted & is_true,
    }
    return {name: chosen.sum(dim=0) for name, chosen in pairs.items()}


def by_rows(*tables: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tables (n, c), some rows at a time."""
    number = max(1, AT_ONCE // max(tables[0].shape[1], 1))
    return zip(*(table.split(number) for table in tables), strict=True)


def check_probabilities(probabilities: Tensor, targets: Tensor, known: Tensor | None = None) -> None:
    shapes = [tuple(tensor.shape) for tensor in (probabilities, targets, known) if tensor is not None]
    if len(set(shapes)) > 1 or targets.ndim != 2:
        raise UserError(f"probabilities and labels must both be (images, classes), not {', '.join(map(str, shapes))}")
    if num_nan := sum(int(rows.isnan().sum()) for (rows,) in by_rows(probabilities)):
        nan = f"{num_nan} of {probabilities.numel()} predicted probabilities are not a number (NaN)"
        raise UserError(f"{nan}, so training has diverged: try a smaller learning rate")
    if any(((rows < 0) | (rows > 1)).any() for (rows,) in by_rows(probabilities)):
        raise UserError("scores must be probabilities from 0 to 1: apply a sigmoid or a softmax to logits first")
