"""What the user's files are: the kind of data that settings name, and the format of --labels."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.cache import cache_folder
from percentmatch.data.readers import label_studio
from percentmatch.data.readers.coco import read_coco
from percentmatch.data.readers.entries import load_json, table_of
from percentmatch.data.readers.fiftyone import label_entries, sample_entries
from percentmatch.data.readers.folder import list_files, read_utf8
from percentmatch.data.readers.memo import remember
from percentmatch.data.readers.metadata import NAMES, metadata_files, read_metadata
from percentmatch.data.readers.table import Table, open_table, to_manifest
from percentmatch.data.shards.index import names_shards
from percentmatch.errors import UserError
from percentmatch.settings.config import DataSettings

Settings = TypeVar("Settings", bound=DataSettings)
LABEL_FILES = ("labels.csv", "labels.json", "samples.json")  # in a folder given as --labels
COCO_LISTS = ("images", "annotations", "categories")
OWN = ("files", "shards")  # kinds of data that are the user's own, not an experiment's


def detected(settings: Settings) -> Settings:
    """The settings without "auto" for the kind of data and of split; a VOC or COCO folder may be given as --labels too.

    The user's own data, and what was found without being named, is split so that every class is in each subset; data
    named as VOC or COCO is an experiment's, and drawn at random. Where a split file is named, nothing is drawn.
    """
    found, kind = settings.data == "auto", settings.data
    if found:
        kind = "files" if settings.labels else _root_kind(settings) if settings.root else _scenes_or_nothing(settings)
    every_class = (kind in OWN or (found and kind != "scenes")) and not settings.split_file
    split_kind = ("every-class" if every_class else "random") if settings.split_kind == "auto" else settings.split_kind
    layout = layout_of(Path(settings.labels)) if kind == "files" and settings.labels and not settings.root else None
    if layout:
        return replace(settings, data=layout, root=settings.labels, labels="", split_kind=split_kind)
    return replace(settings, data=kind, split_kind=split_kind)


def layout_of(folder: Path) -> Literal["voc", "coco"] | None:
    """Whether a folder is laid out like VOC or COCO."""
    bases = (folder, *folder.glob("VOC20[0-9][0-9]"), *folder.glob("VOCdevkit/VOC20[0-9][0-9]"))
    if any(os.path.isdir(base / "JPEGImages") for base in bases):
        return "voc"
    return "coco" if any(folder.glob("annotations/instances_train*.json")) else None


def read_labels(place: Path, images: Path | None = None, *, classes: Sequence[str] | None = None) -> Manifest:
    """Labels in whatever format `place`, a file or a folder, holds them.

    A CSV file (`image,labels` or a column for each class), metadata.csv or metadata.jsonl, COCO instances, and exports
    of Label Studio and FiftyOne. Paths are relative to `images`, or to the folder of the file. Only those of a CSV
    file, which people write themselves, may lead out of it.
    """
    try:
        return _read_labels(place, images, classes)
    except RecursionError:
        raise UserError(f"{place}: what it holds is nested too deeply to be labels; export it again") from None


def _read_labels(place: Path, images: Path | None, classes: Sequence[str] | None) -> Manifest:
    if place.is_dir():
        if metadata_files(place):
            return read_metadata(place, images, classes=classes)
        place = place / only_file(place)
    if place.name in NAMES or place.suffix.lower() in (".jsonl", ".ndjson"):
        return read_metadata(place, images, classes=classes)
    text = read_utf8(place)
    if text.lstrip()[:1] not in ("[", "{"):
        table, folder = open_table(place), images or place.parent
        if label_studio.is_export(table):
            table = label_studio.from_table(table, folder)
    elif text.lstrip()[0] == "{" and all(f'"{name}"' in text for name in COCO_LISTS):
        return _coco(place, images, classes)
    else:
        table, folder = _from_json(place, text, images)
    return to_manifest(table, folder, classes)


def _from_json(file: Path, text: str, images: Path | None) -> tuple[Table, Path]:
    content, folder = load_json(file, text), images or file.parent
    if isinstance(content, list):
        return table_of(file, label_studio.entries(file, content, folder)), folder
    if "samples" in content:
        return table_of(file, sample_entries(file, content, folder)), folder
    if "labels" in content:
        folder = images or (file.parent / "data" if os.path.isdir(file.parent / "data") else file.parent)
        return table_of(file, *label_entries(file, content, folder)), folder
    if "index" in content or "attrs" in content:
        raise UserError(
            f"{file}: FiftyOne's image labels with one file an image do not tell an image without labels from one that "
            "shows none of the classes; export the dataset as FiftyOneImageClassificationDataset or FiftyOneDataset"
        )
    raise UserError(
        f"{file}: this JSON is neither COCO instances (images, annotations and categories) nor an export of Label "
        "Studio (a list of tasks) or FiftyOne (labels or samples); give one of these, or a CSV file"
    )


def _coco(file: Path, images: Path | None, classes: Sequence[str] | None) -> Manifest:
    """An instances file by itself; its images are in --images, or where COCO has them."""
    name, above = file.stem.removeprefix("instances_"), file.parent.parent
    usual = (place for place in (above / name, above / "images" / name) if place.is_dir())
    folder = images or next(usual, file.parent)
    manifest = remember(partial(read_coco, file, folder), file, folder, cache=cache_folder())
    return manifest.choose(classes) if classes else manifest


def only_file(folder: Path) -> str:
    """The file of labels in a folder."""
    names = list_files(folder)
    known = [name for name in LABEL_FILES if name in names]
    others = [name for name in names if name.lower().endswith((".csv", ".tsv", ".json", ".jsonl"))]
    found = known[:1] or others
    if len(found) != 1:
        there = " and ".join(sorted(found)[:3]) if found else "no file of labels"
        raise UserError(f"--labels: the folder {folder} holds {there}; give the file itself (CSV, JSON or JSON lines)")
    return found[0]


def _root_kind(settings: DataSettings) -> Literal["voc", "coco", "shards"]:
    root = Path(settings.root)
    kind = layout_of(root) or ("shards" if names_shards(settings.root) else None)
    if not kind and not root.is_dir():
        raise UserError(f"--root: there is no folder {root}; check the path")
    if kind is None:
        raise UserError(
            f"--root: {root} is laid out neither like VOC (JPEGImages) nor like COCO "
            "(annotations/instances_train*.json) and holds no .tar shards; give that folder, or your labels by --labels"
        )
    return kind


def _scenes_or_nothing(settings: DataSettings) -> Literal["scenes"]:
    if all(getattr(settings, name) == getattr(DataSettings, name) for name in ("scenes_pool", "scenes_test")):
        raise UserError(
            "no data is named; give your labels by --labels FILE and the folder of the images by --images, a VOC or "
            "COCO folder by --root, or take --data scenes to try the program"
        )
    return "scenes"
