"""A folder for each class: `photos/cat/1.jpg`, or `photos/train/cat/1.jpg` with a folder for each subset."""

from collections.abc import Sequence
from pathlib import Path

from percentmatch.data.manifest import SUBSET_OF, Manifest
from percentmatch.data.readers.folder import list_files, read_folder
from percentmatch.data.readers.rows import LabelFile, Row
from percentmatch.errors import UserError

LABEL_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")  # of files that say what is on the images
UNLABELED = ("unlabeled", "unlabelled")  # a folder whose images have no label


def is_class_folders(file: LabelFile) -> bool:
    """Whether a folder has no file of labels and images in two folders or more that stand for classes."""
    if not file.path.is_dir() or any(name.lower().endswith(LABEL_SUFFIXES) for name in list_files(file.path)):
        return False
    try:
        ids = read_folder(file.path).ids
    except UserError:  # it holds no image
        return False
    return len({label for _, label in _divided(ids) if label}) > 1


def read_class_folders(file: LabelFile) -> Manifest:
    """Each image shows the class of its folder and no other; images beside the folders have no label."""
    file.say(f"{file.path}: each image shows the class of its folder and no other; --task single-label learns it so")
    found = read_folder(file.path)
    rows = [
        Row(name, [label] if label else None, f"{file.path}, image {name!r}", subset)
        for name, (subset, label) in zip(found.ids, _divided(found.ids), strict=True)
    ]
    return file.manifest(rows, folder=file.path)


def _divided(ids: Sequence[str]) -> list[tuple[str, str]]:
    """The subset and the class of each path, "" where its folders do not say one."""
    folders = [Path(name).parts[:-1] for name in ids]
    tops = {each[0].lower() for each in folders if each}
    subsets = sorted(top for top in tops if SUBSET_OF.get(top))
    others = sorted(top for top in tops if top not in subsets and top not in UNLABELED)
    if others and any(len({each[1] for each in folders if each[1:] and each[0].lower() == top}) > 1 for top in subsets):
        how = f"move '{others[0]}' elsewhere, or call it unlabeled"
        raise UserError(f"beside the folders of subsets ({', '.join(subsets)}) there is '{others[0]}'; {how}")
    by_subset = not others
    found = []
    for each in folders:
        subset = SUBSET_OF.get(each[0].lower(), "") if by_subset and each else ""
        rest = each[1:] if subset else each
        found.append((subset, rest[0] if rest and rest[0].lower() not in UNLABELED else ""))
    return found
