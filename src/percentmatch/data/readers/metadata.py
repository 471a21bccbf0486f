"""`metadata.jsonl` and `metadata.csv`, as image folders of Hugging Face have them: `file_name` and labels in a row."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from percentmatch.data.manifest import MOST_CELLS, Manifest, check_room
from percentmatch.data.readers.folder import read_utf8
from percentmatch.data.readers.table import NOWHERE, PART_OF, Table, find_columns, open_table, to_manifest
from percentmatch.errors import UserError

NAMES = ("metadata.csv", "metadata.jsonl")


def read_metadata(place: Path, images: Path | None = None, *, classes: Sequence[str] | None = None) -> Manifest:
    """Read one such file, or a folder that holds it or has one in each of its train, validation and test folders.

    Paths are relative to `images`, or to the folder of the file. Labels are a list, or text as in a CSV file; an empty
    list means none of the classes, null that nothing is known.
    """
    files = metadata_files(place) if place.is_dir() else {place: ""}
    if not files:
        raise UserError(f"{place} holds neither {' nor '.join(NAMES)}; give a folder that does")
    tables = [_in_part(_open(file), place, part) if part else _open(file) for file, part in files.items()]
    first = tables[0]
    rows = list(first.rows)
    for table in tables[1:]:
        if sorted(table.header) != sorted(first.header):
            raise UserError(f"{table.file} has other columns than {first.file}; give them the same ones")
        order = [*(table.header.index(name) for name in first.header), -1]
        rows += [[row[column] for column in order] for row in table.rows]
    sources = [source for table in tables for source in table.sources]
    folder = images or (place if place.is_dir() else place.parent)
    return to_manifest(replace(first, rows=rows, sources=sources), folder, classes)


def metadata_files(folder: Path) -> dict[Path, str]:
    """The metadata files of a folder, and the part that each is for; of its part folders where it has none itself."""
    own = [folder / name for name in NAMES if os.path.isfile(folder / name)]
    if own:
        return {own[0]: ""}
    below = [place for place in sorted(folder.iterdir()) if PART_OF.get(place.name.lower()) and place.is_dir()]
    found = [(place / name, PART_OF[place.name.lower()]) for place in below for name in NAMES]
    return {file: part for file, part in found if file.is_file()}


def _open(file: Path) -> Table:
    return replace(open_table(file), inside=True) if file.suffix.lower() == ".csv" else _open_lines(file)


def _open_lines(file: Path) -> Table:
    """A JSON object a line, as a table; a value that is missing or null is unknown."""
    entries: list[dict[str, Any]] = []
    sources = []
    for number, line in enumerate(read_utf8(file).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            form = '{"file_name": "1.jpg", "labels": ["cat"]}'
            raise UserError(f"{file}, line {number}: this is no JSON object; write {form}")
        entries.append(entry)
        sources.append(f"{file}, line {number}")
    if not entries:
        raise UserError(f"{file} is empty; write one JSON object a line")
    header = list(dict.fromkeys(name for entry in entries for name in entry))
    if "file_name" not in header:
        raise UserError(f"{file} has no file_name; write one in each line")
    columns = find_columns(file, header)
    check_room(str(file), len(entries), len(header), MOST_CELLS)
    rows = [[*(_cell(entry.get(name)) for name in header), ""] for entry in entries]
    bare = next((row for row, entry in enumerate(entries) if not entry.get("file_name")), None)
    if bare is not None:
        raise UserError(f"{sources[bare]}: there is no file_name; name the image or remove the line")
    return Table(file, header, rows, sources, *columns, inside=True)


def _cell(value: object) -> str:
    if value is None:
        return "?"
    return value if isinstance(value, str) else json.dumps(value)


def _in_part(table: Table, place: Path, part: str) -> Table:
    """The table of a part folder, its images named from `place`, with a column for the part instead of its own."""
    below = table.file.parent.relative_to(place).as_posix()
    kept = [column for column in range(len(table.header)) if column != table.part]
    rows = []
    for row, source in zip(table.rows, table.sources, strict=True):
        own = row[table.part].strip().lower() if table.part != NOWHERE else ""
        if PART_OF.get(own, own) not in ("", part):
            raise UserError(f"{source}: it says {own!r} and lies in the folder {below!r}; correct one of them")
        named = [f"{below}/{row[column]}" if column == table.image else row[column] for column in kept]
        rows.append([*named, part, ""])
    header = [*(table.header[column] for column in kept), "part"]
    labels = table.labels if table.labels == NOWHERE else kept.index(table.labels)
    return replace(table, header=header, rows=rows, image=kept.index(table.image), labels=labels, part=len(kept))
