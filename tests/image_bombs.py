"""Image files that are small or quickly read, and take long or much memory to decode."""

import io
import re
import struct
import zlib

from PIL import Image


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    """A piece of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def grey_png(side: int, data: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND")


def giant_png() -> bytes:
    """A few bytes that say they are 50,000 x 50,000 pixels."""
    return grey_png(50_000, zlib.compress(b"\0" * 999))


def large_png() -> bytes:
    """Nearly 100 million pixels, which take a second or so."""
    return grey_png(9_990, zlib.compress(bytes(9_990 * 9_991), 1))


def scan_bomb(scans: int = 6_000, side: int = 200) -> bytes:
    """A progressive JPEG whose last scan but one, which refines what is not there, comes again and again."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (90, 100, 110)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    starts = [found.start() for found in re.finditer(rb"\xff\xda", content)]
    one = content[starts[-2] : starts[-1]]
    return content[: starts[-2]] + one * (scans - len(starts) + 1) + content[starts[-1] :]


def many_strips(number: int) -> bytes:
    """A TIFF of one pixel a row and one row a strip: Pillow makes a Python object of each."""
    fields = [(256, 1, 1), (257, 1, number), (258, 1, 8), (259, 1, 1), (262, 1, 1), (273, number, 8), (278, 1, 1)]
    table = struct.pack("<H", len(fields)) + b"".join(struct.pack("<HHII", tag, 4, *rest) for tag, *rest in fields)
    return b"II*\0" + struct.pack("<I", 8 + 4 * number) + struct.pack("<I", 8) * number + table + bytes(4)


def many_pieces(number: int) -> dict[str, bytes]:
    """Good images with so many empty pieces in them, which Pillow reads one by one."""
    jpeg, png, gif = (io.BytesIO() for _ in range(3))
    for file, form in ((jpeg, "JPEG"), (png, "PNG"), (gif, "GIF")):
        Image.new("L", (64, 64), 90).save(file, form)
    grey = jpeg.getvalue()
    before, after = png.getvalue()[:33], png.getvalue()[33:]  # the header's chunk, and the rest
    palette, frame = gif.getvalue()[:-1].split(b",", 1)  # at most 64 colours: no comma in these
    return {
        "fill bytes": grey[:2] + b"\xff" * number + grey[2:],
        "APP markers": grey[:2] + b"\xff\xe5\0\2" * number + grey[2:],
        "comments": grey[:2] + b"\xff\xfe\0\2" * number + grey[2:],
        "chunks before": before + chunk(b"abCd") * number + after,
        "chunks after": before + after[:-12] + chunk(b"abCd") * number + after[-12:],
        "data chunks": before + chunk(b"IDAT") * number + after,
        "blocks": palette + b"!\xfe" + b"\1a" * number + b"\0," + frame + b";",
    }
