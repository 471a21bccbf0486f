"""What the user's files are: the kind of data that settings name, and the format of --labels.

One format is read here too, as its files are known by their names: `metadata.jsonl` and `metadata.csv`, as image
folders of Hugging Face have them, with `file_name` and labels in a row.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from percentmatch.console.notices import print_to_stderr
from percentmatch.data.manifest import MOST_CELLS, SUBSET_OF, Manifest, check_room
from percentmatch.data.pixels.images import Say
from percentmatch.data.readers import exports
from percentmatch.data.readers.class_folders import is_class_folders, read_class_folders
from percentmatch.data.readers.coco import is_instances, read_instances
from percentmatch.data.readers.folder import list_files, numbered_lines
from percentmatch.data.readers.nus_wide import is_nus_wide, read_nus_wide
from percentmatch.data.readers.parquet import is_parquet, read_parquet
from percentmatch.data.readers.rows import LabelFile, Report, RowError, each_row, refuse
from percentmatch.data.readers.table import NOWHERE, Line, Table, find_columns, open_table, read_cells, read_csv
from percentmatch.data.shards.index import names_shards
from percentmatch.errors import UserError
from percentmatch.settings.config import DataSettings

Settings = TypeVar("Settings", bound=DataSettings)
METADATA, JSONL = ("metadata.csv", "metadata.jsonl"), (".jsonl", ".ndjson")
LABEL_FILES = ("labels.csv", "labels.json", "samples.json")  # in a folder given as --labels
OWN = ("files", "shards")  # kinds of data that are the user's own, not an experiment's


class Reader(NamedTuple):
    """A format of labels."""

    fits: Callable[[LabelFile], bool]  # whether a file has this format
    read: Callable[[LabelFile], Manifest]


def read_metadata(file: LabelFile) -> Manifest:
    """Read a file of metadata, or a folder that holds it or has one in each of its train, validation and test folders.

    Labels are a list, or text as in a CSV file; an empty list means none of the classes, null that nothing is known.
    """
    folder = file.path
    if not folder.is_dir():
        return read_cells(file, _open(folder), inside=True)
    files = metadata_files(folder).items()
    first, *others = [_in_folder(_open(path), folder, subset) if subset else _open(path) for path, subset in files]
    lines, sources = [*first.lines], [*first.sources]
    for table in others:
        if sorted(table.header) != sorted(first.header):
            raise UserError(f"{table.file} has other columns than {first.file}; give them the same ones")
        order = [*map(table.header.index, first.header), -1]
        lines += [line if isinstance(line, RowError) else [line[column] for column in order] for line in table.lines]
        sources += table.sources
    file, table = replace(file, images=file.images or folder), replace(first, lines=lines, sources=sources)
    return read_cells(file, table, inside=True)


def is_metadata(file: LabelFile) -> bool:
    if file.path.is_dir():
        return bool(metadata_files(file.path))
    return file.path.name in METADATA or file.path.suffix.lower() in JSONL


def metadata_files(folder: Path) -> dict[Path, str]:
    """The metadata files of a folder, or of those of its subsets, and the subset that each is for."""
    for name in METADATA:
        if os.path.isfile(folder / name):
            return {folder / name: ""}
    below = [path for path in sorted(folder.iterdir()) if SUBSET_OF.get(path.name.lower()) and path.is_dir()]
    found = [(path / name, SUBSET_OF[path.name.lower()]) for path in below for name in METADATA]
    return {file: subset for file, subset in found if file.is_file()}


def _open(file: Path) -> Table:
    """A CSV file, or a JSON object a line, as a table; a value that is missing or null is unknown."""
    if file.suffix.lower() == ".csv":
        return open_table(file)
    found = list(numbered_lines(file))
    if not found:
        raise UserError(f"{file} is empty; write one JSON object a line")
    entries = list(each_row(found, _object))
    header = list(dict.fromkeys(name for entry in entries if isinstance(entry, dict) for name in entry))
    if isinstance(entries[0], RowError) and not header:
        raise UserError(entries[0].sentence)
    check_room(str(file), len(entries), len(header), MOST_CELLS)
    lines = [e if isinstance(e, RowError) else [*(e.get(name, "?") for name in header), ""] for e in entries]
    return Table(file, header, lines, [source for source, _ in found], *find_columns(file, header))


def _object(_: str, line: str) -> dict[str, str]:
    """The JSON object that a line holds, its values as cells."""
    entry = None
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
    if not isinstance(entry, dict):
        raise UserError('this is no JSON object; write {"file_name": "1.jpg", "labels": ["cat"]}')
    if not entry.get("file_name"):
        raise UserError("there is no file_name; name the image or remove the line")
    return {k: "?" if v is None else v if isinstance(v, str) else json.dumps(v) for k, v in entry.items()}


def _in_folder(table: Table, top: Path, subset: str) -> Table:
    """The table of a subset's folder, its images named from `top`, with a column for the subset instead of its own."""
    below = table.file.parent.relative_to(top).as_posix()
    others = [column for column in range(len(table.header)) if column != table.subset]

    def moved(_: str, cells: Line) -> Line:
        named = cells[table.subset].strip().lower()
        if SUBSET_OF.get(named, named) not in ("", subset):
            raise UserError(f"it says {named!r} and lies in the folder {below!r}; correct one of them")
        return [*(f"{below}/{cells[i]}" if i == table.image else cells[i] for i in others), subset, ""]

    lines = list(each_row(zip(table.sources, table.lines, strict=True), moved))
    header = [*(table.header[column] for column in others), "part"]
    labels = table.labels if table.labels == NOWHERE else others.index(table.labels)
    return Table(table.file, header, lines, table.sources, others.index(table.image), labels, len(others))


READERS = {  # of the formats that fit, the last counts: special ones stand below general ones
    "CSV": Reader(lambda file: not file.is_json, read_csv),
    "Label Studio, CSV": Reader(exports.is_csv_export, exports.read_csv_export),
    "FiftyOne, a file for each image": Reader(lambda file: file.has("index", "attrs"), exports.refuse_one_image),
    "FiftyOne, labels": Reader(lambda file: file.has("labels"), exports.read_fiftyone_labels),
    "FiftyOne, samples": Reader(lambda file: file.has("samples"), exports.read_fiftyone_samples),
    "Label Studio, JSON": Reader(lambda file: isinstance(file.content, list), exports.read_tasks),
    "COCO": Reader(is_instances, read_instances),
    "class folders": Reader(is_class_folders, read_class_folders),
    "metadata": Reader(is_metadata, read_metadata),
    "Parquet": Reader(is_parquet, read_parquet),
    "NUS-WIDE": Reader(is_nus_wide, read_nus_wide),
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
    path: Path,
    images: Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    report: Report = refuse,
    say: Say = print_to_stderr,
) -> Manifest:
    """Labels in whatever format of READERS `path`, a file or a folder that holds it or its classes, has them.

    Paths are relative to `images`, or to the folder of the file. Only those of a CSV file, which people write by hand,
    may lead out of it. `report` gets each row that cannot be read, and by default raises its sentence; `say`
    hears what had to be assumed.
    """
    file = LabelFile(path, images, classes, report, say)
    if path.is_dir() and not (is_nus_wide(file) or is_metadata(file) or is_class_folders(file) or is_parquet(file)):
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
