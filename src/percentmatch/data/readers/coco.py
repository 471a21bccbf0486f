"""MS-COCO: image-level labels from an instances JSON file. They take long to read, so the manifest is cached."""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from percentmatch.data.labels import TABLES, Flags, Labels
from percentmatch.data.manifest import Manifest, check_room
from percentmatch.data.pixels.cache import cache_folder, key_of
from percentmatch.data.readers.folder import load_json, read_text
from percentmatch.data.readers.rows import LabelFile, Report, Row, refuse
from percentmatch.errors import UserError
from percentmatch.files import write_atomic

T = TypeVar("T", bound=Hashable)
OUTLINE = re.compile(r'"segmentation"\s*:\s*\[[][0-9.,eE+\s-]*\]')
NEEDED = {
    "images": {"id": int, "file_name": str},
    "categories": {"id": int, "name": str},
    "annotations": {"image_id": int, "category_id": int},
}
VERSION = 3  # of cached manifests
FLAGS = ("usual", "starts", "columns")
NAMES = ("paths", "ids", "parts", "class_names", "sources")


def read_coco(
    annotations: Path, images: Path, *, part: str = "", keep_empty: bool = True, report: Report = refuse
) -> Manifest:
    """Read e.g. instances_train2014.json; the classes are the categories in the order of their ids.

    A class is present where any annotation says so, one of a crowd (iscrowd) too. Images without annotations have all
    labels 0; `keep_empty=False` leaves them out (82,081 of the 82,783 training images of 2014 have annotations).
    """
    content = _read_content(annotations)
    categories = sorted(content["categories"], key=lambda entry: entry["id"])
    names = list(_unique(annotations, "categories", [entry["name"].strip() for entry in categories]))
    column_of = _unique(annotations, "categories", [entry["id"] for entry in categories])
    row_of = _unique(annotations, "images", [entry["id"] for entry in content["images"]])
    check_room(str(annotations), len(row_of), len(column_of))
    shown: list[set[int]] = [set() for _ in row_of]
    for number, entry in enumerate(content["annotations"], 1):
        row, column = row_of.get(entry["image_id"]), column_of.get(entry["category_id"])
        if row is None or column is None:
            what = f"image {entry['image_id']}" if row is None else f"category {entry['category_id']}"
            raise UserError(f"{annotations}, annotation {number}: there is no {what}; remove the annotation or add it")
        shown[row].add(column)
    if not keep_empty and not any(shown):
        raise UserError(f"{annotations} has no annotation; keep the images without annotations or give another file")
    rows = [
        Row(entry["file_name"], [names[i] for i in sorted(columns)], f"{annotations}, image id {entry['id']}", part)
        for entry, columns in zip(content["images"], shown, strict=True)
    ]
    manifest = LabelFile(annotations, report=report).manifest(rows, names, folder=images)
    return manifest if keep_empty else manifest.select(manifest.labels.targets.in_rows() > 0)


def is_instances(file: LabelFile) -> bool:
    return file.is_json and all(f'"{name}"' in file.text for name in NEEDED)


def read_instances(file: LabelFile, *, part: str = "", keep_empty: bool = True) -> Manifest:
    """An instances file whose images are in the folder given, or where COCO has them, or beside it."""
    name, above = file.path.stem.removeprefix("instances_"), file.path.parent.parent
    usual = (folder for folder in (above / name, above / "images" / name) if folder.is_dir())
    folder = file.images or next(usual, file.path.parent)
    read = partial(read_coco, file.path, folder, part=part, keep_empty=keep_empty, report=file.report)
    cached = file.report is refuse  # else somebody is to hear of each error
    manifest = remember(read, file.path, folder, part, keep_empty, cache=cache_folder()) if cached else read()
    return manifest.choose(file.classes) if file.classes else manifest


def _read_content(file: Path) -> Mapping[str, list[dict[str, Any]]]:
    """The three lists of the file, each entry with the fields that are used."""
    # outlines fill most of the file and are not used: leaving them out, but not their lines, is several times as fast
    text = OUTLINE.sub(lambda found: '"segmentation":0' + "\n" * found[0].count("\n"), read_text(file))
    content = load_json(file, text)
    try:
        for name, fields in NEEDED.items():
            entries = content.get(name) if isinstance(content, dict) else None
            if not isinstance(entries, list):
                raise UserError(f"it has no list '{name}'")
            for number, entry in enumerate(entries, 1):
                for field, kind in fields.items():
                    value = entry.get(field) if isinstance(entry, dict) else None
                    if not isinstance(value, kind) or (kind is str and (not value.strip() or "\0" in value)):
                        raise UserError(f"entry {number} of '{name}' has no good '{field}'")
    except UserError as error:
        raise UserError(f"{file} is not a COCO instances file: {error}; give e.g. instances_train2014.json") from None
    return content


def _unique(file: Path, what: str, keys: list[T]) -> dict[T, int]:
    """The position of each key."""
    if not keys:
        raise UserError(f"{file}: '{what}' is empty; give a file with at least one")
    key, count = Counter(keys).most_common(1)[0]
    if count > 1:
        raise UserError(f"{file}: '{what}' has {key!r} twice; keep one of the entries")
    return {key: number for number, key in enumerate(keys)}


def remember(read: Callable[[], Manifest], file: Path, images: Path, *settings: object, cache: Path) -> Manifest:
    """What `read` makes of `file` under these settings, from `cache` if nothing has changed since.

    Neither the file nor which names the folder `images` holds; folders below it are not looked into.
    """
    about = os.stat(file)
    held = (os.stat(images).st_mtime_ns, len(os.listdir(images))) if images.is_dir() else ()
    facts = VERSION, os.path.abspath(file), about.st_size, about.st_mtime_ns, str(images), held, *map(str, settings)
    cached = cache / f"{key_of(facts)}.manifest"
    with contextlib.suppress(OSError, SafetensorError, ValueError, KeyError, TypeError):
        return _unpack(cached.read_bytes())
    manifest = read()
    with contextlib.suppress(OSError, UserError):  # only speed is lost
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(cached, _pack(manifest))
    return manifest


def _pack(manifest: Manifest) -> bytes:
    names = {name: [str(value) for value in getattr(manifest, name)] for name in NAMES}
    text = torch.frombuffer(bytearray(json.dumps(names).encode()), dtype=torch.uint8)
    tables = {name: getattr(manifest.labels, name) for name in TABLES}
    flags = {f"{name}.{field}": getattr(table, field) for name, table in tables.items() for field in FLAGS}
    return save({"names": text, **flags})


def _unpack(content: bytes) -> Manifest:
    stored = load(content)
    fields = {name: tuple(values) for name, values in json.loads(bytes(stored.pop("names").numpy())).items()}
    width = len(fields["class_names"])
    labels = Labels(*(Flags(*(stored[f"{name}.{field}"] for field in FLAGS), width) for name in TABLES))
    for flags in (labels.targets, labels.known, labels.difficult):
        ends, columns = flags.starts, flags.columns
        if ends[0] != 0 or (ends.diff() < 0).any() or ends[-1] != len(columns) or len(ends) != len(flags) + 1:
            raise ValueError("rows of labels do not fit")
        if ((columns < 0) | (columns >= width)).any() or (flags.usual > 1).any():
            raise ValueError("labels of no class")
    return Manifest(paths=tuple(map(Path, fields.pop("paths"))), labels=labels, **fields)
