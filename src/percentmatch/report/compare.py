"""Several runs beside each other."""

from collections.abc import Sequence
from itertools import chain

import torch

from percentmatch.console.tables import points
from percentmatch.data.labels import TABLES
from percentmatch.report.curves import figure, named_curves
from percentmatch.report.figures import intervals
from percentmatch.report.markup import MISSING, Cell, Html, count, join, percent, percent_cell, span, table, tag
from percentmatch.report.scoring import PageRun, ScoredSubset
from percentmatch.report.summary import changed_settings
from percentmatch.scoring.intervals import ENOUGH, Ends, class_gains, mean_gain
from percentmatch.scoring.metrics import resampled_metrics
from percentmatch.scoring.table import SUBSETS, Number

Pair = tuple[ScoredSubset, ScoredSubset]  # of the first run and of another one


def comparison(entries: Sequence[PageRun], classes: Sequence[str]) -> Html:
    """Scores, gains over the first run, and the curves of all."""
    subset = next((subset for subset in SUBSETS if all(subset in entry.run.scores for entry in entries)), None)
    first = entries[0]
    pairs = [paired(first, entry, subset) if subset else None for entry in entries]
    swatches = [tag("li", tag("span", class_="swatch", data_s=n), e.run.name) for n, e in enumerate(entries)]
    about = [f"Gains are over the first run, {first.run.name}, in points."]
    if subset and len({getattr(entry.run.split, subset, ()) for entry in entries}) > 1:
        about.append(f"The runs were scored on different {subset} images, which also changes the gains.")
    elif subset and all(pairs[1:]):
        about.append(
            "Their 95% intervals resample the same images for both runs. They do not show how much gains depend on the "
            "training seed: compare several seeds before you trust one. Of 20 classes without any gain, one interval "
            f"misses 0 by chance. A class with fewer than {ENOUGH} positives has no interval."
        )
    gain_figure, gain_table = _class_gains(entries, classes, subset, pairs) if subset else (None, None)
    return join(
        tag("p", " ".join(about)),
        tag("ul", *swatches, class_="legend"),
        _score_table(entries, subset, pairs),
        tag("div", gain_figure, *_curves(entries), class_="figures"),
        gain_table,
        _settings_table(entries),
    )


def paired(first: PageRun, second: PageRun, subset: str) -> Pair | None:
    """Both runs' scores, if they are of the same images in the same order, with the same classes and labels."""
    mine, theirs = first.subset(subset), second.subset(subset)
    if not mine or not theirs or first.class_names != second.class_names or mine.images.ids != theirs.images.ids:
        return None
    for name in TABLES:
        blocks = (getattr(each.images.labels, name).blocks() for each in (mine, theirs))
        if not all(torch.equal(*rows) for rows in zip(*blocks, strict=True)):
            return None
    return mine, theirs


def _gain(value: Number, baseline: Number, ends: Ends | None) -> Cell:
    """A gain with its interval in small."""
    if value is None or baseline is None:
        return Cell(MISSING)
    small = tag("small", f"{points(ends[0])} to {points(ends[1])}") if ends else None
    return Cell(join(points(value - baseline), small), value - baseline)


def _score_table(entries: Sequence[PageRun], subset: str | None, pairs: Sequence[Pair | None]) -> Html:
    columns: dict[str, list[Cell | str]] = {"method": [entry.run.config.method for entry in entries]}
    tables = [entry.run.scores[subset] if subset else (entry.run.final() or ("", None))[1] for entry in entries]
    for name, metric in resampled_metrics().items():
        values = [scores.means.get(metric.mean) if scores else None for scores in tables]
        ends = [entry.mean_interval(subset, name) for entry in entries]
        smalls = [tag("small", span(each)) if each else None for each in ends]
        columns[metric.mean_title] = [Cell(join(percent(v), s), v) for v, s in zip(values, smalls, strict=True)]
        if subset:
            reach = [mean_gain(pair[0].resampled, pair[1].resampled, name) if pair else None for pair in pairs]
            gains = [_gain(value, values[0], ends) for value, ends in zip(values, reach, strict=True)]
            columns[f"gain in {metric.mean_title}"] = [Cell(""), *gains[1:]]
    columns["steps"] = [count(entry.run.last_step) for entry in entries]
    minutes = [entry.run.minutes for entry in entries]
    columns["minutes"] = [Cell("not finished" if each is None else f"{each:g}", each) for each in minutes]
    rows = list(zip((entry.run.name for entry in entries), zip(*columns.values(), strict=True), strict=True))
    words = f"the {subset} images, EMA weights" if subset else "their newest validation images or test images"
    return table(f"All runs on {words}, in percent; small: 95% intervals", ["run", *columns], rows)


def _class_gains(
    entries: Sequence[PageRun], classes: Sequence[str], subset: str, pairs: Sequence[Pair | None]
) -> tuple[Html, Html] | tuple[None, None]:
    """The gain in AP of every class that all runs know: as a figure and as a table."""
    shown = [{name for _, name, _ in entry.shown_classes} for entry in entries]
    shared = {name: number for number, name in enumerate(classes) if all(name in each for each in shown)}
    if not shared:
        return None, None
    first, *others = entries
    tables = [entry.run.scores[subset].classes for entry in entries]
    ends: list[dict[str, Ends | None]] = [{} for _ in others]
    for found, pair in zip(ends, pairs[1:], strict=True):
        if pair:
            targets, known = pair[0].images.scoring_labels(count_difficult=False)
            positives = (targets * known).sum(0, dtype=torch.long)
            gains = class_gains(pair[0].resampled, pair[1].resampled, "AP", positives)
            found.update(zip(first.class_names, gains, strict=True))
    drawn, rows = [], []
    for name, number in shared.items():
        baseline, *values = [scores[name].values["AP"] for scores in tables]
        gains = [_gain(value, baseline, each.get(name)) for value, each in zip(values, ends, strict=True)]
        cells = chain.from_iterable(zip(map(percent_cell, values), gains, strict=True))
        rows.append((name, [percent_cell(baseline), *cells]))
        found = [(n, gain.value, ends[n - 1].get(name)) for n, gain in enumerate(gains, start=1)]
        in_points = [(n, 100 * gain, e and (100 * e[0], 100 * e[1])) for n, gain, e in found if gain is not None]
        drawn.append((name, number, in_points))
    caption = f"Over {first.run.name}, in points"
    picture = intervals(
        "compare-gains",
        f"Gain in AP of each class. {caption}",
        "; ".join(f"{name} {' and '.join(f'{gain:+.1f}' for _, gain, _ in values)}" for name, _, values in drawn),
        rows=drawn,
        x_label="gain in AP, points",
    )
    words = f"{caption}. Lines are 95% intervals." if any(ends) else f"{caption}."
    legend = [(n, entry.run.name) for n, entry in enumerate(others, start=1)]
    columns = ["class", f"AP {first.run.name}", *(word for e in others for word in (f"AP {e.run.name}", "gain"))]
    title = f"AP of each class on the {subset} images, in percent"
    whole = table(title, columns, rows, class_index=list(shared.values()))
    folded = tag("details", tag("summary", "The gains as a table"), whole)
    return figure(picture, "Gain in AP, class by class", words, legend), folded


def _curves(entries: Sequence[PageRun]) -> list[Html]:
    """Curves of all runs, one figure a quantity."""
    made = []
    for metric in resampled_metrics().values():
        title, label = f"{metric.mean_title} on validation images", f"{metric.mean_title}, %"
        means = {entry.run.name: entry.run.mean_curve(metric.mean) for entry in entries}
        made.append(named_curves(entries, title, "", label, means, marker=2.5))
    losses = {entry.run.name: [(row["step"], row["loss"]) for row in entry.run.train] for entry in entries}
    words = "Methods add up different terms, so compare only runs of one method."
    return [each for each in (*made, named_curves(entries, "Loss", words, "loss", losses)) if each]


def _settings_table(entries: Sequence[PageRun]) -> Html | None:
    """Settings in which the runs differ."""
    changed = [{name: (value, default) for name, value, default in changed_settings(e.run.config)} for e in entries]
    defaults = {name: default for each in changed for name, (_, default) in each.items()}
    rows = [("seed", [str(entry.run.config.seed) for entry in entries])]
    rows += [(name, [each.get(name, (default,))[0] for each in changed]) for name, default in defaults.items()]
    rows = [(name, values) for name, values in rows if len(set(values)) > 1]
    if not rows:
        return None
    columns = ["setting", *(entry.run.name for entry in entries)]
    whole = table("Settings in which the runs differ", columns, rows, sortable=False)
    return tag("details", tag("summary", f"Settings in which the runs differ ({len(rows)})"), whole)
