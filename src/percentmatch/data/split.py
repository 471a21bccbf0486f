"""Which images are labeled, unlabeled, for validation and for the test: seeded, saved, hashed."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from percentmatch.errors import UserError

PARTS = ("labeled", "unlabeled", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Image ids of each part."""

    labeled: tuple[str, ...]
    unlabeled: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hash of all parts: two runs with the same digest saw the same images."""
        return hashlib.sha256(json.dumps([getattr(self, part) for part in PARTS]).encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps({"digest": self.digest, **{part: getattr(self, part) for part in PARTS}}, indent=0) + "\n"

    @classmethod
    def from_values(cls, values: Mapping[str, Any], source: str) -> "Split":
        """What `to_json` wrote, read back; refused if it was changed since."""
        lists = [values.get(part) for part in PARTS]
        if not all(isinstance(ids, list) and all(isinstance(name, str) for name in ids) for ids in lists):
            raise UserError(f"'{source}' is damaged: it must list the ids of {', '.join(PARTS)}")
        split = cls(*(tuple(values[part]) for part in PARTS))
        if values.get("digest") != split.digest:
            raise UserError(f"'{source}' was changed: its ids do not fit its digest")
        return split


def make_split(
    pool: Sequence[str],
    test: Sequence[str],
    *,
    labeled: float,
    validation: float = 0.0,
    seed: int = 0,
    without_labels: Collection[str] = (),
) -> Split:
    """Draw validation images, then labeled ones, at random from the pool; the rest is unlabeled (the paper's way).

    Numbers below 1 are shares of the images that have labels; those `without_labels` are always unlabeled. 0 labeled
    takes every image that has labels and is not for validation.
    """
    bare = set(without_labels)
    have_labels = [name for name in pool if name not in bare]
    total = len(have_labels)
    num_validation = _count(validation, total)
    num_labeled = _count(labeled, total) if labeled else total - num_validation
    if num_labeled < 1 or num_labeled + num_validation > total:
        raise UserError(
            f"labeled={labeled} and validation={validation} ask for {num_labeled} + {num_validation} of "
            f"{total} images with labels; ask for at least one labeled image and no more than there are"
        )
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    ids = [have_labels[i] for i in order]
    middle = num_validation + num_labeled
    parts = ids[num_validation:middle], [*ids[middle:], *bare], ids[:num_validation], list(test)
    return Split(*(tuple(sorted(part)) for part in parts))


def _count(value: float, total: int) -> int:
    return round(value * total) if value < 1 else int(value)
