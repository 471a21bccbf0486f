"""Figures over the steps, among them the paper's Figures 2 and 3 on the selection of pseudo-labels."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from percentmatch.methods import METHODS, all_options
from percentmatch.report.collect import Curve, RunRecord, Series, last
from percentmatch.report.figures import Line, chart, fewer, trend
from percentmatch.report.markup import MISSING, Cell, Html, join, table, tag
from percentmatch.report.scoring import PageRun
from percentmatch.scoring.intervals import Ends
from percentmatch.scoring.metrics import resampled_metrics

NOT_LOSSES = {"step", "kind", "lr", "loss", "classes"}  # names in a train row
COLUMNS = {  # of the table, and the name in the log
    "upper threshold": "upper",
    "lower threshold": "lower",
    "gap": "gap",
    "weight": "weights",
    "positive, %": "positive_rate",
    "negative, %": "negative_rate",
}
AUDITS = {  # column of the table, title of the figure and counts in the log: the first is divided by the second
    "positives right, %": ("Precision of positive pseudo-labels", "positives_right", "positives_selected"),
    "positives found, %": ("Recall of positive pseudo-labels", "positives_right", "positives_true"),
    "negatives right, %": ("Precision of negative pseudo-labels", "negatives_right", "negatives_selected"),
}
SHARE = "share of the images, %"
AUDIT_WORDS = {
    "Precision": "How many of the selected are right, where the truth is known. Strong line: all classes.",
    "Recall": "How many true positives are selected. Strong line: all classes.",
}


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
    averaged = "Means over the classes, by the EMA weights."
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


def pseudo_labels(entry: PageRun) -> Html | None:
    """Figures of scores, thresholds, weights and selection, and the last numbers, as far as the run has them."""
    figures, numbers = _figures(entry), _table(entry)
    if not figures and not numbers:
        return None
    return join(
        tag("p", "Pseudo-labels class by class. Figure numbers are the paper's."),
        tag("div", *figures, class_="figures"),
        tag("details", tag("summary", "The last numbers as a table"), numbers) if numbers else None,
    )


def _figures(entry: PageRun) -> list[Html]:
    run, config = entry.run, entry.run.config
    labeler = METHODS[config.method].labeler if config.method in METHODS else None  # another version may know it
    gate = labeler.gap_gate(all_options(config.method, config.options)) if labeler else None
    rule = "A score above the solid line makes a pair positive, one below the dashed line negative."
    if labeler and labeler.every_pair:
        rule = "Above the line a pair counts more as positive, below it more as negative; every pair is learnt."
    shaded = "Shaded: the gate. A class below it has no weight, one above it the full weight." if gate else ""
    averaged, counts = "By the EMA weights.", "How much the pseudo-labels of a class count."
    upper, lower, gap, weights = (run.logged(name) for name in ("upper", "lower", "gap", "weights"))
    figures = [
        _pool(entry),
        over_time(entry, "Thresholds (Fig. 2b)", rule, "threshold", upper, lower, y_range=(0, 1)),
        over_time(entry, "AUC on validation images (Fig. 2c)", averaged, "AUC, %", run.validated("AUC")),
        _auc_and_gap(entry, gate),
        over_time(entry, "Threshold gap (Fig. 3b)", shaded, "gap", gap, y_range=(0, 1), y_band=gate),
        over_time(entry, "Weight of the unlabeled loss (Fig. 3c)", counts, "weight", weights),
    ]
    for kind in ("positive", "negative"):
        words = f"How many of the unlabeled images get a {kind} pseudo-label."
        figures.append(over_time(entry, f"Selected as {kind}", words, SHARE, run.logged(f"{kind}_rate")))
    for title, *pair in AUDITS.values():
        name, ends = title.split()[0], (0, 100) if "positive" in title else None
        ratio, pooled, label = run.ratio(*pair), run.ratio(*pair, pooled=True), f"{name.lower()}, %"
        figures.append(over_time(entry, title, AUDIT_WORDS[name], label, ratio, pooled=pooled, y_range=ends))
    return [each for each in figures if each]


def _table(entry: PageRun) -> Html | None:
    run = entry.run
    found = {title: run.logged(name) for title, name in COLUMNS.items()}
    found |= {title: run.ratio(*pair) for title, (_, *pair) in AUDITS.items()}
    columns = {title: values for title, series in found.items() if (values := last(series))}
    if not columns:
        return None

    def cell(title: str, value: float | None) -> Cell:
        return Cell(MISSING if value is None else f"{100 * value:.1f}" if "%" in title else f"{value:.3f}", value)

    rows = [
        (name, [cell(title, values[position]) for title, values in columns.items()])
        for position, name, _ in entry.shown_classes
    ]
    caption = f"Means of the steps up to {run.train[-1]['step']:,} since the row before"
    return table(caption, ["class", *columns], rows, class_index=entry.shown_index)


def _pool(entry: PageRun) -> Html | None:
    """Fig. 2a: the distribution of the pool's scores, with the thresholds of the last log row."""
    pool = entry.scored.pool if entry.scored else None
    if not pool:
        return None
    bins = (100 * pool.histogram[list(entry.shown)]).tolist()  # of each class shown, in percent
    highest = max(map(max, bins))
    top = min(max(1.25 * max(max(row[1:-1]) for row in bins), 1), highest)  # piles at the ends would flatten the rest
    lines, means = [], []
    for (_, name, number), row in zip(entry.shown_classes, bins, strict=True):
        middles = [((k + 0.5) / len(row), value) for k, value in enumerate(row)]
        points = [(0, 0), *middles, (1, 0)]
        lines.append(Line(name=name, points=points, class_index=number, style="filled"))
        means.append(f"{name} {sum(x * y for x, y in middles) / 100:.2f}")
    for which, style in (("upper", "only"), ("lower", "dashed only")):
        values = last(entry.run.logged(which))
        for position, name, number in entry.shown_classes:
            if values and (value := values[position]) is not None:
                words = f"{name}: {which} threshold {value:.3f}"
                lines.append(Line(name=words, points=[(value, 0), (value, top)], class_index=number, style=style))
    number = f"{pool.num_scored:,}" + (f" of {pool.num_images:,}" if pool.num_scored < pool.num_images else "")
    words = f"Under the saved model, of {number} images."
    words += " The piles at the ends are cut off." if top < highest else ""
    if entry.run.logged("upper"):
        words += " Upright: the last thresholds of training, set on augmented views; solid upper, dashed lower."
    axes: dict[str, Any] = {"x_label": "score", "y_label": SHARE, "x_range": (0, 1), "y_range": (0, top)}
    title, description = "Scores of unlabeled images (Fig. 2a)", f"Mean scores: {'; '.join(means)}."
    return chart_figure(entry.key, title, words, description, lines=lines, **axes)


def _auc_and_gap(entry: PageRun, gate: Ends | None) -> Html | None:
    """Fig. 3a: the AUC of each class against its gap; dots grow with the fourth root of the positives."""
    gaps, aucs = last(entry.run.logged("gap")), last(entry.run.validated("AUC"))
    pairs = enumerate(zip(gaps or (), aucs or (), strict=False))
    points = {position: (gap, 100 * auc) for position, (gap, auc) in pairs if gap is not None and auc is not None}
    if not points:
        return None
    whose, counts = "validation", [row.positives for row in entry.run.validations[-1][1].classes.values()]
    if entry.scored and entry.scored.pool and entry.scored.pool.positives is not None:
        whose, counts = "unlabeled", entry.scored.pool.positives.tolist()
    words = f"At the end, on the validation images. A dot grows with the class's positives among the {whose} images."
    lines = []
    if found := trend(list(points.values())):
        slope, start, correlation = found
        ends = [choose(x for x, _ in points.values()) for choose in (min, max)]
        lines.append(Line(name="trend", points=[(x, start + slope * x) for x in ends], style="dashed"))
        words += f" Dashed: the least-squares trend, r = {correlation:.2f}."
    largest, dots = max([*counts, 1]), []
    for position, name, number in entry.shown_classes:
        if position in points:
            gap, auc = points[position]
            about = f"{name}: gap {gap:.2f}, AUC {auc:.1f}, {counts[position]:,} positives"
            size = 2 + 6 * (counts[position] / largest) ** 0.25
            dots.append(Line(name=about, points=[(gap, auc)], class_index=number, style="dot", marker=size))
    axes: dict[str, Any] = {"x_label": "threshold gap", "y_label": "AUC, %", "x_range": (0, 1), "x_band": gate}
    title, description = "AUC against the threshold gap (Fig. 3a)", "; ".join(dot.name for dot in dots)
    return chart_figure(entry.key, title, words, description, lines=[*lines, *dots], **axes)
