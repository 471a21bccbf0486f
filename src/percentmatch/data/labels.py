"""Labels of many images and classes, kept as what is rare in them: memory grows with the labels, not with n x c."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from percentmatch.errors import UserError

TABLES = ("targets", "known", "difficult")
AT_ONCE = 1 << 24  # pairs of image and class that are dense at a time
T = TypeVar("T")


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
        usual, lengths, columns = [torch.zeros(0, dtype=torch.uint8)], [torch.zeros(1, dtype=torch.long)], []
        for part in table.cpu().split(rows_at_once(table.shape[1])):
            ones = part != 0
            usual.append((2 * ones.sum(1) > table.shape[1]).byte())
            row, column = (ones != usual[-1][:, None]).nonzero(as_tuple=True)
            lengths.append(row.bincount(minlength=len(part)))
            columns.append(_small(column, table.shape[1]))
        found = torch.cat(columns) if columns else _small(torch.zeros(0), table.shape[1])
        return cls(torch.cat(usual), torch.cat(lengths).cumsum(0), found, table.shape[1])

    @classmethod
    def listed(cls, columns: Sequence[Collection[int]], width: int, usual: Sequence[int] = ()) -> "Flags":
        """From the columns of each row that differ from its usual value, which is 0 unless given."""
        values = torch.tensor(usual or [0] * len(columns), dtype=torch.uint8)
        starts = torch.tensor([0, *map(len, columns)]).cumsum(0)
        found = torch.tensor(list(chain.from_iterable(columns)), dtype=torch.long)
        return cls(values, starts, _small(found, width), width)

    @classmethod
    def full(cls, number: int, width: int, value: int = 0) -> "Flags":
        """The same value everywhere."""
        usual = torch.full((number,), value, dtype=torch.uint8)
        return cls(usual, torch.zeros(number + 1, dtype=torch.long), _small(torch.zeros(0), width), width)

    @classmethod
    def cat(cls, *tables: "Flags") -> "Flags":
        """The rows of several tables with the same columns."""
        lengths = [torch.zeros(1, dtype=torch.long), *(each.starts.diff() for each in tables)]
        usual, columns = (torch.cat([getattr(each, name) for each in tables]) for name in ("usual", "columns"))
        return cls(usual, torch.cat(lengths).cumsum(0), columns, tables[0].width)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def __len__(self) -> int:
        return len(self.usual)

    def select(self, rows: Tensor) -> "Flags":
        """The table of these rows."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        place = torch.arange(int(starts[-1])) + (self.starts[rows] - starts[:-1]).repeat_interleave(lengths)
        return Flags(self.usual[rows], starts, self.columns[place], self.width)

    def choose(self, columns: Sequence[int]) -> "Flags":
        """The table of these columns, in their order."""
        place_of = torch.full((self.width,), -1)
        place_of[torch.tensor(columns, dtype=torch.long)] = torch.arange(len(columns))
        places = place_of[self.columns.long()]
        kept = places >= 0
        lengths = torch.zeros(len(self), dtype=torch.long).index_add_(0, self._row_of(), kept.long())
        starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        return Flags(self.usual, starts, _small(places[kept], len(columns)), len(columns))

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

    def parts(self) -> Iterator[Tensor]:
        """The whole table, some dense rows at a time."""
        for rows in torch.arange(len(self)).split(rows_at_once(self.width)):
            yield self[rows]

    def ones(self) -> tuple[Tensor, Tensor]:
        """Row and column of every 1, in the order of the rows: (k,) each."""
        row, column = self._row_of(), self.columns.long()
        full = self.usual.nonzero().flatten()
        if not len(full):
            return row, column
        rare = self.usual[row] == 0
        found = [(row[rare], column[rare])]
        for rows in full.split(rows_at_once(self.width)):
            place, more = self[rows].nonzero(as_tuple=True)
            found.append((rows[place], more))
        row, column = (torch.cat(each) for each in zip(*found, strict=True))
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
    """What is known of n images and c classes. A target is 1 only where it is known."""

    targets: Flags
    known: Flags
    difficult: Flags

    @classmethod
    def of(cls, targets: Tensor | Flags, known: Tensor | Flags, difficult: Tensor | Flags) -> "Labels":
        """From dense tables, or from such as other labels hold."""
        known = known if isinstance(known, Flags) else Flags.of(known)
        if not isinstance(targets, Flags):
            parts = zip(targets.split(rows_at_once(known.width)), known.parts(), strict=True)
            found = [Flags.of(mine.cpu() * sure) for mine, sure in parts]
            targets = Flags.cat(*found) if found else Flags.full(0, known.width)
        return cls(targets, known, difficult if isinstance(difficult, Flags) else Flags.of(difficult))

    @classmethod
    def cat(cls, *several: "Labels") -> "Labels":
        tables = ([getattr(each, name) for each in several] for name in TABLES)
        return cls(*(Flags.cat(*each) for each in tables))

    @classmethod
    def none(cls, number: int, width: int) -> "Labels":
        """Of images of which nothing is known."""
        return cls(*(Flags.full(number, width) for _ in range(3)))

    def select(self, rows: Tensor) -> "Labels":
        return Labels(*(each.select(rows) for each in (self.targets, self.known, self.difficult)))

    def choose(self, columns: Sequence[int]) -> "Labels":
        return Labels(*(each.choose(columns) for each in (self.targets, self.known, self.difficult)))

    def certain(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Dense targets of these rows, and where they are known and not difficult: (rows, c) uint8 each."""
        return self.targets[rows], self.known[rows] * (1 - self.difficult[rows])

    def bytes_of(self, rows: Tensor) -> Iterator[Any]:
        """The dense targets of these rows, then known, then difficult, in pieces: to be hashed."""
        for table in (self.targets, self.known, self.difficult):
            for part in rows.split(rows_at_once(table.width)):
                yield table[part].numpy()


def check_single(labels: Labels, ids: Sequence[str], sources: Sequence[str] = ()) -> None:
    """Refuse an image with labels that has not exactly one; `sources` say where each was read, if from a file."""
    counts = labels.targets.in_rows()
    wrong = ((labels.known.in_rows() > 0) & (counts != 1)).nonzero().flatten().tolist()
    if wrong:
        row = wrong[0]
        where = f"{sources[row]}: " if sources else ""
        raise UserError(
            f"{where}image '{ids[row]}' has {int(counts[row])} labels ({len(wrong)} images have not exactly one); "
            "correct them, or train with --task multi-label"
        )


class Kept:
    """A dense table (n, c) of uint8 as an attribute of what keeps it in `labels`.

    It is made when asked for; a small one is then kept. Whoever needs some rows or counts of a large one asks `labels`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __set__(self, images: Any, table: Tensor | Flags) -> None:
        vars(images)[self.name] = table  # until `taken`

    def __get__(self, images: Any, owner: type | None = None) -> Any:
        if images is None:
            return self
        if self.name not in vars(images):
            table: Flags = getattr(images.labels, self.name)
            if table.shape[0] * table.shape[1] > AT_ONCE:
                return table.dense()
            vars(images)[self.name] = table.dense()
        return vars(images)[self.name]


def keeps_labels(cls: type[T]) -> type[T]:
    """A dataclass whose fields targets, known and difficult, dense or `Flags`, are kept as its `labels`.

    Its __post_init__ takes what they were given by `taken` and sets `labels`.
    """
    for name in TABLES:
        setattr(cls, name, Kept(name))
    return cls


def taken(images: Any) -> dict[str, Tensor | Flags]:
    """Targets, known and difficult as they were given, by name."""
    return {name: vars(images).pop(name) for name in TABLES}


def rows_at_once(width: int) -> int:
    return max(AT_ONCE // max(width, 1), 1)


def _small(columns: Tensor, width: int) -> Tensor:
    return columns.to(torch.int16 if width <= 1 << 15 else torch.int32)
