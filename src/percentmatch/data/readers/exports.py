"""Exports of labeling programs: FiftyOne's labels.json and samples.json; Label Studio's JSON, JSON-MIN and CSV.

FiftyOne's labels.json is of an image classification dataset, samples.json of a whole one. Beside labels.json, data.json
may say where the images are, if they were not exported.
"""

import json
import os
import re
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

from percentmatch.data.manifest import SUBSET_OF, Manifest
from percentmatch.data.readers.folder import is_image_name, load_json, nearest, read_folder
from percentmatch.data.readers.rows import LabelFile, Row, each_row
from percentmatch.data.readers.table import Answer, Table, first_row, open_table, rows_of
from percentmatch.errors import UserError

FIELD = "ground_truth"  # of FiftyOne: what counts where several fields hold classifications
PATHS = "data.json"  # beside labels.json: the path of each image by its name
# what JSON-MIN and CSV of Label Studio hold besides the task's data and the answers
ABOUT = {"id", "inner_id", "annotation_id", "annotator", "created_at", "updated_at", "lead_time", "agreement"}
ABOUT |= {"comment", "comments", "annotation_history", "total_annotations"}
WRITTEN = {"annotation_id", "lead_time"}  # by which a CSV export is known
TAXONOMY = "the answer is a taxonomy, whose levels are no classes side by side; export choices"
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # before the name that a file had when it was uploaded


def refuse_one_image(file: LabelFile) -> NoReturn:
    what = f"{file.path}: FiftyOne's image labels with one file an image do not say which images are unlabeled"
    raise UserError(f"{what}; export the dataset as FiftyOneImageClassificationDataset or FiftyOneDataset")


def read_fiftyone_labels(file: LabelFile) -> Manifest:
    """FiftyOne's labels.json: an image for each name; and the classes in their order, if it lists them.

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


def read_fiftyone_samples(file: LabelFile) -> Manifest:
    """FiftyOne's samples.json: an image for each sample, labels in a field of classifications, its subset in tags."""
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


def is_export(table: Table) -> bool:
    return set(table.header) >= WRITTEN


def is_csv_export(file: LabelFile) -> bool:
    return not file.is_json and any({cell.strip() for cell in first_row(file.text, mark)} >= WRITTEN for mark in ",;\t")


def read_csv_export(file: LabelFile) -> Manifest:
    """Label Studio's CSV export: the one column that is no fact about the annotation holds the choices."""
    table = open_table(file.path, file.text)
    answers = [column for column, name in enumerate(table.header) if name not in ABOUT and column != table.image]
    if len(answers) != 1:
        raise UserError(f"{file.path}: {_not_one([table.header[column] for column in answers])}")

    def answer_of(cells: list[str]) -> Answer:
        value: Any = (cell := cells[answers[0]].strip())
        try:
            value = json.loads(cell) if cell.startswith(("{", "[")) else cell
        except (ValueError, RecursionError):
            if not cell.endswith("]") or '"' in cell:  # else a class in brackets
                raise UserError(f"{cell!r} is not JSON; export the file again") from None
        return _answer(value), ()

    return file.manifest(rows_of(table, answer_of, partial(find, file.folder)), open_labels=True)


def read_tasks(file: LabelFile) -> Manifest:
    """An image for each task of Label Studio's JSON export; tasks without annotations are unlabeled.

    What an annotation chose, or drew, is on the image. Skipped annotations do not count. If one is the ground truth it
    alone counts; a class about which annotations differ is unknown.
    """

    def read(source: str, task: Any) -> Row:
        if not isinstance(task, dict):
            raise UserError("this is no task; give Label Studio's JSON export")
        full = isinstance(task.get("data"), dict)
        data = task["data"] if full else task
        key = _image_key(data)
        image = find(file.folder, data[key])
        if not full:
            names = [name for name in task if name not in ABOUT and name != key]
            if len(names) > 1:
                raise UserError(_not_one(names))
            return Row(image, _answer(task[names[0]]) if names else [], source)
        chosen = [set(_chosen(annotation)) for annotation in _counted(task)]
        sure = set.intersection(*chosen) if chosen else None
        return Row(image, sure, source, unsure=set().union(*chosen) - (sure or set()))

    tasks = ((f"{file.path}, task {number}", task) for number, task in enumerate(file.content, 1))
    return file.manifest(each_row(tasks, read))


def find(folder: Path, text: str) -> str:
    """The image in `folder` that a task names: by a path, an address, or the name it got when it was uploaded."""
    if "://" in text or text.startswith("/data/"):
        with suppress(ValueError):  # no address after all
            address = urlsplit(text)
            text = parse_qs(address.query).get("d", [unquote(address.path)])[0]
    return nearest(folder, text) or nearest(folder, UPLOADED.sub("", text.rpartition("/")[2])) or text


def _image_key(data: dict[str, Any]) -> str:
    """What the task's image is called: `image`, or the only value that is the path of one."""
    if isinstance(data.get("image"), str):
        return "image"
    paths = [name for name, value in data.items() if isinstance(value, str) and is_image_name(value.rpartition("/")[2])]
    if len(paths) != 1:
        raise UserError(f"it names {len(paths) or 'no'} images; call the image of each task 'image'")
    return paths[0]


def _counted(task: dict[str, Any]) -> list[dict[str, Any]]:
    """The annotations that count."""
    found = task.get("annotations", task.get("completions", []))
    if not isinstance(found, list) or not all(isinstance(annotation, dict) for annotation in found):
        raise UserError("'annotations' is no list of annotations; give Label Studio's JSON export")
    done = [annotation for annotation in found if not annotation.get("was_cancelled")]
    return [annotation for annotation in done if annotation.get("ground_truth")] or done


def _chosen(annotation: dict[str, Any]) -> list[str]:
    """The labels of an annotation: its choices, and the classes of what was drawn."""
    results = annotation.get("result")
    if not isinstance(results, list):
        raise UserError("an annotation has no list 'result'; give Label Studio's JSON export")
    given = [(each.get("type"), each.get("value")) for each in results if isinstance(each, dict)]
    answers = [value[kind] for kind, value in given if isinstance(value, dict) and _is_label(kind) and value.get(kind)]
    if not answers and any(kind == "taxonomy" for kind, _ in given):
        raise UserError(TAXONOMY)
    return [name for answer in answers for name in _answer(answer)]


def _is_label(kind: object) -> bool:
    """Whether what is under this key names classes."""
    return isinstance(kind, str) and (kind == "choices" or kind.endswith("labels"))


def _answer(value: Any) -> list[str]:
    """The classes of one answer: text for one, a list or an object for several, objects for what was drawn."""
    names: list[Any] = []
    for each in value if isinstance(value, list) else [value] if value else []:
        if isinstance(each, dict) and (any(map(_is_label, each)) or "original_width" in each):  # drawn, perhaps unnamed
            inside = [each[kind] for kind in each if _is_label(kind) and each[kind]]
            names += [name for found in inside for name in (found if isinstance(found, list) else [found])]
        elif isinstance(each, list) or (isinstance(each, dict) and "taxonomy" in each):
            raise UserError(TAXONOMY)
        else:
            names.append(each)
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{value!r} are no choices; give an export of choices")
    return [name.strip() for name in names if name.strip()]


def _not_one(names: list[str]) -> str:
    what = f"the answers {', '.join(map(repr, names))}" if names else "no answer"
    return f"Label Studio exported {what} where one is needed; give its JSON export instead"
