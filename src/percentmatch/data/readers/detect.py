"""What the user's files are: the kind of data that settings name, and the format of --labels."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from percentmatch.data.manifest import Manifest
from percentmatch.data.readers import fiftyone, label_studio
from percentmatch.data.readers.coco import is_instances, read_instances
from percentmatch.data.readers.folder import list_files
from percentmatch.data.readers.metadata import is_metadata, metadata_files, read_metadata
from percentmatch.data.readers.rows import LabelFile, Report, refuse
from percentmatch.data.readers.table import read_csv
from percentmatch.data.shards.index import names_shards
from percentmatch.errors import UserError
from percentmatch.settings.config import DataSettings

Settings = TypeVar("Settings", bound=DataSettings)
LABEL_FILES = ("labels.csv", "labels.json", "samples.json")  # in a folder given as --labels
OWN = ("files", "shards")  # kinds of data that are the user's own, not an experiment's


class Reader(NamedTuple):
    """A format of labels."""

    fits: Callable[[LabelFile], bool]  # whether a file has this format
    read: Callable[[LabelFile], Manifest]


READERS = {  # of the formats that fit, the last counts: special ones stand below general ones
    "CSV": Reader(lambda file: not file.is_json, read_csv),
    "Label Studio, CSV": Reader(label_studio.is_csv_export, label_studio.read_csv_export),
    "FiftyOne, a file for each image": Reader(lambda file: file.has("index", "attrs"), fiftyone.refuse_one_image),
    "FiftyOne, labels": Reader(lambda file: file.has("labels"), fiftyone.read_labels),
    "FiftyOne, samples": Reader(lambda file: file.has("samples"), fiftyone.read_samples),
    "Label Studio, JSON": Reader(lambda file: isinstance(file.content, list), label_studio.read_tasks),
    "COCO": Reader(is_instances, read_instances),
    "metadata": Reader(is_metadata, read_metadata),
}


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


def read_labels(
    path: Path, images: Path | None = None, *, classes: Sequence[str] | None = None, report: Report = refuse
) -> Manifest:
    """Labels in whatever format of READERS `path`, a file or a folder that holds it, has them.

    Paths are relative to `images`, or to the folder of the file. Only those of a CSV file, which people write by hand,
    may lead out of it. `report` gets each row that cannot be read, and by default raises its sentence.
    """
    file = LabelFile(path, images, classes, report)
    if path.is_dir():
        if metadata_files(path):
            return read_metadata(file)
        file = replace(file, path=path / only_file(path))
    try:
        for reader in reversed(READERS.values()):
            if reader.fits(file):
                return reader.read(file)
    except RecursionError:
        raise UserError(f"{path}: it is nested too deeply to be labels; export it again") from None
    what = "this JSON is neither COCO instances nor an export of Label Studio or FiftyOne"
    raise UserError(f"{file.path}: {what}; give one of these, or a CSV file")


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
    if kind := layout_of(root) or ("shards" if names_shards(settings.root) else None):
        return kind
    if not root.is_dir():
        raise UserError(f"--root: there is no folder {root}; check the path")
    what = "neither like VOC (JPEGImages) nor like COCO (annotations/instances_train*.json), nor holds it .tar shards"
    raise UserError(f"--root: {root} is laid out {what}; give such a folder, or your labels by --labels")


def _scenes_or_nothing(settings: DataSettings) -> Literal["scenes"]:
    if (settings.scenes_pool, settings.scenes_test) == (DataSettings.scenes_pool, DataSettings.scenes_test):
        what = "give your labels by --labels FILE and their images by --images, or a VOC or COCO folder by --root"
        raise UserError(f"no data is named; {what}, or try the program by --data scenes")
    return "scenes"
