"""Label Studio's exports: JSON with tasks and annotations, JSON-MIN, and CSV."""

import json
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from percentmatch.data.manifest import Manifest
from percentmatch.data.readers.folder import is_image_name, nearest
from percentmatch.data.readers.rows import LabelFile, Row, each_row
from percentmatch.data.readers.table import Answer, Table, first_row, open_table, rows_of
from percentmatch.errors import UserError

# what JSON-MIN and CSV hold besides the task's data and the answers
ABOUT = {"id", "inner_id", "annotation_id", "annotator", "created_at", "updated_at", "lead_time", "agreement"}
ABOUT |= {"comment", "comments", "annotation_history", "total_annotations"}
WRITTEN = {"annotation_id", "lead_time"}  # by which a CSV export is known
TAXONOMY = "the answer is a taxonomy, whose levels are no classes side by side; export choices"
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # before the name that a file had when it was uploaded


def is_export(table: Table) -> bool:
    return set(table.header) >= WRITTEN


def is_csv_export(file: LabelFile) -> bool:
    return not file.is_json and any({cell.strip() for cell in first_row(file.text, mark)} >= WRITTEN for mark in ",;\t")


def read_csv_export(file: LabelFile) -> Manifest:
    """The CSV export: the one column that is no fact about the annotation holds the choices."""
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
    """An image for each task of a JSON export; tasks without annotations are unlabeled.

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
