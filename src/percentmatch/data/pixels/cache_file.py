"""The file decoded images are kept in: whole, or not there.

An array in numpy's format, which `np.load` reads, then a JSON text about the images, its length and a mark. It is
written under another name and moved into place when it is whole, so any number of processes may build it at once.
"""

import errno
import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 1  # of this file and of what decoding does; another one makes another cache
MARK = b"%match\r\n"
ROOM = 32  # bytes to keep for the JSON text of an image
CANNOT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # reserve room on this disk

Shape = tuple[int, int, int, int]  # n, 3, size, size


@dataclass
class Facts:
    """What is known of the images in a file."""

    digests: list[str | None]  # n, of the image files; None if one could not be read
    bad: dict[int, str] = field(default_factory=dict)  # row -> what is wrong with the image


@dataclass
class Stored:
    """A whole file, mapped into memory."""

    pixels: np.ndarray  # (n, 3, size, size) uint8
    facts: Facts


def key_of(facts: object) -> str:
    """The name of a cache file for what depends on these facts alone."""
    return blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def load(path: Path, shape: Shape) -> Stored | None:
    """What is in the file, or None if it is missing, cut short or not ours."""
    try:
        pixels = np.load(path, mmap_mode="r", allow_pickle=False)
        about = read_end(path, pixels.offset + pixels.nbytes)
        if pixels.shape != shape:
            return None
        return Stored(pixels, Facts(about["digests"], {int(row): reason for row, reason in about["bad"].items()}))
    except (OSError, ValueError, EOFError, AttributeError, KeyError, TypeError):
        return None


def read_end(path: Path, start: int | None = None) -> dict[str, Any]:
    """The JSON text at the end of a file. ValueError if it is not whole, or does not begin where it should."""
    with open(path, "rb") as file:
        end = file.seek(-16, os.SEEK_END)
        length, mark = int.from_bytes(file.read(8), "little"), file.read(8)
        if mark != MARK or length > end or start not in (None, end - length):
            raise ValueError("the file is not whole")
        file.seek(end - length)
        return json.loads(file.read(length)) | {"start": end - length}


def end_of(about: dict[str, Any]) -> bytes:
    """What `read_end` reads."""
    text = json.dumps(about).encode()
    return text + len(text).to_bytes(8, "little") + MARK


def allocate(part: Path, shape: Shape, copy_of: Path | None) -> int:
    """A file of zeros, or a copy of another, with all its room taken, so that a full disk is found at once.

    Returns where the pixels begin.
    """
    with open(part, "x+b") as file:
        if copy_of:
            with open(copy_of, "rb") as old:
                shutil.copyfileobj(old, file)
            file.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        offset = file.tell()
        file.flush()
        reserve(file.fileno(), offset + prod(shape) + ROOM * shape[0])
    return offset


def reserve(handle: int, length: int) -> None:
    """Make a file `length` bytes long and take the room for them where the system can."""
    os.ftruncate(handle, length)
    if sys.platform == "linux":
        try:
            os.posix_fallocate(handle, 0, length)
        except OSError as error:
            if error.errno not in CANNOT:
                raise


def seal(part: Path, offset: int, shape: Shape, facts: Facts) -> None:
    """Write what makes the file whole, and wait until the disk has it."""
    with open(part, "r+b") as file:
        file.seek(offset + prod(shape))
        file.write(end_of({"number": shape[0], "size": shape[-1], "digests": facts.digests, "bad": facts.bad}))
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
