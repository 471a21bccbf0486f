"""`metadata.jsonl` and `metadata.csv`, as image folders of Hugging Face have them: `file_name` and labels in a row."""

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from percentmatch.data.manifest import MOST_CELLS, SUBSET_OF, Manifest, check_room
from percentmatch.data.readers.folder import numbered_lines
from percentmatch.data.readers.rows import LabelFile, RowError, each_row
from percentmatch.data.readers.table import NOWHERE, Line, Table, find_columns, open_table, read_cells
from percentmatch.errors import UserError

NAMES = ("metadata.csv", "metadata.jsonl")


def is_metadata(file: LabelFile) -> bool:
    return file.path.name in NAMES or file.path.suffix.lower() in (".jsonl", ".ndjson")


def read_metadata(file: LabelFile) -> Manifest:
    """Read one such file, or a folder that holds it or has one in each of its train, validation and test folders.

    Labels are a list, or text as in a CSV file; an empty list means none of the classes, null that nothing is known.
    """
    folder = file.path
    if not folder.is_dir():
        return read_cells(file, _open(folder), inside=True)
    files = metadata_files(folder).items()
    first, *others = [_in_folder(_open(path), folder, subset) if subset else _open(path) for path, subset in files]
    lines, sources = [*first.lines], [*first.sources]
    for table in others:
        if sorted(table.header) != sorted(first.header):
            raise UserError(f"{table.file} has other columns than {first.file}; give them the same ones")
        order = [*map(table.header.index, first.header), -1]
        lines += [line if isinstance(line, RowError) else [line[column] for column in order] for line in table.lines]
        sources += table.sources
    file, table = replace(file, images=file.images or folder), replace(first, lines=lines, sources=sources)
    return read_cells(file, table, inside=True)


def metadata_files(folder: Path) -> dict[Path, str]:
    """The metadata files of a folder, or of those of its subsets, and the subset that each is for."""
    for name in NAMES:
        if os.path.isfile(folder / name):
            return {folder / name: ""}
    below = [path for path in sorted(folder.iterdir()) if SUBSET_OF.get(path.name.lower()) and path.is_dir()]
    found = [(path / name, SUBSET_OF[path.name.lower()]) for path in below for name in NAMES]
    return {file: subset for file, subset in found if file.is_file()}


def _open(file: Path) -> Table:
    """A CSV file, or a JSON object a line, as a table; a value that is missing or null is unknown."""
    if file.suffix.lower() == ".csv":
        return open_table(file)
    found = list(numbered_lines(file))
    if not found:
        raise UserError(f"{file} is empty; write one JSON object a line")
    entries = list(each_row(found, _object))
    header = list(dict.fromkeys(name for entry in entries if isinstance(entry, dict) for name in entry))
    if isinstance(entries[0], RowError) and not header:
        raise UserError(entries[0].sentence)
    check_room(str(file), len(entries), len(header), MOST_CELLS)
    lines = [e if isinstance(e, RowError) else [*(e.get(name, "?") for name in header), ""] for e in entries]
    return Table(file, header, lines, [source for source, _ in found], *find_columns(file, header))


def _object(_: str, line: str) -> dict[str, str]:
    """The JSON object that a line holds, its values as cells."""
    entry = None
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
    if not isinstance(entry, dict):
        raise UserError('this is no JSON object; write {"file_name": "1.jpg", "labels": ["cat"]}')
    if not entry.get("file_name"):
        raise UserError("there is no file_name; name the image or remove the line")
    return {k: "?" if v is None else v if isinstance(v, str) else json.dumps(v) for k, v in entry.items()}


def _in_folder(table: Table, top: Path, subset: str) -> Table:
    """The table of a subset's folder, its images named from `top`, with a column for the subset instead of its own."""
    below = table.file.parent.relative_to(top).as_posix()
    others = [column for column in range(len(table.header)) if column != table.subset]

    def moved(_: str, cells: Line) -> Line:
        named = cells[table.subset].strip().lower()
        if SUBSET_OF.get(named, named) not in ("", subset):
            raise UserError(f"it says {named!r} and lies in the folder {below!r}; correct one of them")
        return [*(f"{below}/{cells[i]}" if i == table.image else cells[i] for i in others), subset, ""]

    lines = list(each_row(zip(table.sources, table.lines, strict=True), moved))
    header = [*(table.header[column] for column in others), "part"]
    labels = table.labels if table.labels == NOWHERE else others.index(table.labels)
    return Table(table.file, header, lines, table.sources, others.index(table.image), labels, len(others))
