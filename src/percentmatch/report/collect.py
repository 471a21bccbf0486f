"""What a run folder says by itself: settings, log, metrics. No model and no image is opened here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from percentmatch.data import Split
from percentmatch.errors import UserError
from percentmatch.files import read_json
from percentmatch.runs.finite import DAMAGE, check_number, check_numbers, check_scores
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config

Number = float | None
Series = tuple[list[int], list[list[Number]]]  # steps, and for each step a value a class
NOT_LOSSES = {"step", "kind", "lr", "loss", "classes"}


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder tells it."""

    path: Path
    name: str
    config: Config
    split: Split | None
    environment: dict[str, Any]
    metrics: dict[str, Any]  # empty: the run has not finished
    class_names: tuple[str, ...]  # empty if neither a validation nor metrics.json names them
    train: list[dict[str, Any]]  # rows of the log, by kind
    validation: list[dict[str, Any]]
    rounds: list[int]  # steps at which a round began
    unseen_classes: tuple[str, ...]

    @property
    def last_step(self) -> int:
        return max((row["step"] for row in [*self.train, *self.validation]), default=0)

    def logged(self, name: str) -> Series | None:
        """What the train rows say of each class under `name`, or None if nothing."""
        rows = [(row["step"], row["classes"][name]) for row in self.train if name in row["classes"]]
        if not any(value is not None for _, values in rows for value in values):
            return None
        return [step for step, _ in rows], [values for _, values in rows]

    def ratio(self, part: str, whole: str) -> Series | None:
        """One logged count over another, None where the other is 0."""
        parts, wholes = self.logged(part), self.logged(whole)
        if not parts or not wholes or not any(value for values in wholes[1] for value in values):
            return None
        pairs = zip(parts[1], wholes[1], strict=True)
        return parts[0], [
            [a / b if a is not None and b else None for a, b in zip(*pair, strict=True)] for pair in pairs
        ]

    def validated(self, name: str) -> Series | None:
        """A metric of each class at every validation, the one at the end included."""
        rows = [(row["step"], row["classes"]) for row in self.validation]
        final = self.metrics and self.metrics.get("validation")
        if final and (not rows or rows[-1][0] < self.metrics["step"]):
            rows.append((self.metrics["step"], final["ema"]["classes"]))
        if not rows:
            return None
        return [step for step, _ in rows], [[row[each][name] for each in self.class_names] for _, row in rows]

    def losses(self) -> list[str]:
        """Names of the parts of the loss."""
        return list(dict.fromkeys(name for row in self.train for name in row if name not in NOT_LOSSES))

    def final(self) -> tuple[str, dict[str, Any]] | None:
        """The part a reader asks for first, and its scores: test, validation, or the last validation of the log."""
        for part in ("test", "validation"):
            if self.metrics and part in self.metrics:
                return part, self.metrics[part]["ema"]
        return ("validation", self.validation[-1]) if self.validation else None


def read_run(path: Path, name: str) -> RunRecord:
    """Read a run folder; a damaged file is an error, a missing one of an unfinished run is not."""
    folder = RunFolder(path)
    if not path.is_dir():
        raise UserError(f"there is no run folder '{path}'; give the folder that --out of a training named")
    config = folder.read_config()
    rows = folder.log.rows()
    metrics = folder.read_metrics() if folder.metrics.exists() else {}
    for row in rows:
        _check_row(row, folder.log.path)
    validation = [row for row in rows if row["kind"] == "validation"]
    scored = [row["classes"] for row in validation]
    if metrics:
        scored += [metrics[part]["ema"]["classes"] for part in ("validation", "test") if part in metrics]
    class_names = tuple(scored[0]) if scored else ()
    train = [row for row in rows if row["kind"] == "train"]
    if any(tuple(classes) != class_names for classes in scored) or len(_lengths(train) | {len(class_names)} - {0}) > 1:
        raise UserError(f"'{folder.log.path}' and '{folder.metrics}' name different classes; restore the run folder")
    return RunRecord(
        path=path,
        name=name,
        config=config,
        split=folder.read_split() if folder.split.exists() else None,
        environment=read_json(folder.environment) if folder.environment.exists() else {},
        metrics=metrics,
        class_names=class_names,
        train=train,
        validation=validation,
        rounds=[row["step"] for row in rows if row["kind"] == "refresh"],
        unseen_classes=tuple(name for row in rows if row["kind"] == "start" for name in row.get("unseen_classes", ())),
    )


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many before it as tell all apart."""
    whole = [path.resolve().parts for path in paths]
    if len(set(whole)) < len(whole):
        twice = next(str(path) for path, parts in zip(paths, whole, strict=True) if whole.count(parts) > 1)
        raise UserError(f"the run '{twice}' is named twice; name each run once")
    depth = 1
    while len({parts[-depth:] for parts in whole}) < len(whole):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in whole]


def last(series: Series | None) -> list[Number] | None:
    """The newest value of each class."""
    return series[1][-1] if series else None


def _check_row(row: dict[str, Any], log: Path) -> None:
    try:
        check_numbers(row, "step")
        if row["kind"] == "validation":
            check_scores(row)
        elif row["kind"] == "start":
            if not all(isinstance(name, str) for name in row.get("unseen_classes", ())):
                raise TypeError("unseen_classes must be names")
        elif row["kind"] == "train":
            check_numbers(row, "lr", "loss")
            for name, value in row.items():
                if name not in ("kind", "classes"):
                    check_number(value)
            for values in row["classes"].values():
                for value in values:
                    check_number(value)
            if len(_lengths([row])) > 1:
                raise ValueError("lists differ in length")
    except DAMAGE as error:
        step = row["step"]
        raise UserError(f"'{log}' is damaged in a row of step {step} ({type(error).__name__}: {error})") from None


def _lengths(train: Sequence[dict[str, Any]]) -> set[int]:
    return {len(values) for row in train for values in row["classes"].values()}
