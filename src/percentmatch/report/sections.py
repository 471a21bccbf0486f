"""The sections of one run."""

from collections.abc import Sequence

from percentmatch.methods import labeled_loss_of
from percentmatch.report.collect import last
from percentmatch.report.curves import figure, training_figures
from percentmatch.report.entry import Entry
from percentmatch.report.figures import Line, chart, small_interval
from percentmatch.report.markup import Html, join, tag
from percentmatch.report.paper_figures import pseudo_label_figures
from percentmatch.report.scoring import ScoredPart, ScoredRun
from percentmatch.report.summary import summary
from percentmatch.report.tables import MISSING, Cell, count, percent, share, span, table
from percentmatch.report.thumbnails import GROUPS
from percentmatch.scoring.intervals import interval, resamples_of
from percentmatch.settings.config import Config


def run_sections(entry: Entry, level: int) -> list[tuple[str, str, Html]]:
    """Key, title and content of each section that the run has something for."""
    makers = (
        ("summary", "Summary", summary),
        ("classes", "Classes", class_tables),
        ("pseudo", "Pseudo-labels", pseudo_labels),
        ("training", "Training", training),
        ("calibration", "Calibration", calibration),
        ("images", "Images", images),
    )
    made = [(f"{entry.key}-{key}", title, maker(entry)) for key, title, maker in makers]
    return [
        (
            key,
            title,
            tag("section", tag(f"h{level}", title, id=f"{key}-head"), content, id=key, aria_labelledby=f"{key}-head"),
        )
        for key, title, content in made
        if content is not None
    ]


def class_tables(entry: Entry) -> Html | None:
    run = entry.run
    tables = []
    for part in ("test", "validation"):
        scores = run.metrics[part]["ema"] if run.metrics and part in run.metrics else None
        words = f"{part} images, at the last step"
        if scores is None and part == "validation" and run.validation:
            scores, words = run.validation[-1], f"validation images, at step {run.validation[-1]['step']:,}"
        if scores:
            tables.append((part, _class_table(entry, part, scores["classes"], f"Each class on the {words}")))
    if not tables:
        return None
    shown = [tables[0][1], *(tag("details", tag("summary", f"The same on the {p} images"), t) for p, t in tables[1:])]
    about = "AP and AUC of the averaged weights, in percent."
    if entry.scored:
        number = resamples_of(len(entry.class_names))
        about += (
            f" Intervals are 95% percentile intervals of {number:,} resamples of the images: they say how much "
            "hangs on which images were scored, and nothing of the seed of the training."
        )
    box = tag("label", "Filter classes ", tag("input", type="search", class_="filter", autocomplete="off"))
    found = tag("span", class_="found", role="status")
    return join(tag("p", about), tag("p", box, " ", found, class_="filterbox"), *shown)


def _class_table(entry: Entry, part: str, classes: dict, caption: str) -> Html:
    scored: ScoredPart | None = entry.scored.parts.get(part) if entry.scored else None
    shown = list(entry.shown)
    nothing = [None] * len(shown)
    ap_ends, auc_ends, errors = nothing, nothing, None
    if scored:
        drawn, exact = scored.resampled, scored.exact
        ap_ends = interval(drawn.ap[:, shown], around=exact.ap[0, shown])
        auc_ends = interval(drawn.auc[:, shown], around=exact.auc[0, shown])
        errors = scored.calibration.errors()[shown].tolist()
    labeled = entry.scored.labeled_positives if entry.scored else None
    columns = ["positives", *(["labeled"] if labeled else []), "AP"]
    columns += ["95% interval of AP", "AP, 0 to 100"] if scored else []
    columns += ["AUC", *(["95% interval of AUC", "ECE"] if scored else [])]
    rows = []
    for row, place in enumerate(shown):
        name = entry.class_names[place]
        values = classes[name]
        cells = [count(values["positives"]), *([count(labeled[place])] if labeled else []), share(values["AP"])]
        if scored:
            cells += [_ends(ap_ends[row]), _picture(values["AP"], ap_ends[row])]
        cells.append(share(values["AUC"]))
        if scored and errors:
            cells += [_ends(auc_ends[row]), share(errors[row])]
        rows.append((name, cells))
    return table(caption, columns, rows, first="class", class_index=entry.shown_index)


def _ends(ends: tuple[float, float] | None) -> Cell:
    """Sorts by its width: the least certain classes are found at once."""
    return Cell(span(ends), None if ends is None else ends[1] - ends[0])


def _picture(value: float | None, ends: tuple[float, float] | None) -> Cell:
    return Cell("" if value is None else small_interval(value, ends), value)


def pseudo_labels(entry: Entry) -> Html | None:
    figures = pseudo_label_figures(entry)
    numbers = _pseudo_table(entry)
    if not figures and numbers is None:
        return None
    return join(
        tag("p", "What the method made of the unlabeled images, class by class. Fig. 2 and 3 are the paper's."),
        tag("div", *figures, class_="figures"),
        tag("details", tag("summary", "The last numbers as a table"), numbers) if numbers else None,
    )


def _pseudo_table(entry: Entry) -> Html | None:
    run = entry.run
    columns = {
        "upper threshold": (last(run.logged("upper")), 1),
        "lower threshold": (last(run.logged("lower")), 1),
        "gap": (last(run.logged("gap")), 1),
        "weight": (last(run.logged("weights")), 1),
        "positive, %": (last(run.logged("positive_rate")), 100),
        "negative, %": (last(run.logged("negative_rate")), 100),
        "positives right, %": (last(run.ratio("positives_right", "positives_selected")), 100),
        "positives found, %": (last(run.ratio("positives_right", "positives_true")), 100),
        "negatives right, %": (last(run.ratio("negatives_right", "negatives_selected")), 100),
    }
    there = {name: column for name, column in columns.items() if column[0]}
    if not there:
        return None
    rows = [
        (entry.class_names[place], [_scaled(values[place], factor) for values, factor in there.values() if values])
        for place in entry.shown
    ]
    caption = f"Means of the steps up to {run.train[-1]['step']:,} since the row before"
    return table(caption, list(there), rows, first="class", class_index=entry.shown_index)


def _scaled(value: float | None, factor: float) -> Cell:
    shown = MISSING if value is None else f"{value:.3f}" if factor == 1 else f"{factor * value:.1f}"
    return Cell(shown, value)


def training(entry: Entry) -> Html | None:
    figures = training_figures(entry)
    return tag("div", *figures, class_="figures") if figures else None


def calibration(entry: Entry) -> Html | None:
    """A reliability diagram for each part; with one label an image, too, every pair of image and class counts."""
    if not entry.scored or not entry.scored.parts:
        return None
    figures = []
    for part, scored in entry.scored.parts.items():
        table_ = scored.calibration
        pooled, errors = table_.pooled(), table_.errors().tolist()
        lines = [
            Line(
                name=f"{entry.class_names[place]}, ECE {percent(errors[place])}%",
                points=_reliability(table_.counts[place], table_.predicted[place], table_.observed[place]),
                class_index=entry.class_index[place],
                marked=True,
            )
            for place in entry.shown
        ]
        whole = _reliability(pooled.counts[0], pooled.predicted[0], pooled.observed[0])
        lines.append(Line(name="all pairs", points=whole, marked=True))
        lines.append(Line(name="as it should be", points=[(0, 0), (1, 1)], dashed=True))
        words = f"ECE of all pairs: {percent(float(pooled.errors()[0]))}%"
        if scored.calibrated:
            better = scored.calibrated.pooled()
            points = _reliability(better.counts[0], better.predicted[0], better.observed[0])
            lines.append(Line(name="all pairs, calibrated", points=points, dashed=True, marked=True))
            words += f", calibrated (dashed, with dots) {percent(float(better.errors()[0]))}%"
        title = f"Reliability, {part} images"
        picture = chart(
            f"{entry.key}-reliability-{part}",
            title,
            "Observed share of positives against the predicted probability, all pairs of image and class in ten bins: "
            + "; ".join(f"{x:.2f} predicted, {y:.2f} observed" for x, y in whole if y is not None),
            lines=lines,
            x_label="predicted probability",
            y_label="observed share of positives",
            x_range=(0, 1),
            y_range=(0, 1),
        )
        figures.append(figure(picture, title, f"{words}."))
    about = (
        "Where a line lies below the diagonal, the model claims more than it keeps. The strong line is of all pairs of "
        "image and class; bins of fewer than five pairs are not drawn. ECE is the mean distance from the diagonal, "
        "weighted by the pairs of a bin."
    )
    if _asymmetric(entry.run.config):
        about += " The asymmetric loss makes scores too high by design; AP and AUC do not mind."
    if any(each.calibrated for each in entry.scored.parts.values()):
        about += (
            " These are the network's own scores; percentmatch predict gives calibrated probabilities. Calibration was "
            "learnt from labeled images, as a rule the validation images, so the test images judge it fairly."
        )
    return join(tag("p", about), tag("div", *figures, class_="figures"))


def _asymmetric(config: Config) -> bool:
    """Whether labeled images are learnt by ASL."""
    return config.task == "multi-label" and labeled_loss_of(config.method, config.options) == "asl"


def _reliability(counts, predicted, observed, least: int = 5) -> list[tuple[float, float | None]]:
    bins = zip(counts.tolist(), predicted.tolist(), observed.tolist(), strict=True)
    return [(p / n, o / n) for n, p, o in bins if n >= least]


def images(entry: Entry) -> Html | None:
    if not entry.scored or not entry.scored.parts:
        return None
    part = "validation" if "validation" in entry.scored.parts else "test"
    about = (
        f"Of the {part} images, for the class chosen above. {_rule(entry.scored, part)} Under each image: the "
        "probability of the class, the true labels, then labels that are predicted and not true (+), or true and not "
        "predicted (\u2212)."
    )
    groups = [
        tag("div", tag("p", words, class_="group"), tag("ul", class_="thumbs", data_group=name))
        for name, words in GROUPS.items()
    ]
    return join(
        tag("p", about),
        tag("p", tag("strong", class_="shown-class", aria_live="polite")),
        tag("div", *groups, class_="gallery", data_run=entry.key),
        tag("noscript", tag("p", "The images are shown by the page's script, which is switched off.")),
    )


def _rule(scored: ScoredRun, part: str) -> str:
    """What makes a label a predicted one."""
    if scored.task == "single-label":
        return "The predicted label is the most probable one."
    if scored.aim is None:
        return (
            "The model knows no thresholds, as it had no validation images: a label counts as predicted from the score "
            f"on that has the best F1 on these {part} images."
        )
    aim = "the best F1" if scored.aim == "F1" else scored.aim
    return (
        "A label counts as predicted where percentmatch predict decides for it: from the threshold on that the model "
        f"keeps for the class, chosen for {aim}."
    )


def page_examples(counts: Sequence[float], number: int = 4) -> list[int]:
    """A few classes from the most to the least frequent, evenly spread."""
    order = sorted(range(len(counts)), key=lambda place: -counts[place])
    if len(order) <= number:
        return order
    return [order[round(n * (len(order) - 1) / (number - 1))] for n in range(number)]
