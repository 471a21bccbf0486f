"""Tables that sort by every column, and numbers as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from percentmatch.console.tables import points
from percentmatch.report.markup import Html, tag
from percentmatch.scoring.intervals import Ends

MISSING = "\u2013"


@dataclass(frozen=True)
class Cell:
    """What is shown, and the number it sorts by (None comes last)."""

    shown: str | Html
    value: float | None = None


def percent(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None or value != value else f"{100 * value:.{digits}f}"


def share(value: float | None) -> Cell:
    """A fraction as a cell in percent."""
    return Cell(percent(value), value)


def count(value: int | None) -> Cell:
    return Cell(MISSING if value is None else f"{value:,}", value)


def span(ends: Ends | None) -> str:
    return MISSING if ends is None else f"{percent(ends[0])} to {percent(ends[1])}"


def signed(value: float | None) -> str:
    return MISSING if value is None or value != value else points(value)


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Cell | Html | str]]],
    *,
    first: str = "",
    class_index: Sequence[int] | None = None,
    sortable: bool = True,
) -> Html:
    """A table in a box of its own that scrolls. With `class_index`, a row belongs to a class and can be chosen."""
    heads = [tag("th", _head(name, sortable), scope="col") for name in (first, *columns)]
    body = []
    for row, (name, cells) in enumerate(rows):
        number = class_index[row] if class_index is not None else None
        shown = name if number is None else tag("button", name, type="button", class_="pick", data_pick=number)
        body.append(
            tag("tr", tag("th", shown, scope="row", data_v=name), *(_cell(cell) for cell in cells), data_c=number)
        )
    inside = tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *body)
    whole = tag("table", *inside, class_="sortable" if sortable else None)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _head(name: str, sortable: bool) -> Html | str:
    return tag("button", name, tag("span", aria_hidden="true", class_="arrow"), type="button") if sortable else name


def _cell(cell: Cell | Html | str) -> Html:
    if isinstance(cell, Cell):
        return tag(
            "td", cell.shown, data_v="" if cell.value is None or cell.value != cell.value else f"{cell.value:.6g}"
        )
    return tag("td", cell)
