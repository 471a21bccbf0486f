"""Small tar shards for tests: image n of a pool is one colour, which says its number."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor


def picture(number: int, side: int = 8) -> bytes:
    """A PNG file of one colour, from which `number_of` reads the number again."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (number % 256, number // 256, 77)).save(file, "PNG")
    return file.getvalue()


def numbers_of(pixels: Tensor) -> list[int]:
    """The numbers of pictures (n, 3, h, w)."""
    red, green = pixels[:, 0, 0, 0].long(), pixels[:, 1, 0, 0].long()
    return (red + 256 * green).tolist()


def write_tar(path: Path, members: dict[str, bytes], **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_pool(folder: Path, counts: list[int]) -> Path:
    """Shards of so many pictures each; the numbers go on from one to the next."""
    number = 0
    for shard, count in enumerate(counts):
        numbers = range(number, number + count)
        write_tar(folder / f"shard-{shard:03d}.tar", {f"{each:05d}.png": picture(each) for each in numbers})
        number += count
    return folder


def write_photos(folder: Path, number: int, side: int = 24) -> list[Path]:
    """JPEG files of noise, in two folders."""
    generator, paths = np.random.default_rng(0), []
    for each in range(number):
        path = folder / ("even" if each % 2 == 0 else "odd") / f"photo.{each:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)
        paths.append(path)
    return paths
