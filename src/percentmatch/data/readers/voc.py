"""Pascal VOC: image-level labels from the lists in `ImageSets/Main`, or from `Annotations/*.xml`."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from percentmatch.data.manifest import MOST_CELLS, Manifest, check_room
from percentmatch.data.readers.folder import (
    IMAGE_SUFFIXES,
    is_image_name,
    list_files,
    missing_image,
    read_bytes,
    read_utf8,
)
from percentmatch.data.readers.rows import LabelFile, Row, encode, labels_of
from percentmatch.errors import UserError, did_you_mean

_NAMES = """aeroplane bicycle bird boat bottle bus car cat chair cow
diningtable dog horse motorbike person pottedplant sheep sofa train tvmonitor"""
CLASSES = tuple(_NAMES.split())
# trainval: where no other list says
SUBSET_OF = {"train": "train", "val": "validation", "trainval": "train", "test": "test"}
ABSENT, PRESENT, DIFFICULT = 0, 1, 2
MOST_XML = 1 << 24  # bytes of the annotations of an image
Read = tuple[list[Row], tuple[str, ...]]  # the images, and the classes
CODE_OF = {"-1": ABSENT, "1": PRESENT, "0": DIFFICULT}


def read_voc(root: Path, *, year: int = 0, classes: Sequence[str] | None = None) -> Manifest:
    """Read VOC2007, VOC2012 or data laid out like them, sorted by image id.

    `root` is the year's folder, or VOCdevkit or the folder that holds it; then `year` chooses. Without `classes` they
    are the 20 of VOC, or the sorted names found where these are others. A class with only difficult objects in an
    image is difficult there.
    """
    base = _find_year(root, year)
    main = base / "ImageSets" / "Main"
    names = list_files(main) if os.path.isdir(main) else []
    lists = {tuple(name[:-4].rsplit("_", 1)) for name in names if name.endswith(".txt") and "_" in name}
    lists = {(name, subset) for name, subset in lists if subset in SUBSET_OF}  # of each list
    subset_of = _plain_lists(main, names)
    rows, class_names = (
        _from_lists(main, lists, subset_of, classes) if lists else _from_xml(base / "Annotations", subset_of, classes)
    )
    rows = sorted(rows, key=lambda row: row.image)
    folder = base / "JPEGImages"
    name_of = _image_names(folder)
    missing = [row for row in rows if row.image not in name_of]
    if missing:
        first = missing[0]
        raise UserError(missing_image(first.source, first.image, folder, len(missing), len(rows)))
    return Manifest(
        paths=tuple(folder / name_of[row.image] for row in rows),
        ids=tuple(row.image for row in rows),
        labels=labels_of(encode(LabelFile(base), rows, class_names)[1], len(class_names)),
        parts=tuple(row.subset for row in rows),
        class_names=class_names,
        sources=tuple(row.source for row in rows),
    )


def _find_year(root: Path, year: int) -> Path:
    if os.path.isdir(root / "JPEGImages"):
        here = os.path.basename(os.path.abspath(root))
        if year and re.fullmatch(r"VOC20\d\d", here) and here != f"VOC{year}":
            raise UserError(f"{root} is {here}, not VOC{year}; give the folder of that year, or leave out --year")
        return root
    name = f"VOC{year}" if year else "VOC20[0-9][0-9]"
    folders = [folder for base in (root, root / "VOCdevkit") for folder in base.glob(name) if folder.is_dir()]
    if len(folders) != 1:
        found = " and ".join(sorted(folder.name for folder in folders)) or f"no VOC{year or '2007 or VOC2012'}"
        raise UserError(f"{root} holds {found}; give the folder that holds JPEGImages, or choose by --year")
    return folders[0]


def _image_names(folder: Path) -> dict[str, str]:
    """The file of each image id; of two with the same id, the one whose suffix stands first in IMAGE_SUFFIXES."""
    names = [name for name in list_files(folder) if is_image_name(name)]
    names.sort(key=lambda name: (IMAGE_SUFFIXES.index(Path(name).suffix.lower()), name), reverse=True)
    return {Path(name).stem: name for name in names}


def _plain_lists(main: Path, names: Sequence[str]) -> dict[str, str]:
    """The subset of each image that train.txt, val.txt, test.txt and trainval.txt name."""
    subset_of: dict[str, str] = {}
    for name, subset in SUBSET_OF.items():
        if f"{name}.txt" in names:
            for line in read_utf8(main / f"{name}.txt").splitlines():
                for image in line.split()[:1]:
                    if os.path.basename(image.replace("\\", "/")) != image:
                        raise UserError(f"{main / name}.txt names {image!r}, which is a path; write the ids of images")
                    if subset == "test" and image in subset_of:
                        raise UserError(f"{main / name}.txt names {image}, as another part does; keep it in one part")
                    subset_of.setdefault(image, subset)
    return subset_of


def _from_lists(
    main: Path, lists: set[tuple[str, str]], plain_subset_of: dict[str, str], classes: Sequence[str] | None
) -> Read:
    there = {name for name, _ in lists}
    class_names = _class_names(there, CLASSES if there.issuperset(CLASSES) else sorted(there), classes, main)
    subsets = [subset for subset in SUBSET_OF if any((name, subset) in lists for name in class_names)]
    if "train" in subsets and "val" in subsets and "trainval" in subsets:
        subsets.remove("trainval")  # says the same once more
    rows: dict[str, Row] = {}
    for subset in subsets:
        files = [main / f"{name}_{subset}.txt" for name in class_names]
        ids, lines, first = _read_list(files[0])
        check_room(str(main), len(ids), len(files), MOST_CELLS)
        columns = [first]
        for file in files[1:]:
            others, other_lines, column = _read_list(file)
            if others != ids:
                odd = next((i for i, (a, b) in enumerate(zip(ids, others, strict=False)) if a != b), -1)
                where = f"{file}, line {other_lines[odd]}" if others else f"{file}"
                raise UserError(f"{where}: the images are not those of {files[0].name}; both lists must name the same")
            columns.append(column)
        new = [(number, name) for number, name in enumerate(ids) if name not in rows]
        if len(set(ids)) < len(ids) or (len(new) < len(ids) and subset != "trainval"):
            raise UserError(f"{files[0]} names an image twice or one of another part; name each image in one part")
        rest = "validation" if subset == "trainval" and "train" in subsets else SUBSET_OF[subset]
        for number, name in new:
            own = plain_subset_of.get(name, rest) if subset == "trainval" else rest
            codes = dict(zip(class_names, (column[number] for column in columns), strict=True))
            rows[name] = _row(name, codes, f"{files[0]}, line {lines[number]}", own)
    if not rows:
        raise UserError(f"the lists in {main} name no image; unpack the data again")
    return list(rows.values()), class_names


def _row(image: str, codes: dict[str, int], source: str, subset: str) -> Row:
    """An image whose classes are PRESENT, DIFFICULT or ABSENT."""
    shown, difficult = ([name for name, code in codes.items() if code == kind] for kind in (PRESENT, DIFFICULT))
    return Row(image, shown, source, subset, difficult=difficult)


def _read_list(file: Path) -> tuple[list[str], list[int], bytearray]:
    """The ids of a list, their lines and their codes."""
    ids, lines, codes = [], [], bytearray()
    for line, text in enumerate(read_utf8(file).split("\n"), 1):
        cells = text.split()
        if not cells:
            continue
        if len(cells) != 2 or cells[1] not in CODE_OF:
            raise UserError(
                f"{file}, line {line}: {text.strip()!r} is not an image id and -1, 0 or 1; correct the line"
            )
        ids.append(cells[0])
        lines.append(line)
        codes.append(CODE_OF[cells[1]])
    return ids, lines, codes


def _from_xml(folder: Path, plain_subset_of: dict[str, str], classes: Sequence[str] | None) -> Read:
    if not os.path.isdir(folder):
        raise UserError(f"{folder.parent} has neither ImageSets/Main/<class>_<part>.txt nor Annotations; unpack one")
    file_of = {name[:-4]: name for name in list_files(folder) if name.lower().endswith(".xml")}
    ids = list(plain_subset_of) or sorted(file_of)
    if not ids:
        raise UserError(f"{folder} holds no .xml file; unpack the annotations")
    files = [folder / file_of.get(name, f"{name}.xml") for name in ids]
    objects = [_read_xml(file) for file in files]
    there = {name for found in objects for name in found}
    all_voc = there.issubset(CLASSES)
    class_names = _class_names(there.union(CLASSES), CLASSES if all_voc else sorted(there), classes, folder)
    check_room(str(folder), len(ids), len(class_names), MOST_CELLS)
    about = zip(ids, objects, map(str, files), strict=True)
    return [_row(name, found, file, plain_subset_of.get(name, "")) for name, found, file in about], class_names


def _read_xml(file: Path) -> dict[str, int]:
    """PRESENT or DIFFICULT for each class that has an object."""
    data = read_bytes(file, MOST_XML)
    if b"<!DOCTYPE" in data or b"\0" in data:  # no entities, and no encoding that could hide them
        raise UserError(f"{file}: a document type or a zero byte in the XML; annotations need neither, remove it")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise UserError(f"{file}: this is not XML ({error}); unpack or write the file again") from None
    codes: dict[str, int] = {}
    for number, thing in enumerate(root.iterfind("object"), 1):
        name, difficult = (thing.findtext("name") or "").strip(), (thing.findtext("difficult") or "0").strip()
        if not name or difficult not in ("0", "1"):
            raise UserError(f"{file}: object {number} needs a name, and 0 or 1 as difficult; correct it")
        codes[name] = PRESENT if difficult == "0" else codes.get(name, DIFFICULT)
    return codes


def _class_names(there: set[str], usual: Sequence[str], classes: Sequence[str] | None, where: Path) -> tuple[str, ...]:
    if classes is not None and not classes:
        raise UserError(f"no class is asked for; name some of {where} or leave them all")
    wrong = next((name for name in classes or () if name not in there), None)
    if wrong is not None:
        raise UserError(f"{where} has no class {wrong!r}{did_you_mean(wrong, there)}")
    return tuple(usual if classes is None else classes)
