"""Which images there are and what is known of their labels, before any pixel is read."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unicodedata import normalize

import torch
from torch import Tensor

from percentmatch.data.labels import Labels, keeps_labels, taken
from percentmatch.errors import UserError, did_you_mean

PARTS = ("train", "validation", "test")
MOST_CLASSES = 25_000
MOST_PAIRS = 1 << 35  # of image and class, which are kept sparsely, and hashed one by one
MOST_CELLS = 1 << 30  # where each is a text or number of its own


@keeps_labels
@dataclass(frozen=True, eq=False)
class Manifest:
    """n images. A label is 0 or 1 where `known` is 1, and means nothing where `known` is 0.

    `difficult` marks pairs whose every object is hard to see (VOC): target 0, known 1. Training takes them as
    negative, scoring leaves them out or counts them as positive. The three tables are kept in `labels`, and made when
    asked for.
    """

    paths: tuple[Path, ...]  # n files
    ids: tuple[str, ...]  # n names, unique: the path within the image folder with forward slashes, or VOC's id
    targets: Tensor  # (n, c) uint8
    known: Tensor  # (n, c) uint8
    difficult: Tensor  # (n, c) uint8
    parts: tuple[str, ...]  # n, each of PARTS, or "" where the data does not say
    class_names: tuple[str, ...]  # c names, unique
    sources: tuple[str, ...]  # n, where each row was read, for messages: "labels.csv, line 17"
    labels: Labels = field(init=False, repr=False)

    def __post_init__(self) -> None:
        n, c = len(self.ids), len(self.class_names)
        if not n:
            raise UserError("the data has no image; name at least one")
        if not c:
            raise UserError("the data has no class; label at least one image or name the classes")
        for name in ("paths", "parts", "sources"):
            if len(getattr(self, name)) != n:
                raise UserError(f"{name} has {len(getattr(self, name))} entries for {n} images; give one for each")
        tables = taken(self)
        for name, values in tables.items():
            kind = values.dtype if isinstance(values, Tensor) else torch.uint8
            most = int(values.max()) if isinstance(values, Tensor) and values.shape == (n, c) else 1
            if values.shape != (n, c) or kind != torch.uint8 or most > 1:
                found = f"{kind} of shape {tuple(values.shape)}"
                raise UserError(f"{name} is {found}; it must be torch.uint8 of shape ({n}, {c}) and hold only 0 and 1")
        object.__setattr__(self, "labels", Labels.of(**tables))
        if len(set(self.ids)) < n:
            first, second = _first_twins(self.ids)
            where = f"{self.sources[first]} and {self.sources[second]}"
            raise UserError(f"two images have the id {self.ids[first]!r} ({where}); ids must differ")
        if len(set(self.class_names)) < c or not all(self.class_names):
            raise UserError(f"class names must differ and not be empty: {', '.join(map(repr, self.class_names))}")
        plain = [normalize("NFC", name) for name in self.class_names]
        if len(set(plain)) < c:
            first, _ = _first_twins(plain)
            raise UserError(
                f"two classes are called {plain[first]!r}, its accents encoded in two ways; write it in one"
            )
        wrong = set(self.parts) - {"", *PARTS}
        if wrong:
            raise UserError(f"unknown part {min(wrong)!r}; choose from: {', '.join(PARTS)}, or leave it empty")
        _check_text(self.ids, self.class_names)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: Sequence[str]) -> Tensor:
        """Where these ids stand: (len(ids),)."""
        row_of = {name: row for row, name in enumerate(self.ids)}
        missing = [name for name in ids if name not in row_of]
        if missing:
            raise UserError(
                f"the data has no image {missing[0]!r} (and {len(missing) - 1} more); check the ids asked for"
            )
        return torch.tensor([row_of[name] for name in ids], dtype=torch.long)

    def select(self, rows: Sequence[int] | Tensor) -> "Manifest":
        """The images of these rows (numbers, or a mask of all rows), in their order."""
        index = torch.as_tensor(rows)
        index = index.nonzero().flatten() if index.dtype in (torch.bool, torch.uint8) else index.long()
        places = index.tolist()
        return Manifest(
            paths=tuple(self.paths[row] for row in places),
            ids=tuple(self.ids[row] for row in places),
            **vars(self.labels.select(index)),
            parts=tuple(self.parts[row] for row in places),
            class_names=self.class_names,
            sources=tuple(self.sources[row] for row in places),
        )

    def choose(self, classes: Sequence[str]) -> "Manifest":
        """The same images with these classes only, in this order."""
        column_of = {name: column for column, name in enumerate(self.class_names)}
        missing = next((name for name in classes if name not in column_of), None)
        if missing is not None:
            raise UserError(f"the data has no class {missing!r}{did_you_mean(missing, self.class_names)}")
        labels = self.labels.choose([column_of[name] for name in classes])
        return replace(self, class_names=tuple(classes), **vars(labels))

    def part(self, *names: str) -> "Manifest":
        """The images of one part, or of several, in the order they have here."""
        rows = [row for row, part in enumerate(self.parts) if part in names]
        if not rows:
            there = ", ".join(repr(part) for part in sorted(set(self.parts)))
            raise UserError(f"no image is in part {' or '.join(map(repr, names))}; the parts of the data are: {there}")
        return self.select(rows)


def check_room(where: str, images: int, classes: int, most: int = MOST_PAIRS) -> None:
    """Refuse, before any room is taken, what a wrong column or a hostile file asks for."""
    if classes > MOST_CLASSES or images * classes > most:
        raise UserError(
            f"{where} names {classes:,} classes for {images:,} images, more than can be learnt; look whether these are "
            "labels, or name the classes to learn by --classes"
        )


def concat(first: Manifest, second: Manifest) -> Manifest:
    """The images of two manifests with the same classes."""
    if first.class_names != second.class_names:
        odd = sorted(set(first.class_names) ^ set(second.class_names)) or ["their order"]
        raise UserError(f"{first.sources[0]} and {second.sources[0]} differ in their classes: {', '.join(odd)}")
    names = ("paths", "ids", "parts", "sources")
    return Manifest(
        class_names=first.class_names,
        **{name: getattr(first, name) + getattr(second, name) for name in names},
        **vars(Labels.cat(first.labels, second.labels)),
    )


def join(labeled: Manifest, unlabeled: Manifest) -> Manifest:
    """Append images without labels, leaving out those that `labeled` already holds, also under another path.

    Give the whole labeled manifest, test images included, so that none of them comes back as an unlabeled one. Labels
    and classes of `unlabeled` are dropped; an id that is taken gets the prefix `unlabeled/`.
    """
    real_folders: dict[str, str] = {}
    held = {_real_path(path, real_folders) for path in labeled.paths}
    rows = [row for row, path in enumerate(unlabeled.paths) if _real_path(path, real_folders) not in held]
    taken = set(labeled.ids)
    ids = []
    for row in rows:
        name = unlabeled.ids[row]
        while name in taken:
            name = f"unlabeled/{name}"
        taken.add(name)
        ids.append(name)
    none = Labels.none(len(rows), len(labeled.class_names))
    return Manifest(
        paths=labeled.paths + tuple(unlabeled.paths[row] for row in rows),
        ids=labeled.ids + tuple(ids),
        **vars(Labels.cat(labeled.labels, none)),
        parts=labeled.parts + tuple(unlabeled.parts[row] for row in rows),
        class_names=labeled.class_names,
        sources=labeled.sources + tuple(unlabeled.sources[row] for row in rows),
    )


def _real_path(path: Path, real_folders: dict[str, str]) -> str:
    """The path without links. Each folder is resolved once, so a file costs one look at itself."""
    folder, name = os.path.split(path)
    if folder not in real_folders:
        real_folders[folder] = os.path.realpath(folder)
    real = os.path.join(real_folders[folder], name)
    return os.path.realpath(real) if os.path.islink(real) else real


def _first_twins(names: Sequence[str]) -> tuple[int, int]:
    seen: dict[str, int] = {}
    for row, name in enumerate(names):
        if name in seen:
            return seen[name], row
        seen[name] = row
    raise ValueError("all names differ")


def _check_text(*groups: tuple[str, ...]) -> None:
    """Names end up in UTF-8 files, so each must have a UTF-8 form (a file name on disk need not)."""
    for names in groups:
        try:
            "".join(names).encode()
        except UnicodeEncodeError:
            bad = next(name for name in names if any("\ud800" <= letter <= "\udfff" for letter in name))
            raise UserError(f"the name {bad!a} is not valid UTF-8; rename the file") from None
