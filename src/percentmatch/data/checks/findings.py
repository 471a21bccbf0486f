"""What `data check` reports: defects by their kind, and those of the rows of a file."""

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
    """The findings for errors in rows of a file; an unknown class is one item, however many rows name it."""
    findings = []
    for kind, what in OF_ROWS.items():
        some = [error for error in errors if error.kind == kind]
        count = len({error.name for error in some}) if kind in ("conflicting labels", "leak") else len(some)
        if kind == "unknown class":
            rows, first = Counter(error.name for error in some), {error.name: error for error in reversed(some)}
            text = {name: f"{first[name].source}: {name!r}, on {rows[name]} images{first[name].hint}" for name in rows}
            items = [{"label": name, "images": rows[name], "text": text[name]} for name in rows]
            count = len(items)
        elif kind == "missing image":
            items = [{"image": error.name, "text": f"{error.source}: {error.name}"} for error in some]
        else:
            about = [{"images": [error.name]} if kind != "bad row" else {} for error in some]
            items = [{**which, "text": error.sentence} for which, error in zip(about, some, strict=True)]
        findings += [Finding(kind, "serious", count, what, items)] if items else []
    return findings
