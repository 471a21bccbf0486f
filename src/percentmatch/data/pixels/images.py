"""A set of decoded images in memory, with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from percentmatch.data.labels import Flags, Labels, keeps_labels, taken
from percentmatch.errors import UserError


@keeps_labels
@dataclass(frozen=True)
class Images:
    """n images of one size. A label is 0 or 1 where `known` is 1, and means nothing where `known` is 0.

    `difficult` marks pairs whose every object is hard to see (VOC): target 0, known 1. Training takes them as negative,
    scoring leaves them out or counts them as positive. The three tables are kept in `labels`, and made when asked for.
    """

    pixels: Tensor  # (n, 3, h, w) uint8
    targets: Tensor  # (n, c) uint8
    known: Tensor  # (n, c) uint8
    ids: tuple[str, ...]  # n names, unique
    class_names: tuple[str, ...]  # c
    difficult: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))  # (n, c) uint8; empty: no pair
    labels: Labels = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for names in ("ids", "class_names"):
            object.__setattr__(self, names, tuple(getattr(self, names)))
            if not all(isinstance(name, str) for name in getattr(self, names)):
                raise UserError(f"{names} must be texts")
        n, c = len(self.ids), len(self.class_names)
        tables, shape = taken(self), (n, 3, *self.pixels.shape[2:])
        for name, found in {"pixels": self.pixels, **tables}.items():
            if not isinstance(found, Tensor | Flags):
                raise UserError(f"{name} must be a torch.Tensor, not {type(found).__name__}")
        if isinstance(tables["difficult"], Tensor) and not tables["difficult"].numel():
            tables["difficult"] = Flags.full(n, c)
        for name, found, wanted in [("pixels", self.pixels, shape), *((*each, (n, c)) for each in tables.items())]:
            kind = found.dtype if isinstance(found, Tensor) else torch.uint8
            if kind != torch.uint8 or tuple(found.shape) != wanted:
                raise UserError(f"{name} must be uint8 of shape {wanted}, not {kind} of {tuple(found.shape)}")
        if self.pixels.ndim != 4 or len(set(self.ids)) < n or len(set(self.class_names)) < c or c == 0:
            raise UserError("images must be (n, 3, h, w), with ids that differ and at least one class, all different")
        labels, targets = Labels.of(**tables), tables["targets"]
        odd = targets > 1 if isinstance(targets, Tensor) else torch.zeros(0)  # allowed where a label is unknown
        if odd.any() and (odd & (labels.known.dense() > 0)).any():
            raise UserError("targets must be 0 or 1 where they are known")
        object.__setattr__(self, "labels", labels)

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
        labels = vars(self.labels.select(rows))
        return Images(self.pixels[rows], ids=tuple(ids), class_names=self.class_names, **labels)

    def scoring_labels(self, *, count_difficult: bool) -> tuple[Tensor, Tensor]:
        """Targets and known, (n, c) each, to score with: difficult pairs count as positive or are left out."""
        if count_difficult:
            return self.targets | self.difficult, self.known
        return self.targets, self.known * (1 - self.difficult)
