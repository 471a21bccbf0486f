"""FiftyOne's exports: the labels.json of an image classification dataset, and the samples.json of a whole one.

Beside labels.json, data.json may say where the images are, if they were not exported.
"""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any, NoReturn

from percentmatch.data.manifest import SUBSET_OF, Manifest
from percentmatch.data.readers.folder import is_image_name, load_json, nearest, read_folder
from percentmatch.data.readers.rows import LabelFile, Row, each_row
from percentmatch.errors import UserError

FIELD = "ground_truth"  # what counts where several fields hold classifications
PATHS = "data.json"  # beside labels.json: the path of each image by its name


def refuse_one_image(file: LabelFile) -> NoReturn:
    what = f"{file.path}: FiftyOne's image labels with one file an image do not say which images are unlabeled"
    raise UserError(f"{what}; export the dataset as FiftyOneImageClassificationDataset or FiftyOneDataset")


def read_labels(file: LabelFile) -> Manifest:
    """labels.json: an image for each name; and the classes in their order, if it lists them.

    A name is a path without suffix in the folder, or a whole path; data.json says the path where there is one.
    """
    classes, labels = file.content.get("classes"), file.content["labels"]
    if not isinstance(labels, dict) or not (classes is None or isinstance(classes, list)):
        raise UserError(f"{file.path}: 'labels' must name images and 'classes' be a list; export the dataset again")
    beside = file.path.parent / "data"
    folder = file.images or (beside if os.path.isdir(beside) else file.path.parent)
    names = None if classes is None else [str(name) for name in classes]
    known = frozenset(names or ())
    listed = file.path.with_name(PATHS)
    path_of = load_json(listed) if listed.is_file() else {}
    if not isinstance(path_of, dict):
        raise UserError(f"{listed} must say the path of each image by its name; export the dataset again")
    files_of: dict[str, list[str]] = defaultdict(list)  # by their names without suffix
    if not all(name in path_of or is_image_name(name) for name in labels):
        for name in read_folder(folder).ids:
            files_of[name.rpartition(".")[0]].append(name)

    def read(source: str, item: tuple[str, Any]) -> Row:
        image, value = item
        several = value if isinstance(value, list) else [value]
        shown = None if value is None else [_name(label, names, known) for label in several]
        found = files_of.get(image, [])
        if len(found) > 1:
            raise UserError(f"{' and '.join(found[:2])} have this name; give a folder without the others")
        path = str(path_of.get(image, image))
        return Row(found[0] if found else nearest(folder, path) or path, shown, source)

    items = ((f"{file.path}, image {image!r}", (image, value)) for image, value in labels.items())
    return file.manifest(each_row(items, read), names, folder=folder)


def _name(value: object, names: list[str] | None = None, known: frozenset[str] = frozenset()) -> str:
    """A label as a name or a number among the classes, alone or with its confidence; `known` are the names as a set."""
    value = value.get("label") if isinstance(value, dict) else value
    if isinstance(value, str) and (names is None or value in known):
        return value
    if not isinstance(value, int) or names is None or not 0 <= value < len(names):
        raise UserError(f"{value!r} is no label and no number of a class; export the dataset again")
    return names[value]


def read_samples(file: LabelFile) -> Manifest:
    """samples.json: an image for each sample, labels from its field of classifications, the subset from its tags."""
    samples = file.content["samples"]
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        raise UserError(f"{file.path}: 'samples' must be a list of samples; export the dataset again")
    field = _field(file.path, samples)

    def read(source: str, sample: dict[str, Any]) -> Row:
        path, value = sample.get("filepath"), sample.get(field)
        if not isinstance(path, str) or not path:
            raise UserError("it has no filepath; export the dataset again")
        found = [] if value is None else _classifications(value)
        if not isinstance(found, list):
            raise UserError("its labels are no classifications; export the dataset again")
        shown = None if value is None else [_name(label) for label in found]
        return Row(nearest(file.folder, path) or path, shown, source, _subset_among(sample.get("tags")))

    items = ((f"{file.path}, sample {number}", sample) for number, sample in enumerate(samples, 1))
    return file.manifest(each_row(items, read))


def _subset_among(tags: object) -> str:
    """The subset that the tags name, or none."""
    found = {SUBSET_OF.get(str(tag).lower(), "") for tag in tags} - {""} if isinstance(tags, list) else set()
    if len(found) > 1:
        raise UserError(f"its tags name the subsets {' and '.join(sorted(found))}; keep one of them")
    return "".join(found)


def _field(file: Path, samples: list[dict[str, Any]]) -> str:
    """The field that holds the labels."""
    fields = {name for sample in samples for name, value in sample.items() if _classifications(value) is not None}
    if len(fields) == 1 or FIELD in fields:
        return FIELD if FIELD in fields else fields.pop()
    what = f"the fields {', '.join(sorted(fields))} of" if fields else "no field of"
    raise UserError(f"{file} has {what} classifications where one is needed; export the one to learn as {FIELD}")


def _classifications(value: Any) -> Any:
    """The list in a Classifications, or a Classification by itself; None for any other value."""
    kind = value.get("_cls") if isinstance(value, dict) else None
    return value.get("classifications") if kind == "Classifications" else [value] if kind == "Classification" else None
