"""What the files of a run folder say: settings, log, metrics. No model and no image is opened here."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from percentmatch.data import Split
from percentmatch.errors import UserError
from percentmatch.files import DAMAGE, check_number, check_numbers, read_json
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.table import SUBSETS, Number, ScoreTable, final_scores
from percentmatch.settings.config import Config

Series = tuple[list[int], list[list[Number]]]  # steps, and for each step a value a class
Curve = list[tuple[float, Number]]  # steps and values


@dataclass(frozen=True)
class RunRecord:
    """What is in a run folder."""

    path: Path
    name: str
    config: Config
    given: dict[str, Any]  # of its settings, what somebody set
    split: Split | None
    environment: dict[str, Any]
    minutes: float | None  # None: the run has not finished
    scores: dict[str, ScoreTable]  # at the end, by subset: of the EMA weights, and of the raw ones
    raw_scores: dict[str, ScoreTable]
    class_names: tuple[str, ...]  # empty if neither a validation nor metrics.json names them
    train: list[dict[str, Any]]  # rows of the log
    validations: list[tuple[int, ScoreTable]]  # steps and scores, those at the end included
    last_step: int
    rounds: list[int]  # steps at which a round began
    unseen_classes: tuple[str, ...]

    def logged(self, name: str) -> Series | None:
        """What the train rows say of each class under `name`, or None if nothing."""
        rows = [(row["step"], row["classes"][name]) for row in self.train if name in row["classes"]]
        if not any(value is not None for _, values in rows for value in values):
            return None
        return [step for step, _ in rows], [values for _, values in rows]

    def ratio(self, numerator: str, denominator: str, *, pooled: bool = False) -> Series | None:
        """One logged count over another, None where the other is 0; of all classes together if `pooled`."""
        counts, totals = self.logged(numerator), self.logged(denominator)
        if not counts or not totals or not any(map(any, totals[1])):
            return None
        rows = list(zip(counts[1], totals[1], strict=True))
        if pooled:
            rows = [tuple([sum(filter(None, values))] for values in pair) for pair in rows]
        return counts[0], [[a / b if a is not None and b else None for a, b in zip(*row, strict=True)] for row in rows]

    def validated(self, metric: str) -> Series | None:
        """A metric of each class at every validation."""
        steps = [step for step, _ in self.validations]
        return (steps, [table.of_classes(metric) for _, table in self.validations]) if steps else None

    def mean_curve(self, name: str) -> Curve:
        """The mean over the classes of a metric at every validation, in percent."""
        means = [(step, table.means.get(name)) for step, table in self.validations]
        return [(step, None if mean is None else 100 * mean) for step, mean in means]

    def newest(self, subset: str) -> ScoreTable | None:
        """The scores at the end, or those of the last validation of a run that has not finished."""
        if subset in self.scores or subset == "test" or not self.validations:
            return self.scores.get(subset)
        return self.validations[-1][1]

    def final(self) -> tuple[str, ScoreTable] | None:
        """The first of SUBSETS that has scores, and the newest ones."""
        return next(((subset, table) for subset in SUBSETS if (table := self.newest(subset))), None)


def read_run(path: Path, name: str) -> RunRecord:
    """Read a run folder; a damaged file is an error, a missing one of an unfinished run is not."""
    folder = RunFolder(path)
    if not path.is_dir():
        raise UserError(f"there is no run folder '{path}'; give the folder that --out of a training named")
    config, rows = folder.read_config(), folder.log.rows()
    metrics = folder.read_metrics() if folder.metrics.exists() else {}
    validations = [(row["step"], table) for row in rows if (table := _read_row(row, folder.log.path))]
    scores = final_scores(metrics)
    class_lists = {tuple(table.classes) for table in (*(table for _, table in validations), *scores.values())}
    class_names = next(iter(class_lists), ())
    train = [row for row in rows if row["kind"] == "train"]
    if len(class_lists) > 1 or len(_lengths(train) | {len(class_names)} - {0}) > 1:
        raise UserError(f"'{folder.log.path}' and '{folder.metrics}' name different classes; restore the run folder")
    if "validation" in scores and (not validations or validations[-1][0] < metrics["step"]):
        validations.append((metrics["step"], scores["validation"]))
    return RunRecord(
        path=path,
        name=name,
        config=config,
        given=folder.read_given(),
        split=folder.read_split() if folder.split.exists() else None,
        environment=read_json(folder.environment) if folder.environment.exists() else {},
        minutes=metrics.get("minutes"),
        scores=scores,
        raw_scores=final_scores(metrics, "model"),
        class_names=class_names,
        train=train,
        validations=validations,
        last_step=metrics.get("step", max((row["step"] for row in rows), default=0)),
        rounds=[row["step"] for row in rows if row["kind"] == "refresh"],
        unseen_classes=tuple(name for row in rows if row["kind"] == "start" for name in row.get("unseen_classes", ())),
    )


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last name of each path, with as many names before it as tell all apart."""
    names = [path.resolve().parts for path in paths]
    for path, mine in zip(paths, names, strict=True):
        if names.count(mine) > 1:
            raise UserError(f"the run '{path}' is named twice; name each run once")
    depth = next(n for n in count(1) if len({each[-n:] for each in names}) == len(names))
    return ["/".join(each[-depth:]) for each in names]


def last(series: Series | None) -> list[Number] | None:
    """The newest value of each class."""
    return series[1][-1] if series else None


def _read_row(row: dict[str, Any], log: Path) -> ScoreTable | None:
    """The scores in a row of the log, if it has some; an error if the row is damaged."""
    try:
        check_numbers(row, "step")
        if row["kind"] == "validation":
            return ScoreTable.from_dict(row)
        if row["kind"] == "start" and not all(isinstance(name, str) for name in row.get("unseen_classes", ())):
            raise TypeError("unseen_classes must be names")
        if row["kind"] == "train":
            check_numbers(row, "lr", "loss")
            numbers = [value for name, value in row.items() if name not in ("kind", "classes")]
            for value in chain(numbers, *row["classes"].values()):
                check_number(value)
            if len(_lengths([row])) > 1:
                raise ValueError("lists differ in length")
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"'{log}' is damaged in a row of step {row['step']} ({reason})") from None
    return None


def _lengths(train: Sequence[dict[str, Any]]) -> set[int]:
    return {len(values) for row in train for values in row["classes"].values()}
