"""An image file in, a square of bytes out; why a file cannot be read is said in plain words.

Started as a program, this file is a worker of `cache` or of `serve`: it imports no torch, so it starts in a moment.
"""

import contextlib
import io
import json
import logging
import os
import re
import signal
import stat
import struct
import sys
import threading
import warnings
from collections.abc import Generator, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import AvifImagePlugin, ExifTags, Image, ImageFile, UnidentifiedImageError

from percentmatch.errors import UserError

Frame = Literal["squash", "center"]
Row = tuple[int, str | None, str | None]  # row, digest of the file if it could be read, what is wrong with it

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
MAX_PIXELS = 100_000_000
MAX_BYTES = 1 << 30
MAX_READS, MAX_TILES = 1 << 20, 100_000
MAX_SCANS, MAX_SCANNED = 100, 20 * MAX_PIXELS  # of a JPEG file, each over all pixels; usual are ten
MARKER, SCAN, END = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])"), b"\xda", b"\xd9"  # of a JPEG file
T = Image.Transpose
ORDER = (T.FLIP_LEFT_RIGHT, T.ROTATE_180, T.FLIP_TOP_BOTTOM, T.TRANSPOSE, T.ROTATE_270, T.TRANSVERSE, T.ROTATE_90)
TURNS = dict(enumerate(ORDER, start=2))  # by EXIF orientation
BROKEN_EXIF = (SyntaxError, struct.error, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError)
BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*")
DAMAGED = "it is damaged or cut short"
MEMBER = re.compile(r"(.*?)#(\d+)\+(\d+)@(\d+)/", re.DOTALL)  # of a tar file: place, length, time
ONE_STDERR = threading.Lock()  # for all threads of this program

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else Pillow's complaints go to stderr


class BadImage(Exception):
    """Why a file cannot be read, in words that follow `cannot read image 'x': `."""


class NoImage(BadImage):
    """The file is no image, or of a format that is not read."""


class TooManyPixels(BadImage):
    """The image is larger than allowed."""


class Content(io.BytesIO):
    """A file's content that can be read so many times: Pillow takes minutes for a file of empty pieces."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > MAX_READS:
            raise BadImage(f"it consists of more than {MAX_READS:,} pieces")
        return super().read(size)


def cannot_read(path: str | Path, reason: str) -> str:
    return f"cannot read image '{path}': {reason}"


def decode(path: Path, size: int, frame: Frame) -> np.ndarray:
    """The image as RGB, turned as its EXIF says: (3, size, size) uint8. Pillow's warnings are not suppressed."""
    try:
        return decode_in_thread(read(path), size, frame)
    except BadImage as error:
        raise UserError(f"{cannot_read(path, str(error))}; replace it or take it out of the data") from error


def member_path(shard: str, offset: int, length: int, time: int, name: str) -> Path:
    """A path for a file within a tar file; `time` is that of the tar file's last change."""
    return Path(f"{shard}#{offset}+{length}@{time}/{name}")


def read(path: str | Path) -> bytes:
    """All of a plain file of reasonable size, or of one within a tar file."""
    try:
        member = MEMBER.match(os.fspath(path))
        content = _read_member(member[1], *map(int, member.groups()[1:])) if member else _read_file(path)
    except FileNotFoundError:
        raise BadImage("there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise BadImage(str(getattr(error, "strerror", None) or error).lower()) from error
    if not content:
        raise BadImage("the file is empty")
    return content


def _read_file(path: str | Path) -> bytes:
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise BadImage("it is a folder" if stat.S_ISDIR(about.st_mode) else "it is not a plain file")
    _check_length(about.st_size)
    return Path(path).read_bytes() if about.st_size else b""  # empty ones of the system may block


def _read_member(shard: str, offset: int, length: int, time: int) -> bytes:
    with open(shard, "rb") as file:
        if os.fstat(file.fileno()).st_mtime_ns != time:
            raise BadImage("its shard was changed meanwhile")
        _check_length(length)
        return os.pread(file.fileno(), length, offset)


def _check_length(length: int) -> None:
    if length > MAX_BYTES:
        raise BadImage(f"its {length / 2**30:.1f} GiB are too many for an image")


def fingerprint(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def as_number(digest: str | None) -> int:
    """A fingerprint in 64 bits; 0 for none."""
    return int(digest, 16) - (1 << 63) if digest else 0


def digest_of(path: str | Path) -> str | None:
    """The fingerprint of a file, None if it cannot be read."""
    with contextlib.suppress(BadImage):
        return fingerprint(read(path))


def decode_bytes(content: bytes, size: int, frame: Frame) -> np.ndarray:
    """As `decode`, of a file's content."""
    with warnings.catch_warnings(action="ignore"):
        return decode_in_thread(content, size, frame)


def decode_in_thread(content: bytes, size: int, frame: Frame) -> np.ndarray:
    """The same without suppressing Pillow's warnings, which no thread can do for itself alone."""
    try:
        with Image.open(Content(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                sides = f"{image.width} x {image.height}"
                raise TooManyPixels(f"its {sides} pixels are more than the {MAX_PIXELS:,} allowed")
            _check_work(image, content)
            return square(image, size, frame)
    except BadImage:
        raise
    except UnidentifiedImageError:
        reason = _what_it_is(content)
        raise (BadImage if reason == DAMAGED else NoImage)(reason) from None
    except Image.DecompressionBombError as error:
        raise TooManyPixels(f"it has more pixels than the {MAX_PIXELS:,} allowed") from error
    except MemoryError as error:
        raise BadImage("there is not enough memory to decode it") from error
    except Exception as error:
        text = " ".join(str(error).split())[:100]
        cut = "truncated" in text.lower()
        raise BadImage("it is cut short (truncated)" if cut else f"it is damaged or cut short ({text})") from error


def _check_work(image: ImageFile.ImageFile, content: bytes) -> None:
    """Refuse a small file that would take minutes to decode."""
    if len(image.tile) > MAX_TILES:
        raise BadImage(f"its {len(image.tile):,} tiles are more than the {MAX_TILES:,} allowed")
    most, scans, place = min(MAX_SCANS, MAX_SCANNED // max(1, image.width * image.height)), 0, 2
    many = content.startswith(b"\xff\xd8") and content.count(b"\xff" + SCAN) > most  # perhaps: it may be other data
    while many and scans <= most and (marker := MARKER.search(content, place)) and marker[1] != END:
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
        scans += marker[1] == SCAN
    if scans > most:
        raise BadImage(f"it has more than the {most} scans allowed for {image.width} x {image.height} pixels")


def square(image: Image.Image, size: int, frame: Frame) -> np.ndarray:
    """Decoded, framed, resized and turned: (3, size, size)."""
    drafted = image.draft(None, (2 * size, 2 * size))  # a big JPEG is decoded at 1/2, 1/4 or 1/8, twice `size` at least
    with _no_stderr() if image.format == "TIFF" else contextlib.nullcontext():
        image.load()
    width, height = drafted[1][2:] if drafted else image.size  # of a draft perhaps a fraction
    side = min(width, height)
    left, top = (0, 0) if frame == "squash" else ((width - side) / 2, (height - side) / 2)
    square = _rgb(image).resize((size, size), Image.Resampling.BILINEAR, (left, top, width - left, height - top))
    turn = TURNS.get(_orientation(image))
    return np.asarray(square if turn is None else square.transpose(turn)).transpose(2, 0, 1).copy()


def _rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB; what is transparent becomes white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = Image.fromarray(_eight_bits(np.asarray(image)))
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Grey values from 0 to full scale as 0 to 255. Full scale is 65535, of floats the first of 1, 255 and 65535 that
    is not exceeded; values beyond, or below 0, are stretched from the image's smallest to its largest."""
    grey = np.nan_to_num(values.astype(np.float64), nan=0, posinf=0, neginf=0)
    low, high = np.min(grey), np.max(grey)
    scales = (1, 255, 65535) if values.dtype.kind == "f" else (65535,)
    low, high = next(((0, full) for full in scales if low >= 0 and high <= full), (low, high))
    return ((grey - low) * (255 / max(high - low, 1e-9))).round().astype(np.uint8)


def _orientation(image: Image.Image) -> int:
    """1 to 8; 1 if the EXIF data is broken, which is no reason to lose an image."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except BROKEN_EXIF:
        return 1


def _what_it_is(content: bytes) -> str:
    """What a file is that Pillow does not know as an image, as a sentence."""
    start = content[:2048].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    kinds = {
        "it is a Git LFS pointer, not the image (run 'git lfs pull')": start.startswith(b"version https://git-lfs"),
        "it is an SVG drawing, not a photograph": b"<svg" in start,
        "it is a web page (HTML), not an image": start.startswith((b"<!doctype html", b"<html")),
        "it is a HEIC image (convert it to JPEG)": content[4:12] in (b"ftypheic", b"ftypheix", b"ftypmif1"),
        "it is text, not an image": min(content[:2048]) > 8,
        DAMAGED: content.startswith(BEGINNINGS) or content[4:12] == b"ftypavif",
    }
    return next((kind for kind, found in kinds.items() if found), f"it is none of {', '.join(FORMATS)}")


@contextlib.contextmanager
def _no_stderr() -> Generator[None]:
    """Close stderr for a while: libtiff writes its warnings there by itself."""
    with ONE_STDERR, contextlib.ExitStack() as stack, open(os.devnull, "wb") as nothing:
        with contextlib.suppress(OSError):  # a program without stderr
            before = os.dup(2)
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, 2)
            os.dup2(nothing.fileno(), 2)
        yield


def decode_rows(rows: Iterable[tuple[int, str]], target: str, offset: int, size: int, frame: Frame) -> Generator[Row]:
    """Decode (row, path) pairs into the file `target`, whose rows begin at `offset`; a bad one becomes zeros."""
    with open(target, "r+b") as file:
        for row, path in rows:
            pixels, digest, reason = np.zeros((3, size, size), np.uint8), None, None
            try:
                content = read(path)
                digest = fingerprint(content)
                pixels = decode_bytes(content, size, frame)
            except BadImage as error:
                reason = str(error)
            file.seek(offset + row * pixels.size)
            file.write(pixels.tobytes())
            yield row, digest, reason


def work() -> None:
    """Read a job from stdin, write one line for each image to stdout. There is a worker for each core."""
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # ty: ignore[invalid-assignment]
    try:
        for result in decode_rows(**json.load(sys.stdin.buffer)):
            os.write(1, f"{json.dumps(result)}\n".encode())  # at once: others write there, too
    except OSError as error:
        os.write(1, f"{json.dumps((-1, None, error.strerror or str(error)))}\n".encode())


def answer(size: int, frame: Frame, seconds: float) -> None:
    """Decode the images that come by stdin, each after its length. The time limit ends the program.

    Each gives a line of JSON on stdout, what is wrong with it or None, and then the pixels of a good one.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a handler would have to wait for a decoder that hangs
    while head := sys.stdin.buffer.read(8):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        wrong, pixels = None, b""
        try:
            pixels = decode_bytes(sys.stdin.buffer.read(int.from_bytes(head)), size, frame).tobytes()
        except BadImage as error:
            wrong = type(error).__name__, str(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(json.dumps(wrong).encode() + b"\n" + pixels)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    answer(**json.loads(sys.argv[1])) if len(sys.argv) > 1 else work()
