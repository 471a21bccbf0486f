"""FiftyOne's exports: the labels.json of an image classification dataset, and the samples.json of a whole one."""

from pathlib import Path
from typing import Any

from percentmatch.data.entries import Entry, nearest, part_among
from percentmatch.data.folder import read_folder
from percentmatch.errors import UserError

FIELD = "ground_truth"  # what counts where several fields hold classifications


def label_entries(file: Path, content: dict[str, Any], folder: Path) -> tuple[list[Entry], list[str] | None]:
    """labels.json: an image for each name, which has no suffix; and the classes in their order, if it lists them."""
    classes, labels = content.get("classes"), content["labels"]
    if not isinstance(labels, dict) or not (classes is None or isinstance(classes, list)):
        raise UserError(f"{file}: 'labels' must name images and 'classes' must be a list; export the dataset again")
    names = None if classes is None else [str(name) for name in classes]
    file_of = {name.rpartition(".")[0]: name for name in reversed(read_folder(folder).ids)} if labels else {}
    entries = []
    for image, value in labels.items():
        source = f"{file}, image {image!r}"
        shown = None if value is None else [_name(each, names, source) for each in _several(value)]
        entries.append(Entry(file_of.get(image, image), shown, source))
    return entries, names


def _several(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _name(value: object, names: list[str] | None, source: str) -> str:
    """A label as a name or a place among the classes, alone or with its confidence."""
    value = value.get("label") if isinstance(value, dict) else value
    if isinstance(value, str) and (names is None or value in names):
        return value
    if not isinstance(value, int) or names is None or not 0 <= value < len(names):
        raise UserError(f"{source}: {value!r} is no label and no place among the classes; export the dataset again")
    return names[value]


def sample_entries(file: Path, content: dict[str, Any], folder: Path) -> list[Entry]:
    """samples.json: an image for each sample, labels from its one field of classifications, the part from its tags."""
    samples = content["samples"]
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        raise UserError(f"{file}: 'samples' must be a list of samples; export the dataset again")
    field = _field(file, samples)
    entries = []
    for number, sample in enumerate(samples, 1):
        source = f"{file}, sample {number}"
        path, value = sample.get("filepath"), sample.get(field)
        if not isinstance(path, str) or not path:
            raise UserError(f"{source}: it has no filepath; export the dataset again")
        shown = None if value is None else [_name(each, None, source) for each in _classifications(value, source)]
        entries.append(Entry(nearest(folder, path) or path, shown, source, part_among(sample.get("tags"))))
    return entries


def _field(file: Path, samples: list[dict[str, Any]]) -> str:
    """The field that holds the labels."""
    fields = {name for sample in samples for name, value in sample.items() if _kind(value)}
    if len(fields) == 1 or FIELD in fields:
        return FIELD if FIELD in fields else fields.pop()
    what = f"the fields {', '.join(sorted(fields))} of" if fields else "no field of"
    raise UserError(f"{file} has {what} classifications where one is needed; export the one to learn as {FIELD}")


def _kind(value: object) -> str:
    """Classification or Classifications, or nothing for any other value."""
    kind = value.get("_cls") if isinstance(value, dict) else None
    return kind if kind in ("Classification", "Classifications") else ""


def _classifications(value: Any, source: str) -> list[object]:
    found = value.get("classifications") if _kind(value) == "Classifications" else [value] if _kind(value) else None
    if not isinstance(found, list):
        raise UserError(f"{source}: its labels are no classifications; export the dataset again")
    return found
