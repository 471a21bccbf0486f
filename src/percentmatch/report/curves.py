"""Figures of curves over the steps of one run or of several."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from percentmatch.report.collect import Curve, RunRecord, Series
from percentmatch.report.figures import Line, chart, fewer
from percentmatch.report.markup import Html, tag
from percentmatch.report.scoring import PageRun
from percentmatch.scoring.metrics import resampled_metrics

NOT_LOSSES = {"step", "kind", "lr", "loss", "classes"}  # names in a train row


def figure(picture: Html, title: str, words: str, legend: Sequence[tuple[int, str]] = ()) -> Html:
    """A picture under its title, with the names of its series if it has such, and what it shows."""
    names = [tag("li", tag("span", class_="swatch", data_s=series), name) for series, name in legend]
    key = tag("ul", *names, class_="legend") if names else None
    head = tag("p", title, class_="figure-title")
    return tag("figure", head, picture, key, tag("figcaption", words) if words else None)


def chart_figure(
    key: str, title: str, words: str, description: str, legend: Sequence[tuple[int, str]] = (), **axes: Any
) -> Html:
    """A chart whose id is `key` and its title in small letters; `axes` are those of `chart`."""
    key = "-".join([key, *re.findall(r"\w+", title.lower())])
    return figure(chart(key, title, description, **axes), title, words, legend)


def over_steps(*runs: RunRecord) -> dict[str, Any]:
    """The axis of the steps; of one run, also the steps at which a round began."""
    last_step = max(1, *(run.last_step for run in runs))
    return {"x_label": "step", "x_range": (0, last_step), "verticals": runs[0].rounds if len(runs) == 1 else ()}


def named_curves(
    entries: Sequence[PageRun], title: str, words: str, y_label: str, curves: Mapping[str, Curve], *, marker: float = 0
) -> Html | None:
    """Curves with names and colours of their own, of one run or of all; None if none has a point."""
    most = entries[0].most_points
    lines = [
        Line(name=name, points=fewer(points, most), series=n, marker=marker)
        for n, (name, points) in enumerate(curves.items())
        if points
    ]
    if not lines:
        return None
    values = {line.name: [y for _, y in line.points if y is not None] for line in lines}
    ends = [f"{name} from {found[0]:.4g} to {found[-1]:.4g}" for name, found in values.items() if found]
    legend = [(line.series or 0, line.name) for line in lines if len(curves) > 1]
    axes = over_steps(*(entry.run for entry in entries))
    words += " Dotted: a new round." if axes["verticals"] else ""
    key = entries[0].key if len(entries) == 1 else "compare"
    description = f"From the first to the last row: {'; '.join(ends)}."
    return chart_figure(key, title, words, description, legend, lines=lines, y_label=y_label, **axes)


def training(entry: PageRun) -> Html | None:
    """Losses, learning rate, and the means on the validation images."""
    run = entry.run
    losses = {name: name for row in run.train for name in row if name not in NOT_LOSSES}
    names = {"total": "loss", **losses} if len(losses) > 1 else {"loss": "loss"}
    terms = {words: [(row["step"], row.get(name)) for row in run.train] for words, name in names.items()}
    rates = {"learning rate": [(row["step"], row["lr"]) for row in run.train]}
    means = {metric.mean_title: run.mean_curve(metric.mean) for metric in resampled_metrics().values()}
    *others, last_name = means
    titles = " and ".join([", ".join(others), last_name])
    averaged = "Means over the classes, by the averaged weights."
    figures = [
        named_curves([entry], "Loss", "Each point is the mean since the row before.", "loss", terms),
        named_curves([entry], "Learning rate", "", "rate", rates),
        named_curves([entry], f"{titles} on validation images", averaged, f"{titles}, %", means, marker=2.5),
    ]
    return tag("div", *figures, class_="figures") if any(figures) else None


def over_time(
    entry: PageRun,
    title: str,
    words: str,
    y_label: str,
    *series: Series | None,
    pooled: Series | None = None,
    **axes: Any,
) -> Html | None:
    """A curve a class, and of all classes if `pooled` is there; curves of a second series are dashed."""
    there = [each for each in series if each]
    if not there:
        return None
    factor = 100 if "%" in y_label else 1

    def points(each: Series, position: int) -> Curve:
        values = ((step, row[position]) for step, row in zip(*each, strict=True))
        return fewer([(step, None if y is None else factor * y) for step, y in values], entry.most_points)

    lines = []
    for each in there:
        style, marker = "" if each is there[0] else "dashed", 2.5 if len(each[0]) <= 10 else 0
        for position, name, number in entry.shown_classes:
            curve = points(each, position)
            lines.append(Line(name=name, points=curve, class_index=number, style=style, marker=marker))
    if pooled:
        lines.append(Line(name="all classes", points=points(pooled, 0)))
    ends = zip(there[0][1][-1], entry.class_names, strict=True)
    values = [(factor * value, name) for value, name in ends if value is not None]
    description = "No values in the last row."
    if values:
        (low, lowest), (high, highest) = min(values), max(values)
        mean = sum(value for value, _ in values) / len(values)
        description = f"Last values from {low:.3g} ({lowest}) to {high:.3g} ({highest}), mean {mean:.3g}."
    axes |= over_steps(entry.run)
    return chart_figure(entry.key, title, words, description, lines=lines, y_label=y_label, **axes)
