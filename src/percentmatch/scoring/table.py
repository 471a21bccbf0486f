"""The scores of a model on some images, as one table: every metric of every class, the means, and what was counted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.files import check_number, check_numbers
from percentmatch.records import Task
from percentmatch.scoring import metrics
from percentmatch.scoring.decisions import DecisionTable
from percentmatch.scoring.metrics import CLASS_METRICS, OVERALL_METRICS, Ranking, by_rows, check_probabilities, measured

Number = float | None  # None: no image says
NEEDED = ("AP", "AUC")  # what every file of scores has of a class
SUBSETS = ("test", "validation")  # the one that a reader asks for first


@dataclass(frozen=True)
class ClassScores:
    values: dict[str, Number]  # by the names of CLASS_METRICS
    positives: int
    negatives: int | None = None  # None: a log row of very many classes leaves it out

    def to_dict(self) -> dict[str, Number]:
        row = {**self.values, "positives": self.positives}
        return row if self.negatives is None else row | {"negatives": self.negatives}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "ClassScores":
        check_numbers(row, "positives")
        return cls(_numbers(row, CLASS_METRICS, *NEEDED), row["positives"], row.get("negatives"))


@dataclass(frozen=True)
class ScoreTable:
    """Fractions from 0 to 1. A class without a value is left out of the mean."""

    means: dict[str, Number]  # by the names that files give them: mAP, AUC, ...
    num_images: int
    num_pairs_ignored: int
    classes: dict[str, ClassScores]
    difficult_as_positive: dict[str, Number] = field(default_factory=dict)  # the means; empty: no pair is difficult
    overall: dict[str, Number] = field(default_factory=dict)  # by the names of OVERALL_METRICS
    decisions: DecisionTable | None = None  # at the thresholds of a model; files of runs have none

    def of_classes(self, metric: str) -> list[Number]:
        """The value of each class, None also where the file is older than the metric."""
        return [row.values.get(metric) for row in self.classes.values()]

    def left_out(self, metric: str) -> list[str]:
        """The classes that have no value."""
        return [name for name, row in self.classes.items() if row.values.get(metric) is None]

    def headline(self) -> dict[str, Number]:
        """The values that stand for all others, under their titles."""
        means = {each.mean_title: self.means.get(each.mean) for each in metrics.resampled_metrics().values()}
        return means | {OVERALL_METRICS[name].title: value for name, value in self.overall.items()}

    def to_dict(self, *, short: bool = False) -> dict[str, Any]:
        """Ready for JSON; a short one has only what a curve needs of each class."""
        rows = {name: row.to_dict() for name, row in self.classes.items()}
        if short:
            rows = {name: {key: row[key] for key in (*NEEDED, "positives")} for name, row in rows.items()}
        counts = {"num_images": self.num_images, "num_pairs_ignored": self.num_pairs_ignored}
        left_out = {f"left_out_{name}": self.left_out(name) for name, each in CLASS_METRICS.items() if each.needs}
        hard = {"difficult_as_positive": self.difficult_as_positive} if self.difficult_as_positive else {}
        decided = {"decisions": self.decisions.to_dict()} if self.decisions else {}
        return {**self.means, **counts, **left_out, "classes": rows, **hard, **self.overall, **decided}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ScoreTable":
        """What `to_dict` gave; raises one of `files.DAMAGE` where a number is missing or none."""
        check_numbers(values, "num_images")
        means = [each.mean for each in CLASS_METRICS.values()]
        return cls(
            means=_numbers(values, means, "mAP", "AUC"),
            num_images=values["num_images"],
            num_pairs_ignored=values.get("num_pairs_ignored", 0),
            classes={name: ClassScores.from_dict(row) for name, row in values["classes"].items()},
            difficult_as_positive=_numbers(values.get("difficult_as_positive", {}), means),
            overall=_numbers(values, OVERALL_METRICS),
        )


def _numbers(values: Mapping[str, Any], names: Iterable[str], *needed: str) -> dict[str, Number]:
    """What a file says under these names, of which it may lack those that are not needed."""
    found = {name: values[name] for name in names if name in needed or name in values}
    for value in found.values():
        check_number(value)
    return found


def final_scores(results: Mapping[str, Any], weights: str = "ema") -> dict[str, ScoreTable]:
    """The table of each subset that metrics.json or a results file holds, of the EMA weights or the raw ones."""
    return {subset: ScoreTable.from_dict(results[subset][weights]) for subset in SUBSETS if subset in results}


def score(
    probabilities: Tensor,
    targets: Tensor,
    known: Tensor | None,
    class_names: Sequence[str],
    *,
    task: Task | None = None,
) -> ScoreTable:
    """Score probabilities (n, c) against targets (n, c) of 0 and 1; pairs with `known` 0 are ignored.

    With a task, its metrics of all classes are there, too.
    """
    known = torch.ones_like(targets, dtype=torch.bool) if known is None else known.bool()  # (n, c)
    check_probabilities(probabilities, targets, known)
    if len(class_names) != targets.shape[1] or len(set(class_names)) != len(class_names):
        raise UserError(f"{targets.shape[1]} classes need as many different names, not {', '.join(class_names)}")
    if any((((rows != 0) & (rows != 1)) & sure).any() for rows, sure in by_rows(targets, known)):
        raise UserError("known targets must be 0 or 1")
    scores = probabilities if probabilities.dtype == torch.float64 else probabilities.float()  # (n, c)
    width = max(1, min(metrics.CHUNK, metrics.AT_ONCE // max(len(targets), 1)))
    chunks = zip(*(table.split(width, dim=1) for table in (scores, targets, known)), strict=True)
    rows = [row for scored, truth, sure in chunks for row in _score_classes(scored, truth == 1, sure)]
    asked = {name: each for name, each in OVERALL_METRICS.items() if task and each.task in (None, task)}
    return ScoreTable(
        means={each.mean: _mean([row.values[name] for row in rows]) for name, each in CLASS_METRICS.items()},
        num_images=len(targets),
        num_pairs_ignored=int((~known).sum()),
        classes=dict(zip(class_names, rows, strict=True)),
        overall={name: each.function(probabilities, targets, known) for name, each in asked.items()},
    )


def _mean(values: list[Number]) -> Number:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _score_classes(scores: Tensor, positive: Tensor, known: Tensor) -> Iterator[ClassScores]:
    """Of some classes: (n, k) each."""
    if not len(scores):
        return iter([ClassScores(dict.fromkeys(CLASS_METRICS), 0, 0) for _ in range(scores.shape[1])])
    ranking = Ranking.of(scores, positive, known)
    found = measured(ranking, CLASS_METRICS)
    columns = (each.tolist() for each in (ranking.positives, ranking.negatives, *found.values()))
    return (
        ClassScores({name: x if x == x else None for name, x in zip(found, row, strict=True)}, positives, negatives)
        for positives, negatives, *row in zip(*columns, strict=True)
    )
