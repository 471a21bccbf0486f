"""Which images are labeled, unlabeled, for validation and for the test: seeded, saved, hashed."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from percentmatch.data.labels import Flags
from percentmatch.data.readers.folder import read_utf8
from percentmatch.errors import UserError

PARTS = ("labeled", "unlabeled", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Image ids of each subset."""

    labeled: tuple[str, ...]
    unlabeled: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    stream: str = field(default="", kw_only=True)  # a hash of the shards that unlabeled images come from, without ids

    @property
    def digest(self) -> str:
        """A hash of all subsets: two runs with the same digest saw the same images."""
        values = [*(getattr(self, subset) for subset in PARTS), *([self.stream] if self.stream else [])]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]

    def to_json(self) -> str:
        values = {subset: getattr(self, subset) for subset in PARTS} | ({"stream": self.stream} if self.stream else {})
        return json.dumps({"digest": self.digest, **values}, indent=0) + "\n"

    @classmethod
    def from_values(cls, values: Mapping[str, Any], source: str) -> "Split":
        """What `to_json` wrote, read back; refused if it was changed since."""
        lists = [values.get(subset) for subset in PARTS]
        if not all(isinstance(ids, list) and all(isinstance(name, str) for name in ids) for ids in lists):
            raise UserError(f"'{source}' is damaged: it must list the ids of {', '.join(PARTS)}")
        split = cls(*(tuple(values[subset]) for subset in PARTS), stream=str(values.get("stream", "")))
        if values.get("digest") != split.digest:
            raise UserError(f"'{source}' was changed: its ids do not fit its digest")
        return split


def read_split(
    file: Path,
    *,
    pool: Sequence[str],
    test: Sequence[str],
    without_labels: Collection[str],
    skipped: Collection[str] = (),
    all_there: bool = True,
) -> Split:
    """A split saved before, for the same images: each must be there, and those to be labeled must have labels.

    Images that were `skipped` are dropped from it, and unlabeled ones that are not there, unless `all_there` must be.
    """
    try:
        values = json.loads(read_utf8(file))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UserError(f"'{file}' is not a split; give a run's split.json or one written by `percentmatch data split`")
    split = Split.from_values(values, str(file))
    gone = set(skipped) if all_there else {*skipped, *set(split.unlabeled).difference(pool)}
    split = Split(*(tuple(name for name in getattr(split, subset) if name not in gone) for subset in PARTS))
    for subset in PARTS:
        ids = getattr(split, subset)
        missing = sorted(set(ids) - set(test if subset == "test" else pool))
        if missing:
            raise UserError(
                f"'{file}': {subset} image '{missing[0]}' is not in the data ({len(missing)} of {len(ids)} are not); "
                "give the data that the split was made for"
            )
    in_pool = [*split.labeled, *split.unlabeled, *split.validation]
    if len(set(in_pool)) < len(in_pool) or not split.labeled:
        raise UserError(f"'{file}' names an image twice or none as labeled; make the split again")
    bare = sorted({*split.labeled, *split.validation} & set(without_labels))
    if bare:
        raise UserError(f"'{file}' asks for the labels of '{bare[0]}', which the data does not have")
    return split


def make_split(
    pool: Sequence[str],
    test: Sequence[str],
    *,
    labeled: float,
    validation: float = 0.0,
    seed: int = 0,
    without_labels: Collection[str] = (),
    fixed_validation: Collection[str] = (),
    keep_classes: Tensor | Flags | None = None,
) -> Split:
    """Draw validation images, then labeled ones, at random from the pool; the rest is unlabeled (the paper's way).

    Numbers below 1 are shares of the images that have labels; those `without_labels` are always unlabeled. 0 labeled
    takes every image that has labels and is not for validation. `fixed_validation`, those with labels, are for
    validation whatever `validation` asks for, and shares are then of the other images. With `keep_classes`, the
    positives (n, c) of the pool, first the labeled part gets an image of every class, then the validation part where a
    class has another, and then the rest is drawn.
    """
    bare = set(without_labels)
    fixed = set(fixed_validation) - bare
    have_labels = [row for row, name in enumerate(pool) if name not in bare and name not in fixed]
    total = len(have_labels)
    num_labeled, num_validation = split_sizes(total, labeled=labeled, validation=validation, fixed=bool(fixed))
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [have_labels[i] for i in order]
    if keep_classes is None:
        valid, drawn = rows[:num_validation], rows[num_validation : num_validation + num_labeled]
    else:
        keep_classes = keep_classes if isinstance(keep_classes, Flags) else Flags.of(keep_classes)
        drawn = _one_of_each(rows, num_labeled, keep_classes)
        taken = set(drawn)
        valid = _one_of_each([row for row in rows if row not in taken], num_validation, keep_classes)
        taken, more = taken.union(valid), num_labeled - len(drawn)
        others = [row for row in rows if row not in taken]
        drawn, valid = drawn + others[:more], valid + others[more : more + num_validation - len(valid)]
    names = {*(pool[row] for row in drawn)}, fixed | {pool[row] for row in valid}
    rest = [name for name in pool if name not in names[0] and name not in names[1]]
    return Split(*(tuple(sorted(subset)) for subset in (names[0], rest, names[1], test)))


def split_sizes(total: int, *, labeled: float, validation: float, fixed: bool) -> tuple[int, int]:
    """How many of `total` images with labels are labeled, and how many validate; see `make_split`."""
    num_validation = 0 if fixed else _count(validation, total)
    num_labeled = _count(labeled, total) if labeled else total - num_validation
    if fixed and not total:
        raise UserError("every image with labels is set apart for validation; mark some of them for training")
    if not labeled and num_labeled < 1:
        raise UserError(
            f"validation={validation:g} leaves none of the {total} images with labels to learn from; ask for fewer"
        )
    if num_labeled < 1 or num_labeled + num_validation > total:
        raise UserError(
            f"labeled={labeled:g} and validation={validation:g} ask for {num_labeled} + {num_validation} of "
            f"{total} images with labels; ask for at least one labeled image and no more than there are"
        )
    return num_labeled, num_validation


def _one_of_each(rows: list[int], most: int, positives: Flags) -> list[int]:
    """Rows that show every class, the rarest class first; at most so many.

    Each class gets the first row that shows it and no rarer one, so that few images of those are taken, else the first.
    """
    if not rows:
        return []
    n, c = len(rows), positives.width
    row, column = positives.select(torch.tensor(rows)).ones()  # of each label
    order = column.bincount(minlength=c).argsort(stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(c))[column]  # 0: of the rarest class
    rarest = torch.full((n,), c).scatter_reduce_(0, row, rank, "amin")  # of each row, c if it shows no class
    first = torch.full((c,), n).scatter_reduce_(0, rank, row, "amin").tolist()  # row of each class, n if none shows it
    alone = torch.full((c + 1,), n).scatter_reduce_(0, rarest, torch.arange(n), "amin").tolist()
    starts, ranks = [0, *row.bincount(minlength=n).cumsum(0).tolist()], rank.tolist()
    covered: set[int] = set()
    drawn: list[int] = []
    for rank in range(c):
        if rank not in covered and first[rank] < n and len(drawn) < most:
            drawn.append(alone[rank] if alone[rank] < n else first[rank])
            covered.update(ranks[starts[drawn[-1]] : starts[drawn[-1] + 1]])
    return [rows[position] for position in drawn]


def _count(value: float, total: int) -> int:
    return round(value * total) if value < 1 else int(value)
