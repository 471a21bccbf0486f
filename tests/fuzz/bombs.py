"""Small files that ask for much, each read with one GiB of memory: run by test_hostile, prints a line for each.

A bomb is refused in one sentence; what lies within the limits may also be read.
"""

import io
import json
import os
import resource
import struct
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import yaml
from PIL import Image

from percentmatch.data import read_labels, read_voc
from percentmatch.data.pixels.decode import decode
from percentmatch.errors import UserError
from percentmatch.files import read_yaml
from percentmatch.models.weights import read_weights
from percentmatch.runs.checkpoint import load_checkpoint
from percentmatch.settings.config import Config
from percentmatch.use.grid import read_grid

GIB = 1 << 30
Bomb = tuple[str, bytes | int, Callable[[Path], object]]  # file, its content or its length in zeros, reader


def png(side: int, kind: int = 0, depth: int = 8, *chunks: tuple[bytes, bytes]) -> bytes:
    """All zeros, so a megabyte stands for a gigabyte."""
    row = 1 + side * depth // 8 * (3 if kind == 2 else 1)
    packer, rows = zlib.compressobj(1), bytes(row * 64)
    data = b"".join(packer.compress(rows) for _ in range(side // 64 + 1)) + packer.flush()
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", side, side, depth, kind, 0, 0, 0)),
        *chunks,
        (b"IDAT", data),
        (b"IEND", b""),
    ]
    made = (struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def giant(kind: str, told: bytes, size: bytes) -> bytes:
    """An image of 77 x 77 pixels whose header tells of more."""
    buffer = io.BytesIO()
    Image.new("L", (77, 77)).save(buffer, kind)
    assert told in buffer.getvalue()
    return buffer.getvalue().replace(told, size)


def archive(megabytes: int) -> bytes:
    """A checkpoint that torch would unpack to so much."""
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save({"model": torch.zeros(megabytes << 18)}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return packed.getvalue()


def bombs(folder: Path) -> Iterator[Bomb]:
    def image(file: Path) -> object:
        return decode(file, 32, "squash")

    def voc(file: Path) -> object:
        return read_voc(folder / "voc")

    def config(file: Path) -> Config:
        return Config.from_dict(read_yaml(file))

    def checkpoint(file: Path) -> object:
        return load_checkpoint(file, torch.device("cpu"))

    text = zlib.compress(bytes(100 << 20), 1)
    yield "giant.png", png(30_000, depth=1), image
    yield "full.png", png(9_990), image  # within the limits
    yield "deep.png", png(7_000, depth=16), image
    yield "text.png", png(8, 0, 8, (b"zTXt", b"a\0\0" + text)), image
    yield "profile.png", png(8, 0, 8, (b"iCCP", b"a\0\0" + text)), image
    yield "giant.jpg", giant("JPEG", b"\0M\0M", b"\xff\xff\xff\xff"), image
    yield "large.jpg", giant("JPEG", b"\0M\0M", b"\x27\0\x27\0"), image  # within the limits, but cut short
    yield "giant.webp", giant("WEBP", b"M\0M\0", b"\xff\x3f\xff\x3f"), image
    yield "giant.avif", giant("AVIF", b"\0\0\0M\0\0\0M", b"\0\0\x75\x30\0\0\x75\x30"), image
    yield "giant.gif", giant("GIF", b"M\0M\0", b"\xff\xff\xff\xff"), image
    yield "giant.tif", giant("TIFF", b"\1\0\0\0M\0\0\0", b"\1\0\0\0\xff\xff\xff\x7f"), image
    yield "giant.bmp", giant("BMP", b"M\0\0\0M\0\0\0", b"\xff\xff\xff\x7f\xff\xff\xff\x7f"), image
    yield "long.csv", b"image,labels\na.png," + b"x," * (3 << 20), read_labels
    yield "huge.csv", 3 * GIB, read_labels
    yield "huge.json", 3 * GIB, read_labels
    yield "huge.png", 3 * GIB, image
    yield "huge.yaml", 3 * GIB, config
    yield (
        "wide.csv",
        ("image," + ",".join(f"c{n}" for n in range(100_000)) + "\na.png" + ",1" * 100_000).encode(),
        read_labels,
    )
    yield "columns.csv", b"image" + b",c" * (2 << 20) + b"\na.png" + b",1" * (2 << 20), read_labels
    yield "unique.csv", ("image,labels\n" + "".join(f"a.png,u{n}\n" for n in range(100_000))).encode(), read_labels
    yield "quote.csv", b'image,labels\na.png,"' + b"x\n" * (1 << 20), read_labels
    yield (
        "keys.jsonl",
        "\n".join(json.dumps({"file_name": "a.png", f"k{n}": 1}) for n in range(40_000)).encode(),
        read_labels,
    )
    yield "deep.json", b"[" * (1 << 20), read_labels
    yield "deep2.json", b'{"images":[],"annotations":[],"categories":' + b'{"a":' * (1 << 20), read_labels
    yield "path.json", json.dumps([{"image": "a/" * (1 << 20) + "a.png", "choice": "x"}]).encode(), read_labels
    yield "accents.csv", ("image,labels\na" + "\u0301\u0316" * 60_000 + ".png,x\n").encode(), read_labels
    yield "list.csv", b'image,labels\na.png,"[' + b"-" * 100_000 + b'1]"\n', read_labels
    yield "spaces.csv", b"image,labels\na.png,\"['a'" + b" " * 100_000 + b'x]"\n', read_labels
    yield "voc/Annotations/a.xml", b"<a>" * 100_000, voc
    yield (
        "voc/Annotations/a.xml",
        b"<annotation>" + b"<object>" * 100_000 + b"</object>" * 100_000 + b"</annotation>",
        voc,
    )
    laughs = b"".join(b'<!ENTITY l%d "%s">' % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 12))
    yield "voc/Annotations/a.xml", b'<!DOCTYPE a [<!ENTITY l0 "ha">' + laughs + b"]><a>&l11;</a>", voc
    aliases = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    yield "laughs.yaml", f"a0: &a0 [x]\n{aliases}lr: *a11\n".encode(), config
    yield "deep.yaml", b"a: " + b"[" * 50_000, config
    yield "flat.yaml", b"a: [" + b"1," * 20_000 + b"]", config
    yield "number.yaml", b"seed: 0x" + b"f" * 100_000, config
    yield "sixty.yaml", b"seed: " + b"1:" * 60_000 + b"1", config
    grid = {"runs": {"a": {}}, "grid": {f"k{n}": list(range(10)) for n in range(30)}}
    yield "grid.yaml", yaml.safe_dump(grid).encode(), read_grid
    yield "seeds.yaml", yaml.safe_dump({"runs": {"a": {}}, "seeds": list(range(12_000))}).encode(), read_grid
    yield "last.pt", archive(20), checkpoint
    yield "weights.pt", archive(20), read_weights
    yield "weights.safetensors", struct.pack("<Q", 1 << 40) + b"{}", read_weights


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in ("voc/JPEGImages", "voc/Annotations"):
        (folder / name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    Image.new("RGB", (8, 8)).save(folder / "voc" / "JPEGImages" / "a.png")
    made = []
    for number, (name, content, read) in enumerate(bombs(folder)):
        file = folder / f"{number}"
        with open(file, "wb") as out:
            out.truncate(content) if isinstance(content, int) else out.write(content)
        made.append((file, folder / name, read))
        content = b""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + GIB, used + GIB))
    for file, place, read in made:
        file.rename(place)
        start = time.perf_counter()
        try:
            read(place)
            said = "read"
        except UserError as error:
            said = f"refused: {error}"
        print(
            f"{place.relative_to(folder)}\t{time.perf_counter() - start:.2f}\t{' '.join(said.split())[-160:]}",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
