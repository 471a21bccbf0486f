"""Scores of decisions: how many of them are right, and how many positives they miss, class by class and in all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from percentmatch.scoring.intervals import Ends, draws, interval, resamples_of, wilson

Number = float | None  # None: no image says
INSTEAD = 3  # classes that are kept for each missed one
FEWEST = 3  # images with a confusion that counts
SURPRISE = 2.0  # of one that chance hardly explains


@dataclass(frozen=True)
class Counts:
    """Pairs of image and class, of each class or of all in each resample: (..., c) each."""

    right: Tensor  # decided for, and there
    wrong: Tensor  # decided for, and not there
    missed: Tensor  # there, and not decided for

    @classmethod
    def of(cls, decided: Tensor, targets: Tensor, known: Tensor) -> "Counts":
        """Of each class: (n, c) each, as booleans."""
        return cls(*(each.sum(0).double() for each in _outcomes(decided, targets, known)))

    def micro(self) -> "Counts":
        """Of all classes as one: (..., 1)."""
        return Counts(*(each.sum(-1, keepdim=True) for each in (self.right, self.wrong, self.missed)))


@dataclass(frozen=True)
class DecisionMetric:
    """A row of DECISION_METRICS: the share of right pairs among these and some others, or what grows with it."""

    others: Callable[[Counts], Tensor]
    title: str
    of_share: Callable[[Tensor], Tensor] = torch.clone

    def value(self, counts: Counts) -> Tensor:
        """NaN where there is no pair to judge by."""
        return self.of_share(counts.right / (counts.right + self.others(counts)))

    def ends(self, counts: Counts) -> list[Ends | None]:
        """The 95% interval of each class, if its images are drawn at random."""
        low, high = wilson(counts.right, counts.right + self.others(counts))
        found = zip(self.of_share(low).tolist(), self.of_share(high).tolist(), strict=True)
        return [(a, b) if a == a else None for a, b in found]


DECISION_METRICS = {  # by their names in files
    "precision": DecisionMetric(lambda counts: counts.wrong, "precision"),
    "recall": DecisionMetric(lambda counts: counts.missed, "recall"),
    # 2 right / (2 right + wrong + missed), from the share of the right among all that are decided for or there
    "F1": DecisionMetric(lambda counts: counts.wrong + counts.missed, "F1", lambda share: 2 * share / (1 + share)),
}


@dataclass(frozen=True)
class Estimates:
    """The value of each row of DECISION_METRICS, and its 95% interval."""

    values: dict[str, Number]
    intervals: dict[str, Ends | None]

    def to_dict(self) -> dict[str, Any]:
        return {**self.values, "intervals": {name: ends and [*ends] for name, ends in self.intervals.items()}}


class Instead(NamedTuple):
    """How often a class is wrongly predicted on images where another is missed."""

    images: int
    lift: float  # times as many as its share of wrong predictions among all images without it lets expect
    surprise: float  # the log likelihood ratio of the two, as Poisson counts


@dataclass(frozen=True)
class DecidedClass:
    scores: Estimates
    right: int
    wrong: int
    missed: int
    instead: dict[str, Instead]  # classes that are predicted where it is missed: the most surprising first

    def to_dict(self) -> dict[str, Any]:
        counts = {"right": self.right, "wrong": self.wrong, "missed": self.missed}
        instead = {name: each._asdict() for name, each in self.instead.items()}
        return {**self.scores.to_dict(), **counts, "predicted_instead": instead}


@dataclass(frozen=True)
class DecisionTable:
    """Fractions from 0 to 1. A class without a value is left out of the macro mean."""

    classes: dict[str, DecidedClass]
    micro: Estimates  # of all pairs as one class
    macro: Estimates  # means over the classes
    exact_match: Number  # share of the images on which every known label is decided right
    exact_match_interval: Ends | None
    thresholds: tuple[float, ...] | None  # None: the most probable class is decided for

    def confusions(self, most: int) -> list[tuple[str, str, Instead]]:
        """A missed class, the one predicted in its place, and how often: the most surprising first."""
        pairs = [(name, other, each) for name, row in self.classes.items() for other, each in row.instead.items()]
        return sorted(pairs, key=lambda pair: -pair[2].surprise)[:most]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        rows = {name: row.to_dict() for name, row in self.classes.items()}
        for row, threshold in zip(rows.values(), self.thresholds or (), strict=False):
            row["threshold"] = threshold
        ends = self.exact_match_interval
        exact = {"exact_match": self.exact_match, "exact_match_interval": ends and [*ends]}
        return {"micro": self.micro.to_dict(), "macro": self.macro.to_dict(), **exact, "classes": rows}


def score_decisions(
    decided: Tensor,
    targets: Tensor,
    known: Tensor,
    class_names: Sequence[str],
    thresholds: Sequence[float] | None = None,
) -> DecisionTable:
    """Decisions (n, c) of 0 and 1 against targets (n, c); pairs with `known` 0 are ignored."""
    decided, targets, known = decided > 0, targets > 0, known > 0
    counts, (right, wrong, missed) = Counts.of(decided, targets, known), _outcomes(decided, targets, known)
    values = {name: metric.value(counts) for name, metric in DECISION_METRICS.items()}
    micro, macro = _resampled(right, wrong, missed)
    judged, absent = known.any(1), known & ~targets
    rates = wrong.sum(0) / absent.sum(0)
    exact = (~wrong & ~missed).all(1)[judged].sum().double()
    low, high = wilson(exact, judged.sum())
    return DecisionTable(
        classes={
            name: DecidedClass(
                scores,
                *(int(each[c]) for each in (counts.right, counts.wrong, counts.missed)),
                _instead(wrong[missed[:, c]], absent[missed[:, c]].sum(0) * rates, class_names),
            )
            for c, (name, scores) in enumerate(zip(class_names, estimates(counts), strict=True))
        },
        micro=Estimates({k: _number(m.value(counts.micro())) for k, m in DECISION_METRICS.items()}, micro),
        macro=Estimates({k: _number(v.nanmean()) for k, v in values.items()}, macro),
        exact_match=_number(exact / judged.sum()),
        exact_match_interval=None if low.isnan() else (float(low), float(high)),
        thresholds=None if thresholds is None else tuple(thresholds),
    )


def estimates(counts: Counts) -> list[Estimates]:
    """Of each class."""
    values = {name: metric.value(counts).tolist() for name, metric in DECISION_METRICS.items()}
    ends = {name: metric.ends(counts) for name, metric in DECISION_METRICS.items()}
    numbers = [
        {name: x if x == x else None for name, x in zip(values, row, strict=True)}
        for row in zip(*values.values(), strict=True)
    ]
    return [
        Estimates(row, dict(zip(ends, each, strict=True)))
        for row, each in zip(numbers, zip(*ends.values(), strict=True), strict=True)
    ]


def _outcomes(decided: Tensor, targets: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which known pairs are right, wrong and missed: (n, c) each."""
    return decided & targets & known, decided & ~targets & known, ~decided & targets & known


def _number(value: Tensor) -> Number:
    return None if value.isnan() else float(value)


def _instead(wrong: Tensor, expected: Tensor, class_names: Sequence[str]) -> dict[str, Instead]:
    """The classes that are wrongly decided for, images (m, c), more often than expected (c,)."""
    number = wrong.sum(0).double()
    lift = number / expected  # NaN where no image counts
    surprise = number * (lift.log() - 1 + 1 / lift)
    surprise = torch.where((number >= FEWEST) & (lift > 1) & (surprise > SURPRISE), surprise, 0)
    best = surprise.topk(min(INSTEAD, len(surprise))).indices
    rows = torch.stack([number, lift, surprise])[:, best].T.tolist()
    return {
        class_names[c]: Instead(int(n), *more) for c, (n, *more) in zip(best.tolist(), rows, strict=True) if more[1]
    }


def _resampled(*outcomes: Tensor) -> tuple[dict[str, Ends | None], dict[str, Ends | None]]:
    """Intervals of the micro and macro means over resampled images: pairs of one image go together."""
    number, width = outcomes[0].shape
    tables = [each.float() for each in outcomes]
    weights = draws(number, resamples_of(width)) if number else ()
    drawn = [Counts(*((each.T @ table).double() for table in tables)) for each in weights]  # (r, c): whole numbers

    def found(value: Callable[[DecisionMetric, Counts], Tensor]) -> dict[str, Ends | None]:
        chunks = {name: [value(metric, counts) for counts in drawn] for name, metric in DECISION_METRICS.items()}
        return {name: interval(torch.cat(each)[:, None])[0] if each else None for name, each in chunks.items()}

    return found(lambda m, counts: m.value(counts.micro())[:, 0]), found(lambda m, counts: m.value(counts).nanmean(1))
