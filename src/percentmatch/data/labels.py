"""Labels of many images and classes, kept as what is rare in them: memory grows with the labels, not with n x c."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from percentmatch.errors import UserError

TABLES = ("targets", "known", "difficult")
AT_ONCE = 1 << 24  # pairs of image and class that are dense at a time


@dataclass(frozen=True, eq=False)
class Flags:
    """A table (n, c) of 0 and 1: the usual value of each row, and the columns that hold the other one."""

    usual: Tensor  # (n,) uint8
    starts: Tensor  # (n + 1,) where the columns of each row begin, and where the last end
    columns: Tensor  # (m,) of all rows; int16 where that is enough
    width: int

    @classmethod
    def of(cls, table: Tensor) -> "Flags":
        """From a dense table, where every value but 0 counts as 1."""
        found, width = [], table.shape[1]
        for block in table.cpu().split(rows_at_once(width)):
            ones = block != 0
            usual = (2 * ones.sum(1) > width).byte()
            row, column = (ones != usual[:, None]).nonzero(as_tuple=True)
            found.append(cls(usual, _starts(row.bincount(minlength=len(ones))), _small(column, width), width))
        return cls.cat(*found)

    @classmethod
    def listed(cls, columns: Sequence[Collection[int]], width: int, usual: Sequence[int] = ()) -> "Flags":
        """From the columns of each row that differ from its usual value, which is 0 unless given."""
        values = torch.tensor(usual or [0] * len(columns), dtype=torch.uint8)
        lengths = torch.tensor(list(map(len, columns)), dtype=torch.long)
        found = torch.tensor(list(chain.from_iterable(columns)), dtype=torch.long)
        return cls(values, _starts(lengths), _small(found, width), width)

    @classmethod
    def full(cls, number: int, width: int, value: int = 0) -> "Flags":
        """The same value everywhere."""
        usual, none = torch.full((number,), value, dtype=torch.uint8), torch.zeros(number, dtype=torch.long)
        return cls(usual, _starts(none), _small(none[:0], width), width)

    @classmethod
    def cat(cls, *tables: "Flags") -> "Flags":
        """The rows of several tables with the same columns."""
        lengths = torch.cat([table.starts.diff() for table in tables])
        usual, columns = (torch.cat([getattr(table, name) for table in tables]) for name in ("usual", "columns"))
        return cls(usual, _starts(lengths), columns, tables[0].width)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def __len__(self) -> int:
        return len(self.usual)

    def select(self, rows: Tensor) -> "Flags":
        """The table of these rows."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        starts = _starts(lengths)
        position = torch.arange(int(starts[-1])) + (self.starts[rows] - starts[:-1]).repeat_interleave(lengths)
        return Flags(self.usual[rows], starts, self.columns[position], self.width)

    def choose(self, columns: Sequence[int]) -> "Flags":
        """The table of these columns, in their order."""
        new_column = torch.full((self.width,), -1)
        new_column[torch.tensor(columns, dtype=torch.long)] = torch.arange(len(columns))
        found = new_column[self.columns.long()]
        chosen = found >= 0
        lengths = self._row_of()[chosen].bincount(minlength=len(self))
        return Flags(self.usual, _starts(lengths), _small(found[chosen], len(columns)), len(columns))

    def __getitem__(self, rows: Sequence[int] | Tensor) -> Tensor:
        """Rows as a dense table: (rows, c) uint8."""
        found = self.select(torch.as_tensor(rows, dtype=torch.long))
        table = found.usual[:, None].repeat(1, self.width)
        row = found._row_of()
        table[row, found.columns.long()] = 1 - found.usual[row]
        return table

    def dense(self) -> Tensor:
        """The whole table: (n, c) uint8."""
        return self[torch.arange(len(self))]

    def blocks(self) -> Iterator[Tensor]:
        """The whole table, some dense rows at a time."""
        for rows in torch.arange(len(self)).split(rows_at_once(self.width)):
            yield self[rows]

    def ones(self) -> tuple[Tensor, Tensor]:
        """Row and column of every 1, in the order of the rows: (k,) each."""
        row, column = self._row_of(), self.columns.long()
        rare = self.usual[row] == 0
        found = [(row[rare], column[rare])]
        for rows in self.usual.nonzero().flatten().split(rows_at_once(self.width)):
            row, column = self[rows].nonzero(as_tuple=True)
            found.append((rows[row], column))
        row, column = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = row.argsort(stable=True)
        return row[order], column[order]

    def in_columns(self) -> Tensor:
        """How many ones each column holds: (c,) int64."""
        signs = (1 - 2 * self.usual.long())[self._row_of()]
        return torch.zeros(self.width, dtype=torch.long).index_add_(0, self.columns.long(), signs) + self.usual.sum()

    def in_rows(self) -> Tensor:
        """How many ones each row holds: (n,) int64."""
        lengths = self.starts.diff()
        return torch.where(self.usual > 0, self.width - lengths, lengths)

    def any(self) -> bool:
        return bool(self.in_rows().any())

    def _row_of(self) -> Tensor:
        """The row of each entry of `columns`."""
        return torch.arange(len(self)).repeat_interleave(self.starts.diff())


@dataclass(frozen=True, eq=False)
class Labels:
    """What is known of n images and c classes. A target is 1 only where it is known.

    `difficult` marks pairs whose every object is hard to see (VOC): target 0, known 1. Training takes them as negative,
    scoring leaves them out or counts them as positive.
    """

    targets: Flags
    known: Flags
    difficult: Flags

    @classmethod
    def of(cls, targets: Tensor, known: Tensor | None = None, difficult: Tensor | None = None) -> "Labels":
        """From dense tables (n, c) of uint8: without `known` all is known, without `difficult` nothing is difficult."""
        tables = {"targets": targets, "known": known, "difficult": difficult}
        for name, table in tables.items():
            if not isinstance(table, Tensor | None) or table is targets is None:
                raise UserError(f"{name} must be a torch.Tensor, not {type(table).__name__}")
            if table is not None and (table.dtype != torch.uint8 or table.ndim != 2 or table.shape != targets.shape):
                found = f"{table.dtype} of shape {tuple(table.shape)}"
                raise UserError(f"{name} is {found}; it must be torch.uint8, a table of images and classes as targets")
        known = torch.ones_like(targets) if known is None else known
        difficult = torch.zeros_like(targets) if difficult is None else difficult
        if any((table > 1).any() for table in (targets * known, known, difficult)):
            raise UserError("labels must hold only 0 and 1: targets must be 0 or 1 where they are known")
        return cls(Flags.of(targets * known), Flags.of(known), Flags.of(difficult))

    @classmethod
    def cat(cls, *several: "Labels") -> "Labels":
        return cls(*(Flags.cat(*(getattr(labels, name) for labels in several)) for name in TABLES))

    @classmethod
    def none(cls, number: int, width: int) -> "Labels":
        """Of images of which nothing is known."""
        return cls(*(Flags.full(number, width) for _ in range(3)))

    @property
    def shape(self) -> tuple[int, int]:
        """Images and classes."""
        return self.targets.shape

    def select(self, rows: Tensor) -> "Labels":
        return Labels(*(getattr(self, name).select(rows) for name in TABLES))

    def choose(self, columns: Sequence[int]) -> "Labels":
        return Labels(*(getattr(self, name).choose(columns) for name in TABLES))

    def certain(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Dense targets of these rows, and where they are known and not difficult: (rows, c) uint8 each."""
        return self.targets[rows], self.known[rows] * (1 - self.difficult[rows])

    def bytes_of(self, rows: Tensor) -> Iterator[Any]:
        """The dense targets of these rows, then known, then difficult, in pieces: to be hashed."""
        for table in (self.targets, self.known, self.difficult):
            for block in rows.split(rows_at_once(table.width)):
                yield table[block].numpy()


def check_shape(labels: Labels, num_images: int, num_classes: int) -> None:
    if not isinstance(labels, Labels):
        raise UserError(f"labels must be Labels, not {type(labels).__name__}; make them by Labels.of(targets)")
    if labels.shape != (num_images, num_classes):
        raise UserError(f"labels are of shape {labels.shape}; give {num_images} images and {num_classes} classes")


def find_rows(ids: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """The rows of the images wanted, among all by their ids: (len(wanted),)."""
    row_of = {name: row for row, name in enumerate(ids)}
    if missing := [name for name in wanted if name not in row_of]:
        raise UserError(f"the data has no image {missing[0]!r} (and {len(missing) - 1} more); check the ids asked for")
    return torch.tensor([row_of[name] for name in wanted], dtype=torch.long)


def check_single(labels: Labels, ids: Sequence[str], sources: Sequence[str] = ()) -> None:
    """Refuse an image with labels that has not exactly one; `sources` say where each was read, if from a file."""
    counts = labels.targets.in_rows()
    wrong = ((labels.known.in_rows() > 0) & (counts != 1)).nonzero().flatten().tolist()
    for row in wrong[:1]:
        what = f"{sources[row]}: " if sources else ""
        what += f"image '{ids[row]}' has {int(counts[row])} labels ({len(wrong)} images have not exactly one)"
        raise UserError(f"{what}; correct them, or train with --task multi-label")


def rows_at_once(width: int) -> int:
    return max(AT_ONCE // max(width, 1), 1)


def _starts(lengths: Tensor) -> Tensor:
    return pad(lengths.cumsum(0), (1, 0))


def _small(columns: Tensor, width: int) -> Tensor:
    return columns.to(torch.int16 if width <= 1 << 15 else torch.int32)
