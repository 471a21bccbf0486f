"""The methods by name. A new one is a file and a row here."""

from collections.abc import Mapping
from dataclasses import dataclass

from percentmatch.errors import UserError, did_you_mean
from percentmatch.labelers import FixedThreshold, Labeler, PercentMatch
from percentmatch.methods.base import Method
from percentmatch.methods.options import Option, declared_options
from percentmatch.methods.supervised import Supervised
from percentmatch.methods.weak_to_strong import WeakToStrong
from percentmatch.records import Facts, Task

__all__ = [
    "METHODS",
    "Method",
    "Option",
    "Row",
    "Supervised",
    "WeakToStrong",
    "build_method",
    "method_row",
    "options_of",
]


@dataclass(frozen=True)
class Row:
    """A method class, its labeler if it takes one, and the line that `percentmatch methods` prints."""

    method: type[Method]
    labeler: type[Labeler] | None
    summary: str


METHODS: dict[str, Row] = {
    "supervised": Row(Supervised, None, "labeled images only"),
    "fixmatch": Row(WeakToStrong, FixedThreshold, "one fixed threshold for all classes (Sohn et al. 2020)"),
    "percentmatch": Row(WeakToStrong, PercentMatch, "percentile thresholds and gap-gated weights (Huang et al. 2022)"),
}


def method_row(name: str) -> Row:
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{did_you_mean(name, METHODS)}")
    return METHODS[name]


def options_of(name: str) -> dict[str, Option]:
    """What can be set for a method: the keyword-only parameters of its labeler and of the method itself."""
    row = method_row(name)
    return {option.name: option for part in (row.labeler, row.method) if part for option in declared_options(part)}


def checked_options(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """The options with their proper types; an unknown one or a wrong type is refused."""
    known = options_of(name)
    for key in options:
        if key not in known:
            raise UserError(f"unknown option '{key}' for method '{name}'{did_you_mean(key, known)}")
    return {key: known[key].parse(value) for key, value in options.items()}


def build_method(
    name: str, facts: Facts, task: Task = "multi-label", options: Mapping[str, object] | None = None
) -> Method:
    """The method `name` with its options."""
    row, given = method_row(name), checked_options(name, options or {})
    if row.labeler is None:
        return row.method(facts, task=task, **given)
    mine = {option.name for option in declared_options(row.labeler)}
    labeler = row.labeler(facts, task=task, **{key: given[key] for key in given if key in mine})
    return row.method(labeler, task=task, **{key: given[key] for key in given if key not in mine})
