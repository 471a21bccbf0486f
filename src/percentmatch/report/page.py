"""The page as a whole: one file, with its style, script and data inside and no way to the network."""

import base64
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from percentmatch import __version__
from percentmatch.methods import labeled_loss_of
from percentmatch.report.compare import comparison
from percentmatch.report.curves import chart_figure, pseudo_labels, training
from percentmatch.report.decisions import decisions, rule, slider_data
from percentmatch.report.figures import Line, small_interval
from percentmatch.report.markup import Cell, Html, count, join, percent, percent_cell, script_json, span, table, tag
from percentmatch.report.scoring import GROUPS, PageRun, gallery
from percentmatch.report.summary import sentence, summary
from percentmatch.scoring.intervals import interval, resamples_of
from percentmatch.scoring.metrics import resampled_metrics
from percentmatch.scoring.table import SUBSETS, ScoreTable


def page(entries: Sequence[PageRun], classes: Sequence[str]) -> str:
    """The report of one run, or of several with their comparison first."""
    style, script = (
        Html(files("percentmatch.report").joinpath(name).read_text("utf-8")) for name in ("page.css", "page.js")
    )
    shown = sorted({number for entry in entries for number in entry.shown_index})
    if len(entries) == 1:
        title, sections = f"Report of {entries[0].run.name}", run_sections(entries[0], level=2)
    else:
        title, sections = f"Comparison of {len(entries)} runs", _several_runs(entries, classes)
    menu = [tag("a", words, href=f"#{key}") for key, words, _ in sections]
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title}, PercentMatch"),
        tag("style", style),
    )
    brand = tag("p", "PercentMatch", class_="brand")
    body = join(
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", brand, tag("h1", title), tag("nav", *menu, aria_label="Sections")),
        _chooser(classes, shown) if classes else None,
        tag("main", *(content for _, _, content in sections), id="content"),
        tag("footer", tag("p", f"Made by percentmatch {__version__}. This page holds all it shows and loads nothing.")),
        tag("div", id="tip", role="presentation", hidden=True),
        tag("script", script_json(_data(entries, classes, shown)), type="application/json", id="data"),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _several_runs(entries: Sequence[PageRun], classes: Sequence[str]) -> list[tuple[str, str, Html]]:
    """Id, title and content: the comparison, then each run with its sections folded."""
    head = tag("h2", "Comparison", id="compare-head")
    compared = tag("section", head, comparison(entries, classes), id="compare", aria_labelledby="compare-head")
    sections = [("compare", "Comparison", compared)]
    for number, entry in enumerate(entries):
        heading = tag("h2", tag("span", class_="swatch", data_s=number), entry.run.name)
        summary = tag("summary", heading, tag("p", sentence(entry)))
        contents = (content for _, _, content in run_sections(entry, level=3))
        run = tag("details", summary, *contents, class_="run", id=entry.key)
        sections.append((entry.key, entry.run.name, run))
    return sections


def _chooser(classes: Sequence[str], shown: Sequence[int]) -> Html:
    """The bar that follows the reader: which class the figures bring out."""
    options = [tag("option", "a few examples", value=""), *(tag("option", classes[n], value=n) for n in shown)]
    label = tag("label", "Class ", tag("select", *options, id="chooser", autocomplete="off"))
    key = tag("ul", id="key", class_="legend")
    return tag("div", label, key, class_="bar", role="region", aria_label="Class chooser")


def _policy(style: str, script: str) -> str:
    """Only this style and this script, pictures from within, and nothing from elsewhere."""
    marks = [f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" for text in (style, script)]
    allowed = f"style-src {marks[0]}; script-src {marks[1]}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _data(entries: Sequence[PageRun], classes: Sequence[str], shown: Sequence[int]) -> dict[str, Any]:
    pictures: dict[str, int] = {}
    galleries = {entry.key: gallery(entry, pictures, len(entries)) for entry in entries}
    counts = entries[0].positives()
    return {
        "classes": list(classes),
        "examples": [shown[n] for n in page_examples([counts.get(classes[number], 0) for number in shown])],
        "galleries": {key: value for key, value in galleries.items() if value},
        "pictures": list(pictures),
        "sliders": {entry.key: found for entry in entries if (found := slider_data(entry))},
    }


def run_sections(entry: PageRun, level: int) -> list[tuple[str, str, Html]]:
    """Id, title and content of each section that the run has something for."""
    contents = {
        "Summary": summary(entry),
        "Classes": class_tables(entry),
        "Pseudo-labels": pseudo_labels(entry),
        "Training": training(entry),
        "Calibration": calibration(entry),
        "Decisions": decisions(entry),
        "Images": images(entry),
    }
    sections = []
    for title, content in contents.items():
        if content:
            key = f"{entry.key}-{title.split('-')[0].lower()}"
            head = tag(f"h{level}", title, id=f"{key}-head")
            sections.append((key, title, tag("section", head, content, id=key, aria_labelledby=f"{key}-head")))
    return sections


def class_tables(entry: PageRun) -> Html | None:
    run, tables = entry.run, []
    for subset in SUBSETS:
        if scores := run.newest(subset):
            when = "the last step" if subset in run.scores else f"step {run.validations[-1][0]:,}"
            found = _class_table(entry, subset, scores, f"Each class on the {subset} images, at {when}")
            title = tag("summary", f"The same on the {subset} images")
            tables.append(tag("details", title, found) if tables else found)
    if not tables:
        return None
    titles = " and ".join(metric.title for metric in resampled_metrics().values())
    about = f"{titles} of the EMA weights, in percent."
    if entry.scored:
        about += (
            f" Intervals are 95% percentile intervals of {resamples_of(len(entry.class_names)):,} resamples of the "
            "images. They show how much a score depends on the images that were scored, not on the training seed."
        )
    box = tag("label", "Filter classes ", tag("input", type="search", class_="filter", autocomplete="off"))
    found = tag("span", class_="found", role="status")
    return join(tag("p", about), tag("p", box, " ", found, class_="filterbox"), *tables)


def _class_table(entry: PageRun, subset: str, scores: ScoreTable, caption: str) -> Html:
    scored, shown = entry.subset(subset), list(entry.shown)
    positives = [row.positives for row in scores.classes.values()]
    columns = {"positives": [count(positives[position]) for position in shown]}
    if entry.scored:
        columns["labeled"] = [count(entry.scored.labeled_positives[position]) for position in shown]
    for name, metric in resampled_metrics().items():
        values = [scores.of_classes(name)[position] for position in shown]
        columns[metric.title] = [percent_cell(value) for value in values]
        if scored:
            drawn, exact = scored.resampled.classes[name][:, shown], scored.exact.classes[name][0, shown]
            ends = interval(drawn, around=exact)
            # sorted by width, so that the least certain classes come first
            columns[f"95% interval of {metric.title}"] = [Cell(span(e), e and e[1] - e[0]) for e in ends]
            if name == "AP":
                pictures = ["" if v is None else small_interval(v, e) for v, e in zip(values, ends, strict=True)]
                columns["AP, 0 to 100"] = [Cell(*pair) for pair in zip(pictures, values, strict=True)]
    if scored:
        columns["ECE"] = [percent_cell(error) for error in scored.reliability.errors[shown].tolist()]
    names = (name for _, name, _ in entry.shown_classes)
    rows = list(zip(names, zip(*columns.values(), strict=True), strict=True))
    return table(caption, ["class", *columns], rows, class_index=entry.shown_index)


def calibration(entry: PageRun) -> Html | None:
    """A reliability diagram for each subset; with one label an image, too, every pair of image and class counts."""
    if not entry.scored or not entry.scored.subsets:
        return None
    figures = []
    for subset, scored in entry.scored.subsets.items():
        errors, pooled = scored.reliability.errors.tolist(), scored.pooled.points(0)
        lines = []
        for position, name, number in entry.shown_classes:
            words, points = f"{name}, ECE {percent(errors[position])}%", scored.reliability.points(position)
            lines.append(Line(name=words, points=points, class_index=number, marker=2.5))
        lines.append(Line(name="all pairs", points=pooled, marker=2.5))
        lines.append(Line(name="as it should be", points=[(0, 0), (1, 1)], style="dashed"))
        words = f"ECE of all pairs: {percent(float(scored.pooled.errors))}%"
        if better := scored.calibrated:
            lines.append(Line(name="all pairs, calibrated", points=better.points(0), style="dashed", marker=2.5))
            words += f", calibrated (dashed, with dots) {percent(float(better.errors))}%"
        bins = "; ".join(f"{x:.2f} predicted, {y:.2f} observed" for x, y in pooled)
        axes: dict[str, Any] = {"x_label": "predicted probability", "y_label": "observed share of positives"}
        axes |= {"x_range": (0, 1), "y_range": (0, 1)}
        figures.append(
            chart_figure(
                entry.key,
                f"Reliability, {subset} images",
                f"{words}.",
                f"Observed share of positives against predicted probability, all pairs of image and class: {bins}",
                lines=lines,
                **axes,
            )
        )
    about = (
        "Where a line lies below the diagonal, the probabilities are too high. The strong line is of all pairs of "
        "image and class; bins of fewer than five pairs are not drawn. ECE is the mean distance from the diagonal, "
        "weighted by the number of pairs in each bin."
    )
    config = entry.run.config
    if config.task == "multi-label" and labeled_loss_of(config.method, config.options) == "asl":
        about += " The asymmetric loss makes scores too high by design; this changes neither AP nor AUC."
    if any(each.calibrated for each in entry.scored.subsets.values()):
        about += (
            " These are the network's own scores; percentmatch predict gives calibrated probabilities. Calibration is "
            "usually learnt from the validation images, so the test images are the fair judges of it."
        )
    return join(tag("p", about), tag("div", *figures, class_="figures"))


def images(entry: PageRun) -> Html | None:
    if not entry.scored or not entry.scored.subsets:
        return None
    about = (
        f"Some {entry.scored.gallery_subset} images, for the class chosen above. {rule(entry.scored)} Under each "
        "image: the probability of the class, the true labels, then labels that are predicted but not true (+), or "
        "true but not predicted (\u2212)."
    )
    groups = [
        tag("div", tag("p", words, class_="group"), tag("ul", class_="thumbs", data_group=name))
        for name, words in GROUPS.items()
    ]
    return join(
        tag("p", about),
        tag("p", tag("strong", class_="shown-class", aria_live="polite")),
        tag("div", *groups, class_="gallery", data_run=entry.key),
        tag("noscript", tag("p", "The page's script shows the images, and scripts are switched off.")),
    )


def page_examples(counts: Sequence[float], number: int = 4) -> list[int]:
    """A few classes from the most to the least frequent, evenly spread."""
    order = sorted(range(len(counts)), key=lambda position: -counts[position])
    if len(order) <= number:
        return order
    return [order[round(n * (len(order) - 1) / (number - 1))] for n in range(number)]
