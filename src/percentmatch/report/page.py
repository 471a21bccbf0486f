"""The page as a whole: one file, with its style, script and data inside and no way to the network."""

import base64
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from percentmatch import __version__
from percentmatch.report.collect import RunRecord
from percentmatch.report.compare import comparison
from percentmatch.report.markup import Html, join, script_json, tag
from percentmatch.report.scoring import PageRun, ScoredRun
from percentmatch.report.sections import page_examples, run_sections
from percentmatch.report.summary import sentence
from percentmatch.report.thumbnails import Album, gallery


def page(entries: Sequence[PageRun], classes: Sequence[str]) -> str:
    """The report of one run, or of several with their comparison first."""
    style, script = (Html(files("percentmatch.report").joinpath(name).read_text()) for name in ("page.css", "page.js"))
    one = len(entries) == 1
    shown = sorted({number for entry in entries for number in entry.shown_index})
    title = f"Report of {entries[0].run.name}" if one else f"Comparison of {len(entries)} runs"
    body, links = _one_run(entries[0]) if one else _several_runs(entries, classes)
    menu = [tag("a", words, href=f"#{key}") for key, words in links]
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title}, PercentMatch"),
        tag("style", style),
    )
    parts = join(
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag(
            "header",
            tag("p", "PercentMatch", class_="brand"),
            tag("h1", title),
            tag("nav", *menu, aria_label="Sections"),
        ),
        _chooser(classes, shown) if classes else None,
        tag("main", body, id="content"),
        tag("footer", tag("p", f"Made by percentmatch {__version__}. This page holds all it shows and loads nothing.")),
        tag("div", id="tip", role="presentation", hidden=True),
        tag("script", script_json(_data(entries, classes, shown)), type="application/json", id="data"),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', parts), lang='en')}\n"


def _one_run(entry: PageRun) -> tuple[Html, list[tuple[str, str]]]:
    sections = run_sections(entry, level=2)
    return join(*(content for _, _, content in sections)), [(key, title) for key, title, _ in sections]


def _several_runs(entries: Sequence[PageRun], classes: Sequence[str]) -> tuple[Html, list[tuple[str, str]]]:
    parts = [
        tag(
            "section",
            tag("h2", "Comparison", id="compare-head"),
            comparison(entries, classes, entries[0].most_points),
            id="compare",
            aria_labelledby="compare-head",
        )
    ]
    for number, entry in enumerate(entries):
        sections = join(*(content for _, _, content in run_sections(entry, level=3)))
        swatch = tag("span", class_="swatch", data_s=number)
        name = tag("summary", tag("h2", swatch, entry.run.name), tag("p", sentence(entry)))
        parts.append(tag("details", name, sections, class_="run", id=entry.key))
    return join(*parts), [("compare", "Comparison"), *((entry.key, entry.run.name) for entry in entries)]


def _chooser(classes: Sequence[str], shown: Sequence[int]) -> Html:
    """The bar that follows the reader: which class the figures bring out."""
    options = [tag("option", "a few examples", value=""), *(tag("option", classes[n], value=n) for n in shown)]
    label = tag("label", "Class ", tag("select", *options, id="chooser", autocomplete="off"))
    return tag(
        "div", label, tag("ul", id="key", class_="legend"), class_="bar", role="region", aria_label="Class chooser"
    )


def _policy(style: str, script: str) -> str:
    """Only this style and this script, pictures from within, and nothing from elsewhere."""
    marks = [f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" for text in (style, script)]
    allowed = f"style-src {marks[0]}; script-src {marks[1]}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _data(entries: Sequence[PageRun], classes: Sequence[str], shown: Sequence[int]) -> dict[str, Any]:
    album, first = Album(), entries[0]
    galleries = {
        entry.key: gallery(entry.scored, album, entry.class_index, entry.shown, len(entries))
        for entry in entries
        if entry.scored
    }
    counts = frequencies(first.run, first.class_names, first.scored, classes)
    return {
        "classes": list(classes),
        "examples": [shown[position] for position in page_examples([counts[number] for number in shown])],
        "galleries": {key: value for key, value in galleries.items() if value},
        "pictures": album.pictures,
    }


def frequencies(run: RunRecord, names: Sequence[str], scored: ScoredRun | None, classes: Sequence[str]) -> list[float]:
    """How many positives each class has, as far as a run with classes of these names knows."""
    found = run.final()
    counts = {name: row.positives for name, row in found[1].classes.items()} if found else {}
    if scored:
        counts = dict(zip(names, scored.labeled_positives, strict=True))
    return [counts.get(name, 0) for name in classes]
