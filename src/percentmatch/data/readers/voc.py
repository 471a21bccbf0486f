"""Pascal VOC: image-level labels from the lists in `ImageSets/Main`, or from `Annotations/*.xml`."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from percentmatch.data.manifest import MOST_CELLS, Manifest, check_room
from percentmatch.data.readers.folder import IMAGE_SUFFIXES, is_image_name, list_files, read_bytes, read_text
from percentmatch.data.readers.rows import LabelFile, Report, Row, refuse
from percentmatch.errors import UserError, did_you_mean

_NAMES = """aeroplane bicycle bird boat bottle bus car cat chair cow
diningtable dog horse motorbike person pottedplant sheep sofa train tvmonitor"""
CLASSES = tuple(_NAMES.split())
SUBSET_OF = {"train": "train", "val": "validation", "trainval": "train", "test": "test"}  # trainval: if no other says
CLASS_LIST = re.compile(rf"(.*)_({'|'.join(SUBSET_OF)})\.txt", re.DOTALL)  # class and image set
ABSENT, PRESENT, DIFFICULT = 0, 1, 2
CODE_OF = {"-1": ABSENT, "1": PRESENT, "0": DIFFICULT}
MOST_XML = 1 << 24  # bytes of the annotations of an image
Read = tuple[list[Row], tuple[str, ...]]  # the images, and the classes


def read_voc(root: Path, *, year: int = 0, classes: Sequence[str] | None = None, report: Report = refuse) -> Manifest:
    """Read VOC2007, VOC2012 or data laid out like them, sorted by image id.

    `root` is the year's folder, or VOCdevkit or the folder that holds it; then `year` chooses. Without `classes` they
    are the 20 of VOC, or the sorted names found where these are others. A class with only difficult objects in an
    image is difficult there.
    """
    base = _find_year(root, year)
    main, folder = base / "ImageSets" / "Main", base / "JPEGImages"
    names = list_files(main) if os.path.isdir(main) else []
    lists = {match.groups() for match in map(CLASS_LIST.fullmatch, names) if match}
    subset_of = _plain_lists(main, names)
    if lists:
        rows, class_names = _from_lists(main, lists, subset_of, classes)
    else:
        rows, class_names = _from_xml(base / "Annotations", subset_of, classes)
    images = [name for name in list_files(folder) if is_image_name(name)]
    images.sort(key=lambda name: (IMAGE_SUFFIXES.index(Path(name).suffix.lower()), name), reverse=True)
    name_of = {Path(name).stem: name for name in images}  # of several, the one whose suffix stands first
    found = [row._replace(image=name_of.get(row.image, row.image)) for row in sorted(rows, key=lambda row: row.image)]
    manifest = LabelFile(base, report=report).manifest(found, class_names, folder=folder)
    return replace(manifest, ids=tuple(path.stem for path in manifest.paths))


def _find_year(root: Path, year: int) -> Path:
    if os.path.isdir(root / "JPEGImages"):
        here = os.path.basename(os.path.abspath(root))
        if year and re.fullmatch(r"VOC20\d\d", here) and here != f"VOC{year}":
            raise UserError(f"{root} is {here}, not VOC{year}; give the folder of that year, or leave out --year")
        return root
    name = f"VOC{year}" if year else "VOC20[0-9][0-9]"
    folders = [path for base in (root, root / "VOCdevkit") for path in base.glob(name) if path.is_dir()]
    if len(folders) != 1:
        found = " and ".join(sorted(path.name for path in folders)) or f"no VOC{year or '2007 or VOC2012'}"
        raise UserError(f"{root} holds {found}; give the folder that holds JPEGImages, or choose by --year")
    return folders[0]


def _plain_lists(main: Path, names: Sequence[str]) -> dict[str, str]:
    """The subset of each image that train.txt, val.txt, test.txt and trainval.txt name."""
    subset_of: dict[str, str] = {}
    for file, subset in ((main / f"{image_set}.txt", subset) for image_set, subset in SUBSET_OF.items()):
        lines = read_text(file).splitlines() if file.name in names else []
        for image in (line.split()[0] for line in lines if line.strip()):
            if os.path.basename(image.replace("\\", "/")) != image:
                raise UserError(f"{file} names {image!r}, which is a path; write the ids of images")
            if subset == "test" and image in subset_of:
                raise UserError(f"{file} names {image}, as another list does; keep it in one of them")
            subset_of.setdefault(image, subset)
    return subset_of


def _from_lists(
    main: Path, lists: set[tuple[str, ...]], subset_of: dict[str, str], classes: Sequence[str] | None
) -> Read:
    there = {name for name, _ in lists}
    class_names = _class_names(there, CLASSES if there.issuperset(CLASSES) else sorted(there), classes, main)
    image_sets = [image_set for image_set in SUBSET_OF if any((name, image_set) in lists for name in class_names)]
    if {"train", "val", "trainval"}.issubset(image_sets):
        image_sets.remove("trainval")  # says the same once more
    rows: dict[str, Row] = {}
    for image_set in image_sets:
        files = [main / f"{name}_{image_set}.txt" for name in class_names]
        ids, lines, codes = _read_list(files[0])
        check_room(str(main), len(ids), len(files), MOST_CELLS)
        columns = [codes]
        for file in files[1:]:
            others, other_lines, codes = _read_list(file)
            if others != ids:
                odd = next((i for i, (a, b) in enumerate(zip(ids, others, strict=False)) if a != b), -1)
                where = f"{file}, line {other_lines[odd]}" if others else f"{file}"
                raise UserError(f"{where}: the images are not those of {files[0].name}; both lists must name the same")
            columns.append(codes)
        new = [(number, name) for number, name in enumerate(ids) if name not in rows]
        if len(set(ids)) < len(ids) or (len(new) < len(ids) and image_set != "trainval"):
            raise UserError(f"{files[0]} names an image twice or one of another list; name each image in one list")
        rest = "validation" if image_set == "trainval" and "train" in image_sets else SUBSET_OF[image_set]
        for number, name in new:
            subset = subset_of.get(name, rest) if image_set == "trainval" else rest
            code_of = dict(zip(class_names, (column[number] for column in columns), strict=True))
            rows[name] = _row(name, code_of, f"{files[0]}, line {lines[number]}", subset)
    return list(rows.values()), class_names


def _row(image: str, code_of: dict[str, int], source: str, subset: str) -> Row:
    """An image whose classes are PRESENT, DIFFICULT or ABSENT."""
    shown, difficult = ([name for name, code in code_of.items() if code == kind] for kind in (PRESENT, DIFFICULT))
    return Row(image, shown, source, subset, difficult=difficult)


def _read_list(file: Path) -> tuple[list[str], list[int], bytearray]:
    """The ids of a list, their lines and their codes."""
    ids, lines, codes = [], [], bytearray()
    for line, text in enumerate(read_text(file).split("\n"), 1):
        if cells := text.split():
            if len(cells) != 2 or cells[1] not in CODE_OF:
                raise UserError(f"{file}, line {line}: {text.strip()!r} is not an image id and -1, 0 or 1; correct it")
            ids.append(cells[0])
            lines.append(line)
            codes.append(CODE_OF[cells[1]])
    return ids, lines, codes


def _from_xml(folder: Path, subset_of: dict[str, str], classes: Sequence[str] | None) -> Read:
    if not os.path.isdir(folder):
        raise UserError(f"{folder.parent} has neither ImageSets/Main/<class>_<part>.txt nor Annotations; unpack one")
    file_of = {name[:-4]: folder / name for name in list_files(folder) if name.lower().endswith(".xml")}
    files = {name: file_of.get(name, folder / f"{name}.xml") for name in subset_of or sorted(file_of)}
    objects = {name: _read_xml(file) for name, file in files.items()}
    there = {name for found in objects.values() for name in found}
    usual = CLASSES if there.issubset(CLASSES) else sorted(there)
    class_names = _class_names(there.union(CLASSES), usual, classes, folder)
    check_room(str(folder), len(files), len(class_names), MOST_CELLS)
    return [_row(name, objects[name], str(file), subset_of.get(name, "")) for name, file in files.items()], class_names


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
    for number, entry in enumerate(root.iterfind("object"), 1):
        name, difficult = (entry.findtext("name") or "").strip(), (entry.findtext("difficult") or "0").strip()
        if not name or difficult not in ("0", "1"):
            raise UserError(f"{file}: object {number} needs a name, and 0 or 1 as difficult; correct it")
        codes[name] = PRESENT if difficult == "0" else codes.get(name, DIFFICULT)
    return codes


def _class_names(there: set[str], usual: Sequence[str], classes: Sequence[str] | None, path: Path) -> tuple[str, ...]:
    if classes is not None and not classes:
        raise UserError(f"no class is asked for; name some of {path} or leave them all")
    wrong = next((name for name in classes or () if name not in there), None)
    if wrong is not None:
        raise UserError(f"{path} has no class {wrong!r}{did_you_mean(wrong, there)}")
    return tuple(usual if classes is None else classes)
