"""Labels from a CSV file: `image,labels` rows, or an image column and one column of 1 and 0 for each class."""

import ast
import csv
import io
import json
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from percentmatch.data.labels import Flags, Labels
from percentmatch.data.manifest import Manifest, check_room
from percentmatch.data.readers.folder import find_images, is_image_name, read_utf8
from percentmatch.errors import UserError, did_you_mean

IMAGE_HEADERS = ("image", "file", "filename", "file_name", "path")  # in any case
LABEL_HEADERS = ("labels", "label", "tags", "classes", "class")
PART_HEADERS = ("part", "split")
PART_OF = {"": "", "?": "", "train": "train", "training": "train", "test": "test", "testing": "test"}
PART_OF |= {name: "validation" for name in ("validation", "val", "valid", "dev")}
UNKNOWN = 2  # the code of a cell; the others are 0 and 1
NOTHING_KNOWN = "?"  # in a column of labels: this image has not been looked at
CELLS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}
MINUS_ONE = ("-1", "-1.0")
CELLS |= {cell: UNKNOWN for cell in ("", "?", "nan", *MINUS_ONE)}
RISKY = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # a spreadsheet may run a cell that begins so; full width, too
_ITEM = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|\d{1,18}+)\s*+"""
PYTHON_LIST = re.compile(rf"\[\s*+(?:{_ITEM}(?:,\s*+{_ITEM})*+)?+,?\s*+\]", re.DOTALL)  # of texts and numbers
DIVIDES = re.compile("\r|[;\t]\\s*[=+@-]")  # a line, or a cell that begins like a formula
LONGEST_LINE = 1 << 22  # letters
NOWHERE = -1  # the place of a column that the file does not have: rows end with an empty cell


class Code(NamedTuple):
    """What a row says, in columns of classes."""

    shown: tuple[int, ...]
    unknown: tuple[int, ...] | None  # None: all, the image has not been looked at


@dataclass(frozen=True)
class Table:
    """The cells of a file and where its columns are."""

    file: Path
    header: list[str]
    rows: list[list[str]]  # a cell for each column, and an empty one
    sources: list[str]  # "labels.csv, line 17" for each row
    image: int
    labels: int  # NOWHERE: there is a column for each class
    part: int
    inside: bool = False  # no path may lead out of the folder of the images: the file was made by a program
    mark: str = ","  # what divides its cells
    codes: Sequence[Code] | None = None  # what each row says of the header's columns; else its cells say it


def read_table(file: Path, images: Path | None = None, *, classes: Sequence[str] | None = None) -> Manifest:
    """Read a CSV file (comma, semicolon or tab) whose paths are relative to `images`, or to its own folder.

    Labels in one cell are separated by `;`, else `|`, else `,`: the first that any cell holds; without one of these,
    by spaces. They may be a list in brackets too. An empty label cell means none of the classes, `?` that nothing is
    known. An empty one-hot cell, `?` or -1 means unknown. Without `classes`, the classes are the labels in sorted
    order, or the columns in theirs. With them, any other label is an error; other columns are left out. A column named
    part or split may say train, validation or test. A row that knows nothing gives way to another of the same image.
    """
    return to_manifest(open_table(file), file.parent if images is None else images, classes)


def labels_of(table: Table, classes: Sequence[str] | None = None) -> tuple[tuple[str, ...], list[Code], list[str]]:
    """The class names, for each row what it says of them, and its part."""
    read = _from_columns if table.labels == NOWHERE else _from_labels
    class_names, codes = read(table, classes)
    if not class_names:
        raise UserError(f"{table.file} names no class; label at least one image or name the classes")
    return class_names, codes, _parts(table)


def to_manifest(table: Table, folder: Path, classes: Sequence[str] | None = None) -> Manifest:
    """What a table says of the images in `folder`."""
    class_names, codes, parts = labels_of(table, classes)
    names = find_images(folder, [row[table.image] for row in table.rows], table.sources, inside=table.inside)
    keep = _one_of_each(names, codes, parts, table.sources)
    labels = labels_from([codes[row] for row in keep], len(class_names))
    return Manifest(
        paths=tuple(folder / names[row] for row in keep),
        ids=tuple(names[row] for row in keep),
        **vars(labels),
        parts=tuple(parts[row] for row in keep),
        class_names=class_names,
        sources=tuple(table.sources[row] for row in keep),
    )


def labels_from(codes: Sequence[Code], num_classes: int, difficult: Flags | None = None) -> Labels:
    """What rows say of all classes."""
    usual = [int(code.unknown is not None) for code in codes]
    known = Flags.listed([code.unknown or () for code in codes], num_classes, usual)
    shown = Flags.listed([code.shown for code in codes], num_classes)
    return Labels(shown, known, difficult or Flags.full(len(codes), num_classes))


def open_table(file: Path) -> Table:
    text = read_utf8(file)
    long = next((row for row, line in enumerate(io.StringIO(text, newline="\n"), 1) if len(line) > LONGEST_LINE), None)
    if long is not None:
        raise UserError(f"{file}, line {long}: the line has more than {LONGEST_LINE:,} letters; is this a CSV file?")
    mark = max(",;\t", key=lambda mark: _header_score(text, mark))
    header: list[str] = []
    columns = (0, NOWHERE, NOWHERE)
    rows, sources, line = [], [], 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    try:
        for cells in reader:
            source, line = f"{file}, line {line + 1}", reader.line_num
            if header and cells:
                if len(cells) != len(header):
                    found = f"{len(cells)} columns where the header has {len(header)}"
                    raise UserError(f"{source}: {found}; put quotes around a cell that holds {mark!r}")
                if not cells[columns[0]].strip():
                    raise UserError(f"{source}: a row without an image; name the image or remove the row")
                rows.append([*cells, ""])
                sources.append(source)
            elif cells:
                header = [_unguard(cell.strip()) for cell in cells]
                columns = find_columns(file, header)
    except csv.Error as error:
        what = f"this is no row of a CSV file ({error})"
        raise UserError(f"{file}, line {line + 1}: {what}; look for a quote that is never closed") from None
    if not header:
        raise UserError(f"{file} is empty; write a header such as image,labels and one row for each image")
    if not rows:
        raise UserError(f"{file} has a header but no row; write one row for each image")
    return Table(file, header, rows, sources, *columns, mark=mark)


def _header_score(text: str, mark: str) -> tuple[bool, int]:
    """How well the first row reads with this delimiter: has it an image column, and how many columns."""
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        header = next((row for row in rows if row), [])
    except csv.Error:
        return False, 0
    return len(header) > 1 and any(_plain(cell) in IMAGE_HEADERS for cell in header), len(header)


def write_row(file: IO[str], cells: list[str], mark: str = ",") -> None:
    # minimal quotes do not see a \r, nor that a spreadsheet may divide cells at a semicolon or tab
    quoting = csv.QUOTE_ALL if DIVIDES.search("".join(cells)) else csv.QUOTE_MINIMAL
    csv.writer(file, delimiter=mark, lineterminator="\n", quoting=quoting).writerow(cells)


def guard(text: str) -> str:
    """A class as a cell that no spreadsheet takes for a formula: after an apostrophe, where it begins like one."""
    return f"'{text}" if text.lstrip("'").startswith(RISKY) else text


def _unguard(text: str) -> str:
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(RISKY) else text


def _plain(cell: str) -> str:
    return cell.strip().lower().replace(" ", "_")


def find_columns(file: Path, header: list[str]) -> tuple[int, int, int]:
    """Where the image, the labels and the part stand; without a column of labels, every other one is a class."""
    if len(header) < 2:
        raise UserError(f"{file} has one column; its header must be image,labels or image and the name of each class")
    if is_image_name(header[0]):
        raise UserError(f"{file} begins with an image instead of a header; write a header such as image,labels")
    plain = [_plain(cell) for cell in header]
    image = next((place for place, name in enumerate(plain) if name in IMAGE_HEADERS), 0)
    found = []
    for choices in (LABEL_HEADERS, PART_HEADERS):
        places = [place for place, name in enumerate(plain) if name in choices and place != image]
        if len(places) > 1:
            names = " and ".join(repr(header[place]) for place in places)
            raise UserError(f"{file} has the columns {names}, which mean the same; keep one of them")
        found.append(places[0] if places else NOWHERE)
    return image, found[0], found[1]


def _from_labels(table: Table, classes: Sequence[str] | None) -> tuple[tuple[str, ...], list[Code]]:
    """The class names, and what each row says of them, from one column of labels."""
    cells = [row[table.labels].strip() for row in table.rows]
    whole = set(classes or ()).intersection(cells)  # a cell that is itself a class is not divided
    names_of = {cell: [cell] for cell in whole}
    names_of |= {cell: [] for cell in cells if cell == NOTHING_KNOWN}
    for cell, source in zip(cells, table.sources, strict=True):
        if cell[:1] in ("[", "{") and cell not in names_of:
            names_of[cell] = _listed(cell, source)
    plain = [cell for cell in dict.fromkeys(cells) if cell not in names_of]
    mark = next((mark for mark in ";|," if any(mark in cell for cell in plain)), None)  # None: at spaces
    names_of |= {cell: [name for piece in cell.split(mark) if (name := _unguard(piece.strip()))] for cell in plain}
    class_names = tuple(sorted({name for names in names_of.values() for name in names}) if classes is None else classes)
    check_room(str(table.file), len(cells), len(class_names))
    place_of = {name: place for place, name in enumerate(class_names)}
    codes = {}
    for cell, names in names_of.items():
        stray = next((name for name in names if name not in place_of), None)
        if stray is not None:
            where = table.sources[cells.index(cell)]
            raise UserError(f"{where}: unknown class {stray!r}{did_you_mean(stray, class_names)}")
        shown = tuple(sorted({place_of[name] for name in names}))
        codes[cell] = Code(shown, None if cell == NOTHING_KNOWN else ())
    return class_names, [codes[cell] for cell in cells]


def _listed(cell: str, source: str) -> list[str]:
    """The labels of a cell that holds a list, as JSON or Python writes it."""
    names = None
    try:
        names = json.loads(cell)
    except (ValueError, RecursionError):
        if PYTHON_LIST.fullmatch(cell):
            with suppress(ValueError, SyntaxError), warnings.catch_warnings(action="ignore"):  # of odd escapes
                names = ast.literal_eval(cell)
    if not isinstance(names, list) or not all(isinstance(name, str | int) for name in names):
        raise UserError(f'{source}: {cell!r} is no list of labels; write ["cat", "dog"] or cat;dog')
    return [text for name in names if (text := str(name).strip())]


def _from_columns(table: Table, classes: Sequence[str] | None) -> tuple[tuple[str, ...], list[Code]]:
    """The class names, and what each row says of them, from one column for each class."""
    column_of: dict[str, int] = {}
    for column, name in enumerate(table.header):
        if column in (table.image, table.part) or not (name or column):  # no name in front: the row numbers of pandas
            continue
        if not name or name in column_of:
            what = f"is a second {name!r}" if name else "has no name"
            raise UserError(f"{table.file}, header: column {column + 1} {what}; name each class once")
        column_of[name] = column
    class_names = tuple(column_of if classes is None else classes)
    check_room(str(table.file), len(table.rows), len(class_names))
    others = column_of.keys() - set(class_names)
    missing = next((name for name in class_names if name not in column_of), None)
    if others and missing is not None:  # perhaps one of the others, spelt differently
        raise UserError(f"{table.file}, header: there is no column {missing!r}{did_you_mean(missing, others)}")
    columns = [column_of.get(name, NOWHERE) for name in class_names]
    if table.codes is not None:
        place_of = {column: place for place, column in enumerate(columns)}
        nowhere = {place for place, column in enumerate(columns) if column == NOWHERE}
        return class_names, [_in_places(code, place_of, nowhere, len(columns)) for code in table.codes]
    codes, zeros = [], False
    for row, source in zip(table.rows, table.sources, strict=True):
        cells = [row[column].strip().lower() for column in columns]
        try:
            values = [CELLS[cell] for cell in cells]
        except KeyError as error:
            what = f"{error.args[0]!r} under {class_names[cells.index(error.args[0])]!r}"
            raise UserError(f"{source}: {what}; write 1, 0 or nothing, or call that column 'labels'") from None
        shown = tuple([column for column, value in enumerate(values) if value == 1])
        unknown = tuple([c for c, value in enumerate(values) if value == UNKNOWN]) if UNKNOWN in values else ()
        codes.append(Code(shown, None if len(unknown) == len(values) else unknown))
        zeros = zeros or 0 in values
    if not zeros and any(row[column].strip() in MINUS_ONE for row in table.rows for column in columns):
        raise UserError(f"{table.file} has cells with -1 but none with 0; write 0 for absent, ? for unknown")
    return class_names, codes


def _in_places(code: Code, place_of: dict[int, int], nowhere: set[int], num_classes: int) -> Code:
    """The same in the places of the columns that are asked for; what has no column is unknown."""
    shown = {place_of[column] for column in code.shown if column in place_of}
    unknown = nowhere.union(place_of[column] for column in code.unknown or () if column in place_of)
    nothing = code.unknown is None or len(unknown) == num_classes
    return Code(tuple(sorted(shown)), None if nothing else tuple(sorted(unknown)))


def _parts(table: Table) -> list[str]:
    cells = [row[table.part].strip().lower() for row in table.rows]
    wrong = next((row for row, cell in enumerate(cells) if cell not in PART_OF), None)
    if wrong is not None:
        raise UserError(f"{table.sources[wrong]}: no part is called {cells[wrong]!r}; write train, validation or test")
    return [PART_OF[cell] for cell in cells]


def _one_of_each(names: list[str], codes: list[Code], parts: list[str], sources: list[str]) -> list[int]:
    """The rows to keep: an image named twice in the same way counts once.

    A row that knows no label gives way to another, which takes over its part where it names none itself.
    """
    kept: dict[str, int] = {}
    for row, name in enumerate(names):
        other = kept.setdefault(name, row)
        if (codes[other], parts[other]) == (codes[row], parts[row]):
            continue
        blank, full = sorted((other, row), key=lambda each: codes[each].unknown is not None)
        if codes[blank].unknown is not None or len({parts[blank], parts[full]} - {""}) > 1:
            both = f"{sources[other]} and {sources[row]}"
            raise UserError(f"{both} give {name!r} different labels or parts; keep one of the rows")
        kept[name], parts[full] = full, parts[full] or parts[blank]
    return list(kept.values())
