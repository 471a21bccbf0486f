"""The images a reader wants to see of each class, as small pictures inside the page."""

import base64
import io
from typing import Any

from PIL import Image
from torch import Tensor

from percentmatch.report.scoring import PageRun

GROUPS = {
    "surest": "Surest: the highest probabilities",
    "doubtful": "Most doubtful: closest to the opposite decision",
    "false": "Most wrong: predicted, but without the class",
    "missed": "Most wrong: not predicted, but with the class",
}
SIDE = 96  # pixels
PICTURES = 480  # of a page, about; at 2 to 3 kB each


def picture(pixels: Tensor) -> str:
    """An image (3, h, w) as a data address, at most SIDE pixels wide and high."""
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=70, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def gallery(entry: PageRun, pictures: dict[str, int], num_runs: int) -> dict[str, Any] | None:
    """What the page's script shows: images with their labels, and which of them each class shows; None without images.

    `pictures` are those of the page with their numbers, each kept once; new ones are added.
    """
    if not entry.scored or not (name := entry.scored.gallery_subset):
        return None
    subset = entry.scored.subsets[name]
    most = max(2, min(6, PICTURES // (len(GROUPS) * len(entry.shown) * num_runs)))  # of a class and group
    targets, known = (table.bool() for table in subset.images.scoring_labels(count_difficult=False))  # (n, c)
    image_numbers: dict[int, int] = {}  # by row
    classes = {}
    for column, _, number in entry.shown_classes:
        sure, doubt, decided = (each[:, column] for each in (subset.probabilities, subset.doubt, subset.decided))
        shows, counted = targets[:, column], known[:, column]
        rows_of = {
            "surest": _first(sure, counted, most),
            "doubtful": _first(-doubt, counted, most),
            "false": _first(sure, counted & ~shows & decided, most),
            "missed": _first(-sure, counted & shows & ~decided, most),
        }
        classes[number] = {
            group: [[image_numbers.setdefault(row, len(image_numbers)), round(float(sure[row]), 4)] for row in rows]
            for group, rows in rows_of.items()
        }
    truth = subset.images.labels.targets
    predicted = subset.decided & known  # a pair without a known label is no mistake
    images = [
        {
            "name": subset.images.ids[row],
            "picture": pictures.setdefault(picture(subset.images.pixels[row]), len(pictures)),
            "true": [entry.class_index[c] for c in truth[[row]][0].nonzero().flatten().tolist()],
            "predicted": [entry.class_index[c] for c in predicted[row].nonzero().flatten().tolist()],
        }
        for row in image_numbers
    ]
    return {"part": name, "images": images, "classes": classes}


def _first(key: Tensor, candidates: Tensor, most: int) -> list[int]:
    """The rows with the largest keys among the candidates (n,)."""
    rows = candidates.nonzero().flatten()
    return rows[key[rows].argsort(descending=True, stable=True)[:most]].tolist()
