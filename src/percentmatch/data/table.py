"""Labels from a CSV file: `image,labels` rows, or an image column and one column of 1 and 0 for each class."""

import ast
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from percentmatch.data.folder import find_images, is_image_name, read_utf8
from percentmatch.data.manifest import Manifest
from percentmatch.errors import UserError, did_you_mean

IMAGE_HEADERS = ("image", "file", "filename", "file_name", "path")  # in any case
LABEL_HEADERS = ("labels", "label", "tags", "classes", "class")
PART_HEADERS = ("part", "split")
PART_OF = {"": "", "?": "", "train": "train", "training": "train", "test": "test", "testing": "test"}
PART_OF |= {name: "validation" for name in ("validation", "val", "valid", "dev")}
UNKNOWN = 2  # the code of a label; the others are 0 and 1
NOTHING_KNOWN = "?"  # in a column of labels: this image has not been looked at
CELLS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}
CELLS |= {cell: UNKNOWN for cell in ("", "?", "-1", "-1.0", "nan")}
RISKY = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # a spreadsheet may run a cell that begins so; full width, too
NOWHERE = -1  # the place of a column that the file does not have: rows end with an empty cell


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


def read_table(file: Path, images: Path | None = None, *, classes: Sequence[str] | None = None) -> Manifest:
    """Read a CSV file (comma, semicolon or tab) whose paths are relative to `images`, or to its own folder.

    Labels in one cell are separated by `;`, else `|`, else `,`: the first that any cell holds; without one of these,
    by spaces. They may be a list in brackets too. An empty label cell means none of the classes, `?` that nothing is
    known. An empty one-hot cell, `?` or -1 means unknown. Without `classes`, the classes are the labels in sorted
    order, or the columns in theirs. With them, any other label is an error; other columns are left out. A column named
    part or split may say train, validation or test.
    """
    return to_manifest(open_table(file), file.parent if images is None else images, classes)


def to_manifest(table: Table, folder: Path, classes: Sequence[str] | None = None) -> Manifest:
    """What a table says of the images in `folder`."""
    read = _from_columns if table.labels == NOWHERE else _from_labels
    class_names, codes = read(table, classes)
    if not class_names:
        raise UserError(f"{table.file} names no class; label at least one image or name the classes")
    parts = _parts(table)
    names = find_images(folder, [row[table.image] for row in table.rows], table.sources)
    keep = _first_of_each(names, list(zip(codes, parts, strict=True)), table.sources)
    values = torch.frombuffer(bytearray().join(codes[row] for row in keep), dtype=torch.uint8)
    values = values.view(len(keep), len(class_names))  # (n, c)
    return Manifest(
        paths=tuple(folder / names[row] for row in keep),
        ids=tuple(names[row] for row in keep),
        targets=(values == 1).byte(),
        known=(values != UNKNOWN).byte(),
        difficult=torch.zeros_like(values),
        parts=tuple(parts[row] for row in keep),
        class_names=class_names,
        sources=tuple(table.sources[row] for row in keep),
    )


def open_table(file: Path) -> Table:
    text = read_utf8(file)
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
    return Table(file, header, rows, sources, *columns)


def _header_score(text: str, mark: str) -> tuple[bool, int]:
    """How well the first row reads with this delimiter: has it an image column, and how many columns."""
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        header = next((row for row in rows if row), [])
    except csv.Error:
        return False, 0
    return len(header) > 1 and any(_plain(cell) in IMAGE_HEADERS for cell in header), len(header)


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


def _from_labels(table: Table, classes: Sequence[str] | None) -> tuple[tuple[str, ...], list[bytes]]:
    """The class names, and for each row c codes, from one column of labels."""
    cells = [row[table.labels].strip() for row in table.rows]
    names_of = {cell: [cell] for cell in classes or () if cell in cells}  # a cell that is itself a class stays whole
    names_of |= {cell: [] for cell in cells if cell == NOTHING_KNOWN}
    for cell, source in zip(cells, table.sources, strict=True):
        if cell[:1] in ("[", "{") and cell not in names_of:
            names_of[cell] = _listed(cell, source)
    plain = [cell for cell in dict.fromkeys(cells) if cell not in names_of]
    mark = next((mark for mark in ";|," if any(mark in cell for cell in plain)), None)  # None: at spaces
    names_of |= {cell: [name for piece in cell.split(mark) if (name := _unguard(piece.strip()))] for cell in plain}
    class_names = tuple(sorted({name for names in names_of.values() for name in names}) if classes is None else classes)
    place_of = {name: place for place, name in enumerate(class_names)}
    codes = {}
    for cell, names in names_of.items():
        code = bytearray(len(class_names))
        for name in names:
            if name not in place_of:
                where = table.sources[cells.index(cell)]
                raise UserError(f"{where}: unknown class {name!r}{did_you_mean(name, class_names)}")
            code[place_of[name]] = 1
        codes[cell] = bytes([UNKNOWN] * len(class_names) if cell == NOTHING_KNOWN else code)
    return class_names, [codes[cell] for cell in cells]


def _listed(cell: str, source: str) -> list[str]:
    """The labels of a cell that holds a list, as JSON or Python writes it."""
    try:
        names = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str | int) for name in names):
        raise UserError(f'{source}: {cell!r} is no list of labels; write ["cat", "dog"] or cat;dog')
    return [text for name in names if (text := str(name).strip())]


def _from_columns(table: Table, classes: Sequence[str] | None) -> tuple[tuple[str, ...], list[bytes]]:
    """The class names, and for each row c codes, from one column for each class."""
    column_of: dict[str, int] = {}
    for column, name in enumerate(table.header):
        if column in (table.image, table.part) or not (name or column):  # no name in front: the row numbers of pandas
            continue
        if not name or name in column_of:
            what = f"is a second {name!r}" if name else "has no name"
            raise UserError(f"{table.file}, header: column {column + 1} {what}; name each class once")
        column_of[name] = column
    class_names = tuple(column_of if classes is None else classes)
    others = column_of.keys() - set(class_names)
    missing = next((name for name in class_names if name not in column_of), None)
    if others and missing is not None:  # perhaps one of the others, spelt differently
        raise UserError(f"{table.file}, header: there is no column {missing!r}{did_you_mean(missing, others)}")
    columns = [column_of.get(name, NOWHERE) for name in class_names]
    codes = []
    for row, source in zip(table.rows, table.sources, strict=True):
        cells = [row[column].strip().lower() for column in columns]
        try:
            codes.append(bytes([CELLS[cell] for cell in cells]))
        except KeyError as error:
            what = f"{error.args[0]!r} under {class_names[cells.index(error.args[0])]!r}"
            raise UserError(f"{source}: {what}; write 1, 0 or nothing, or call that column 'labels'") from None
    if not any(0 in code for code in codes) and any(row[column] == "-1" for row in table.rows for column in columns):
        raise UserError(f"{table.file} has cells with -1 but none with 0; write 0 for absent, ? for unknown")
    return class_names, codes


def _parts(table: Table) -> list[str]:
    cells = [row[table.part].strip().lower() for row in table.rows]
    wrong = next((row for row, cell in enumerate(cells) if cell not in PART_OF), None)
    if wrong is not None:
        raise UserError(f"{table.sources[wrong]}: no part is called {cells[wrong]!r}; write train, validation or test")
    return [PART_OF[cell] for cell in cells]


def _first_of_each(names: list[str], labels: list[tuple[bytes, str]], sources: list[str]) -> list[int]:
    """The rows to keep: an image named twice in the same way counts once."""
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        other = first.setdefault(name, row)
        if labels[other] != labels[row]:
            both = f"{sources[other]} and {sources[row]}"
            raise UserError(f"{both} give {name!r} different labels or parts; keep one of the rows")
    return list(first.values())
