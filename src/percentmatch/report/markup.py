"""HTML that cannot forget to escape: text is escaped, only `Html` made here is not. And tables that sort."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from percentmatch.scoring.intervals import Ends

VOID = {"meta", "input", "br", "img", "line", "rect", "circle", "path", "polyline"}
MISSING = "\u2013"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Html:
    """An element. Children that are not `Html` are escaped; None is left out.

    In names of attributes a last underscore is dropped, others are hyphens. None and False leave an attribute out, True
    only names it.
    """
    written = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            written += " " + key.rstrip("_").replace("_", "-")
            written += "" if value is True else f'="{escape(str(value))}"'
    if name in VOID and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None))


def script_json(value: object) -> Html:
    """JSON that may stand inside <script>: no `<`, so that nothing in it can end the script or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Html(text.replace("<", "\\u003c"))


@dataclass(frozen=True)
class Cell:
    """What is shown, and the number it sorts by (None comes last)."""

    shown: str | Html
    value: float | None = None


def percent(value: float | None) -> str:
    return MISSING if value is None or value != value else f"{100 * value:.1f}"


def percent_cell(value: float | None) -> Cell:
    return Cell(percent(value), value)


def count(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def span(ends: Ends | None) -> str:
    return MISSING if ends is None else f"{percent(ends[0])} to {percent(ends[1])}"


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Cell | str]]],
    *,
    class_index: Sequence[int] | None = None,
    sortable: bool = True,
) -> Html:
    """A table in a box that scrolls. The first column names the rows; with `class_index` they are classes to choose."""
    arrow = tag("span", aria_hidden="true", class_="arrow")
    heads = [tag("button", name, arrow, type="button") if sortable else name for name in columns]
    body = []
    for (name, cells), number in zip(rows, class_index or [None] * len(rows), strict=True):
        shown = name if number is None else tag("button", name, type="button", class_="pick", data_pick=number)
        body.append(tag("tr", tag("th", shown, scope="row", data_v=name), *map(_cell, cells), data_c=number))
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in heads)))
    whole = tag("table", tag("caption", caption), head, tag("tbody", *body), class_="sortable" if sortable else None)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(cell: Cell | str) -> Html:
    if not isinstance(cell, Cell):
        return tag("td", cell)
    return tag("td", cell.shown, data_v="" if cell.value is None or cell.value != cell.value else f"{cell.value:.6g}")
