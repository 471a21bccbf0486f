"""The file that decoded images are cached in: whole, or not there.

An array in numpy's format, which `np.load` reads, then a JSON text about the images, its length and a mark. It is
written under a temporary name and renamed when it is whole, so any number of processes may build it at once.
"""

import errno
import json
import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from percentmatch.errors import UserError
from percentmatch.files import new_part, sweep, written_out

VERSION = 1  # of this file and of what decoding does; another one makes another cache
MARK = b"%match\r\n"
PIECE = 1 << 24  # bytes to copy at a time
ROOM = 32  # bytes to reserve for the JSON text of an image
CANNOT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # this disk cannot reserve room

Shape = tuple[int, int, int, int]  # n, 3, size, size


@dataclass
class Facts:
    """What is known of the images in a file."""

    digests: list[str | None]  # n, of the image files; None if one could not be read
    bad: dict[int, str] = field(default_factory=dict)  # row -> what is wrong with the image


@contextmanager
def new_cache_file(target: Path, what: str, room: str = "") -> Generator[Path]:
    """A temporary name beside `target` to write to; errors name `what` cannot be written and the `room` it needs."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        with new_part(target) as temporary:
            yield temporary
    except OSError as error:
        advice = f"make room{room} or set PERCENTMATCH_CACHE to another folder"
        raise UserError(f"cannot write {what} to '{target.parent}': {error.strerror or error}; {advice}") from error


def load(path: Path, shape: Shape) -> tuple[np.ndarray, Facts] | None:
    """The pixels (n, 3, size, size), mapped, and what is known of them; None if the file is missing or not whole."""
    try:
        pixels = np.load(path, mmap_mode="r", allow_pickle=False)
        about = read_end(path, pixels.offset + pixels.nbytes)
        facts = Facts(about["digests"], {int(row): reason for row, reason in about["bad"].items()})
        return (pixels, facts) if pixels.shape == shape else None
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
    """The bytes that `read_end` reads."""
    text = json.dumps(about).encode()
    return text + len(text).to_bytes(8, "little") + MARK


def allocate(path: Path, shape: Shape, copy_of: Path | None) -> int:
    """A file of zeros, or a copy of another, with all its room reserved, so that a full disk is found at once.

    Returns the offset of the pixels.
    """
    with open(path, "x+b") as file:
        if copy_of:
            with open(copy_of, "rb") as old:
                shutil.copyfileobj(old, file, PIECE)
            file.seek(0)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        offset = file.tell()
        file.flush()
        length = offset + prod(shape) + ROOM * shape[0]
        os.ftruncate(file.fileno(), length)
        try:
            if sys.platform == "linux":
                os.posix_fallocate(file.fileno(), 0, length)
        except OSError as error:
            if error.errno not in CANNOT:
                raise
    return offset


def seal(path: Path, offset: int, shape: Shape, facts: Facts) -> None:
    """Write what makes the file whole, and wait until the disk has it."""
    with written_out(path, "r+b") as file:
        file.seek(offset + prod(shape))
        file.write(end_of({"number": shape[0], "size": shape[-1], "digests": facts.digests, "bad": facts.bad}))
        file.truncate()
