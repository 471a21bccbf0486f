"""A CSV file read in spite of its mistakes: each becomes a finding, and the other rows go on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from percentmatch.data.manifest import Manifest
from percentmatch.data.readers import label_studio
from percentmatch.data.readers.folder import find_images
from percentmatch.data.readers.table import CELLS, NOTHING_KNOWN, NOWHERE, UNKNOWN, Table, open_table, to_manifest
from percentmatch.errors import UserError, did_you_mean

MOST = 100  # rows that cannot be read; a file with more needs another look first
Level = Literal["serious", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One kind of defect and where it is."""

    check: str
    level: Level
    count: int
    text: str  # of what
    items: list[dict[str, Any]] = field(default_factory=list)  # each with a "text" of its own


def read_leniently(file: Path, images: Path | None, classes: Sequence[str] | None) -> tuple[Manifest, list[Finding]]:
    """The rows that can be read, and what is wrong with the others.

    Of an image named twice, the first row counts that knows a label.
    """
    folder = images or file.parent
    table = open_table(file)
    if label_studio.is_export(table):
        table = label_studio.from_table(table, folder)
    findings, absent = [], []
    texts = [row[table.image] for row in table.rows]
    names = find_images(folder, texts, table.sources, absent=absent, inside=table.inside)
    if absent:
        if len(absent) == len(names):
            find_images(folder, texts, table.sources)  # says that none is there
        what = f"images of the {len(names)} named in {file} that are not in {folder}"
        items = [{"image": texts[row], "text": f"{table.sources[row]}: {texts[row]}"} for row in absent]
        findings.append(Finding("missing image", "serious", len(absent), what, items))
    table = _rows(table, [row for row, name in enumerate(names) if name])
    columns = classes if table.labels == NOWHERE else None  # other columns may hold anything
    table, refused = _without_refused(table, folder, columns)
    if refused:
        items = [{"text": sentence} for sentence in refused]
        findings.append(Finding("bad row", "serious", len(refused), f"rows of {file} that cannot be read", items))
    layers = _layers(table, folder)
    if table.labels != NOWHERE:
        classes, found = _with_strays(layers, folder, classes)
        findings += found
    manifests = [to_manifest(each, folder, classes) for each in layers]
    return manifests[0], findings + _told_differently(manifests)


def _rows(table: Table, rows: Sequence[int]) -> Table:
    return replace(table, rows=[table.rows[row] for row in rows], sources=[table.sources[row] for row in rows])


def _layers(table: Table, folder: Path) -> list[Table]:
    """Tables that name each image once: by its first row, then by its second where there is one, and so on.

    Rows that know no label are left out where the image has others.
    """
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(find_images(folder, [cells[table.image] for cells in table.rows], table.sources)):
        rows_of.setdefault(name, []).append(row)
    for name, rows in rows_of.items():
        rows_of[name] = [row for row in rows if not _knows_nothing(table, row)] or rows[:1]
    depth = max(map(len, rows_of.values()))
    return [_rows(table, [rows[min(layer, len(rows) - 1)] for rows in rows_of.values()]) for layer in range(depth)]


def _knows_nothing(table: Table, row: int) -> bool:
    cells = [cell.strip().lower() for cell in table.rows[row][:-1]]
    if table.labels != NOWHERE:
        return cells[table.labels] == NOTHING_KNOWN
    others = (cell for column, cell in enumerate(cells) if column not in (table.image, table.part))
    return all(CELLS.get(cell) == UNKNOWN for cell in others)


def _without_refused(table: Table, folder: Path, columns: Sequence[str] | None) -> tuple[Table, list[str]]:
    """The table without the rows that the reader refuses one by one, and its sentences.

    They begin with the place of the row. Of images that are named twice, which come last, they name two places.
    """
    refused: list[str] = []
    while True:
        try:
            to_manifest(table, folder, columns)
        except UserError as error:
            sentence = str(error)
            if any(sentence.startswith(f"{source} and ") for source in table.sources):
                return table, refused
            good = [row for row, source in enumerate(table.sources) if not sentence.startswith(f"{source}: ")]
            if len(good) in (0, len(table.rows)) or len(refused) == MOST:
                raise
            refused.append(sentence)
            table = _rows(table, good)
        else:
            return table, refused


def _with_strays(
    layers: Sequence[Table], folder: Path, classes: Sequence[str] | None
) -> tuple[list[str], list[Finding]]:
    """The classes asked for and any other label of the tables, which is a finding."""
    named = sorted({name for table in layers for name in to_manifest(table, folder).class_names})
    if classes is None:
        return named, []
    asked = set(classes)
    every = [*classes, *(name for name in named if name not in asked)]
    items = {}
    for manifest in (to_manifest(table, folder, every) for table in layers):
        rows_of: dict[int, list[int]] = {}
        for row, column in zip(*(each.tolist() for each in manifest.labels.targets.ones()), strict=True):
            rows_of.setdefault(column, []).append(row)
        for column in range(len(classes), len(every)):
            rows = rows_of.get(column)
            if rows and every[column] not in items:  # else a piece of a class that holds a space
                hint = did_you_mean(every[column], classes)
                text = f"{manifest.sources[rows[0]]}: {every[column]!r}, on {len(rows)} images{hint}"
                items[every[column]] = {"label": every[column], "images": len(rows), "text": text}
    what = "labels that are none of the classes asked for"
    found = [Finding("unknown class", "serious", len(items), what, list(items.values()))] if items else []
    return [*classes, *items], found


def _told_differently(manifests: Sequence[Manifest]) -> list[Finding]:
    """Images whose rows give different labels or parts."""
    first = manifests[0]
    labels, parts = {}, {}  # by their text, as the rows of an image come in several tables
    for other in manifests[1:]:
        both = ((getattr(each.labels, name).parts() for each in (first, other)) for name in ("targets", "known"))
        apart = [torch.cat([(mine != theirs).any(1) for mine, theirs in zip(*each, strict=True)]) for each in both]
        apart = (apart[0] | apart[1]).tolist()
        for row, name in enumerate(first.ids):
            both = f"{first.sources[row]} and {other.sources[row]}"
            if apart[row]:
                labels[f"{both} give {name!r} different labels"] = name
            if first.parts[row] != other.parts[row]:
                parts[f"{both} put {name!r} into different parts"] = name
    found = []
    for check, word, told in (("conflicting labels", "labels", labels), ("leak", "parts", parts)):
        count, what = len(set(told.values())), f"images that are named twice, with different {word}"
        items = [{"images": [name], "text": text} for text, name in told.items()]
        found += [Finding(check, "serious", count, what, items)] if told else []
    return found
