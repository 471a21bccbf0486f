"""Which images there are and what is known of their labels, before any pixel is read."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import normalize

import torch
from torch import Tensor

from percentmatch.data.labels import Flags, Labels, check_shape, find_rows, rows_at_once
from percentmatch.errors import UserError, did_you_mean
from percentmatch.records import MOST_CLASSES

SUBSETS = ("train", "validation", "test")
SUBSET_OF = {"": "", "?": "", "train": "train", "training": "train", "test": "test", "testing": "test"}  # as people say
SUBSET_OF |= {name: "validation" for name in ("validation", "val", "valid", "dev")}
COLUMNS = ("paths", "ids", "parts", "sources")  # of a manifest: a value for each image
NOT_UTF8 = re.compile("[\ud800-\udfff]")  # file names on disk may hold these, UTF-8 files cannot
MOST_PAIRS = 1 << 35  # of image and class, which are kept sparsely, and hashed one by one
MOST_CELLS = 1 << 30  # where each is a text or number of its own
MOST_PAIRED = 1000  # classes; of more, pairs are not counted, as there are more of them than anybody reads


@dataclass(frozen=True, eq=False)
class Manifest:
    """n images, before any of them is opened, and what is known of c classes on them."""

    paths: tuple[Path, ...]  # n files
    ids: tuple[str, ...]  # n names, unique: the path within the image folder with forward slashes, or VOC's id
    labels: Labels  # of n images and c classes
    parts: tuple[str, ...]  # n subsets, each of SUBSETS, or "" where the data does not say
    class_names: tuple[str, ...]  # c names, unique
    sources: tuple[str, ...]  # n, where each row was read, for messages: "labels.csv, line 17"

    def __post_init__(self) -> None:
        n, c = len(self.ids), len(self.class_names)
        if not n:
            raise UserError("the data has no image; name at least one")
        if not c:
            raise UserError("the data has no class; label at least one image or name the classes")
        for name in ("paths", "parts", "sources"):
            if len(getattr(self, name)) != n:
                raise UserError(f"{name} has {len(getattr(self, name))} entries for {n} images; give one for each")
        check_shape(self.labels, n, c)
        if len(set(self.ids)) < n:
            name = Counter(self.ids).most_common(1)[0][0]
            where = " and ".join(source for other, source in zip(self.ids, self.sources, strict=True) if other == name)
            raise UserError(f"several images have the id {name!r} ({where}); ids must differ")
        if len(set(self.class_names)) < c or not all(self.class_names):
            raise UserError(f"class names must differ and not be empty: {', '.join(map(repr, self.class_names))}")
        plain = [normalize("NFC", name) for name in self.class_names]
        if len(set(plain)) < c:
            name = Counter(plain).most_common(1)[0][0]
            raise UserError(f"two classes are called {name!r}, its accents encoded in two ways; write it in one")
        if wrong := set(self.parts) - {"", *SUBSETS}:
            raise UserError(f"unknown part {min(wrong)!r}; choose from: {', '.join(SUBSETS)}, or leave it empty")
        for name in (*self.ids, *self.class_names):
            if not name.isascii() and NOT_UTF8.search(name):
                raise UserError(f"the name {name!a} is not valid UTF-8; rename the file")

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: Sequence[str]) -> Tensor:
        """The rows of these ids: (len(ids),)."""
        return find_rows(self.ids, ids)

    def select(self, rows: Sequence[int] | Tensor) -> "Manifest":
        """The images of these rows (numbers, or a mask of all rows), in their order."""
        index = torch.as_tensor(rows)
        index = index.nonzero().flatten() if index.dtype in (torch.bool, torch.uint8) else index.long()
        columns = {name: tuple(getattr(self, name)[row] for row in index.tolist()) for name in COLUMNS}
        return replace(self, labels=self.labels.select(index), **columns)

    def choose(self, classes: Sequence[str]) -> "Manifest":
        """The same images with these classes only, in this order."""
        column_of = {name: column for column, name in enumerate(self.class_names)}
        missing = next((name for name in classes if name not in column_of), None)
        if missing is not None:
            raise UserError(f"the data has no class {missing!r}{did_you_mean(missing, self.class_names)}")
        labels = self.labels.choose([column_of[name] for name in classes])
        return replace(self, class_names=tuple(classes), labels=labels)

    def part(self, *names: str) -> "Manifest":
        """The images of one subset, or of several, in the order they have here."""
        rows = [row for row, subset in enumerate(self.parts) if subset in names]
        if not rows:
            there = ", ".join(map(repr, sorted(set(self.parts))))
            raise UserError(f"no image is in part {' or '.join(map(repr, names))}; the parts of the data are: {there}")
        return self.select(rows)


def check_room(where: str, images: int, classes: int, most: int = MOST_PAIRS) -> None:
    """Refuse, before any room is taken, what a wrong column or a hostile file asks for."""
    if classes > MOST_CLASSES or images * classes > most:
        what = f"{where} names {classes:,} classes for {images:,} images, more than can be learnt"
        raise UserError(f"{what}; check that these are labels, or name the classes to learn by --classes")


def concat(first: Manifest, second: Manifest) -> Manifest:
    """The images of two manifests with the same classes."""
    if first.class_names != second.class_names:
        odd = sorted(set(first.class_names) ^ set(second.class_names)) or ["their order"]
        raise UserError(f"{first.sources[0]} and {second.sources[0]} differ in their classes: {', '.join(odd)}")
    columns = {name: getattr(first, name) + getattr(second, name) for name in COLUMNS}
    return replace(first, labels=Labels.cat(first.labels, second.labels), **columns)


def join(labeled: Manifest, unlabeled: Manifest) -> Manifest:
    """Append images without labels, leaving out those that `labeled` already holds, also under another path.

    Give the whole labeled manifest, test images included, so that none of them comes back as an unlabeled one. Labels
    and classes of `unlabeled` are dropped; an id that is taken gets the prefix `unlabeled/`.
    """
    resolve = cache(os.path.realpath)
    held = {_real_path(path, resolve) for path in labeled.paths}
    rows = [row for row, path in enumerate(unlabeled.paths) if _real_path(path, resolve) not in held]
    if not rows:
        return labeled
    taken = dict.fromkeys(labeled.ids)
    for row in rows:
        name = unlabeled.ids[row]
        while name in taken:
            name = f"unlabeled/{name}"
        taken[name] = None
    ids, none = tuple(taken)[len(labeled) :], Labels.none(len(rows), len(labeled.class_names))
    more = replace(unlabeled.select(rows), ids=ids, labels=none, class_names=labeled.class_names)
    return concat(labeled, more)


def _real_path(path: Path, resolve: Callable[[str], str]) -> str:
    """The path without links. `resolve` keeps what it found, so a file costs one look at itself."""
    folder, name = os.path.split(path)
    real = os.path.join(resolve(folder), name)
    return os.path.realpath(real) if os.path.islink(real) else real


def describe(manifest: Manifest) -> dict[str, Any]:
    """Counts that can be written as JSON; a ratio without a denominator is None.

    An image is labeled if any of its labels is known. Cardinality: positives for each labeled image. Imbalance ratio:
    positives of the most frequent class over those of the rarest. In each class positives + negatives + difficult +
    unknown = images, and prevalence is positives / known. Co-occurrence: images positive for both classes, None for
    more than MOST_PAIRED classes.
    """
    labels = manifest.labels
    positives, num_labeled = labels.targets.in_columns().tolist(), int((labels.known.in_rows() > 0).sum())
    counts = zip(positives, labels.known.in_columns().tolist(), _difficult(labels).tolist(), strict=True)
    return {
        "images": len(manifest),
        "labeled_images": num_labeled,
        "parts": dict(sorted(Counter(manifest.parts).items())),
        "cardinality": _ratio(sum(positives), num_labeled),
        "imbalance_ratio": _ratio(max(positives), min(positives)),
        "classes": {
            name: {
                "positives": num_positive,
                "negatives": num_known - num_positive - num_difficult,
                "difficult": num_difficult,
                "unknown": len(manifest) - num_known,
                "prevalence": _ratio(num_positive, num_known),
            }
            for name, (num_positive, num_known, num_difficult) in zip(manifest.class_names, counts, strict=True)
        },
        "co_occurrence": _together(labels.targets) if len(positives) <= MOST_PAIRED else None,
    }


def _difficult(labels: Labels) -> Tensor:
    """How many pairs of each class are difficult and nothing else: (c,)."""
    counts = torch.zeros(labels.known.width, dtype=torch.long)
    for rows in labels.difficult.in_rows().nonzero().flatten().split(rows_at_once(len(counts))):
        counts += (labels.difficult[rows] & labels.known[rows] & (1 - labels.targets[rows])).sum(0)
    return counts


def _together(targets: Flags) -> list[list[int]]:
    """How many images show both of two classes: (c, c)."""
    counts = torch.zeros(targets.width, targets.width, dtype=torch.long)
    for block in targets.blocks():
        counts += (block.T.float() @ block.float()).long()  # exact: a block has at most 2 ** 24 rows
    return counts.tolist()


def _ratio(count: int, of: int) -> float | None:
    return count / of if of else None
