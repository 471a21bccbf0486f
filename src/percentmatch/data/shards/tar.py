"""Where the files in a tar file lie. Nothing is unpacked: headers are read in turn, contents are skipped."""

import os
from collections.abc import Generator
from typing import Any, NamedTuple

BLOCK = 512
MOST_TEXT = 1 << 20  # bytes of a long name or of extended headers
NOTHING_BEHIND = b"123456"  # links, devices, folders, pipes: whatever their header says of a length
END_MARK = bytes(BLOCK)
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


class Damaged(Exception):
    """Why a tar file cannot be read to its end, in words that follow `shard 'x': `."""


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
            at = start + _whole_blocks(length)
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
        at, more = start + _whole_blocks(length), {}


def _header(file: int, at: int) -> bytes:
    """The header at this place, or nothing at the end mark."""
    header = os.pread(file, BLOCK, at)
    if header == END_MARK:
        return b""
    if not at and header.startswith(COMPRESSED):
        raise Damaged("it is compressed, so that its images cannot be read in any order; decompress it")
    if len(header) < BLOCK:
        raise Damaged("it is cut short" if at else "it is empty" if not header else "it is no tar file")
    check = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if _octal(header[148:156], at) != check:
        raise Damaged(f"it is damaged at byte {at:,}" if at else "it is no tar file")
    return header


def _octal(field: bytes, at: int) -> int:
    """A number in octal digits, or in binary where these are too few."""
    try:
        number = int.from_bytes(field[1:]) if field[:1] == b"\x80" else int(field.strip(b"\0 ") or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        raise Damaged(f"it is damaged at byte {at:,}" if at else "it is no tar file")
    return number


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
    found, place = {}, 0
    while text[place : place + 1].strip(b"\0"):
        digits = text[place : place + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        key, equals, value = text[place + len(digits) + 1 : place + length - 1].partition(b"=")
        fits = len(digits) + 2 < length <= len(text) - place
        if not fits or not equals or (key == b"size" and not value.isdigit()):
            raise Damaged(f"it is damaged at byte {at:,}")
        found |= {"path": value} if key == b"path" else {"size": int(value[:20])} if key == b"size" else {}
        found |= {"sparse": True} if key.startswith(b"GNU.sparse") else {}
        place += length
    return found


def _whole_blocks(length: int) -> int:
    return -(-length // BLOCK) * BLOCK
