"""What a run made of the unlabeled images: the paper's Figures 2 and 3, and the selection of pseudo-labels."""

from collections.abc import Sequence

from percentmatch.labelers import Labeler
from percentmatch.methods import METHODS, all_options
from percentmatch.report.collect import RunRecord, Series, last
from percentmatch.report.curves import figure, figure_key, over_time, validation_means
from percentmatch.report.entry import Entry
from percentmatch.report.figures import Dot, Line, chart, trend
from percentmatch.report.markup import Html

RIGHT = ("positives_right", "positives_selected")
FOUND = ("positives_right", "positives_true")
NEGATIVES_RIGHT = ("negatives_right", "negatives_selected")


def pseudo_label_figures(entry: Entry) -> list[Html]:
    """The figures of scores, thresholds, weights and selection that this run has something for."""
    run = entry.run
    gate, labeler = _gate(run), _labeler(run)
    made = [
        _pool(entry),
        over_time(
            entry,
            "Thresholds (Fig. 2b)",
            "Above the line a pair is rather positive, below it rather negative; every pair is learnt."
            if labeler and labeler.every_pair
            else "A score above the solid line makes a pair positive, one below the dashed line negative.",
            "threshold",
            [run.logged("upper"), run.logged("lower")],
            y_range=(0, 1),
        ),
        over_time(
            entry,
            "AUC on validation images (Fig. 2c)",
            "Of the averaged weights, class by class.",
            "AUC, %",
            [run.validated("AUC")],
            factor=100,
        ),
        _auc_and_gap(entry, gate),
        over_time(
            entry,
            "Threshold gap (Fig. 3b)",
            "Shaded: the gate. A class below it has no weight, one above it the full weight." if gate else "",
            "gap",
            [run.logged("gap")],
            y_range=(0, 1),
            band=gate,
        ),
        over_time(
            entry,
            "Weight of the unlabeled loss (Fig. 3c)",
            "How much the pseudo-labels of a class count.",
            "weight",
            [run.logged("weights")],
        ),
        over_time(
            entry,
            "Selected as positive",
            "Share of the unlabeled images that get a positive pseudo-label.",
            "share of the images, %",
            [run.logged("positive_rate")],
            factor=100,
        ),
        over_time(
            entry,
            "Selected as negative",
            "Share of the unlabeled images that get a negative pseudo-label.",
            "share of the images, %",
            [run.logged("negative_rate")],
            factor=100,
        ),
        over_time(
            entry,
            "Precision of positive pseudo-labels",
            "How many are right, where the truth is known. Strong line: all classes.",
            "precision, %",
            [run.ratio(*RIGHT)],
            pooled=_pooled(run, *RIGHT),
            factor=100,
            y_range=(0, 100),
        ),
        over_time(
            entry,
            "Recall of positive pseudo-labels",
            "How many true positives are selected. Strong line: all classes.",
            "recall, %",
            [run.ratio(*FOUND)],
            pooled=_pooled(run, *FOUND),
            factor=100,
            y_range=(0, 100),
        ),
        over_time(
            entry,
            "Precision of negative pseudo-labels",
            "How many are right, where the truth is known. Strong line: all classes.",
            "precision, %",
            [run.ratio(*NEGATIVES_RIGHT)],
            pooled=_pooled(run, *NEGATIVES_RIGHT),
            factor=100,
        ),
    ]
    return [each for each in made if each is not None]


def _pool(entry: Entry) -> Html | None:
    """Fig. 2a: the distribution of the pool's scores, with the thresholds of the last log row."""
    pool = entry.scored.pool if entry.scored else None
    if not pool:
        return None
    shares = pool.histogram[list(entry.shown)].tolist()  # of each class shown
    names = [entry.class_names[place] for place in entry.shown]
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
            name=f"{entry.class_names[place]}: {which} threshold {value:.3f}",
            points=[(value, 0.0), (value, top)],
            class_index=entry.class_index[place],
            dashed=which == "lower",
            only_if_chosen=True,
        )
        for which, values in thresholds.items()
        for place in entry.shown
        if (value := values[place]) is not None
    ]
    number = f"{pool.num_scored:,}" + (f" of {pool.num_images:,}" if pool.num_scored < pool.num_images else "")
    words = f"Under the saved model, of {number} images."
    words += " The piles at the ends are cut off." if top < highest else ""
    if entry.run.logged("upper"):
        words += " Upright: the last thresholds of training, set on augmented views; solid upper, dashed lower."
    title = "Scores of unlabeled images (Fig. 2a)"
    means = [f"{name} {_mean(row):.2f}" for name, row in zip(names, shares, strict=True)]
    picture = chart(
        figure_key(entry, title),
        title,
        f"Mean scores: {'; '.join(means)}.",
        lines=lines,
        x_label="score",
        y_label="share of the images, %",
        x_range=(0, 1),
        y_range=(0, top),
    )
    return figure(picture, title, words)


def _auc_and_gap(entry: Entry, gate: tuple[float, float] | None) -> Html | None:
    """Fig. 3a: the AUC of each class against its gap; dots grow with the fourth root of the positives."""
    validated = entry.run.validated("AUC")
    gaps, aucs = last(entry.run.logged("gap")), last(validated)
    if not gaps or not aucs:
        return None
    pool = entry.scored.pool if entry.scored else None
    known = pool.positives if pool else None
    scored = validation_means(entry.run)[-1][1]["classes"]
    counts = known.tolist() if known is not None else [scored[name]["positives"] for name in entry.class_names]
    pairs = enumerate(zip(gaps, aucs, strict=True))
    points = {place: (g, 100 * a) for place, (g, a) in pairs if g is not None and a is not None}
    if not points:
        return None
    largest = max([*counts, 1]) ** 0.25
    dots = [
        Dot(
            name=f"{entry.class_names[place]}: gap {x:.2f}, AUC {y:.1f}, {counts[place]:,} positives",
            x=x,
            y=y,
            radius=2 + 6 * counts[place] ** 0.25 / largest,
            class_index=entry.class_index[place],
        )
        for place in entry.shown
        if place in points
        for x, y in [points[place]]
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
    picture = chart(
        figure_key(entry, title),
        title,
        "; ".join(dot.name for dot in dots),
        lines=lines,
        dots=dots,
        x_label="threshold gap",
        y_label="AUC, %",
        x_range=(0, 1),
        band=gate,
        band_axis="x",
    )
    return figure(picture, title, words)


def _gate(run: RunRecord) -> tuple[float, float] | None:
    """Where the weights of the unlabeled loss rise, if they follow the gap."""
    labeler, options = _labeler(run), run.config.options
    return labeler.gap_gate(all_options(run.config.method, options)) if labeler else None


def _labeler(run: RunRecord) -> type[Labeler] | None:
    """That of the run's method, if this version knows it and it has one."""
    return METHODS[run.config.method].labeler if run.config.method in METHODS else None


def _pooled(run: RunRecord, part: str, whole: str) -> Series | None:
    """A ratio of counts summed over the classes, as a series of one class."""
    parts, wholes = run.logged(part), run.logged(whole)
    if not parts or not wholes:
        return None
    sums = [(sum(v or 0 for v in a), sum(v or 0 for v in b)) for a, b in zip(parts[1], wholes[1], strict=True)]
    return parts[0], [[a / b if b else None] for a, b in sums]


def _mean(shares: Sequence[float]) -> float:
    return sum((k + 0.5) / len(shares) * value for k, value in enumerate(shares))
