"""What a file says of its images, row by row, and the manifest that these rows make.

A reader yields a `Row` for each image that its file names, or a `RowError` where it cannot be read. Training refuses
the first error; `data check` lists them all and goes on with the other rows.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from percentmatch.console.notices import print_to_stderr
from percentmatch.data.labels import Flags, Labels
from percentmatch.data.manifest import Manifest, check_room
from percentmatch.data.pixels.images import Say
from percentmatch.data.readers.folder import find_images, load_json, missing_image, read_text
from percentmatch.errors import UserError, did_you_mean

TABLES = (".csv", ".tsv", ".txt")  # suffixes of files that spreadsheets write
T = TypeVar("T")
R = TypeVar("R")


class Row(NamedTuple):
    """What a file says of one image."""

    image: str  # its path, as the file names it
    labels: Collection[str] | None  # the classes that it shows; None: nobody has looked at it
    source: str  # where the file says so, for messages: "labels.csv, line 17"
    subset: str = ""  # train, validation or test, or "" where the file does not say
    unsure: Collection[str] = ()  # classes of which it is not known whether the image shows them
    difficult: Collection[str] = ()  # classes whose every object is hard to see


class RowError(NamedTuple):
    """Why a row is refused, or a label of it."""

    source: str
    sentence: str  # whole, as training says it
    kind: Literal["bad row", "unknown class", "missing image", "conflicting labels", "leak"] = "bad row"
    name: str = ""  # of the class or image
    hint: str = ""  # which class may be meant


Report = Callable[[RowError], None]  # gets each error; whatever it does not raise is left out


class Code(NamedTuple):
    """A row in columns of classes."""

    shown: tuple[int, ...]
    unknown: tuple[int, ...] | None  # None: all, nobody has looked at the image
    difficult: tuple[int, ...] = ()


def refuse(error: RowError) -> NoReturn:
    raise UserError(error.sentence)


def without_missing(say: Say) -> Report:
    """Refuses what is wrong with a row, but goes on without images that are not there; `say` hears of each."""

    def report(error: RowError) -> None:
        if error.kind != "missing image":
            refuse(error)
        say(f"skipped: {error.source}: there is no image {error.name!r}")

    return report


@dataclass(frozen=True)
class LabelFile:
    """A file of labels, how it is to be read, and who hears of its errors."""

    path: Path
    images: Path | None = None  # the folder that paths begin at; None: that of the file
    classes: Sequence[str] | None = None  # those asked for; None: all
    report: Report = refuse
    say: Say = print_to_stderr  # hears what had to be assumed about the file

    @cached_property
    def text(self) -> str:
        return read_text(self.path, self.say if self.path.suffix.lower() in TABLES else None)

    @cached_property
    def content(self) -> Any:
        """Of a JSON file; None if it is none."""
        return load_json(self.path, self.text) if self.is_json else None

    @property
    def is_json(self) -> bool:
        return re.match(r"\s*[\[{]", self.text) is not None

    def has(self, *names: str) -> bool:
        """Whether it is a JSON object with one of these names."""
        return isinstance(self.content, dict) and not self.content.keys().isdisjoint(names)

    @property
    def folder(self) -> Path:
        return self.images or self.path.parent

    def manifest(
        self,
        rows: Iterable[Row | RowError],
        class_names: Sequence[str] | None = None,
        *,
        folder: Path | None = None,
        open_labels: bool = False,
        inside: bool = True,
    ) -> Manifest:
        """The images of these rows in `folder` and what is known of them. Images that are not there are errors.

        Without `class_names`, the classes are the labels in sorted order; `encode` says more. With `inside`, no path
        may lead out of the folder: the file was made by a program.
        """
        errors: list[RowError] = []

        def report(error: RowError) -> None:
            self.report(error)
            errors.append(error)

        folder, good = folder or self.folder, list(good_rows(rows, report))
        if not good:
            raise UserError(errors[0].sentence if errors else f"{self.path} names no image; export the data again")
        class_names, codes = encode(replace(self, report=report), good, class_names, open_labels=open_labels)
        names = find_images(folder, [row.image for row in good], inside=inside)
        missing = names.count("")
        for row, name in zip(good, names, strict=True):
            if not name:
                sentence = missing_image(row.source, row.image, folder, missing, len(names))
                report(RowError(row.source, sentence, "missing image", row.image))
        if missing == len(names):
            raise UserError(errors[0].sentence)
        chosen, subsets = _one_row_an_image(names, good, codes, report)
        ids, sources = tuple(names[row] for row in chosen), tuple(good[row].source for row in chosen)
        labels = labels_of([codes[row] for row in chosen], len(class_names))
        return Manifest(tuple(folder / name for name in ids), ids, labels, subsets, class_names, sources)


def each_row(items: Iterable[tuple[str, T | RowError]], read: Callable[[str, T], R]) -> Iterator[R | RowError]:
    """What `read` makes of each source and item. A UserError that it raises becomes an error, after the source.

    Errors among the items are passed on.
    """
    for source, item in items:
        try:
            row = item if isinstance(item, RowError) else read(source, item)
        except UserError as error:
            row = RowError(source, f"{source}: {error}")
        yield row


def encode(
    file: LabelFile, rows: Sequence[Row], class_names: Sequence[str] | None = None, *, open_labels: bool = False
) -> tuple[tuple[str, ...], list[Code]]:
    """The classes asked for, or all, and what each row says of them.

    `class_names` are those that the file has; without them, all labels that occur, sorted. A class asked for that the
    file does not have is unknown, and other classes are left out. With `open_labels`, people wrote the labels by hand:
    a class that no row names is absent, and other labels than the classes asked for are errors; where the report goes
    on, they become classes too.
    """
    if class_names is None:
        class_names = sorted({name for row in rows for name in (*(row.labels or ()), *row.unsure)})
    chosen, there = list(class_names if file.classes is None else file.classes), set(class_names)
    check_room(str(file.path), len(rows), len(chosen))
    column_of = {name: column for column, name in enumerate(chosen)}
    nowhere: set[int] = set()
    if open_labels and there.difference(chosen):
        chosen += _strays(file, rows, column_of)
        column_of = {name: column for column, name in enumerate(chosen)}
    elif not open_labels:
        nowhere = {column for name, column in column_of.items() if name not in there}
        if nowhere and (others := there.difference(chosen)):  # perhaps one of the others, spelt differently
            missing = chosen[min(nowhere)]
            raise UserError(f"{file.path}, header: there is no column {missing!r}{did_you_mean(missing, others)}")
    if not chosen:
        raise UserError(f"{file.path} names no class; label at least one image or name the classes")
    codes: dict[tuple, Code] = {}  # of what several rows say
    found = []
    for row in rows:
        labels = None if row.labels is None else tuple(row.labels)
        key = labels, tuple(row.unsure), tuple(row.difficult)
        if key not in codes:
            codes[key] = _code(row, column_of, nowhere)
        found.append(codes[key])
    return tuple(chosen), found


def labels_of(codes: Sequence[Code], num_classes: int) -> Labels:
    usual = [int(code.unknown is not None) for code in codes]
    known = Flags.listed([code.unknown or () for code in codes], num_classes, usual)
    shown, hard = (Flags.listed(columns, num_classes) for columns in ([c.shown for c in codes], [c[2] for c in codes]))
    return Labels(shown, known, hard)


def good_rows(rows: Iterable[Row | RowError], report: Report) -> Iterator[Row]:
    for row in rows:
        if isinstance(row, Row):
            yield row
        else:
            report(row)


def _strays(file: LabelFile, rows: Sequence[Row], column_of: dict[str, int]) -> list[str]:
    """Labels that are none of the classes asked for; each is reported for each row."""
    hint_of = cache(partial(did_you_mean, choices=column_of))
    strays = [(row.source, name) for row in rows for name in row.labels or () if name not in column_of]
    for source, name in strays:
        sentence = f"{source}: unknown class {name!r}{hint_of(name)}"
        file.report(RowError(source, sentence, "unknown class", name, hint_of(name)))
    return list(dict.fromkeys(name for _, name in strays))


def _code(row: Row, column_of: dict[str, int], nowhere: set[int]) -> Code:
    if row.labels is None:
        return Code((), None)
    shown, unsure, hard = (
        {column_of[name] for name in names if name in column_of} for names in (row.labels, row.unsure, row.difficult)
    )
    unknown = nowhere | unsure
    if len(unknown) == len(column_of):
        return Code((), None)
    return Code(tuple(sorted(shown - unknown)), tuple(sorted(unknown)), tuple(sorted(hard - unknown)))


def _one_row_an_image(
    names: Sequence[str], rows: Sequence[Row], codes: Sequence[Code], report: Report
) -> tuple[list[int], tuple[str, ...]]:
    """A row for each image, and the subset of each of these. Rows of an image that differ are errors.

    A row that knows no label gives way to another, which takes over its subset where it names none itself.
    """
    row_of: dict[str, int] = {}
    subsets = [row.subset for row in rows]
    for row, name in enumerate(names):
        other = row_of.setdefault(name, row) if name else row
        if (codes[other], subsets[other]) == (codes[row], subsets[row]):
            continue
        blank, full = sorted((other, row), key=lambda number: codes[number].unknown is not None)
        gives_way, named = codes[blank].unknown is None, {subsets[blank], subsets[full]} - {""}
        sentence = f"{rows[other].source} and {rows[row].source} give {name!r} different labels or parts; keep one row"
        if codes[other] != codes[row] and not gives_way:
            report(RowError(rows[row].source, sentence, "conflicting labels", name))
        if len(named) > 1 if gives_way else subsets[other] != subsets[row]:
            report(RowError(rows[row].source, sentence, "leak", name))
        if gives_way:
            row_of[name], subsets[full] = full, subsets[full] or subsets[blank]
    chosen = list(row_of.values())
    return chosen, tuple(subsets[row] for row in chosen)
