"""Figures of curves over the steps of a run."""

from collections.abc import Sequence
from typing import Any

from percentmatch.report.collect import Series
from percentmatch.report.figures import Line, chart, fewer
from percentmatch.report.markup import Html, tag
from percentmatch.report.scoring import PageRun
from percentmatch.scoring.metrics import resampled_metrics


def figure(picture: Html, title: str, words: str, legend: Sequence[tuple[int, str]] = ()) -> Html:
    """A picture under its title, with the names of its series if it has such, and what it shows."""
    names = [tag("li", tag("span", class_="swatch", data_s=series), name) for series, name in legend]
    key = tag("ul", *names, class_="legend") if names else None
    head = tag("p", title, class_="figure-title")
    return tag("figure", head, picture, key, tag("figcaption", words) if words else None)


def run_figure(
    entry: PageRun,
    title: str,
    words: str,
    description: str,
    *,
    legend: Sequence[tuple[int, str]] = (),
    over_steps: bool = False,
    **axes: Any,
) -> Html:
    """A chart of one run, whose id is its title in small letters; `axes` are those of `chart`."""
    if over_steps:
        axes |= {"x_label": "step", "x_range": (0, max(entry.run.last_step, 1)), "verticals": entry.run.rounds}
    letters = "".join(letter if letter.isalnum() else " " for letter in title.lower())
    return figure(chart("-".join([entry.key, *letters.split()]), title, description, **axes), title, words, legend)


def training_figures(entry: PageRun) -> list[Html]:
    """Losses, learning rate, and the means on the validation images."""
    run, most = entry.run, entry.most_points
    made = []
    if run.train:
        losses = run.losses()
        names = {"loss": "total", **{name: name for name in losses}} if len(losses) > 1 else {"loss": "loss"}
        curves = {words: [(row["step"], row.get(name)) for row in run.train] for name, words in names.items()}
        lines = [
            Line(name=words, points=fewer(curve, most), series=n) for n, (words, curve) in enumerate(curves.items())
        ]
        made.append(_series(entry, "Loss", "Mean of the steps since the row before.", "loss", lines))
        rates = fewer([(row["step"], row["lr"]) for row in run.train], most)
        made.append(_series(entry, "Learning rate", "", "rate", [Line(name="learning rate", points=rates, series=0)]))
    if run.validations:
        metrics = resampled_metrics().values()
        curves = [[(step, _times(table.means.get(m.mean), 100)) for step, table in run.validations] for m in metrics]
        lines = [
            Line(name=metric.mean_title, points=points, series=n, marked=True)
            for n, (metric, points) in enumerate(zip(metrics, curves, strict=True))
        ]
        *others, last_name = (metric.mean_title for metric in metrics)
        names = " and ".join([", ".join(others), last_name])
        words = "Means over the classes, of the averaged weights."
        made.append(_series(entry, f"{names} on validation images", words, f"{names}, %", lines))
    return made


def over_time(
    entry: PageRun,
    title: str,
    words: str,
    y_label: str,
    series: Sequence[Series | None],
    *,
    factor: float = 1,
    pooled: Series | None = None,
    y_range: tuple[float, float] | None = None,
    band: tuple[float, float] | None = None,
) -> Html | None:
    """A curve a class, and of all classes if `pooled` is there; curves of a second series are dashed."""
    there = [each for each in series if each]
    if not there:
        return None

    def points(each: Series, position: int) -> list[tuple[float, float | None]]:
        curve = [(step, _times(row[position], factor)) for step, row in zip(*each, strict=True)]
        return fewer(curve, entry.most_points)

    lines = [
        Line(
            name=entry.class_names[position],
            points=points(each, position),
            class_index=entry.class_index[position],
            dashed=each is not there[0],
            marked=len(each[0]) <= 10,
        )
        for each in there
        for position in entry.shown
    ]
    if pooled:
        lines.append(Line(name="all classes", points=points(pooled, 0)))
    description = _last_words(entry.class_names, there[0], factor)
    axes: dict[str, Any] = {"lines": lines, "y_label": y_label, "y_range": y_range, "band": band}
    return run_figure(entry, title, words, description, over_steps=True, **axes)


def _series(entry: PageRun, title: str, words: str, y_label: str, lines: Sequence[Line]) -> Html:
    """Named curves over the steps."""
    values = {line.name: [y for _, y in line.points if y is not None] for line in lines}
    ends = [f"{name} from {found[0]:.4g} to {found[-1]:.4g}" for name, found in values.items() if found]
    description = f"From the first to the last row: {'; '.join(ends)}."
    legend = [(line.series or 0, line.name) for line in lines] if len(lines) > 1 else []
    words += " Dotted: a new round." if entry.run.rounds else ""
    return run_figure(entry, title, words, description, legend=legend, over_steps=True, lines=lines, y_label=y_label)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _last_words(names: Sequence[str], series: Series, factor: float) -> str:
    values = [(factor * value, name) for value, name in zip(series[1][-1], names, strict=True) if value is not None]
    if not values:
        return "No values in the last row."
    (low, lowest), (high, highest) = min(values), max(values)
    mean = sum(value for value, _ in values) / len(values)
    return f"Last values from {low:.3g} ({lowest}) to {high:.3g} ({highest}), mean {mean:.3g}."
