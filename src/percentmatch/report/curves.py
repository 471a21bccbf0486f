"""Figures of curves over the steps of a run."""

from collections.abc import Sequence

from percentmatch.report.collect import RunRecord, Series
from percentmatch.report.entry import Entry
from percentmatch.report.figures import Line, chart, fewer
from percentmatch.report.markup import Html, tag


def figure(picture: Html, title: str, words: str, legend: Sequence[tuple[int, str]] = ()) -> Html:
    """A picture under its title, with the names of its series if it has such, and what it shows."""
    names = [tag("li", tag("span", class_="swatch", data_s=series), name) for series, name in legend]
    key = tag("ul", *names, class_="legend") if names else None
    head = tag("p", title, class_="figure-title")
    return tag("figure", head, picture, key, tag("figcaption", words) if words else None)


def training_figures(entry: Entry) -> list[Html]:
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
    means = validation_means(run)
    if means:
        lines = [
            Line(name=name, points=[(step, _times(row[name], 100)) for step, row in means], series=n, marked=True)
            for n, name in enumerate(("mAP", "AUC"))
        ]
        words = "Means over the classes, of the averaged weights."
        made.append(_series(entry, "mAP and AUC on validation images", words, "mAP and AUC, %", lines))
    return made


def validation_means(run: RunRecord) -> list[tuple[int, dict]]:
    """Step and scores of every validation, the one at the end included."""
    rows = [(row["step"], row) for row in run.validation]
    if run.metrics and "validation" in run.metrics and (not rows or rows[-1][0] < run.metrics["step"]):
        rows.append((run.metrics["step"], run.metrics["validation"]["ema"]))
    return rows


def over_time(
    entry: Entry,
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

    def points(each: Series, place: int) -> list[tuple[float, float | None]]:
        return fewer([(step, _times(row[place], factor)) for step, row in zip(*each, strict=True)], entry.most_points)

    lines = [
        Line(
            name=entry.class_names[place],
            points=points(each, place),
            class_index=entry.class_index[place],
            dashed=each is not there[0],
            marked=len(each[0]) <= 10,
        )
        for each in there
        for place in entry.shown
    ]
    if pooled:
        lines.append(Line(name="all classes", points=points(pooled, 0)))
    picture = chart(
        figure_key(entry, title),
        title,
        _last_words(entry.class_names, there[0], factor),
        lines=lines,
        x_label="step",
        y_label=y_label,
        x_range=(0, max(entry.run.last_step, 1)),
        y_range=y_range,
        band=band,
        verticals=entry.run.rounds,
    )
    return figure(picture, title, words)


def _series(entry: Entry, title: str, words: str, y_label: str, lines: Sequence[Line]) -> Html:
    """Named curves over the steps."""
    values = {line.name: [y for _, y in line.points if y is not None] for line in lines}
    ends = [f"{name} from {found[0]:.4g} to {found[-1]:.4g}" for name, found in values.items() if found]
    picture = chart(
        figure_key(entry, title),
        title,
        f"From the first to the last row: {'; '.join(ends)}.",
        lines=lines,
        x_label="step",
        y_label=y_label,
        x_range=(0, max(entry.run.last_step, 1)),
        verticals=entry.run.rounds,
    )
    legend = [(line.series or 0, line.name) for line in lines] if len(lines) > 1 else []
    return figure(picture, title, words + (" Dotted: a new round." if entry.run.rounds else ""), legend)


def figure_key(entry: Entry, title: str) -> str:
    """The id of a figure: its title in small letters."""
    words = "".join(letter if letter.isalnum() else " " for letter in title.lower()).split()
    return f"{entry.key}-{'-'.join(words)}"


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _last_words(names: Sequence[str], series: Series, factor: float) -> str:
    values = [(factor * value, name) for value, name in zip(series[1][-1], names, strict=True) if value is not None]
    if not values:
        return "No values in the last row."
    (low, lowest), (high, highest) = min(values), max(values)
    mean = sum(value for value, _ in values) / len(values)
    return f"Last values from {low:.3g} ({lowest}) to {high:.3g} ({highest}), mean {mean:.3g}."
