"""The images a reader wants to see of each class, as small pictures inside the page."""

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image
from torch import Tensor

from percentmatch.report.scoring import ScoredRun, ScoredSubset

GROUPS = {
    "surest": "Surest: the highest probabilities",
    "doubtful": "Most doubtful: nearly decided otherwise",
    "false": "Most wrong: predicted without the class",
    "missed": "Most wrong: not predicted with the class",
}
SIDE = 96  # pixels
PICTURES = 480  # of a page, about; at 2 to 3 kB each


class Album:
    """Pictures of the page, each kept once even if several runs and classes show it."""

    def __init__(self) -> None:
        self.pictures: list[str] = []
        self._positions: dict[bytes, int] = {}

    def add(self, pixels: Tensor) -> int:
        """The position of an image (3, h, w) in `pictures`."""
        key = pixels.contiguous().numpy().tobytes()
        if key not in self._positions:
            self._positions[key] = len(self.pictures)
            self.pictures.append(picture(pixels))
        return self._positions[key]


def picture(pixels: Tensor) -> str:
    """An image (3, h, w) as a data address, at most SIDE pixels wide and high."""
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=70, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def choose(subset: ScoredSubset, number: int, columns: Sequence[int]) -> list[dict[str, list[int]]]:
    """For each of these classes the rows of up to `number` images a group, from pairs whose label is known."""
    targets, known = subset.images.scoring_labels(count_difficult=False)
    choices = []
    for column in columns:
        sure, doubt, decided = (each[:, column] for each in (subset.probabilities, subset.doubt, subset.decided))
        shows, counted = targets[:, column] > 0, known[:, column] > 0
        keys = {
            "surest": (sure, counted),
            "doubtful": (-doubt, counted),
            "false": (sure, counted & ~shows & decided),
            "missed": (-sure, counted & shows & ~decided),
        }
        choices.append({name: _first(key, among, number) for name, (key, among) in keys.items()})
    return choices


def gallery(
    scored: ScoredRun, album: Album, class_index: Sequence[int], shown: Sequence[int], num_runs: int
) -> dict[str, Any] | None:
    """What the page's script shows: images with their labels, the choice of each class shown; None without images."""
    name = next((name for name in ("validation", "test") if name in scored.subsets), None)
    if name is None:
        return None
    subset = scored.subsets[name]
    number = max(2, min(6, PICTURES // (len(GROUPS) * len(shown) * num_runs)))
    choices = choose(subset, number, shown)
    truth, known = subset.images.labels.targets, subset.images.scoring_labels(count_difficult=False)[1]  # (n, c)
    predicted = subset.decided & known.bool()  # what nobody knows to be there or not is no mistake
    position_of: dict[int, int] = {}
    images: list[dict[str, Any]] = []
    for row in dict.fromkeys(row for choice in choices for rows in choice.values() for row in rows):
        position_of[row] = len(images)
        images.append(
            {
                "name": subset.images.ids[row],
                "picture": album.add(subset.images.pixels[row]),
                "true": [class_index[c] for c in truth[[row]][0].nonzero().flatten().tolist()],
                "predicted": [class_index[c] for c in predicted[row].nonzero().flatten().tolist()],
            }
        )
    classes = {
        class_index[column]: {
            group: [[position_of[row], round(float(subset.probabilities[row, column]), 4)] for row in rows]
            for group, rows in choice.items()
        }
        for column, choice in zip(shown, choices, strict=True)
    }
    return {"part": name, "images": images, "classes": classes}


def _first(key: Tensor, among: Tensor, number: int) -> list[int]:
    """The rows with the largest keys among those marked."""
    rows = among.nonzero().flatten()
    return rows[key[rows].argsort(descending=True, stable=True)[:number]].tolist()
