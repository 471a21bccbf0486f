"""The page as a whole: one file, with its style, script and data inside and no way to the network."""

import base64
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from percentmatch import __version__
from percentmatch.report.compare import comparison
from percentmatch.report.markup import Html, join, script_json, tag
from percentmatch.report.scoring import PageRun
from percentmatch.report.sections import page_examples, run_sections
from percentmatch.report.summary import sentence
from percentmatch.report.thumbnails import gallery


def page(entries: Sequence[PageRun], classes: Sequence[str]) -> str:
    """The report of one run, or of several with their comparison first."""
    style, script = (Html(files("percentmatch.report").joinpath(name).read_text()) for name in ("page.css", "page.js"))
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
    }
