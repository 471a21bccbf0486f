"""Where the files in a tar shard (WebDataset) lie: images, and what other members say about them.

Nothing is unpacked: headers are read in turn, contents are skipped. Members that share their path up to the first dot
of the file name are one sample: `cats/001.jpg` and `cats/001.json`.
"""

import json
import os
from collections.abc import Generator
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

from percentmatch.data.manifest import SUBSET_OF
from percentmatch.data.readers.folder import IMAGE_SUFFIXES, is_image_name

BLOCK = 512
MOST_TEXT = 1 << 20  # bytes of a long name or of extended headers
NOTHING_BEHIND = b"123456"  # links, devices, folders, pipes: whatever their header says of a length
END_MARK = bytes(BLOCK)
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
MOST_NOTE = 1 << 20  # bytes of a member that says something about an image
LABELS = ("cls", "txt")  # members that hold labels as text, where no JSON does
NOTES = ("json", *LABELS)


class Damaged(Exception):
    """Why a tar file cannot be read to its end, in words that follow `shard 'x': `."""


class Scattered(Damaged):
    """The members of a sample do not follow each other."""


class Unclear(Exception):
    """Why a member that says something about an image is of no use, in words that follow `shard 'x': `."""


class Member(NamedTuple):
    """A plain file in a tar file."""

    name: str
    offset: int  # where its content begins
    length: int  # in bytes


def members(file: int, size: int) -> Generator[Member]:
    """The plain files in an open tar file of `size` bytes, in their order.

    Raises Damaged where it ends too early or is no tar file, after what comes before. Sparse files are left out.
    """
    at, more = 0, {}  # more: what extended headers say of the next file
    while header := _header(file, at):
        kind, length, start = header[156:157], _octal(header[124:136], at), at + BLOCK
        if kind in (b"L", b"K", b"x", b"g"):
            text = _text(file, start, length)
            more |= {"path": text.rstrip(b"\0")} if kind == b"L" else _records(text, at) if kind == b"x" else {}
            at = start + whole_blocks(length)
            continue
        name = (more.get("path") or _name(header)).decode("utf-8", "surrogateescape")
        goes_on = kind == b"S" and header[482]
        while goes_on:
            goes_on, start = _text(file, start, BLOCK)[504], start + BLOCK
        length = 0 if kind in NOTHING_BEHIND else more.get("size", length)
        if start + length > size:
            raise Damaged(f"it is cut short within '{name}'")
        if kind in (b"0", b"\0", b"7") and "sparse" not in more:
            yield Member(name, start, length)
        at, more = start + whole_blocks(length), {}


def name_at(path: str, offset: int) -> str:
    """The name of the member whose content begins there, for messages."""
    with suppress(OSError, Damaged, StopIteration), open(path, "rb", buffering=0) as file:
        found = members(file.fileno(), os.fstat(file.fileno()).st_size)
        return next(member.name for member in found if member.offset == offset)
    return ""


def _header(file: int, at: int) -> bytes:
    """The header at this offset, or nothing at the end mark."""
    header = os.pread(file, BLOCK, at)
    if header == END_MARK:
        return b""
    if not at and header.startswith(COMPRESSED):
        raise Damaged("it is compressed, so that its images cannot be read in any order; decompress it")
    if len(header) < BLOCK:
        raise Damaged("it is cut short" if at else "it is no tar file" if header else "it is empty")
    if _octal(header[148:156], at) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise _damaged(at)
    return header


def _damaged(at: int) -> Damaged:
    return Damaged(f"it is damaged at byte {at:,}" if at else "it is no tar file")


def _octal(field: bytes, at: int) -> int:
    """A number in octal digits, or in binary where these are too few."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:])
    digits = field.strip(b"\0 ") or b"0"
    if digits.strip(b"01234567"):
        raise _damaged(at)
    return int(digits, 8)


def _name(header: bytes) -> bytes:
    name, prefix = (field.partition(b"\0")[0] for field in (header[:100], header[345:500]))
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _text(file: int, start: int, length: int) -> bytes:
    if length > MOST_TEXT:
        raise Damaged(f"it has {length:,} bytes of headers at byte {start:,}")
    text = os.pread(file, length, start)
    if len(text) < length:
        raise Damaged("it is cut short")
    return text


def _records(text: bytes, at: int) -> dict[str, Any]:
    """What matters in extended headers: `length key=value` with an end of line, one after the other."""
    found = {}
    while text[:1].strip(b"\0"):
        digits = text[:20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        key, equals, value = text[len(digits) + 1 : length - 1].partition(b"=")
        fits = len(digits) + 2 < length <= len(text)
        if not fits or not equals or (key == b"size" and not value.isdigit()):
            raise Damaged(f"it is damaged at byte {at:,}")
        found |= {"path": value} if key == b"path" else {"size": int(value[:20])} if key == b"size" else {}
        found |= {"sparse": True} if key.startswith(b"GNU.sparse") else {}
        text = text[length:]
    return found


def whole_blocks(length: int) -> int:
    """The bytes that a content of this length takes in a tar file."""
    return -(-length // BLOCK) * BLOCK


def samples(file: int, size: int, *, labels: bool) -> Generator[tuple[list[Member], dict[str, Member]]]:
    """The images of each sample in an open shard, and all of its members by what stands after the first dot.

    A sample has one image: that with nothing but an image's suffix after the first dot. Without such a one, every
    member with the suffix of an image is an image. Hidden files are no members. An image is an error if what is
    said about it comes apart from it: in JSON, and with `labels` in text. The last sample before a damage is left out,
    as it may go on there.
    """
    notes = NOTES if labels else NOTES[:1]
    seen: dict[str, tuple[bool, bool]] = {}  # of the samples so far: is there an image, and a note about it
    shown = (member for member in members(file, size) if not os.path.basename(member.name).startswith("."))
    for key, group in groupby(shown, lambda member: _key(member.name)[0]):
        found = [(_key(member.name)[1].lower(), member) for member in group]
        images = [(ending, member) for ending, member in found if is_image_name(os.path.basename(member.name))]
        here, before = (bool(images), any(ending in notes for ending, _ in found)), seen.get(key, (False, False))
        if key in seen and (here[0] or before[0]) and (here[1] or before[1]):
            raise Scattered(f"the members of '{key}' do not follow each other; write them in the order of their names")
        seen[key] = here
        plain = [member for ending, member in images if f".{ending}" in IMAGE_SUFFIXES]
        if pictures := plain[:1] or [member for _, member in images]:
            yield pictures, dict(found)


def _key(name: str) -> tuple[str, str]:
    """The path up to the first dot of the file name, which the members of a sample share, and the rest."""
    folder, slash, last = name.rpartition("/")
    key, _, ending = last.partition(".")
    return folder + slash + key, ending


def note_of(file: int, others: dict[str, Member], *, labels: bool) -> dict[str, Any]:
    """What the members of a sample say about its image: its subset, and with `labels` those."""
    note: Any = {}
    if "json" in others and (labels or others["json"].length <= MOST_NOTE):
        try:
            note = json.loads(_content(file, others["json"]))
        except (ValueError, RecursionError):
            raise Unclear(f"its member '{others['json'].name}' is not JSON") from None
    note = note if isinstance(note, dict) else {}
    kind = next((kind for kind in LABELS if kind in others), "")
    if labels and kind and note.get("labels") is None:
        try:
            note["labels"] = _content(file, others[kind]).decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise Unclear(f"its member '{others[kind].name}' is not UTF-8") from None
    if labels and note.get("labels") is None and subset_of(note) is None:
        what = f"no part is called {note['part']!r}, as its member '{others['json'].name}' says"
        raise Unclear(f"{what}; write train, validation or test")
    return {name: note[name] for name in ("labels", "unknown", "difficult", "part") if name in note}


def subset_of(note: dict[str, Any]) -> str | None:
    """The subset that a note names, "" for none; None if there is no such subset."""
    return SUBSET_OF.get(str(note.get("part") or "").strip().lower())


def _content(file: int, member: Member) -> bytes:
    if member.length > MOST_NOTE:
        raise Unclear(f"its member '{member.name}' has more than {MOST_NOTE:,} bytes")
    return os.pread(file, member.length, member.offset)
