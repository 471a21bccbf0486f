"""Labels from a CSV file: `image,labels` rows, or an image column and one column of 1 and 0 for each class."""

import ast
import csv
import io
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import compress
from pathlib import Path
from typing import IO

from percentmatch.data.manifest import SUBSET_OF, Manifest, check_room
from percentmatch.data.pixels.images import Say
from percentmatch.data.readers.folder import is_image_name, read_text
from percentmatch.data.readers.rows import LabelFile, Row, RowError, each_row
from percentmatch.errors import UserError

IMAGE_HEADERS = ("image", "file", "filename", "file_name", "path")  # in any case
LABEL_HEADERS = ("labels", "label", "tags", "classes", "class")
PART_HEADERS = ("part", "split")  # of the column that names the subset
NOTHING_KNOWN = "?"  # in a column of labels: this image has not been looked at
UNKNOWN, MINUS = 2, 3  # values of a cell; the others are 0 and 1
CELLS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0, "-1": MINUS, "-1.0": MINUS}
CELLS |= dict.fromkeys(("", "?", "nan"), UNKNOWN)
MARKS = ("x", "\u2713", "\u2714")  # of classes that are present, in tables that hold no other cells but empty ones
RISKY = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # a spreadsheet may run a cell that begins so; full width, too
_ITEM = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|\d{1,18}+)\s*+"""
PYTHON_LIST = re.compile(rf"\[\s*+(?:{_ITEM}(?:,\s*+{_ITEM})*+)?+,?\s*+\]", re.DOTALL)  # of texts and numbers
DIVIDES = re.compile("\r|[;\t]\\s*[=+@-]")  # a line, or a cell that begins like a formula
LONGEST_LINE = 1 << 22  # letters
NOWHERE = -1  # a column that the file does not have: lines end with an empty cell


Line = list[str]  # a cell for each column, and an empty one
Answer = tuple[Collection[str] | None, Collection[str]]  # labels and unsure classes, as in Row


@dataclass(frozen=True)
class Table:
    """The cells of a file and where its columns are."""

    file: Path
    header: list[str]
    lines: Sequence[Line | RowError]
    sources: Sequence[str]  # "labels.csv, line 17" for each line
    image: int
    labels: int  # NOWHERE: there is a column for each class
    subset: int
    mark: str = ","  # what divides its cells


def read_table(file: Path, images: Path | None = None, *, classes: Sequence[str] | None = None) -> Manifest:
    """Read a CSV file (comma, semicolon or tab) whose paths are relative to `images`, or to its own folder.

    Labels in one cell are separated by `;`, else `|`, else `,`: the first that any cell holds; without one of these,
    by spaces. They may be a list in brackets too. An empty label cell means none of the classes, `?` that nothing is
    known. An empty one-hot cell, `?` or -1 means unknown. Without `classes`, the classes are the labels in sorted
    order, or the columns in theirs. With them, any other label is an error; other columns are left out. A column named
    part or split may say train, validation or test. A row that knows nothing gives way to another of the same image.
    """
    return read_csv(LabelFile(file, images, classes))


def read_csv(file: LabelFile) -> Manifest:
    return read_cells(file, open_table(file.path, file.text), inside=False)


def read_cells(file: LabelFile, table: Table, *, inside: bool) -> Manifest:
    """What a table says, in one column of labels or in one column for each class."""
    if table.labels != NOWHERE:
        return file.manifest(label_rows(table, file.classes), open_labels=True, inside=inside)
    column_of = class_columns(table)
    asked = list(column_of) if file.classes is None else file.classes
    check_room(str(table.file), len(table.lines), len(asked))
    rows = _from_columns(table, {name: column_of[name] for name in asked if name in column_of}, file.say)
    return file.manifest(rows, tuple(column_of), inside=inside)


def open_table(file: Path, text: str | None = None) -> Table:
    """The cells of a CSV file, whose text may have been read already."""
    text = read_text(file) if text is None else text
    for number, line in enumerate(io.StringIO(text, newline="\n"), 1):
        if len(line) > LONGEST_LINE:
            raise UserError(f"{file}, line {number}: more than {LONGEST_LINE:,} letters in a line; is this a CSV file?")
    mark = max(",;\t", key=partial(_header_score, text))
    rows = _numbered_rows(file, text, mark)
    header = [unguard(cell.strip()) for cell in next(rows, ("", []))[1]]
    if not header:
        raise UserError(f"{file} is empty; write a header such as image,labels and one row for each image")
    columns = find_columns(file, header)

    def read(_: str, cells: Line) -> Line:
        if len(cells) != len(header):
            found = f"{len(cells)} columns where the header has {len(header)}"
            raise UserError(f"{found}; put quotes around a cell that holds {mark!r}")
        if not cells[columns[0]].strip():
            raise UserError("a row without an image; name the image or remove the row")
        return [*cells, ""]

    found = list(rows)
    if not found:
        raise UserError(f"{file} has a header but no row; write one row for each image")
    return Table(file, header, list(each_row(found, read)), [source for source, _ in found], *columns, mark=mark)


def _numbered_rows(file: Path, text: str, mark: str) -> Iterator[tuple[str, Line]]:
    """The rows that are not empty, each with where it stands: "labels.csv, line 3"."""
    reader, end = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True), 0
    try:
        for cells in reader:
            if any(map(str.strip, cells)):  # spreadsheets write rows of nothing but commas
                yield f"{file}, line {end + 1}", cells
            end = reader.line_num  # a cell in quotes may have several lines
    except csv.Error as error:
        what = f"this is no row of a CSV file ({error})"
        raise UserError(f"{file}, line {end + 1}: {what}; look for a quote that is never closed") from None


def _header_score(text: str, mark: str) -> tuple[bool, int]:
    """How well the first row reads with this delimiter: has it an image column, and how many columns."""
    header = first_row(text, mark)
    return len(header) > 1 and any(_plain(cell) in IMAGE_HEADERS for cell in header), len(header)


def first_row(text: str, mark: str) -> list[str]:
    """The first row that holds anything; empty if it cannot be read with this delimiter."""
    with suppress(UserError):
        return next(_numbered_rows(Path(), text, mark), ("", []))[1]
    return []


def write_row(file: IO[str], cells: list[str], mark: str = ",") -> None:
    # minimal quotes do not see a \r, nor that a spreadsheet may divide cells at a semicolon or tab
    quoting = csv.QUOTE_ALL if DIVIDES.search("".join(cells)) else csv.QUOTE_MINIMAL
    csv.writer(file, delimiter=mark, lineterminator="\n", quoting=quoting).writerow(cells)


def guard(text: str) -> str:
    """A class as a cell that no spreadsheet takes for a formula: after an apostrophe, where it begins like one."""
    return f"'{text}" if text.lstrip("'").startswith(RISKY) else text


def unguard(text: str) -> str:
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(RISKY) else text


def _plain(cell: str) -> str:
    return cell.strip().lower().replace(" ", "_")


def find_columns(file: Path, header: list[str]) -> tuple[int, int, int]:
    """The columns of image, labels and subset; without a column of labels, every other one is a class."""
    if len(header) < 2:
        raise UserError(f"{file} has one column; its header must be image,labels or image and the name of each class")
    if is_image_name(header[0]):
        raise UserError(f"{file} begins with an image instead of a header; write a header such as image,labels")
    plain = [_plain(cell) for cell in header]
    image = next((column for column, name in enumerate(plain) if name in IMAGE_HEADERS), 0)
    found = []
    for choices in (LABEL_HEADERS, PART_HEADERS):
        columns = [column for column, name in enumerate(plain) if name in choices and column != image]
        if len(columns) > 1:
            names = " and ".join(repr(header[column]) for column in columns)
            raise UserError(f"{file} has the columns {names}, which mean the same; keep one of them")
        found.append(columns[0] if columns else NOWHERE)
    return image, found[0], found[1]


def rows_of(
    table: Table, answer_of: Callable[[list[str]], Answer], find: Callable[[str], str] = str
) -> Iterator[Row | RowError]:
    """A row for each line. `answer_of` tells what its cells say, or raises UserError; `find` may rename its image."""

    def read(source: str, cells: list[str]) -> Row:
        labels, unsure = answer_of(cells)
        subset = cells[table.subset].strip().lower()
        if subset not in SUBSET_OF:
            raise UserError(f"no part is called {subset!r}; write train, validation or test")
        return Row(find(cells[table.image]), labels, source, SUBSET_OF[subset], unsure)

    return each_row(zip(table.sources, table.lines, strict=True), read)


def label_rows(table: Table, classes: Sequence[str] | None = None) -> Iterator[Row | RowError]:
    """The rows of a table with one column of labels."""
    names_of = divide([line[table.labels] for line in table.lines if not isinstance(line, RowError)], classes)

    def answer_of(cells: list[str]) -> Answer:
        cell = cells[table.labels]
        if cell not in names_of:
            raise UserError(f'{cell.strip()!r} is no list of labels; write ["cat", "dog"] or cat;dog')
        return names_of[cell], ()

    return rows_of(table, answer_of)


def divide(cells: Iterable[str], classes: Sequence[str] | None = None) -> dict[str, tuple[str, ...] | None]:
    """The labels that the cells of a column hold, None for `?`. What begins like a list and is none has no entry.

    A cell that is one of the `classes` is not divided.
    """
    names_of: dict[str, tuple[str, ...] | None] = {}
    plain, whole = {}, set(classes or ())
    for cell in dict.fromkeys(cells):
        text = cell.strip()
        if text in whole:
            names_of[cell] = (text,)
        elif text == NOTHING_KNOWN:
            names_of[cell] = None
        elif text[:1] not in ("[", "{"):
            plain[cell] = text
        elif (names := _listed(text)) is not None:
            names_of[cell] = tuple(names)
    mark = next((mark for mark in ";|," if any(mark in text for text in plain.values())), None)  # None: at spaces
    for cell, text in plain.items():
        names_of[cell] = tuple(filter(None, (unguard(piece.strip()) for piece in text.split(mark))))
    return names_of


def _listed(cell: str) -> list[str] | None:
    """The labels of a cell that holds a list, as JSON or Python writes it; None if it does not."""
    names = None
    try:
        names = json.loads(cell)
    except (ValueError, RecursionError):
        if PYTHON_LIST.fullmatch(cell):
            with suppress(ValueError, SyntaxError), warnings.catch_warnings(action="ignore"):  # of odd escapes
                names = ast.literal_eval(cell)
    if not isinstance(names, list) or not all(isinstance(name, str | int) for name in names):
        return None
    return [text for name in names if (text := str(name).strip())]


def marks_in(table: Table, columns: Iterable[int]) -> set[str]:
    """By which of MARKS these columns say what is there, where they hold nothing else; else none."""
    rows = [line for line in table.lines if isinstance(line, list)]
    there = {line[column].strip().lower() for line in rows for column in columns}
    marks = there.intersection(MARKS)
    return marks if there <= {*marks, "", NOTHING_KNOWN} else set()


def class_columns(table: Table) -> dict[str, int]:
    column_of: dict[str, int] = {}
    for column, name in enumerate(table.header):
        if column in (table.image, table.subset) or not (name or column):  # no name first: the row numbers of pandas
            continue
        if not name or name in column_of:
            what = f"is a second {name!r}" if name else "has no name"
            raise UserError(f"{table.file}, header: column {column + 1} {what}; name each class once")
        column_of[name] = column
    return column_of


def _from_columns(table: Table, column_of: dict[str, int], say: Say) -> Iterator[Row | RowError]:
    """The rows of a table with a column for each of these classes."""
    names, columns = list(column_of), list(column_of.values())
    value_in = CELLS
    if marks := marks_in(table, columns):
        value_in = {**CELLS, **dict.fromkeys(marks, 1), "": 0}
        say(f"{table.file} marks what is there by {min(marks)}: an empty cell means absent there, and ? unknown")
    found: set[int] = set()  # values of all cells
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}  # one tuple for all rows that show the same classes

    @cache
    def value_of(cell: str) -> int:
        value = value_in[cell.strip().lower()]
        found.add(value)
        return value

    def answer_of(cells: list[str]) -> Answer:
        try:
            values = [value_of(cells[column]) for column in columns]
        except KeyError as error:
            wrong = error.args[0]
            name = next(name for name, column in column_of.items() if cells[column].strip().lower() == wrong)
            what = f"{wrong!r} under {name!r}; write 1, 0 or nothing, or call that column 'labels'"
            raise UserError(what) from None
        if max(values, default=0) < UNKNOWN:
            shown = tuple(compress(names, values))
            return shared.setdefault(shown, shown), ()
        shown, unsure = compress(names, [v == 1 for v in values]), compress(names, [v >= UNKNOWN for v in values])
        return tuple(shown), tuple(unsure)

    yield from rows_of(table, answer_of)
    if {0, MINUS} & found == {MINUS}:
        raise UserError(f"{table.file} has cells with -1 but none with 0; write 0 for absent, ? for unknown")
