"""Several runs beside each other."""

from collections.abc import Sequence
from typing import Any

import torch

from percentmatch.data.labels import TABLES
from percentmatch.report.curves import figure
from percentmatch.report.figures import Line, Point, chart, fewer, intervals
from percentmatch.report.markup import Html, join, tag
from percentmatch.report.scoring import PageRun, ScoredSubset
from percentmatch.report.summary import changed_settings
from percentmatch.report.tables import Cell, count, percent, share, signed, span, table
from percentmatch.scoring.intervals import ENOUGH, Ends, class_gains, mean_gain
from percentmatch.scoring.metrics import resampled_metrics
from percentmatch.scoring.table import SUBSETS


def comparison(entries: Sequence[PageRun], classes: Sequence[str], most_points: int) -> Html:
    """Scores, gains over the first run, and the curves of all."""
    subset = compared_subset(entries)
    first = entries[0]
    swatches = [tag("li", tag("span", class_="swatch", data_s=n), e.run.name) for n, e in enumerate(entries)]
    about = [f"Gains are over the first run, {first.run.name}, in points."]
    if subset and len({getattr(entry.run.split, subset, ()) for entry in entries}) > 1:
        about.append(f"The runs were not scored on the same {subset} images, so a gain is also one of images.")
    elif subset and all(paired(first, entry, subset) for entry in entries[1:]):
        about.append(
            "Their 95% intervals resample the same images for both runs. The seed of the training moves gains, too, "
            "which no interval here tells: compare several seeds before you trust one. Of 20 classes, one misses 0 by "
            f"chance; a class with fewer than {ENOUGH} positives has no interval."
        )
    gains = _class_gains(entries, classes, subset) if subset else None
    return join(
        tag("p", " ".join(about)),
        tag("ul", *swatches, class_="legend"),
        _score_table(entries, subset),
        tag("div", *([gains[0]] if gains else []), *_curves(entries, most_points), class_="figures"),
        gains[1] if gains else None,
        _settings_table(entries),
    )


def compared_subset(entries: Sequence[PageRun]) -> str | None:
    """The subset on which all runs have final scores."""
    return next((subset for subset in SUBSETS if all(subset in entry.run.scores for entry in entries)), None)


def paired(first: PageRun, second: PageRun, subset: str) -> tuple[ScoredSubset, ScoredSubset] | None:
    """Both runs' scores, if they are of the same images in the same order, with the same classes and labels."""
    mine, theirs = first.subset(subset), second.subset(subset)
    if not mine or not theirs or first.class_names != second.class_names:
        return None
    tables = [[getattr(each.images.labels, name) for each in (mine, theirs)] for name in TABLES]
    same = mine.images.ids == theirs.images.ids and all(
        torch.equal(*rows) for table in tables for rows in zip(*(each.blocks() for each in table), strict=True)
    )
    return (mine, theirs) if same else None


def _gain(value: float | None, ends: Ends | None) -> Cell:
    """A gain with its interval in small."""
    small = tag("small", f"{signed(ends[0])} to {signed(ends[1])}") if ends and value is not None else None
    return Cell(join(signed(value), small), value)


def _score_table(entries: Sequence[PageRun], subset: str | None) -> Html:
    columns: dict[str, list[Cell | Html | str]] = {"method": [entry.run.config.method for entry in entries]}
    for name, metric in resampled_metrics().items():
        found = [(subset, entry.run.scores[subset]) if subset else entry.run.final() for entry in entries]
        values = [each[1].means.get(metric.mean) if each else None for each in found]
        ends = [entry.mean_interval(subset, name) for entry in entries]
        smalls = [tag("small", span(each)) if each else None for each in ends]
        columns[metric.mean_title] = [
            Cell(join(percent(value), small), value) for value, small in zip(values, smalls, strict=True)
        ]
        if subset:
            gains: list[Cell | Html | str] = [Cell("")]
            for entry, value in zip(entries[1:], values[1:], strict=True):
                both = paired(entries[0], entry, subset)
                reach = mean_gain(both[0].resampled, both[1].resampled, name) if both else None
                gains.append(_gain(_difference(value, values[0]), reach))
            columns[f"gain in {metric.mean_title}"] = gains
    columns["steps"] = [count(entry.run.last_step) for entry in entries]
    minutes = [entry.run.minutes for entry in entries]
    columns["minutes"] = [Cell("not finished" if each is None else f"{each:g}", each) for each in minutes]
    rows = list(zip((entry.run.name for entry in entries), zip(*columns.values(), strict=True), strict=True))
    words = f"the {subset} images, averaged weights" if subset else "their newest validation images or test images"
    return table(f"All runs on {words}, in percent; small: 95% intervals", list(columns), rows, first="run")


def _class_gains(entries: Sequence[PageRun], classes: Sequence[str], subset: str) -> tuple[Html, Html] | None:
    """The gain in AP of every class that all runs know: as a figure and as a table."""
    shown = [{entry.class_names[position] for position in entry.shown} for entry in entries]
    shared = [name for name in classes if all(name in each for each in shown)]
    number_of = {name: number for number, name in enumerate(classes)}
    if not shared:
        return None
    tables = [entry.run.scores[subset].classes for entry in entries]
    ends = [_class_intervals(entries[0], entry, subset) for entry in entries]
    picture_rows, rows = [], []
    for name in shared:
        theirs, *others = [each[name].values["AP"] for each in tables]
        gains = [(n, _difference(mine, theirs), ends[n].get(name)) for n, mine in enumerate(others, start=1)]
        cells = [share(theirs)]
        for mine, (_, gain, reach) in zip(others, gains, strict=True):
            cells += [share(mine), _gain(gain, reach)]
        points = [
            (n, 100 * gain, (100 * reach[0], 100 * reach[1]) if reach else None)
            for n, gain, reach in gains
            if gain is not None
        ]
        picture_rows.append((name, number_of[name], points))
        rows.append((name, cells))
    caption = f"Over {entries[0].run.name}, in points"
    reach_words = " Lines are 95% intervals." if any(ends[1:]) else ""
    best = "; ".join(f"{name} {' and '.join(f'{v:+.1f}' for _, v, _ in values)}" for name, _, values in picture_rows)
    drawn = intervals(
        "compare-gains", f"Gain in AP of each class. {caption}", best, rows=picture_rows, x_label="gain in AP, points"
    )
    columns = ["AP " + entries[0].run.name]
    columns += [word for entry in entries[1:] for word in (f"AP {entry.run.name}", "gain")]
    numbers = [number_of[name] for name in shared]
    legend = [(n, entry.run.name) for n, entry in enumerate(entries) if n]
    title = f"AP of each class on the {subset} images, in percent"
    whole = table(title, columns, rows, first="class", class_index=numbers)
    return figure(drawn, "Gain in AP, class by class", f"{caption}.{reach_words}", legend), tag(
        "details", tag("summary", "The gains as a table"), whole
    )


def _difference(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or theirs is None else mine - theirs


def _class_intervals(first: PageRun, entry: PageRun, subset: str) -> dict[str, Ends | None]:
    both = paired(first, entry, subset)
    if not both:
        return {}
    targets, known = both[0].images.scoring_labels(count_difficult=False)
    found = class_gains(both[0].resampled, both[1].resampled, "AP", (targets * known).sum(0, dtype=torch.long))
    return dict(zip(entry.class_names, found, strict=True))


def _curves(entries: Sequence[PageRun], most: int) -> list[Html]:
    """Curves of all runs, one figure a quantity."""
    figures = []
    last_step = max(max(entry.run.last_step for entry in entries), 1)
    titles = {metric.mean: metric.mean_title for metric in resampled_metrics().values()}
    for name in (*titles, "loss"):
        lines = []
        for n, entry in enumerate(entries):
            points: list[Point] = [(row["step"], row["loss"]) for row in entry.run.train]
            if name != "loss":
                means = [(step, scores.means.get(name)) for step, scores in entry.run.validations]
                points = [(step, None if mean is None else 100 * mean) for step, mean in means]
            if points:
                lines.append(Line(name=entry.run.name, points=fewer(points, most), series=n, marked=name != "loss"))
        if not lines:
            continue
        title, label, words = f"{titles.get(name)} on validation images", f"{titles.get(name)}, %", ""
        if name == "loss":
            title, label = "Loss", "loss"
            words = "Methods add different terms, so only runs of one method compare."
        ends = "; ".join(f"{x.name} {x.points[-1][1]:.3g}" for x in lines if x.points[-1][1] is not None)
        axes: dict[str, Any] = {"x_label": "step", "y_label": label, "x_range": (0, last_step)}
        picture = chart(f"compare-{name}", title, f"Last values: {ends}.", lines=lines, **axes)
        figures.append(figure(picture, title, words, [(line.series or 0, line.name) for line in lines]))
    return figures


def _settings_table(entries: Sequence[PageRun]) -> Html | None:
    """Settings in which the runs differ."""
    changed = [{name: (value, default) for name, value, default in changed_settings(e.run.config)} for e in entries]
    defaults = {name: default for each in changed for name, (_, default) in each.items()}
    rows = [(name, [each.get(name, (default,))[0] for each in changed]) for name, default in defaults.items()]
    rows = [("seed", [str(entry.run.config.seed) for entry in entries]), *rows]
    rows = [(name, values) for name, values in rows if len(set(values)) > 1]
    if not rows:
        return None
    columns = [entry.run.name for entry in entries]
    whole = table("Settings in which the runs differ", columns, rows, first="setting", sortable=False)
    return tag("details", tag("summary", f"Settings in which the runs differ ({len(rows)})"), whole)
