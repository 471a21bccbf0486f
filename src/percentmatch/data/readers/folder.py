"""Files on disk: which images exist, and a folder or a text list as a pool without labels."""

import json
import os
import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from percentmatch.data.labels import Labels
from percentmatch.data.manifest import Manifest
from percentmatch.errors import UserError
from percentmatch.files import MOST_BYTES, read_plain

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff")  # in any case
DEEPEST = 64  # folders within folders
DEEPEST_NAME = 32  # folders of a path that are compared
NOT_ASCII = re.compile(r'[^\s,;|"]*[^\x00-\x7f][^\s,;|"]*')  # a word that another encoding would show otherwise
LONGEST_NAME = 1024  # letters; no system has longer ones, and long ones are slow to compare


class Found(NamedTuple):
    """n image files."""

    paths: tuple[Path, ...]
    ids: tuple[str, ...]
    sources: tuple[str, ...]  # where each was named, for messages


def unlabeled_manifest(
    source: Path, class_names: Sequence[str], *, skip: Callable[[str], None] | None = None
) -> Manifest:
    """The images of a folder, or of a text file with one path a line, with every label unknown.

    With `skip`, it hears of each image of the list that is not there, and the others are taken.
    """
    found = read_folder(source) if os.path.isdir(source) else read_list(source, skip)
    none, parts = Labels.none(len(found.ids), len(class_names)), ("",) * len(found.ids)
    return Manifest(**found._asdict(), labels=none, parts=parts, class_names=tuple(class_names))


def read_folder(folder: Path) -> Found:
    """All images in the folder and the folders below it, sorted; hidden files and folders are skipped."""
    ids, seen = [], set()
    for path, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        base = Path(os.path.relpath(path, folder)).as_posix() + "/"
        if base.count("/") > DEEPEST:
            raise UserError(f"{folder} has folders {DEEPEST} deep and more; give the one that holds the images")
        real = os.path.realpath(path)
        if real in seen:  # a link back up, or to a folder already read
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = [name for name in names if is_image_name(name)]
        ids += names if base == "./" else [base + name for name in names]
    if not ids:
        raise UserError(f"{folder} holds no image; give a folder with {', '.join(IMAGE_SUFFIXES)} files")
    ids.sort()
    return Found(tuple(folder / name for name in ids), tuple(ids), (str(folder),) * len(ids))


def read_list(file: Path, skip: Callable[[str], None] | None = None) -> Found:
    """The images a text file names, one path a line, relative to the folder of the file; a repeated one counts once."""
    lines = list(numbered_lines(file))
    if not lines:
        raise UserError(f"{file} is empty; write one image path a line")
    names = find_images(file.parent, [text for _, text in lines])
    source_of: dict[str, str] = {}
    for name, (source, text) in zip(names, lines, strict=True):
        if name:
            source_of.setdefault(name, source)
        elif skip and any(names):
            skip(f"skipped: {source}: there is no image {text.strip()!r}")
        else:
            raise UserError(missing_image(source, text.strip(), file.parent, names.count(""), len(names)))
    return Found(tuple(file.parent / name for name in source_of), tuple(source_of), tuple(source_of.values()))


def numbered_lines(file: Path, text: str | None = None) -> Iterator[tuple[str, str]]:
    """The lines of a text file that are not blank, each with where it stands: "list.txt, line 3"."""
    lines = enumerate((read_text(file) if text is None else text).split("\n"), 1)
    return ((f"{file}, line {number}", line) for number, line in lines if line.strip())


def is_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def read_text(file: Path, say: Callable[[str], None] | None = None) -> str:
    """The text of a UTF-8 file, with or without a byte order mark, or of a UTF-16 file with one.

    With `say`, other text may be that of western Windows, which is a guess: `say` hears of it.
    """
    data = read_bytes(file)
    try:
        text = data.decode("utf-16" if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        if not say or not (text := _western(data)):
            raise UserError(f"{file}, line {line}: the text is not UTF-8; save the file as UTF-8") from None
        word = NOT_ASCII.search(text.split("\n")[line - 1])
        shown = f"is {word[0]!r:.40} in line {line} right? Else save it as UTF-8" if word else ""
        say(f"{file} is not UTF-8 and is read as Windows text (cp1252): {shown}")
    before, zero, _ = text.partition("\0")
    if zero:
        line = before.count("\n") + 1
        raise UserError(f"{file}, line {line}: a zero byte in the text; save the file as plain UTF-8 text")
    return text


def _western(data: bytes) -> str:
    """The text of a file of western Windows, where letters beyond ASCII mostly stand alone; empty if it is another."""
    runs = [len(run) for run in re.findall(rb"[\x80-\xff]+", data)]
    with suppress(UnicodeDecodeError):
        return data.decode("cp1252") if 2 * runs.count(1) > sum(runs) else ""
    return ""


def load_json(file: Path, text: str | None = None) -> Any:
    """The content of a JSON file, whose text may have been read already."""
    try:
        return json.loads(read_text(file) if text is None else text)
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, line {error.lineno}: this is not JSON ({error.msg}); export the file again") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}); export the file again") from None


def read_bytes(file: Path, most: int = MOST_BYTES) -> bytes:
    try:
        return read_plain(file, most)
    except FileNotFoundError:
        raise UserError(f"there is no file {file}; check the path") from None
    except OSError as error:
        raise UserError(f"cannot read the file {file} ({error.strerror}); check the path and its permissions") from None


def list_files(folder: str | Path) -> list[str]:
    """The names of the files in a folder, from one listing."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False) or os.path.isfile(entry)]
    except OSError as error:
        _refuse(error)


def find_images(folder: Path, texts: Sequence[str], *, inside: bool = False) -> list[str]:
    """The images these texts name, each as its path within `folder` with forward slashes and as it is spelt on disk.

    Backslashes separate folders too. Where no file has exactly this name, the one that differs only in case or in how
    an accent is encoded is taken, and of several paths to one file the first. Each folder is listed once; no file is
    looked at by itself. The name of a missing image is empty. With `inside`, what is not in the folder is missing.
    """
    if not os.path.isdir(folder):
        raise UserError(f"there is no folder {folder}; give the folder that holds the images")
    base = Path(os.path.abspath(folder)).as_posix().rstrip("/") + "/"
    listings: dict[str, _Listing] = {}
    spelt: dict[tuple[str, str], str] = {}  # real folder and name -> as it was named first
    found = []
    for text in texts:
        name = os.path.normpath(text.strip().replace("\\", "/")).replace(os.sep, "/").removeprefix(base)
        if inside and (os.path.isabs(name) or name.partition("/")[0] == ".."):
            found.append("")
            continue
        parent, _, last = (base + name if not os.path.isabs(name) else name).rpartition("/")
        if parent not in listings:
            listings[parent] = _Listing(parent or "/")
        actual = listings[parent].find(last)
        key = (listings[parent].real, actual or "")
        found.append(spelt.setdefault(key, name.removesuffix(last) + actual) if actual else "")
    return found


def nearest(folder: Path, name: str) -> str | None:
    """The longest ending of a path that is a file in `folder`."""
    pieces = [piece for piece in name.replace("\\", "/").split("/") if piece not in ("", ".", "..")][-DEEPEST_NAME:]
    endings = ["/".join(pieces[start:]) for start in range(len(pieces))]
    return next((ending for ending in endings if os.path.isfile(folder / ending)), None)


def missing_image(source: str, name: str, folder: Path, missing: int, total: int) -> str:
    """The sentence for an image that is not there, and how many are not."""
    what = f"{source}: the image {name!r} is not in {folder} ({missing} of {total} images are missing)"
    return f"{what}; correct the path or give the folder that holds the images"


class _Listing:
    """The files of one folder."""

    def __init__(self, folder: str) -> None:
        self.folded: dict[str, str | None] = {}
        self.names = set(list_files(folder)) if os.path.isdir(folder) else set()
        self.real = os.path.realpath(folder)

    def find(self, name: str) -> str | None:
        if name in self.names:
            return name
        if len(name) > LONGEST_NAME:
            return None
        if not self.folded:
            for other in sorted(self.names):
                key = _fold(other)
                self.folded[key] = None if key in self.folded else other  # two that differ only in case: neither
        return self.folded.get(_fold(name))


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _refuse(error: OSError) -> NoReturn:
    what = f"cannot read the folder {error.filename} ({error.strerror})"
    raise UserError(f"{what}; check the path and its permissions") from None
