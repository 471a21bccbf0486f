"""Drawings of a report for the documents: some of its figures side by side, in one SVG file each.

uv run percentmatch demo
uv run python benchmarks/report_pictures.py runs/demo
"""

import re
import sys
import tempfile
from pathlib import Path

from percentmatch.report import write_report

ROOT = Path(__file__).parent.parent
WIDTH, HEIGHT, TITLE = 380, 250, 24  # of a figure in the report, and room for its title
SHOWN = (0, 3, 7, 9)  # classes in colour, from the most to the least frequent
METHODS = ("supervised", "fixmatch", "percentmatch")


def drawing(page: str, titles: list[str], columns: int) -> str:
    """The figures of a report page that have these titles."""
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    found = dict(re.findall(r'<p class="figure-title">([^<]*)</p>\s*(<svg class="chart".*?</svg>)', page, re.DOTALL))
    rows = -(-len(titles) // columns)
    cells = []
    for place, title in enumerate(titles):
        x, y = place % columns * (WIDTH + 20) + 10, place // columns * (HEIGHT + TITLE + 20) + TITLE
        figure = found[title].replace("<svg ", f'<svg x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" ', 1)
        for color, number in enumerate(SHOWN):
            figure = figure.replace(f'data-c="{number}"', f'data-c="{number}" data-hi="{color}"')
        cells.append(f'<text class="title" x="{x}" y="{y - 6}">{title}</text>{figure}')
    width, height = columns * (WIDTH + 20), rows * (HEIGHT + TITLE + 20)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, Liberation Sans, sans-serif">\n'
        f"<style>{style[1] if style else ''} .title {{ font-weight: 600; font-size: 15px; fill: var(--ink) }}</style>\n"
        f'<rect width="{width}" height="{height}" fill="var(--card)"/>\n' + "\n".join(cells) + "\n</svg>\n"
    )


def main(runs: Path) -> None:
    folders = [runs / f"{method}-seed0" for method in METHODS]
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "report.html"
        write_report(folders[-1:], page)
        titles = ["Scores of unlabeled images (Fig. 2a)", "Thresholds (Fig. 2b)", "AUC on validation images (Fig. 2c)"]
        titles += ["AUC against the threshold gap (Fig. 3a)", "Threshold gap (Fig. 3b)"]
        titles += ["Weight of the unlabeled loss (Fig. 3c)"]
        (ROOT / "docs/images/report-figures.svg").write_text(drawing(page.read_text(), titles, 3))
        write_report(folders, page)
        titles = ["Gain in AP, class by class", "mAP on validation images", "AUC on validation images"]
        (ROOT / "docs/images/report-comparison.svg").write_text(drawing(page.read_text(), titles, 3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
