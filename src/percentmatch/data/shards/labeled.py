"""Labels from tar shards (WebDataset): a member json, cls or txt beside an image says what is on it."""

import json
from collections.abc import Sequence
from pathlib import Path

from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.decode import member_path
from percentmatch.data.readers.rows import LabelFile, encode, good_rows, labels_of, refuse
from percentmatch.data.readers.table import Table, label_rows
from percentmatch.data.shards.index import Noted, Shards
from percentmatch.errors import UserError


def labeled_manifest(shards: Shards, place: str, classes: Sequence[str] | None = None) -> Manifest:
    """The images that have labels in their shards, as `open_shards(labels=True)` found them.

    Labels are a list in JSON, `{"labels": ["cat"]}`, or a text as in a CSV file. JSON may also name classes that are
    unknown or difficult for the image, and its subset. Other `classes` than those asked for are left out.
    """
    if not shards.noted:
        raise UserError(f"{place}: no image in these shards has labels; put a member json, cls or txt beside some")
    names = [image.name for image in shards.noted]
    if len(set(names)) < len(names):
        names = [f"{Path(shards.paths[image.shard]).name}/{image.name}" for image in shards.noted]
    sources = [f"{shards.paths[image.shard]}, {image.name}" for image in shards.noted]
    notes = [_checked(image, source) for image, source in zip(shards.noted, sources, strict=True)]
    lines = [[name, *note[:2], ""] for name, note in zip(names, notes, strict=True)]
    table = Table(Path(place), ["image", "labels", "part"], lines, sources, image=0, labels=1, subset=2)
    plain = list(good_rows(label_rows(table), refuse))
    rows = [row._replace(unsure=note[2], difficult=note[3]) for row, note in zip(plain, notes, strict=True)]
    shown = sorted({name for row in plain for name in row.labels or ()})
    class_names, codes = encode(LabelFile(Path(place)), rows, shown, open_labels=True)
    members = ((image, shards.paths[image.shard], shards.stamps[image.shard][1]) for image in shards.noted)
    manifest = Manifest(
        paths=tuple(member_path(path, image.offset, image.length, time, image.name) for image, path, time in members),
        ids=tuple(names),
        labels=labels_of(codes, len(class_names)),
        parts=tuple(row.subset for row in rows),
        class_names=class_names,
        sources=tuple(sources),
    )
    return manifest.choose(classes) if classes else manifest


def _checked(noted: Noted, source: str) -> tuple[str, str, list[str], list[str]]:
    """Labels as a cell of a table, the subset, unknown and difficult classes."""
    labels, subset = noted.note["labels"], noted.note.get("part", "")
    lists = [noted.note.get(name, []) for name in ("unknown", "difficult")]
    listed = [*([labels] if isinstance(labels, list) else []), *lists]
    good = all(isinstance(names, list) and all(isinstance(name, str | int) for name in names) for names in listed)
    if not good or not isinstance(labels, list | str | int) or not isinstance(subset, str):
        raise UserError(f'{source}: its JSON is not as expected; write {{"labels": ["cat", "dog"]}}')
    cell = json.dumps(labels) if isinstance(labels, list) else str(labels)
    unknown, difficult = ([str(name) for name in names] for names in lists)
    return cell, subset, unknown, difficult
