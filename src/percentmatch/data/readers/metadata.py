"""`metadata.jsonl` and `metadata.csv`, as image folders of Hugging Face have them: `file_name` and labels in a row."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from percentmatch.data.manifest import MOST_CELLS, SUBSET_OF, Manifest, check_room
from percentmatch.data.readers.folder import numbered_lines
from percentmatch.data.readers.rows import LabelFile, RowError, each_row
from percentmatch.data.readers.table import NOWHERE, Line, Table, find_columns, open_table, read_cells
from percentmatch.errors import UserError

NAMES = ("metadata.csv", "metadata.jsonl")
NO_OBJECT = 'this is no JSON object; write {"file_name": "1.jpg", "labels": ["cat"]}'


def is_metadata(file: LabelFile) -> bool:
    return file.path.name in NAMES or file.path.suffix.lower() in (".jsonl", ".ndjson")


def read_metadata(file: LabelFile) -> Manifest:
    """Read one such file, or a folder that holds it or has one in each of its train, validation and test folders.

    Labels are a list, or text as in a CSV file; an empty list means none of the classes, null that nothing is known.
    """
    folder = file.path
    if not folder.is_dir():
        return read_cells(file, _open(file.path), inside=True)
    files = metadata_files(folder)
    tables = [_in_folder(_open(path), folder, subset) if subset else _open(path) for path, subset in files.items()]
    first = tables[0]
    lines, sources = [], []
    for table in tables:
        if sorted(table.header) != sorted(first.header):
            raise UserError(f"{table.file} has other columns than {first.file}; give them the same ones")
        order = [*(table.header.index(name) for name in first.header), -1]
        lines += [line if isinstance(line, RowError) else [line[column] for column in order] for line in table.lines]
        sources += table.sources
    whole = replace(first, lines=lines, sources=sources)
    return read_cells(replace(file, images=file.images or folder), whole, inside=True)


def metadata_files(folder: Path) -> dict[Path, str]:
    """The metadata files of a folder, or of those of its subsets, and the subset that each is for."""
    own = [folder / name for name in NAMES if os.path.isfile(folder / name)]
    if own:
        return {own[0]: ""}
    below = [path for path in sorted(folder.iterdir()) if SUBSET_OF.get(path.name.lower()) and path.is_dir()]
    found = [(path / name, SUBSET_OF[path.name.lower()]) for path in below for name in NAMES]
    return {file: subset for file, subset in found if file.is_file()}


def _open(file: Path) -> Table:
    return open_table(file) if file.suffix.lower() == ".csv" else _open_lines(file)


def _open_lines(file: Path) -> Table:
    """A JSON object a line, as a table; a value that is missing or null is unknown."""
    entries = [(source, _object(line)) for source, line in numbered_lines(file)]
    if not entries:
        raise UserError(f"{file} is empty; write one JSON object a line")
    header = list(dict.fromkeys(name for _, entry in entries for name in entry or ()))
    if "file_name" not in header:
        if bad := next((source for source, entry in entries if entry is None), None):
            raise UserError(f"{bad}: {NO_OBJECT}")
        raise UserError(f"{file} has no file_name; write one in each line")
    check_room(str(file), len(entries), len(header), MOST_CELLS)
    lines: list[Line | RowError] = []
    for source, entry in entries:
        if entry is not None and entry.get("file_name"):
            lines.append([*(_cell(entry.get(name)) for name in header), ""])
        else:
            what = NO_OBJECT if entry is None else "there is no file_name; name the image or remove the line"
            lines.append(RowError(source, f"{source}: {what}"))
    return Table(file, header, lines, [source for source, _ in entries], *find_columns(file, header))


def _object(line: str) -> dict[str, Any] | None:
    """What a line holds; None if it is no JSON object."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _cell(value: object) -> str:
    if value is None:
        return "?"
    return value if isinstance(value, str) else json.dumps(value)


def _in_folder(table: Table, top: Path, subset: str) -> Table:
    """The table of a subset's folder, its images named from `top`, with a column for the subset instead of its own."""
    below = table.file.parent.relative_to(top).as_posix()
    kept = [column for column in range(len(table.header)) if column != table.subset]

    def moved(_: str, cells: Line) -> Line:
        own = cells[table.subset].strip().lower()
        if SUBSET_OF.get(own, own) not in ("", subset):
            raise UserError(f"it says {own!r} and lies in the folder {below!r}; correct one of them")
        named = [f"{below}/{cells[column]}" if column == table.image else cells[column] for column in kept]
        return [*named, subset, ""]

    lines = list(each_row(zip(table.sources, table.lines, strict=True), moved))
    header = [*(table.header[column] for column in kept), "part"]
    labels = table.labels if table.labels == NOWHERE else kept.index(table.labels)
    return Table(table.file, header, lines, table.sources, kept.index(table.image), labels, len(kept))
