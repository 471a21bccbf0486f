"""Labels from tar shards (WebDataset): a member json, cls or txt beside an image says what is on it."""

import json
from collections.abc import Sequence
from pathlib import Path

from percentmatch.data.labels import Flags
from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.decode import member_path
from percentmatch.data.readers.table import Code, Table, labels_from, labels_of
from percentmatch.data.shards.index import Noted, Shards
from percentmatch.errors import UserError


def labeled_manifest(shards: Shards, place: str, classes: Sequence[str] | None = None) -> Manifest:
    """The images that have labels in their shards, as `open_shards(labels=True)` found them.

    Labels are a list in JSON, `{"labels": ["cat"]}`, or a text as in a CSV file. JSON may also name classes that are
    unknown or difficult for the image, and its part. Other `classes` than those asked for are left out.
    """
    if not shards.noted:
        raise UserError(f"{place}: no image in these shards has labels; put a member json, cls or txt beside some")
    names = [each.name for each in shards.noted]
    if len(set(names)) < len(names):
        names = [f"{Path(shards.paths[each.shard]).name}/{each.name}" for each in shards.noted]
    sources = [f"{shards.paths[each.shard]}, {each.name}" for each in shards.noted]
    notes = [_checked(each, source) for each, source in zip(shards.noted, sources, strict=True)]
    rows = [[name, labels, part, ""] for name, (labels, part, _, _) in zip(names, notes, strict=True)]
    table = Table(Path(place), ["image", "labels", "part"], rows, sources, image=0, labels=1, part=2)
    class_names, codes, parts = labels_of(table)
    place_of = {name: column for column, name in enumerate(class_names)}
    unknown, hard = ([{place_of[name] for name in note[at] if name in place_of} for note in notes] for at in (2, 3))
    hard = [hard_ - unknown_ for hard_, unknown_ in zip(hard, unknown, strict=True)]
    codes = [_without(*each) for each in zip(codes, unknown, strict=True)]
    labels = labels_from(codes, len(class_names), Flags.listed(hard, len(class_names)))
    manifest = Manifest(
        paths=tuple(
            member_path(shards.paths[each.shard], each.offset, each.length, shards.stamps[each.shard][1], each.name)
            for each in shards.noted
        ),
        ids=tuple(names),
        **vars(labels),
        parts=tuple(parts),
        class_names=class_names,
        sources=tuple(sources),
    )
    return manifest.choose(classes) if classes else manifest


def _without(code: Code, unknown: set[int]) -> Code:
    """What a row says, but for the classes that are unknown."""
    if code.unknown is None:
        return code
    return Code(tuple(c for c in code.shown if c not in unknown), tuple(unknown.union(code.unknown)))


def _checked(noted: Noted, source: str) -> tuple[str, str, list[str], list[str]]:
    """Labels as a cell of a table, the part, unknown and difficult classes."""
    labels, part = noted.note["labels"], noted.note.get("part", "")
    lists = [noted.note.get(name, []) for name in ("unknown", "difficult")]
    listed = [*([labels] if isinstance(labels, list) else []), *lists]
    good = all(isinstance(each, list) and all(isinstance(name, str | int) for name in each) for each in listed)
    if not good or not isinstance(labels, list | str | int) or not isinstance(part, str):
        raise UserError(f'{source}: its JSON is not as expected; write {{"labels": ["cat", "dog"]}}')
    cell = json.dumps(labels) if isinstance(labels, list) else str(labels)
    unknown, difficult = ([str(name) for name in each] for each in lists)
    return cell, part, unknown, difficult
