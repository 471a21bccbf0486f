"""The sections of one run."""

from collections.abc import Sequence

from percentmatch.methods import labeled_loss_of
from percentmatch.report.collect import last
from percentmatch.report.curves import figure, training_figures
from percentmatch.report.figures import Line, chart, small_interval
from percentmatch.report.markup import Html, join, tag
from percentmatch.report.paper_figures import pseudo_label_figures
from percentmatch.report.scoring import PageRun, ScoredRun
from percentmatch.report.summary import summary
from percentmatch.report.tables import MISSING, Cell, count, percent, share, span, table
from percentmatch.report.thumbnails import GROUPS
from percentmatch.scoring.intervals import interval, resamples_of
from percentmatch.scoring.metrics import resampled_metrics
from percentmatch.scoring.table import SUBSETS, ScoreTable
from percentmatch.settings.config import Config


def run_sections(entry: PageRun, level: int) -> list[tuple[str, str, Html]]:
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


def class_tables(entry: PageRun) -> Html | None:
    run = entry.run
    tables = []
    for subset in SUBSETS:
        if scores := run.newest(subset):
            when = "the last step" if subset in run.scores else f"step {run.validations[-1][0]:,}"
            found = _class_table(entry, subset, scores, f"Each class on the {subset} images, at {when}")
            title = tag("summary", f"The same on the {subset} images")
            tables.append(tag("details", title, found) if tables else found)
    if not tables:
        return None
    titles = " and ".join(metric.title for metric in resampled_metrics().values())
    about = f"{titles} of the averaged weights, in percent."
    if entry.scored:
        number = resamples_of(len(entry.class_names))
        about += (
            f" Intervals are 95% percentile intervals of {number:,} resamples of the images: they say how much "
            "hangs on which images were scored, and nothing of the seed of the training."
        )
    box = tag("label", "Filter classes ", tag("input", type="search", class_="filter", autocomplete="off"))
    found = tag("span", class_="found", role="status")
    return join(tag("p", about), tag("p", box, " ", found, class_="filterbox"), *tables)


def _class_table(entry: PageRun, subset: str, scores: ScoreTable, caption: str) -> Html:
    scored, shown = entry.subset(subset), list(entry.shown)
    positives = [row.positives for row in scores.classes.values()]
    columns: dict[str, list[Cell]] = {"positives": [count(positives[position]) for position in shown]}
    if entry.scored:
        columns["labeled"] = [count(entry.scored.labeled_positives[position]) for position in shown]
    for name, metric in resampled_metrics().items():
        values = [scores.of_classes(name)[position] for position in shown]
        columns[metric.title] = [share(value) for value in values]
        if scored:
            drawn, exact = scored.resampled.classes[name][:, shown], scored.exact.classes[name][0, shown]
            ends = interval(drawn, around=exact)
            columns[f"95% interval of {metric.title}"] = [_ends(each) for each in ends]
            if name == "AP":
                columns["AP, 0 to 100"] = [_picture(*each) for each in zip(values, ends, strict=True)]
    if scored:
        columns["ECE"] = [share(error) for error in scored.reliability.errors[shown].tolist()]
    names = [entry.class_names[position] for position in shown]
    rows = list(zip(names, zip(*columns.values(), strict=True), strict=True))
    return table(caption, list(columns), rows, first="class", class_index=entry.shown_index)


def _ends(ends: tuple[float, float] | None) -> Cell:
    """Sorts by its width: the least certain classes are found at once."""
    return Cell(span(ends), None if ends is None else ends[1] - ends[0])


def _picture(value: float | None, ends: tuple[float, float] | None) -> Cell:
    return Cell("" if value is None else small_interval(value, ends), value)


def pseudo_labels(entry: PageRun) -> Html | None:
    figures = pseudo_label_figures(entry)
    numbers = _pseudo_table(entry)
    if not figures and numbers is None:
        return None
    return join(
        tag("p", "What the method made of the unlabeled images, class by class. Fig. 2 and 3 are the paper's."),
        tag("div", *figures, class_="figures"),
        tag("details", tag("summary", "The last numbers as a table"), numbers) if numbers else None,
    )


def _pseudo_table(entry: PageRun) -> Html | None:
    run = entry.run
    logged = {"upper threshold": "upper", "lower threshold": "lower", "gap": "gap", "weight": "weights"}
    rates = {"positive, %": "positive_rate", "negative, %": "negative_rate"}
    audits = {
        "positives right, %": ("positives_right", "positives_selected"),
        "positives found, %": ("positives_right", "positives_true"),
        "negatives right, %": ("negatives_right", "negatives_selected"),
    }
    found = {title: run.logged(name) for title, name in {**logged, **rates}.items()}
    found |= {title: run.ratio(*pair) for title, pair in audits.items()}
    columns = {title: values for title, series in found.items() if (values := last(series))}
    if not columns:
        return None
    rows = [
        (entry.class_names[n], [_scaled(values[n], percent="%" in title) for title, values in columns.items()])
        for n in entry.shown
    ]
    caption = f"Means of the steps up to {run.train[-1]['step']:,} since the row before"
    return table(caption, list(columns), rows, first="class", class_index=entry.shown_index)


def _scaled(value: float | None, *, percent: bool) -> Cell:
    return Cell(MISSING if value is None else f"{100 * value:.1f}" if percent else f"{value:.3f}", value)


def training(entry: PageRun) -> Html | None:
    figures = training_figures(entry)
    return tag("div", *figures, class_="figures") if figures else None


def calibration(entry: PageRun) -> Html | None:
    """A reliability diagram for each subset; with one label an image, too, every pair of image and class counts."""
    if not entry.scored or not entry.scored.subsets:
        return None
    figures = []
    for subset, scored in entry.scored.subsets.items():
        errors = scored.reliability.errors.tolist()
        lines = [
            Line(
                name=f"{entry.class_names[position]}, ECE {percent(errors[position])}%",
                points=scored.reliability.points(position),
                class_index=entry.class_index[position],
                marked=True,
            )
            for position in entry.shown
        ]
        whole = scored.pooled.points(0)
        lines.append(Line(name="all pairs", points=whole, marked=True))
        lines.append(Line(name="as it should be", points=[(0, 0), (1, 1)], dashed=True))
        words = f"ECE of all pairs: {percent(float(scored.pooled.errors))}%"
        if better := scored.calibrated:
            lines.append(Line(name="all pairs, calibrated", points=better.points(0), dashed=True, marked=True))
            words += f", calibrated (dashed, with dots) {percent(float(better.errors))}%"
        title = f"Reliability, {subset} images"
        bins = "; ".join(f"{x:.2f} predicted, {y:.2f} observed" for x, y in whole)
        pairs = "all pairs of image and class in ten bins"
        picture = chart(
            f"{entry.key}-reliability-{subset}",
            title,
            f"Observed share of positives against the predicted probability, {pairs}: {bins}",
            lines=lines,
            x_label="predicted probability",
            y_label="observed share of positives",
            x_range=(0, 1),
            y_range=(0, 1),
        )
        figures.append(figure(picture, title, f"{words}."))
    about = (
        "Where a line lies below the diagonal, the probabilities are too high. The strong line is of all pairs of "
        "image and class; bins of fewer than five pairs are not drawn. ECE is the mean distance from the diagonal, "
        "weighted by the pairs of a bin."
    )
    if _asymmetric(entry.run.config):
        about += " The asymmetric loss makes scores too high by design; AP and AUC do not mind."
    if any(each.calibrated for each in entry.scored.subsets.values()):
        about += (
            " These are the network's own scores; percentmatch predict gives calibrated probabilities. Calibration was "
            "learnt from labeled images, as a rule the validation images, so the test images judge it fairly."
        )
    return join(tag("p", about), tag("div", *figures, class_="figures"))


def _asymmetric(config: Config) -> bool:
    """Whether labeled images are learnt by ASL."""
    return config.task == "multi-label" and labeled_loss_of(config.method, config.options) == "asl"


def images(entry: PageRun) -> Html | None:
    if not entry.scored or not entry.scored.subsets:
        return None
    subset = "validation" if "validation" in entry.scored.subsets else "test"
    about = (
        f"Of the {subset} images, for the class chosen above. {_rule(entry.scored, subset)} Under each image: the "
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


def _rule(scored: ScoredRun, subset: str) -> str:
    """What makes a label a predicted one."""
    if scored.task == "single-label":
        return "The predicted label is the most probable one."
    if scored.aim is None:
        return (
            "The model knows no thresholds, as it had no validation images: a label counts as predicted from the score "
            f"on that has the best F1 on these {subset} images."
        )
    aim = "the best F1" if scored.aim == "F1" else scored.aim
    return (
        "A label counts as predicted where percentmatch predict decides for it: from the threshold on that the model "
        f"keeps for the class, chosen for {aim}."
    )


def page_examples(counts: Sequence[float], number: int = 4) -> list[int]:
    """A few classes from the most to the least frequent, evenly spread."""
    order = sorted(range(len(counts)), key=lambda position: -counts[position])
    if len(order) <= number:
        return order
    return [order[round(n * (len(order) - 1) / (number - 1))] for n in range(number)]
