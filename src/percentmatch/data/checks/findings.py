"""What `data check` tells: defects by their kind, and those of the rows of a file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from percentmatch.data.readers.rows import RowError

Level = Literal["serious", "warning", "note"]
LEVELS = ("serious", "warning", "note")
OF_ROWS = {  # the kinds of errors, and what each is of
    "missing image": "images that the labels name and that are not in their folder",
    "bad row": "rows that cannot be read",
    "unknown class": "labels that are none of the classes asked for",
    "conflicting labels": "images that are named twice, with different labels",
    "leak": "images that are named twice, for different subsets",
}


@dataclass(frozen=True)
class Finding:
    """One kind of defect and where it is."""

    check: str
    level: Level
    count: int
    text: str  # of what
    items: list[dict[str, Any]] = field(default_factory=list)  # each with a "text" of its own


def found(check: str, level: Level, text: str, items: list[dict[str, Any]]) -> list[Finding]:
    """A finding for these items, none if there are none."""
    return [Finding(check, level, len(items), text, items)] if items else []


def of_rows(errors: Sequence[RowError]) -> list[Finding]:
    """The findings that errors of rows are."""
    of_kind: dict[str, list[RowError]] = {kind: [] for kind in OF_ROWS}
    for error in errors:
        of_kind[error.kind].append(error)
    findings = []
    for kind, some in of_kind.items():
        if kind == "unknown class":
            items = _unknown_classes(some)
        elif kind == "missing image":
            items = [{"image": error.name, "text": f"{error.source}: {error.name}"} for error in some]
        elif kind == "bad row":
            items = [{"text": error.sentence} for error in some]
        else:
            items = [{"images": [error.name], "text": error.sentence} for error in some]
        count = len({error.name for error in some}) if kind in ("conflicting labels", "leak") else len(items)
        findings += [Finding(kind, "serious", count, OF_ROWS[kind], items)] if items else []
    return findings


def _unknown_classes(errors: Sequence[RowError]) -> list[dict[str, Any]]:
    """Each label once, with the number of rows that name it."""
    rows, first = Counter(error.name for error in errors), {error.name: error for error in reversed(errors)}
    told = {name: f"{first[name].source}: {name!r}, on {rows[name]} images{first[name].hint}" for name in rows}
    return [{"label": name, "images": rows[name], "text": text} for name, text in told.items()]
