"""MS-COCO: image-level labels from an instances JSON file."""

import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from percentmatch.data.labels import Flags, Labels
from percentmatch.data.manifest import Manifest, check_room
from percentmatch.data.pixels.cache import cache_folder
from percentmatch.data.readers.folder import find_all_images, read_utf8
from percentmatch.data.readers.memo import remember
from percentmatch.data.readers.rows import LabelFile
from percentmatch.errors import UserError

T = TypeVar("T", bound=Hashable)
OUTLINE = re.compile(r'"segmentation"\s*:\s*\[[][0-9.,eE+\s-]*\]')
NEEDED = {"images": ("id", "file_name"), "categories": ("id", "name"), "annotations": ("image_id", "category_id")}


def read_coco(annotations: Path, images: Path, *, part: str = "", keep_empty: bool = True) -> Manifest:
    """Read e.g. instances_train2014.json; the classes are the categories in the order of their ids.

    A class is present where any annotation says so, one of a crowd (iscrowd) too. Images without annotations have all
    labels 0; `keep_empty=False` leaves them out (82,081 of the 82,783 training images of 2014 have annotations).
    """
    content = _read_content(annotations)
    categories = sorted(content["categories"], key=lambda entry: entry["id"])
    class_names = [entry["name"].strip() for entry in categories]
    _unique(annotations, "categories", class_names)
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
    everywhere = (Flags.full(len(row_of), len(column_of), value) for value in (1, 0))
    labels = Labels(Flags.listed(shown, len(column_of)), *everywhere)
    sources = [f"{annotations}, image id {name}" for name in row_of]
    ids = find_all_images(images, [entry["file_name"] for entry in content["images"]], sources, inside=True)
    manifest = Manifest(
        paths=tuple(images / name for name in ids),
        ids=tuple(ids),
        labels=labels,
        parts=(part,) * len(ids),
        class_names=tuple(class_names),
        sources=tuple(sources),
    )
    if keep_empty:
        return manifest
    if not any(shown):
        raise UserError(f"{annotations} has no annotation; keep the images without annotations or give another file")
    return manifest.select([bool(columns) for columns in shown])


def is_instances(file: LabelFile) -> bool:
    return file.is_json and all(f'"{name}"' in file.text for name in NEEDED)


def read_instances(file: LabelFile) -> Manifest:
    """An instances file by itself; its images are in the folder given, or where COCO has them."""
    name, above = file.path.stem.removeprefix("instances_"), file.path.parent.parent
    usual = (folder for folder in (above / name, above / "images" / name) if folder.is_dir())
    folder = file.images or next(usual, file.path.parent)
    manifest = remember(partial(read_coco, file.path, folder), file.path, folder, cache=cache_folder())
    return manifest.choose(file.classes) if file.classes else manifest


def _read_content(file: Path) -> Mapping[str, list[dict[str, Any]]]:
    """The three lists of the file, each entry with the fields that are used."""
    try:
        content = json.loads(OUTLINE.sub(_without_outline, read_utf8(file)))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file}, line {error.lineno}: this is not JSON ({error.msg}); give an instances file"
        ) from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{file} is not a COCO instances file ({error}); give e.g. instances_train2014.json") from None
    for name, fields in NEEDED.items():
        entries = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise UserError(f"{file} is not a COCO instances file: it has no list '{name}'; give an instances file")
        for number, entry in enumerate(entries, 1):
            for field in fields:
                if not isinstance(entry, dict) or not _is_right(field, entry.get(field)):
                    what = f"entry {number} of '{name}' has no good '{field}'"
                    raise UserError(f"{file} is not a COCO instances file: {what}; give an instances file")
    return content


def _without_outline(match: re.Match[str]) -> str:
    """Outlines fill most of the file and are not used: leaving them out makes reading several times as fast."""
    return '"segmentation":0' + "\n" * match[0].count("\n")  # line numbers stay right


def _is_right(field: str, value: object) -> bool:
    if field in ("file_name", "name"):
        return isinstance(value, str) and bool(value.strip()) and "\0" not in value
    return isinstance(value, int)


def _unique(file: Path, what: str, keys: list[T]) -> dict[T, int]:
    number_of = {key: number for number, key in enumerate(keys)}
    if not keys:
        raise UserError(f"{file}: '{what}' is empty; give a file with at least one")
    if len(number_of) < len(keys):
        twice = Counter(keys).most_common(1)[0][0]
        raise UserError(f"{file}: '{what}' has {twice!r} twice; keep one of the entries")
    return number_of
