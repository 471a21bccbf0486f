"""Every format and mode against Pillow's own resize or a colour worked out by hand; bad files in one sentence."""

import contextlib
import io
import os
import re
import struct
import subprocess
import sys
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from image_bombs import many_pieces, many_strips, scan_bomb
from percentmatch.data.pixels import decode as decoding
from percentmatch.data.pixels.decode import FORMATS, decode
from percentmatch.errors import UserError

BILINEAR = Image.Resampling.BILINEAR
PILLOWS_LIMIT = Image.MAX_IMAGE_PIXELS


def blocks(width: int, height: int, seed: int = 0) -> Image.Image:
    """Random colours in blocks of 8 x 8."""
    draws = np.random.default_rng(seed).integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    return Image.fromarray(np.kron(draws, np.ones((8, 8, 1), np.uint8))[:height, :width])


def planes(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def saved(folder: Path, image: Image.Image, form: str = "PNG", **options: object) -> Path:
    image.save(folder / "image", form, **options)
    return folder / "image"


def palette(index: int) -> Image.Image:
    image = Image.new("P", (9, 9), index)
    image.putpalette([255, 0, 0, 0, 255, 0])
    return image


def colour(path: Path) -> list[int]:
    """Of the middle pixel."""
    return decode(path, 5, "squash")[:, 2, 2].tolist()


@pytest.mark.parametrize(("width", "height"), [(120, 80), (50, 90), (33, 33), (7, 300)])
def test_squash_and_center_are_pillows_resize(tmp_path: Path, width: int, height: int):
    image = blocks(width, height)
    path = saved(tmp_path, image)
    left, top = max(width - height, 0) / 2, max(height - width, 0) / 2
    for frame, box in (("squash", None), ("center", (left, top, width - left, height - top))):
        got = decode(path, 33, frame)
        assert got.dtype == np.uint8
        assert np.array_equal(got, planes(image.resize((33, 33), BILINEAR, box)))


def test_the_first_frame_is_taken(tmp_path: Path):
    for form in ("GIF", "TIFF"):
        assert colour(saved(tmp_path, palette(0), form, save_all=True, append_images=[palette(1)])) == [255, 0, 0]


MODES = [  # image, format, options, colour on white: c * a/255 + 255 * (1 - a/255)
    (Image.new("RGB", (9, 9), (200, 60, 120)), "BMP", {}, (200, 60, 120)),
    (Image.new("L", (9, 9), 100), "PNG", {}, (100, 100, 100)),
    (Image.new("1", (9, 9), 1), "PNG", {}, (255, 255, 255)),
    (palette(1), "PNG", {}, (0, 255, 0)),
    (palette(1), "PNG", {"transparency": 1}, (255, 255, 255)),
    (palette(0), "PNG", {"transparency": b"\x80\xff"}, (255, 127, 127)),
    (palette(1), "GIF", {"transparency": 1}, (255, 255, 255)),
    (Image.new("LA", (9, 9), (100, 128)), "PNG", {}, (177, 177, 177)),
    (Image.new("RGBA", (9, 9), (255, 0, 0, 128)), "PNG", {}, (255, 127, 127)),
    (Image.new("RGB", (9, 9), (1, 2, 3)), "PNG", {"transparency": (1, 2, 3)}, (255, 255, 255)),
    (Image.new("CMYK", (9, 9), (0, 255, 255, 0)), "TIFF", {}, (255, 0, 0)),
    (Image.new("CMYK", (9, 9), (255, 0, 255, 0)), "JPEG", {"quality": 100, "subsampling": 0}, (0, 255, 0)),
    (Image.fromarray(np.full((9, 9), 128 * 257, "<u2")), "PNG", {}, (128, 128, 128)),  # 257 = 65535 / 255
    (Image.fromarray(np.full((9, 9), 300, ">u2")), "TIFF", {}, (1, 1, 1)),
    (Image.fromarray(np.full((9, 9), 128 * 257, "<i4")), "TIFF", {}, (128, 128, 128)),
    (Image.fromarray(np.full((9, 9), 0.2, "<f4")), "TIFF", {}, (51, 51, 51)),
    (Image.fromarray(np.full((9, 9), float("nan"), "<f4")), "TIFF", {}, (0, 0, 0)),
]


@pytest.mark.parametrize("case", MODES, ids=lambda case: f"{case[0].mode}-{case[1]}-{case[2]}")
def test_modes_become_rgb(tmp_path: Path, case: tuple):
    image, form, options, expected = case
    assert np.abs(np.subtract(colour(saved(tmp_path, image, form, **options)), expected)).max() <= (form == "JPEG")


@pytest.mark.parametrize(("low", "high"), [(0, 70000), (-1000, 1000), (-100000, 300000)])
def test_values_beyond_full_scale_are_stretched(tmp_path: Path, low: int, high: int):
    """From the smallest to the largest as 0 .. 255: the middle is 127.5, rounded to even."""
    image = Image.fromarray(np.array([[low, (low + high) / 2, high]] * 3, np.int32))
    assert decode(saved(tmp_path, image, "TIFF"), 3, "squash")[0, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, form: str, orientation: int):
    """As Pillow turns it, then resizes; resizing first may round otherwise (one level)."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, blocks(48, 32), form, exif=exif)
    turned = ImageOps.exif_transpose(Image.open(path))
    assert turned.size == ((48, 32) if orientation < 5 else (32, 48))
    for frame, image in (("squash", turned.resize((32, 32), BILINEAR)), ("center", ImageOps.fit(turned, (32, 32)))):
        assert np.abs(decode(path, 32, frame) - planes(image).astype(int)).max() <= 1


def test_broken_exif_loses_no_image(tmp_path: Path):
    for exif in (b"Exif\0\0no TIFF header", b"Exif\0\0II*\0"):
        assert colour(saved(tmp_path, Image.new("RGB", (9, 9), (8, 8, 8)), exif=exif)) == [8, 8, 8]


def test_a_big_jpeg_is_drafted_but_looks_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No scale divides these sides; 1/4 keeps twice the target, 1/8 would not."""
    path = saved(tmp_path, blocks(126, 113).resize((1001, 901), Image.Resampling.BICUBIC), "JPEG", quality=95)
    resize, seen = Image.Image.resize, []
    monkeypatch.setattr(Image.Image, "resize", lambda self, *rest: (seen.append(self.size), resize(self, *rest))[1])
    for frame, box in (("squash", (0, 0, 1001, 901)), ("center", (50, 0, 951, 901))):
        whole = planes(resize(Image.open(path), (100, 100), BILINEAR, box)).astype(float)
        assert np.abs(decode(path, 100, frame) - whole).mean() < 1
        assert seen.pop() == (251, 226)


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""
    parts = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT"
    chunks = (struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


BAD = {
    "empty": (b"", "the file is empty"),
    "text": (b"this is no image\n", "it is text"),
    "page": (b"\n<!DOCTYPE html><html>404</html>", "web page"),
    "drawing": (b'<?xml version="1.0"?><svg width="9" height="9"/>', "SVG"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "bomb": (png_header(20_000, 6_000), "20000 x 6000 pixels are more than the 100,000,000"),
    "great bomb": (png_header(60_000, 60_000), "more pixels than the 100,000,000"),
}


def sentence(path: Path) -> str:
    with warnings.catch_warnings(action="ignore"), pytest.raises(UserError) as caught:
        decode(path, 16, "squash")
    found = re.fullmatch(r"cannot read image '(.*)': (.*); replace it or take it out of the data", str(caught.value))
    assert (found and found[1]) == str(path)
    return found[2]


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str):
    (tmp_path / "a.jpg").write_bytes(BAD[name][0])
    assert BAD[name][1] in sentence(tmp_path / "a.jpg")
    assert Image.MAX_IMAGE_PIXELS == PILLOWS_LIMIT
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (scan_bomb(), "more than the 100 scans allowed for 200 x 200 pixels"),
        (many_strips(100_001), "its 100,001 tiles are more than the 100,000 allowed"),
        *((each, "more than 20,000 pieces") for each in many_pieces(20_000).values()),
    ],
    ids=["scans", "strips", *many_pieces(1)],
)
def test_what_would_take_minutes_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    """With a million pieces as without: a fiftieth of it keeps the test short."""
    monkeypatch.setattr(decoding, "MAX_READS", 20_000)
    (tmp_path / "a.jpg").write_bytes(content)
    start = time.process_time()
    assert words in sentence(tmp_path / "a.jpg")
    assert time.process_time() - start < 2


def test_files_within_these_limits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a JPEG in which bytes that look like scans lie in a comment, and behind its end."""
    monkeypatch.setattr(decoding, "MAX_READS", 3_000)
    looks = b"\xff\xda\0\2" * 1_000
    plain = scan_bomb(100)
    for content in (plain, plain[:2] + b"\xff\xfe\x0f\xa2" + looks + plain[2:] + looks, *many_pieces(300).values()):
        (tmp_path / "a.jpg").write_bytes(content)
        assert decode(tmp_path / "a.jpg", 9, "squash").shape == (3, 9, 9)
    monkeypatch.setattr(decoding, "MAX_SCANNED", 24 * 200 * 200)  # of a large image fewer are read
    (tmp_path / "a.jpg").write_bytes(scan_bomb(24))
    decode(tmp_path / "a.jpg", 9, "squash")
    (tmp_path / "a.jpg").write_bytes(scan_bomb(25))
    assert "more than the 24 scans allowed for 200 x 200 pixels" in sentence(tmp_path / "a.jpg")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", [*FORMATS, "tiff_lzw", "tiff_jpeg"])
def test_truncated_and_damaged_files(tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str):
    """Cut anywhere it is an error; with some bytes changed an error or an image; never another exception or a word."""
    buffer, path, draws = io.BytesIO(), tmp_path / "a.jpg", np.random.default_rng(0)
    options = {"compression": form} if form.islower() else {}
    blocks(64, 48).save(buffer, "TIFF" if options else form, **options)
    whole = buffer.getvalue()
    for share in (0.01, 0.2, 0.5, 0.9):
        path.write_bytes(whole[: int(share * len(whole)) + 1])
        sentence(path)
    for _ in range(40):
        content = np.frombuffer(whole, np.uint8).copy()
        content[draws.integers(0, len(content), 6)] = draws.integers(0, 256, 6)
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            assert decode(path, 16, "center").shape == (3, 16, 16)
    assert capfd.readouterr() == ("", "")


def test_files_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    os.mkfifo(tmp_path / "pipe")
    assert "there is no such file" in sentence(tmp_path / "none.jpg")
    assert "it is a folder" in sentence(tmp_path)
    assert "not a plain file" in sentence(tmp_path / "pipe")
    assert "null" in sentence(Path("zero\0byte.jpg"))
    path = saved(tmp_path, palette(0))
    monkeypatch.setattr(Path, "read_bytes", lambda path: os.open("/", os.O_WRONLY))  # nothing is forbidden to root
    assert "is a directory" in sentence(path)
    monkeypatch.setitem(decode.__globals__, "MAX_BYTES", 3)
    assert "too many" in sentence(path)


def test_the_worker_imports_no_torch():
    code = f"import runpy, sys; runpy.run_path({decode.__code__.co_filename!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
