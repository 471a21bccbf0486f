"""Figures as inline SVG. A line or dot of a class carries its number (`data-c`), so that the page can bring it out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import StatisticsError, correlation, fmean, linear_regression

from percentmatch.report.markup import Html, tag
from percentmatch.scoring.intervals import Ends

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 26, 40
Point = tuple[float, float | None]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve of a class (`class_index`), of a series with a colour of its own (`series`), or of everything."""

    name: str
    points: Sequence[Point]
    class_index: int | None = None
    series: int | None = None
    style: str = ""  # classes of page.css: dashed, filled, dot, or only (if the class is chosen)
    marker: float = 0.0  # radius of the dots at the points; 0: none


@dataclass(frozen=True)
class Scale:
    """Data to pixels along one axis; what lies beyond its ends is drawn at them."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return round(self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def ticks(low: float, high: float, number: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `number` of them."""
    step = (high - low) / number
    power = math.floor(math.log10(step))
    size = 10.0**power
    step = next(size * nice for nice in (1, 2, 2.5, 5, 10) if size * nice >= step * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(first * step + n * step, 3 - power) for n in range(int((high - first * step) / step + 1e-9) + 1)]


def fewer(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points: means of neighbours."""
    if len(points) <= most:
        return list(points)
    groups = (points[n * len(points) // most : (n + 1) * len(points) // most] for n in range(most))
    columns = (zip(*group, strict=True) for group in groups)
    return [(fmean(xs), fmean(there) if (there := [y for y in ys if y is not None]) else None) for xs, ys in columns]


def chart(
    key: str,
    title: str,
    description: str,
    *,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    x_range: Ends | None = None,
    y_range: Ends | None = None,
    x_band: Ends | None = None,
    y_band: Ends | None = None,
    verticals: Sequence[float] = (),
) -> Html:
    """A figure with axes; its `key` is its id on the page, and a band is a shaded stretch of one axis."""
    points = [(at, value) for line in lines for at, value in line.points if value is not None]
    x_low, x_high = x_range or _padded([at for at, _ in points])
    y_low, y_high = y_range or _round_ends(*_padded([value for _, value in points]))
    x, y = Scale(x_low, x_high, LEFT, WIDTH - RIGHT), Scale(y_low, y_high, HEIGHT - BOTTOM, TOP)
    parts = _axes(x, y, x_label, y_label)
    if x_band or y_band:
        left, right = map(x, x_band or (x_low, x_high))
        bottom, top = map(y, y_band or (y_low, y_high))
        parts.append(tag("rect", class_="band", x=left, y=top, width=max(right - left, 1), height=max(bottom - top, 1)))
    inside = [at for at in verticals if x_low <= at <= x_high]
    parts += [tag("line", class_="round", x1=x(at), x2=x(at), y1=y.start, y2=y.end) for at in inside]
    parts += [_line(line, x, y) for line in lines]
    scales = {"data_x": f"{x_low:g} {x_high:g} {x.start} {x.end}", "data_y": f"{y_low:g} {y_high:g} {y.start} {y.end}"}
    return _svg(key, title, description, HEIGHT, parts, **scales)


def intervals(
    key: str,
    title: str,
    description: str,
    *,
    rows: Sequence[tuple[str, int, Sequence[tuple[int, float, Ends | None]]]],
    x_label: str,
) -> Html:
    """One row a class: name, class number, and for each series its number, value and interval, around zero."""
    per_row = max(14, 7 * max(len(values) for _, _, values in rows) + 5)
    bottom = TOP + per_row * len(rows)
    low, high = _padded([0.0, *(end for _, _, row in rows for _, value, ends in row for end in (value, *(ends or ())))])
    left = 112
    x = Scale(low, high, left, WIDTH - RIGHT)
    parts = []
    for at in ticks(low, high):
        parts.append(tag("line", class_="zero" if at == 0 else "grid", x1=x(at), x2=x(at), y1=TOP, y2=bottom))
        parts.append(_text(f"{at:+g}" if at else "0", x(at), bottom + 15))
    parts.append(_text(x_label, (left + WIDTH - RIGHT) / 2, bottom + BOTTOM - 6, class_="label"))
    for position, (name, class_index, row) in enumerate(rows):
        top = TOP + position * per_row
        shown = name if len(name) <= 17 else name[:16] + "…"
        text = tag("text", shown, tag("title", name), x=left - 8, y=top + per_row / 2 + 4, text_anchor="end")
        parts.append(tag("g", text, class_="name", data_c=class_index))
        for n, (series, value, ends) in enumerate(row, start=1):
            at = round(top + per_row * n / (len(row) + 1), 1)
            words = f"{name}: {value:+.1f}"
            if ends:
                words += f" ({ends[0]:+.1f} to {ends[1]:+.1f})"
                parts.append(tag("line", class_="series", data_s=series, x1=x(ends[0]), x2=x(ends[1]), y1=at, y2=at))
            parts.append(tag("circle", tag("title", words), class_="series", data_s=series, cx=x(value), cy=at, r=3))
    return _svg(key, title, description, bottom + BOTTOM, parts)


def small_interval(value: float, ends: Ends | None) -> Html:
    """A value between 0 and 1 with its interval, small enough for a cell of a table."""
    x = Scale(0, 1, 3, 117)
    parts = [tag("line", class_="grid", x1=x(at), x2=x(at), y1=2, y2=12) for at in (0, 0.5, 1)]
    if ends:
        parts.append(tag("line", class_="reach", x1=x(ends[0]), x2=x(ends[1]), y1=7, y2=7))
    parts.append(tag("circle", class_="at", cx=x(value), cy=7, r=3.2))
    return tag("svg", *parts, class_="small", viewBox="0 0 120 14", aria_hidden="true", focusable="false")


def trend(points: Sequence[Ends]) -> tuple[float, float, float] | None:
    """Slope, intercept and correlation of the least-squares line; None if a coordinate is constant."""
    if len(points) < 3:
        return None
    xs, ys = zip(*points, strict=True)
    try:
        return *linear_regression(xs, ys), correlation(xs, ys)
    except StatisticsError:
        return None


def _svg(key: str, title: str, description: str, height: float, parts: Sequence[Html], **attributes: str) -> Html:
    head = tag("title", title, id=f"{key}-title"), tag("desc", description, id=f"{key}-desc")
    attributes |= {"viewBox": f"0 0 {WIDTH} {height:g}", "aria_labelledby": f"{key}-title {key}-desc"}
    return tag("svg", *head, *parts, class_="chart", role="img", id=key, **attributes)


def _text(words: str, x: float, y: float, anchor: str = "middle", **attributes: str) -> Html:
    return tag("text", words, x=x, y=y, text_anchor=anchor, **attributes)


def _axes(x: Scale, y: Scale, x_label: str, y_label: str) -> list[Html]:
    parts = []
    for at in ticks(y.low, y.high, 4):
        parts.append(tag("line", class_="grid", x1=x.start, x2=x.end, y1=y(at), y2=y(at)))
        parts.append(_text(_short(at), x.start - 6, y(at) + 4, "end"))
    for at in ticks(x.low, x.high):
        parts.append(tag("line", class_="grid", x1=x(at), x2=x(at), y1=y.start, y2=y.start + 4))
        parts.append(_text(_short(at), x(at), y.start + 17))
    parts.append(tag("line", class_="axis", x1=x.start, x2=x.end, y1=y.start, y2=y.start))
    parts.append(_text(x_label, (x.start + x.end) / 2, y.start + 34, class_="label"))
    return [*parts, tag("text", y_label, class_="label", x=6, y=13)]


def _line(line: Line, x: Scale, y: Scale) -> Html:
    kind = "series" if line.class_index is None else "class"
    path = ""
    for (_, before), (at, value) in pairwise([(0, None), *line.points]):
        if value is not None:
            path += f"{'M' if before is None else 'L'}{x(at):g} {y(value):g}"
    marked = [(at, value) for at, value in line.points if line.marker and value is not None]
    dots = [tag("circle", cx=x(at), cy=y(value), r=round(line.marker, 1)) for at, value in marked]
    names = {"class_": f"{kind} {line.style}".rstrip(), "data_c": line.class_index, "data_s": line.series}
    return tag("g", tag("title", line.name), tag("path", d=path), *dots, **names)


def _padded(values: Sequence[float]) -> Ends:
    """A range that holds the values, and 0 if they are all the same but for rounding; never empty."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if math.isclose(low, high):
        low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if low < high else (0.0, 1.0)


def _round_ends(low: float, high: float) -> Ends:
    """The range widened to its ticks, and to those of the wider range."""
    for _ in range(3):
        marks = ticks(low, high, 4)
        step = marks[1] - marks[0] if len(marks) > 1 else high - low
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return low, high


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10000 else f"{value:g}"
