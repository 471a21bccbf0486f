"""Which images are labeled, unlabeled, for validation and for the test: drawn as settings ask, saved, hashed, read."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from percentmatch.console.notices import print_to_stderr
from percentmatch.data.labels import Flags, Labels
from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.images import Images, Say
from percentmatch.data.readers.detect import detected
from percentmatch.data.readers.folder import read_text
from percentmatch.data.source import Data, validation_ids
from percentmatch.errors import UserError
from percentmatch.settings.config import DataSettings
from percentmatch.settings.declare import declared

T = TypeVar("T")
PARTS = ("labeled", "unlabeled", "validation", "test")


@dataclass(frozen=True)
class Split:
    """The image ids of each subset."""

    labeled: tuple[str, ...]
    unlabeled: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    stream: str = field(default="", kw_only=True)  # a hash of the shards that unlabeled images come from, without ids

    @property
    def digest(self) -> str:
        """A hash of all subsets: two runs with the same digest saw the same images."""
        return hashlib.sha256(json.dumps(list(self._values().values())).encode()).hexdigest()[:16]

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "stream" or value}

    def to_json(self) -> str:
        return json.dumps({"digest": self.digest, **self._values()}, indent=0) + "\n"

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


def split_data(
    settings: DataSettings,
    data: Data,
    *,
    saved: Path | None = None,
    unlabeled_needed: bool = True,
    say: Say = print_to_stderr,
) -> Split:
    """The split that the settings ask for; `say` gets a sentence about what it does without.

    Unlabeled images that a split file names must be there, unless nothing is learnt from them (`unlabeled_needed`).
    `saved` is where a run to be resumed keeps its split. If that is there, it counts instead of --split-file, which may
    be gone or changed by now.
    """
    settings, pool, test = detected(settings), data.pool, data.test.ids
    if settings.split_file and saved and saved.exists():
        say(f"the split comes from '{saved}', without regard to --split-file")
        bare = _without_labels(pool.ids, pool.labels)
        split = read_split(saved, pool=pool.ids, test=test, without_labels=bare, all_there=unlabeled_needed)
    else:
        split = _divide(settings, pool, test, data.validation, say, skipped=data.skipped, all_there=unlabeled_needed)
    if data.stream is None:
        return split
    if split.unlabeled:
        say(f"{len(split.unlabeled)} unlabeled images outside the shards are not used; the shards replace them")
    return replace(split, unlabeled=(), stream=data.stream.digest)


def split_manifest(settings: DataSettings, manifest: Manifest, *, say: Say = print_to_stderr) -> Split:
    """The same before any pixel is read."""
    settings = detected(settings)
    pool = manifest.select([subset != "test" for subset in manifest.parts])
    test = [name for name, subset in zip(manifest.ids, manifest.parts, strict=True) if subset == "test"]
    return _divide(settings, pool, test, validation_ids(settings, manifest), say)


def count_split(settings: DataSettings, manifest: Manifest) -> tuple[int, int]:
    """How many labeled and unlabeled images the split of these settings has; nothing is drawn."""
    if settings.split_file:
        split = split_manifest(settings, manifest, say=lambda _: None)
        return len(split.labeled), len(split.unlabeled)
    pool = manifest.select([subset != "test" for subset in manifest.parts])
    bare = _without_labels(pool.ids, pool.labels)
    fixed = set(validation_ids(settings, manifest)) - bare
    total = len(pool) - len(bare) - len(fixed)
    down = settings.split_kind == "field"
    labeled, validation = split_sizes(total, settings.labeled, settings.validation, fixed=bool(fixed), down=down)
    return labeled, len(pool) - len(fixed) - labeled - validation


def _without_labels(ids: Sequence[str], labels: Labels) -> set[str]:
    return {name for name, known in zip(ids, labels.known.in_rows().tolist(), strict=True) if not known}


def _divide(
    settings: DataSettings,
    pool: Images | Manifest,
    test: Sequence[str],
    fixed_validation: Sequence[str],
    say: Say,
    *,
    skipped: Collection[str] = (),
    all_there: bool = True,
) -> Split:
    """Read from --split-file, or drawn."""
    ids, file = pool.ids, settings.split_file
    bare = _without_labels(ids, pool.labels)
    if not file:
        if unfit := len(bare.intersection(fixed_validation)):
            say(f"{unfit} of {len(fixed_validation)} images for validation have no labels; they count as unlabeled")
        return make_split(
            ids,
            test,
            labeled=settings.labeled,
            validation=settings.validation,
            seed=settings.split_seed,
            without_labels=bare,
            fixed_validation=fixed_validation,
            keep_classes=pool.labels.targets if settings.split_kind == "every-class" else None,
            as_field=pool.labels.targets if settings.split_kind == "field" else None,
        )
    split = read_split(Path(file), pool=ids, test=test, without_labels=bare, skipped=skipped, all_there=all_there)
    draws = [name for name, about in declared(DataSettings).items() if about.draws]
    given = [name for name in draws if getattr(settings, name) not in (getattr(DataSettings, name), "random")]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        say(f"the split comes from '{file}', without regard to {flags}")
    if left := len({*ids, *test}.difference(split.labeled, split.unlabeled, split.validation, split.test)):
        say(f"left out {left} of {len(ids) + len(test)} images, which '{file}' does not name")
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
    values = None
    with suppress(ValueError, RecursionError):
        values = json.loads(read_text(file))
    if not isinstance(values, dict):
        raise UserError(f"'{file}' is not a split; give a run's split.json or one written by `percentmatch data split`")
    split = Split.from_values(values, str(file))
    gone = set(skipped) if all_there else {*skipped, *set(split.unlabeled).difference(pool)}
    split = Split(*(tuple(name for name in getattr(split, subset) if name not in gone) for subset in PARTS))
    for subset in PARTS:
        ids = getattr(split, subset)
        if missing := sorted(set(ids).difference(test if subset == "test" else pool)):
            what = f"{subset} image '{missing[0]}' is not in the data ({len(missing)} of {len(ids)} are not)"
            raise UserError(f"'{file}': {what}; give the data that the split was made for")
    in_pool = [*split.labeled, *split.unlabeled, *split.validation]
    if len(set(in_pool)) < len(in_pool) or not split.labeled:
        raise UserError(f"'{file}' names an image twice or none as labeled; make the split again")
    if bare := sorted({*split.labeled, *split.validation}.intersection(without_labels)):
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
    as_field: Tensor | Flags | None = None,
) -> Split:
    """Draw validation images, then labeled ones, at random from the pool; the rest is unlabeled (the paper's way).

    Numbers below 1 are fractions of the images that have labels; those `without_labels` are always unlabeled. 0 labeled
    takes every image that has labels and is not for validation. `fixed_validation`, those with labels, are for
    validation whatever `validation` asks for, and fractions are then of the other images. With `keep_classes`, the
    positives (n, c) of the pool, first the labeled part gets an image of every class, then the validation part where a
    class has another, and then the rest is drawn. With `as_field`, the same positives, it is the split of CAP, D2L and
    DiCaP: the images that show a class, sorted by id, in the order of numpy's RandomState(seed), of which the first
    are labeled, a fraction rounded down; those that show none are unlabeled.
    """
    fixed = set(fixed_validation).difference(without_labels)
    set_apart = fixed.union(without_labels)
    have_labels = [row for row, name in enumerate(pool) if name not in set_apart]
    if as_field is not None:
        shows = (as_field if isinstance(as_field, Flags) else Flags.of(as_field)).in_rows()  # (n,)
        have_labels = sorted((row for row in have_labels if shows[row]), key=lambda row: pool[row])
    total, down = len(have_labels), as_field is not None
    num_labeled, num_validation = split_sizes(total, labeled, validation, fixed=bool(fixed), down=down)
    if down and num_validation:
        raise UserError("--split-kind field sets no images apart; take --validation 0 or --official-validation")
    if down:
        order = np.random.RandomState(seed % 2**32).permutation(total).tolist()
    else:
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [have_labels[i] for i in order]
    if keep_classes is None:
        valid, drawn = rows[:num_validation], rows[num_validation : num_validation + num_labeled]
    else:
        positives = keep_classes if isinstance(keep_classes, Flags) else Flags.of(keep_classes)
        drawn = _one_of_each(rows, num_labeled, positives)
        valid = _one_of_each(_without(rows, drawn), num_validation, positives)
        others, more = _without(rows, drawn + valid), num_labeled - len(drawn)
        drawn, valid = drawn + others[:more], valid + others[more : more + num_validation - len(valid)]
    learnt, validated = [pool[row] for row in drawn], [*fixed, *(pool[row] for row in valid)]
    return Split(*(tuple(sorted(ids)) for ids in (learnt, _without(pool, learnt + validated), validated, test)))


def _without(items: Sequence[T], taken: Sequence[T]) -> list[T]:
    held = set(taken)
    return [item for item in items if item not in held]


def split_sizes(total: int, labeled: float, validation: float, *, fixed: bool, down: bool = False) -> tuple[int, int]:
    """How many of `total` images with labels are labeled, and how many validate; see `make_split`.

    A fraction is rounded to the nearest number, or `down`.
    """
    num_validation = 0 if fixed else _count(validation, total)
    rounded = int(labeled * total) if down and labeled < 1 else _count(labeled, total)
    num_labeled = rounded if labeled else total - num_validation
    if fixed and not total:
        raise UserError("every image with labels is set apart for validation; mark some of them for training")
    if not labeled and num_labeled < 1:
        raise UserError(f"validation={validation:g} leaves none of the {total} images with labels; ask for fewer")
    if num_labeled < 1 or num_labeled + num_validation > total:
        what = f"labeled={labeled:g} and validation={validation:g} ask for {num_labeled} + {num_validation}"
        raise UserError(f"{what} of {total} images with labels; ask for at least one to learn from and at most {total}")
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
    for which in range(c):
        if which not in covered and first[which] < n and len(drawn) < most:
            drawn.append(alone[which] if alone[which] < n else first[which])
            covered.update(ranks[starts[drawn[-1]] : starts[drawn[-1] + 1]])
    return [rows[position] for position in drawn]


def _count(value: float, total: int) -> int:
    return round(value * total) if value < 1 else int(value)
