"""NUS-WIDE: lists of images in `ImageList`, and in `Groundtruth` a file for each concept, 0 or 1 for each image."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from percentmatch.data.manifest import Manifest
from percentmatch.data.readers.folder import list_files, numbered_lines, read_text
from percentmatch.data.readers.rows import LabelFile, Row
from percentmatch.errors import UserError

Lists = dict[str, tuple[str, str]]  # of each list of images its subset, and the ending of its files of labels
PARTS: Lists = {"TrainImagelist.txt": ("train", "_Train.txt"), "TestImagelist.txt": ("test", "_Test.txt")}
LISTS_OF = {"TrainTestLabels": PARTS, "AllLabels": {"Imagelist.txt": ("", ".txt")}}  # by the folder of labels


def is_nus_wide(file: LabelFile) -> bool:
    return any((file.path / "Groundtruth" / name).is_dir() for name in LISTS_OF)


def read_nus_wide(file: LabelFile) -> Manifest:
    """The images of the official halves or, without these, of the list of all; by default they are in `Flickr`."""
    lists = file.path / "ImageList"
    for name, parts in LISTS_OF.items():
        labels = file.path / "Groundtruth" / name
        if labels.is_dir() and any((lists / each).is_file() for each in parts):
            concepts = _concepts(labels, parts)
            rows = [row for each, of in parts.items() for row in _rows(lists / each, labels, concepts, *of)]
            rows = rows if file.images else [row._replace(image=f"Flickr/{row.image}") for row in rows]
            return file.manifest(rows, concepts, folder=file.images or file.path)
    raise UserError(f"{lists} does not list the images that Groundtruth labels; unpack ImageList.zip of NUS-WIDE again")


def _concepts(labels: Path, parts: Lists) -> list[str]:
    names = [name.removeprefix("Labels_") for name in list_files(labels) if name.startswith("Labels_")]
    found = {name.removesuffix(end) for name in names for _, end in parts.values() if name.endswith(end)}
    if not found:
        raise UserError(f"{labels} holds no Labels_<concept> files; unpack Groundtruth.zip of NUS-WIDE again")
    return sorted(found)


def _rows(images: Path, labels: Path, concepts: Sequence[str], subset: str, end: str) -> Iterator[Row]:
    lines = list(numbered_lines(images))
    shown: list[list[str]] = [[] for _ in lines]
    for concept in concepts:
        file = labels / f"Labels_{concept}{end}"
        cells = _cells(file)
        if len(cells) != len(lines):
            what = f"{file} has {len(cells):,} labels, but {images.name} has {len(lines):,} images"
            raise UserError(f"{what}; unpack both again")
        for row, cell in enumerate(cells):
            if cell == "1":
                shown[row].append(concept)
    return (Row(text.strip(), names, source, subset) for (source, text), names in zip(lines, shown, strict=True))


def _cells(file: Path) -> list[str]:
    text = read_text(file)
    cells = text.split()
    if odd := {*cells} - {"0", "1"}:
        lines = enumerate(text.split("\n"), 1)
        line, cell = next((line, cell) for line, words in lines for cell in words.split() if cell in odd)
        raise UserError(f"{file}, line {line}: {cell!r:.40} is not 0 or 1; unpack Groundtruth.zip again")
    return cells
