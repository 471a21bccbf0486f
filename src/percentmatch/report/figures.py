"""Figures as inline SVG. A line or dot of a class carries its number (`data-c`), so that the page can bring it out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from percentmatch.report.markup import Html, join, tag

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
    dashed: bool = False
    marked: bool = False  # dots at the points
    filled: bool = False
    only_if_chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Dot:
    name: str
    x: float
    y: float
    radius: float = 4.0
    class_index: int | None = None


@dataclass(frozen=True)
class Scale:
    """Data to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


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
    thin = []
    for n in range(most):
        group = points[n * len(points) // most : (n + 1) * len(points) // most]
        values = [y for _, y in group if y is not None]
        thin.append((sum(x for x, _ in group) / len(group), sum(values) / len(values) if values else None))
    return thin


def chart(
    key: str,
    title: str,
    description: str,
    *,
    lines: Sequence[Line] = (),
    dots: Sequence[Dot] = (),
    x_label: str,
    y_label: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    band: tuple[float, float] | None = None,
    band_axis: str = "y",
    verticals: Sequence[float] = (),
) -> Html:
    """A figure with axes; its `key` is its id on the page, and `band` a shaded stretch of one axis."""
    xs = [x for line in lines for x, y in line.points if y is not None] + [dot.x for dot in dots]
    ys = [y for line in lines for _, y in line.points if y is not None] + [dot.y for dot in dots]
    x_low, x_high = x_range or _padded(xs)
    y_low, y_high = y_range or _round_ends(*_padded(ys))
    x, y = Scale(x_low, x_high, LEFT, WIDTH - RIGHT), Scale(y_low, y_high, HEIGHT - BOTTOM, TOP)
    parts = [_axes(x, y, x_label, y_label)]
    if band:
        parts.append(_band(x, y, band, band_axis))
    parts += [
        tag("line", class_="round", x1=x(at), x2=x(at), y1=y.start, y2=y.end)
        for at in verticals
        if x_low <= at <= x_high
    ]
    parts += [_line(line, x, y) for line in lines]
    parts += [_dot(dot, x, y) for dot in dots]
    scales = {"data_x": f"{x_low:g} {x_high:g} {x.start} {x.end}", "data_y": f"{y_low:g} {y_high:g} {y.start} {y.end}"}
    return _svg(key, title, description, HEIGHT, parts, **scales)


def intervals(
    key: str,
    title: str,
    description: str,
    *,
    rows: Sequence[tuple[str, int, list[tuple[int, float, tuple[float, float] | None]]]],
    x_label: str,
) -> Html:
    """One row a class: name, class number, and for each series its value and interval, around zero."""
    per_row = max(14, 7 * max(len(values) for _, _, values in rows) + 5)
    height = TOP + per_row * len(rows) + BOTTOM
    values = [end for _, _, row in rows for _, value, ends in row for end in (value, *(ends or ()))]
    low, high = _padded([*values, 0.0])
    left = 112
    x = Scale(low, high, left, WIDTH - RIGHT)
    bottom = height - BOTTOM
    parts = []
    for at in ticks(low, high):
        parts.append(tag("line", class_="zero" if at == 0 else "grid", x1=x(at), x2=x(at), y1=TOP, y2=bottom))
        parts.append(tag("text", f"{at:+g}" if at else "0", x=x(at), y=bottom + 15, text_anchor="middle"))
    parts.append(tag("text", x_label, class_="label", x=(left + WIDTH - RIGHT) / 2, y=height - 6, text_anchor="middle"))
    for position, (name, class_index, row) in enumerate(rows):
        top = TOP + position * per_row
        shown = name if len(name) <= 17 else name[:16] + "…"
        text = tag("text", shown, tag("title", name), x=left - 8, y=top + per_row / 2 + 4, text_anchor="end")
        parts.append(tag("g", text, class_="name", data_c=class_index))
        for n, (series, value, ends) in enumerate(row):
            at = round(top + per_row * (n + 1) / (len(row) + 1), 1)
            words = f"{name}: {value:+.1f}" + (f" ({ends[0]:+.1f} to {ends[1]:+.1f})" if ends else "")
            if ends:
                parts.append(tag("line", class_="series", data_s=series, x1=x(ends[0]), x2=x(ends[1]), y1=at, y2=at))
            parts.append(tag("circle", tag("title", words), class_="series", data_s=series, cx=x(value), cy=at, r=3))
    return _svg(key, title, description, height, parts)


def small_interval(value: float, ends: tuple[float, float] | None) -> Html:
    """A value between 0 and 1 with its interval, small enough for a cell of a table."""
    x = Scale(0, 1, 3, 117)
    parts = [tag("line", class_="grid", x1=x(at), x2=x(at), y1=2, y2=12) for at in (0, 0.5, 1)]
    if ends:
        parts.append(tag("line", class_="reach", x1=x(ends[0]), x2=x(ends[1]), y1=7, y2=7))
    parts.append(tag("circle", class_="at", cx=x(value), cy=7, r=3.2))
    return tag("svg", *parts, class_="small", view_box="0 0 120 14", aria_hidden="true", focusable="false")


def trend(points: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """Slope, intercept and correlation of the least-squares line, None if either coordinate is constant."""
    n = len(points)
    if n < 3:
        return None
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    xx, yy = sum((x - mx) ** 2 for x, _ in points), sum((y - my) ** 2 for _, y in points)
    xy = sum((x - mx) * (y - my) for x, y in points)
    if xx <= 0 or yy <= 0:
        return None
    return xy / xx, my - xy / xx * mx, xy / math.sqrt(xx * yy)


def _svg(key: str, title: str, description: str, height: float, parts: Sequence[Html], **attributes: str) -> Html:
    names = {"aria_labelledby": f"{key}-title {key}-desc", "id": key}
    head = tag("title", title, id=f"{key}-title"), tag("desc", description, id=f"{key}-desc")
    return tag(
        "svg", *head, *parts, class_="chart", view_box=f"0 0 {WIDTH} {height:g}", role="img", **names, **attributes
    )


def _axes(x: Scale, y: Scale, x_label: str, y_label: str) -> Html:
    parts = []
    for at in ticks(y.low, y.high, 4):
        parts.append(tag("line", class_="grid", x1=x.start, x2=x.end, y1=y(at), y2=y(at)))
        parts.append(tag("text", _short(at), x=x.start - 6, y=y(at) + 4, text_anchor="end"))
    for at in ticks(x.low, x.high):
        parts.append(tag("line", class_="grid", x1=x(at), x2=x(at), y1=y.start, y2=y.start + 4))
        parts.append(tag("text", _short(at), x=x(at), y=y.start + 17, text_anchor="middle"))
    parts.append(tag("line", class_="axis", x1=x.start, x2=x.end, y1=y.start, y2=y.start))
    parts.append(tag("text", x_label, class_="label", x=(x.start + x.end) / 2, y=y.start + 34, text_anchor="middle"))
    parts.append(tag("text", y_label, class_="label", x=6, y=13))
    return join(*parts)


def _band(x: Scale, y: Scale, band: tuple[float, float], axis: str) -> Html:
    scale = x if axis == "x" else y
    low, high = (min(max(end, scale.low), scale.high) for end in band)
    start, end = sorted((scale(low), scale(high)))
    if axis == "x":
        return tag("rect", class_="band", x=start, width=max(end - start, 1), y=y.end, height=y.start - y.end)
    return tag("rect", class_="band", x=x.start, width=x.end - x.start, y=start, height=max(end - start, 1))


def _line(line: Line, x: Scale, y: Scale) -> Html:
    classes = "class" if line.class_index is not None else "series"
    classes += " dashed" * line.dashed + " filled" * line.filled + " only" * line.only_if_chosen
    written, pen_down = [], False
    for at, value in line.points:
        if value is not None:
            written.append(f"{'L' if pen_down else 'M'}{x(at):g} {y(min(max(value, y.low), y.high)):g}")
        pen_down = value is not None
    names = {"data_c": line.class_index, "data_s": line.series}
    dots = [
        tag("circle", cx=x(at), cy=y(min(max(value, y.low), y.high)), r=2.5)
        for at, value in line.points
        if line.marked and value is not None
    ]
    path = tag("path", d="".join(written))
    return tag("g", tag("title", line.name), path, *dots, class_=classes, **names)


def _dot(dot: Dot, x: Scale, y: Scale) -> Html:
    circle = tag("circle", cx=x(dot.x), cy=y(dot.y), r=round(dot.radius, 1))
    kind = "class" if dot.class_index is not None else "series"
    return tag("g", tag("title", dot.name), circle, class_=f"{kind} dot", data_c=dot.class_index)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds the values, and 0 if they are all the same but for rounding; never empty."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if math.isclose(low, high):
        low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if low < high else (0.0, 1.0)


def _round_ends(low: float, high: float) -> tuple[float, float]:
    """The range widened to its ticks, and to those of the wider range."""
    for _ in range(3):
        marks = ticks(low, high, 4)
        step = marks[1] - marks[0] if len(marks) > 1 else high - low
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return low, high


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10000 else f"{value:g}"
