"""The images whose labels are probably wrong, class by class, on one page."""

from importlib.resources import files
from pathlib import Path

from percentmatch.files import replacing_named
from percentmatch.report.markup import Html, join, tag
from percentmatch.report.scoring import picture
from percentmatch.use.review import FINDINGS, Review, Suspect

HEADINGS = {"wrong": "Labeled, but probably without the class", "missing": "Not labeled, but probably with the class"}


def write_review_page(found: Review, out: Path) -> None:
    """One file that loads nothing. Classes are in their own order, images the most doubtful first."""
    names = found.images.class_names
    sections = []
    for column, name in enumerate(names):
        groups = []
        for finding in FINDINGS:
            mine = [each for each in found.suspects if (each.column, each.finding) == (column, finding)]
            if mine:
                pictures = tag("ul", *(_thumbnail(found, each) for each in mine), class_="thumbs")
                groups += [tag("p", f"{HEADINGS[finding]} ({len(mine)})", class_="group"), pictures]
        if groups:
            sections.append(tag("section", tag("h2", name), *groups))
    title = f"{len(found.suspects):,} labels to look at"
    about = (
        f"Of {found.num_labels:,} labels of {len(found.images):,} images, these are contradicted most by a classifier "
        "that was fitted without them. The number is its probability of the class; below it are the labels given."
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title}, PercentMatch"),
        tag("style", Html(files("percentmatch.report").joinpath("page.css").read_text(encoding="utf-8"))),
    )
    body = join(tag("header", tag("h1", title), tag("p", about)), tag("main", *sections))
    page = f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"
    with replacing_named(out) as file:
        file.write(page.encode(errors="replace").decode())


def _thumbnail(found: Review, each: Suspect) -> Html:
    row = found.images.labels.targets[[each.row]][0].nonzero().flatten().tolist()
    given = ", ".join(found.images.class_names[column] for column in row) or "no label"
    image = tag("img", src=picture(found.images.pixels[each.row]), alt=f"{each.image}: {given}", title=each.image)
    score = tag("span", f"{each.probability:.3f}", class_="score")
    return tag("li", image, score, tag("br"), given, tag("br"), tag("span", each.image, class_="none"))
