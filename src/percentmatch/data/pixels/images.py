"""A set of decoded images in memory, with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from percentmatch.data.labels import TABLES, Labels, check_shape, find_rows
from percentmatch.errors import UserError


@dataclass(frozen=True)
class Images:
    """n images of one size, and what is known of c classes on them."""

    pixels: Tensor  # (n, 3, h, w) uint8
    labels: Labels  # of n images and c classes
    ids: tuple[str, ...]  # n names, unique
    class_names: tuple[str, ...]  # c

    def __post_init__(self) -> None:
        for field in ("ids", "class_names"):
            object.__setattr__(self, field, names := tuple(getattr(self, field)))
            if not all(isinstance(name, str) for name in names):
                raise UserError(f"{field} must be texts")
        n, c = len(self.ids), len(self.class_names)
        if not isinstance(self.pixels, Tensor):
            raise UserError(f"pixels must be a torch.Tensor, not {type(self.pixels).__name__}")
        shape, wanted = tuple(self.pixels.shape), (n, 3, *self.pixels.shape[2:])
        if self.pixels.dtype != torch.uint8 or shape != wanted:
            raise UserError(f"pixels must be uint8 of shape {wanted}, not {self.pixels.dtype} of {shape}")
        check_shape(self.labels, n, c)
        if self.pixels.ndim != 4 or len(set(self.ids)) < n or len(set(self.class_names)) < c or c == 0:
            raise UserError("images must be (n, 3, h, w), with ids that differ and at least one class, all different")

    def __len__(self) -> int:
        return len(self.pixels)

    def rows(self, ids: Sequence[str]) -> Tensor:
        """The rows of these ids: (len(ids),)."""
        return find_rows(self.ids, ids)

    def part(self, ids: Sequence[str]) -> "Images":
        """The images of these ids, in their order."""
        rows = self.rows(ids)
        return Images(self.pixels[rows], self.labels.select(rows), tuple(ids), self.class_names)

    def scoring_labels(self, *, count_difficult: bool) -> tuple[Tensor, Tensor]:
        """Targets and known, (n, c) each, to score with: difficult pairs count as positive or are left out."""
        targets, known, difficult = (getattr(self.labels, name).dense() for name in TABLES)
        return (targets | difficult, known) if count_difficult else (targets, known * (1 - difficult))
