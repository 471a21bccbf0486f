"""What an export says of each image, whatever its format, as one table."""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from percentmatch.data.folder import read_utf8
from percentmatch.data.table import NOWHERE, PART_OF, Table
from percentmatch.errors import UserError


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
    rows = []
    for entry in entries:
        shown, unsure = set(entry.labels or ()), set(class_names if entry.labels is None else entry.unsure)
        cells = ["?" if name in unsure else "1" if name in shown else "0" for name in class_names]
        rows.append([entry.image, entry.part, *cells, ""])
    header = ["image", "part", *class_names]
    return Table(file, header, rows, [entry.source for entry in entries], image=0, labels=NOWHERE, part=1)


def load_json(file: Path, text: str | None = None) -> Any:
    """The content of a JSON file, whose text may have been read already."""
    try:
        return json.loads(read_utf8(file) if text is None else text)
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, line {error.lineno}: this is not JSON ({error.msg}); export the file again") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}); export the file again") from None


def part_among(tags: object) -> str:
    """The part that one of the tags names; none if several do."""
    parts = {PART_OF.get(str(tag).lower(), "") for tag in tags} - {""} if isinstance(tags, list) else set()
    return parts.pop() if len(parts) == 1 else ""


def nearest(folder: Path, name: str) -> str | None:
    """The longest ending of a path that is a file in `folder`."""
    pieces = [piece for piece in name.replace("\\", "/").split("/") if piece]
    endings = ["/".join(pieces[start:]) for start in range(len(pieces))]
    return next((ending for ending in endings if os.path.isfile(folder / ending)), None)
