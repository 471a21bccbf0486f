"""FiftyOne's exports: the labels.json of an image classification dataset, and the samples.json of a whole one.

Beside labels.json, data.json may say where the images are, if they were not exported.
"""

from pathlib import Path
from typing import Any

from percentmatch.data.readers.entries import Entry, load_json, nearest, part_among
from percentmatch.data.readers.folder import is_image_name, read_folder
from percentmatch.errors import UserError

FIELD = "ground_truth"  # what counts where several fields hold classifications
PLACES = "data.json"  # beside labels.json: the path of each image by its name


def label_entries(file: Path, content: dict[str, Any], folder: Path) -> tuple[list[Entry], list[str] | None]:
    """labels.json: an image for each name; and the classes in their order, if it lists them.

    A name is a path without suffix in `folder`, or a whole path; data.json says the path where there is one.
    """
    classes, labels = content.get("classes"), content["labels"]
    if not isinstance(labels, dict) or not (classes is None or isinstance(classes, list)):
        raise UserError(f"{file}: 'labels' must name images and 'classes' must be a list; export the dataset again")
    names = None if classes is None else [str(name) for name in classes]
    known = frozenset(names or ())
    places = _places(file)
    file_of = {} if all(name in places or is_image_name(name) for name in labels) else _by_stem(folder)
    entries = []
    for image, value in labels.items():
        source = f"{file}, image {image!r}"
        shown = None if value is None else [_name(each, names, source, known) for each in _several(value)]
        found = file_of.get(image, [])
        if len(found) > 1:
            raise UserError(f"{source}: {' and '.join(found[:2])} have this name; give a folder without the others")
        place = str(places.get(image, image))
        entries.append(Entry(found[0] if found else nearest(folder, place) or place, shown, source))
    return entries, names


def _places(file: Path) -> dict[str, Any]:
    """What data.json beside the file says."""
    manifest = file.with_name(PLACES)
    places = load_json(manifest) if manifest.is_file() else {}
    if not isinstance(places, dict):
        raise UserError(f"{manifest} must say the path of each image by its name; export the dataset again")
    return places


def _by_stem(folder: Path) -> dict[str, list[str]]:
    """The images of a folder by their names without suffix."""
    found: dict[str, list[str]] = {}
    for name in read_folder(folder).ids:
        found.setdefault(name.rpartition(".")[0], []).append(name)
    return found


def _several(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _name(value: object, names: list[str] | None, source: str, known: frozenset[str] = frozenset()) -> str:
    """A label as a name or a place among the classes, alone or with its confidence; `known` are the names as a set."""
    value = value.get("label") if isinstance(value, dict) else value
    if isinstance(value, str) and (names is None or value in known):
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
        entries.append(Entry(nearest(folder, path) or path, shown, source, part_among(sample.get("tags"), source)))
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
