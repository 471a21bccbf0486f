"""A set of decoded images in memory, with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from percentmatch.errors import UserError


@dataclass(frozen=True)
class Images:
    """n images of one size. A label is 0 or 1 where `known` is 1, and means nothing where `known` is 0.

    `difficult` marks pairs whose every object is hard to see (VOC): target 0, known 1. Training takes them as negative,
    scoring leaves them out or counts them as positive.
    """

    pixels: Tensor  # (n, 3, h, w) uint8
    targets: Tensor  # (n, c) uint8
    known: Tensor  # (n, c) uint8
    ids: tuple[str, ...]  # n names, unique
    class_names: tuple[str, ...]  # c
    difficult: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))  # (n, c) uint8; empty: no pair

    def __post_init__(self) -> None:
        n, c = len(self.ids), len(self.class_names)
        if not self.difficult.numel():
            object.__setattr__(self, "difficult", torch.zeros(n, c, dtype=torch.uint8))
        labels = dict.fromkeys(("targets", "known", "difficult"), (n, c))
        shapes = {"pixels": (n, 3, *self.pixels.shape[2:]), **labels}
        for name, shape in shapes.items():
            found = getattr(self, name)
            if found.dtype != torch.uint8 or tuple(found.shape) != shape:
                raise UserError(f"{name} must be uint8 of shape {shape}, not {found.dtype} of {tuple(found.shape)}")
        if self.pixels.ndim != 4 or len(set(self.ids)) < n or len(set(self.class_names)) < c or c == 0:
            raise UserError("images must be (n, 3, h, w), with ids that differ and at least one class, all different")
        if n and bool(((self.targets > 1) & (self.known > 0)).any()):
            raise UserError("targets must be 0 or 1 where they are known")

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
        labels = self.targets[rows], self.known[rows]
        return Images(self.pixels[rows], *labels, tuple(ids), self.class_names, self.difficult[rows])

    def scoring_labels(self, *, count_difficult: bool) -> tuple[Tensor, Tensor]:
        """Targets and known, (n, c) each, to score with: difficult pairs count as positive or are left out."""
        if count_difficult:
            return self.targets | self.difficult, self.known
        return self.targets, self.known * (1 - self.difficult)
