"""What an export says of each image, whatever its format, as one table."""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from percentmatch.data.manifest import check_room
from percentmatch.data.readers.folder import read_utf8
from percentmatch.data.readers.table import NOWHERE, PART_OF, Code, Table
from percentmatch.errors import UserError

DEEPEST = 32  # folders of a path that are compared


@dataclass(frozen=True)
class Entry:
    """One image of an export."""

    image: str
    labels: Collection[str] | None  # None: nobody has looked at it
    source: str  # where it stands, for messages
    part: str = ""
    unsure: Collection[str] = ()  # classes of which it is not known whether the image shows them


def table_of(file: Path, entries: Sequence[Entry], class_names: Sequence[str] | None = None) -> Table:
    """A column for each class: those named, or all that occur, sorted."""
    if not entries:
        raise UserError(f"{file} names no image; export the data again")
    if class_names is None:
        class_names = sorted({name for entry in entries for name in (*(entry.labels or ()), *entry.unsure)})
    check_room(str(file), len(entries), len(class_names))
    header = ["image", "part", *class_names]
    column_of = {name: column for column, name in enumerate(header) if column > 1}
    codes = []
    for entry in entries:
        unsure = {column_of[name] for name in entry.unsure if name in column_of}
        shown = {column_of[name] for name in entry.labels or () if name in column_of} - unsure
        codes.append(Code(tuple(shown), None if entry.labels is None else tuple(unsure)))
    rows, sources = [[entry.image, entry.part] for entry in entries], [entry.source for entry in entries]
    return Table(file, header, rows, sources, image=0, labels=NOWHERE, part=1, inside=True, codes=codes)


def load_json(file: Path, text: str | None = None) -> Any:
    """The content of a JSON file, whose text may have been read already."""
    try:
        return json.loads(read_utf8(file) if text is None else text)
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, line {error.lineno}: this is not JSON ({error.msg}); export the file again") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}); export the file again") from None


def part_among(tags: object, source: str) -> str:
    """The part that the tags name, or none."""
    parts = {PART_OF.get(str(tag).lower(), "") for tag in tags} - {""} if isinstance(tags, list) else set()
    if len(parts) > 1:
        raise UserError(f"{source}: its tags name the parts {' and '.join(sorted(parts))}; keep one of them")
    return "".join(parts)


def nearest(folder: Path, name: str) -> str | None:
    """The longest ending of a path that is a file in `folder`."""
    pieces = [piece for piece in name.replace("\\", "/").split("/") if piece not in ("", ".", "..")][-DEEPEST:]
    endings = ["/".join(pieces[start:]) for start in range(len(pieces))]
    return next((ending for ending in endings if os.path.isfile(folder / ending)), None)
