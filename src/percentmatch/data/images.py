"""A set of decoded images in memory, with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from percentmatch.errors import UserError


@dataclass(frozen=True)
class Images:
    """n images of one size. A label is 0 or 1 where `known` is 1, and means nothing where `known` is 0."""

    pixels: Tensor  # (n, 3, h, w) uint8
    targets: Tensor  # (n, c) uint8
    known: Tensor  # (n, c) uint8
    ids: tuple[str, ...]  # n names, unique
    class_names: tuple[str, ...]  # c

    def __len__(self) -> int:
        return len(self.pixels)

    def rows(self, ids: Sequence[str]) -> Tensor:
        """Where these ids stand: (len(ids),)."""
        row_of = {name: row for row, name in enumerate(self.ids)}
        missing = [name for name in ids if name not in row_of]
        if missing:
            raise UserError(f"the data has no image '{missing[0]}' (and {len(missing) - 1} more) that the split names")
        return torch.tensor([row_of[name] for name in ids], dtype=torch.long)

    def part(self, ids: Sequence[str]) -> "Images":
        """The images of these ids, in their order."""
        rows = self.rows(ids)
        return Images(self.pixels[rows], self.targets[rows], self.known[rows], tuple(ids), self.class_names)
