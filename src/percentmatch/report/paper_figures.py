"""What a run made of the unlabeled images: the paper's Figures 2 and 3, and the selection of pseudo-labels."""

from collections.abc import Sequence
from typing import Any

from percentmatch.labelers import Labeler
from percentmatch.methods import METHODS, all_options
from percentmatch.report.collect import RunRecord, last
from percentmatch.report.curves import over_time, run_figure
from percentmatch.report.figures import Dot, Line, trend
from percentmatch.report.markup import Html
from percentmatch.report.scoring import PageRun

PRECISION, RECALL = "How many are right, where the truth is known.", "How many true positives are selected."
AUDITS = {  # title, words and counts, of which the first is divided by the second
    "Precision of positive pseudo-labels": (PRECISION, "positives_right", "positives_selected"),
    "Recall of positive pseudo-labels": (RECALL, "positives_right", "positives_true"),
    "Precision of negative pseudo-labels": (PRECISION, "negatives_right", "negatives_selected"),
}


def pseudo_label_figures(entry: PageRun) -> list[Html]:
    """The figures of scores, thresholds, weights and selection that this run has something for."""
    run = entry.run
    gate, labeler = _gate(run), _labeler(run)
    rule = (
        "Above the line a pair is rather positive, below it rather negative; every pair is learnt."
        if labeler and labeler.every_pair
        else "A score above the solid line makes a pair positive, one below the dashed line negative."
    )
    shaded = "Shaded: the gate. A class below it has no weight, one above it the full weight." if gate else ""
    averaged = "Of the averaged weights, class by class."
    counts = "How much the pseudo-labels of a class count."
    upper, lower, gap, weights = (run.logged(name) for name in ("upper", "lower", "gap", "weights"))
    made = [
        _pool(entry),
        over_time(entry, "Thresholds (Fig. 2b)", rule, "threshold", [upper, lower], y_range=(0, 1)),
        over_time(entry, "AUC on validation images (Fig. 2c)", averaged, "AUC, %", [run.validated("AUC")], factor=100),
        _auc_and_gap(entry, gate),
        over_time(entry, "Threshold gap (Fig. 3b)", shaded, "gap", [gap], y_range=(0, 1), band=gate),
        over_time(entry, "Weight of the unlabeled loss (Fig. 3c)", counts, "weight", [weights]),
    ]
    for kind in ("positive", "negative"):
        words = f"Share of the unlabeled images that get a {kind} pseudo-label."
        rates = [run.logged(f"{kind}_rate")]
        made.append(over_time(entry, f"Selected as {kind}", words, "share of the images, %", rates, factor=100))
    for title, (about, *pair) in AUDITS.items():
        made.append(
            over_time(
                entry,
                title,
                f"{about} Strong line: all classes.",
                f"{title.split()[0].lower()}, %",
                [run.ratio(*pair)],
                pooled=run.ratio(*pair, pooled=True),
                factor=100,
                y_range=(0, 100) if "positive" in title else None,
            )
        )
    return [each for each in made if each is not None]


def _pool(entry: PageRun) -> Html | None:
    """Fig. 2a: the distribution of the pool's scores, with the thresholds of the last log row."""
    pool = entry.scored.pool if entry.scored else None
    if not pool:
        return None
    shares = pool.histogram[list(entry.shown)].tolist()  # of each class shown
    names = [entry.class_names[position] for position in entry.shown]
    highest = 100 * max(max(row) for row in shares)
    top = min(
        max(125 * max(max(row[1:-1]) for row in shares), 1), highest
    )  # piles at the ends would press the rest flat
    lines = [
        Line(
            name=name,
            points=[(0, 0), *(((k + 0.5) / len(row), 100 * value) for k, value in enumerate(row)), (1, 0)],
            class_index=number,
            filled=True,
        )
        for name, number, row in zip(names, entry.shown_index, shares, strict=True)
    ]
    thresholds = {which: found for which in ("upper", "lower") if (found := last(entry.run.logged(which)))}
    lines += [
        Line(
            name=f"{entry.class_names[position]}: {which} threshold {value:.3f}",
            points=[(value, 0.0), (value, top)],
            class_index=entry.class_index[position],
            dashed=which == "lower",
            only_if_chosen=True,
        )
        for which, values in thresholds.items()
        for position in entry.shown
        if (value := values[position]) is not None
    ]
    number = f"{pool.num_scored:,}" + (f" of {pool.num_images:,}" if pool.num_scored < pool.num_images else "")
    words = f"Under the saved model, of {number} images."
    words += " The piles at the ends are cut off." if top < highest else ""
    if entry.run.logged("upper"):
        words += " Upright: the last thresholds of training, set on augmented views; solid upper, dashed lower."
    title = "Scores of unlabeled images (Fig. 2a)"
    means = [f"{name} {_mean(row):.2f}" for name, row in zip(names, shares, strict=True)]
    axes: dict[str, Any] = {"x_label": "score", "y_label": "share of the images, %", "y_range": (0, top)}
    return run_figure(entry, title, words, f"Mean scores: {'; '.join(means)}.", lines=lines, x_range=(0, 1), **axes)


def _auc_and_gap(entry: PageRun, gate: tuple[float, float] | None) -> Html | None:
    """Fig. 3a: the AUC of each class against its gap; dots grow with the fourth root of the positives."""
    validated = entry.run.validated("AUC")
    gaps, aucs = last(entry.run.logged("gap")), last(validated)
    if not gaps or not aucs:
        return None
    pool = entry.scored.pool if entry.scored else None
    known = pool.positives if pool else None
    rows = entry.run.validations[-1][1].classes.values()
    counts = known.tolist() if known is not None else [row.positives for row in rows]
    pairs = enumerate(zip(gaps, aucs, strict=True))
    points = {position: (g, 100 * a) for position, (g, a) in pairs if g is not None and a is not None}
    if not points:
        return None
    largest = max([*counts, 1]) ** 0.25
    dots = [
        Dot(
            name=f"{entry.class_names[position]}: gap {x:.2f}, AUC {y:.1f}, {counts[position]:,} positives",
            x=x,
            y=y,
            radius=2 + 6 * counts[position] ** 0.25 / largest,
            class_index=entry.class_index[position],
        )
        for position in entry.shown
        if position in points
        for x, y in [points[position]]
    ]
    whose = "unlabeled" if known is not None else "validation"
    words = f"At the end, on the validation images. A dot grows with the class's positives among the {whose} images."
    lines, found = [], trend(list(points.values()))
    if found:
        slope, start, correlation = found
        ends = min(x for x, _ in points.values()), max(x for x, _ in points.values())
        lines.append(Line(name="trend", points=[(x, start + slope * x) for x in ends], dashed=True))
        words += f" Dashed: the least-squares trend, r = {correlation:.2f}."
    title = "AUC against the threshold gap (Fig. 3a)"
    description = "; ".join(dot.name for dot in dots)
    axes: dict[str, Any] = {"x_label": "threshold gap", "y_label": "AUC, %", "x_range": (0, 1), "band_axis": "x"}
    return run_figure(entry, title, words, description, lines=lines, dots=dots, band=gate, **axes)


def _gate(run: RunRecord) -> tuple[float, float] | None:
    """Where the weights of the unlabeled loss rise, if they follow the gap."""
    labeler, options = _labeler(run), run.config.options
    return labeler.gap_gate(all_options(run.config.method, options)) if labeler else None


def _labeler(run: RunRecord) -> type[Labeler] | None:
    """That of the run's method, if this version knows it and it has one."""
    return METHODS[run.config.method].labeler if run.config.method in METHODS else None


def _mean(shares: Sequence[float]) -> float:
    return sum((k + 0.5) / len(shares) * value for k, value in enumerate(shares))
