"""Groups of files that show the same image: the same bytes, the same pixels, or nearly the same picture."""

import io
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from PIL import Image
from torch import Tensor

from percentmatch.data.checks.near_duplicates import near_pairs, sketch
from percentmatch.data.pixels.cache import Progress
from percentmatch.data.pixels.decode import FORMATS, fingerprint, is_member, read

Size = tuple[int, int]


@dataclass(frozen=True)
class Group:
    """Two or more files, by their rows."""

    kind: Literal["same bytes", "same pixels", "near"]  # the least that two of them have in common
    rows: tuple[int, ...]
    agreement: float  # of the least alike that were compared, 1 if their squares are the same


def file_sizes(paths: Sequence[Path], rows: Sequence[int]) -> dict[int, Size]:
    """Width and height in pixels, from the files' headers."""
    sizes = {}
    with warnings.catch_warnings(action="ignore"):  # of very large images
        for row in rows:
            file = io.BytesIO(read(paths[row])) if is_member(paths[row]) else paths[row]
            with Image.open(file, formats=FORMATS) as image:
                sizes[row] = image.size
    return sizes


def find_groups(
    paths: Sequence[Path], pixels: Tensor, sizes: dict[int, Size], *, progress: Progress | None = None
) -> list[Group]:
    """Groups among the rows that have a size. `pixels` (n, 3, s, s) are the images as squares.

    Pixels are the same where the squares and the sizes are. Only files of the same squares are read again.
    """
    alike = defaultdict(list)
    for row in sizes:
        alike[blake2b(pixels[row].numpy(), digest_size=16).digest()].append(row)
    firsts = [rows[0] for rows in alike.values()]
    links = [(firsts[one], firsts[other], value) for one, other, value in near_pairs(sketch(pixels, firsts), progress)]
    members = {rows[0]: rows for rows in alike.values()}
    agreement = dict.fromkeys(firsts, 1.0)
    home = {row: row for row in firsts}
    for one, other, value in links:
        kept, moved = home[one], home[other]
        agreement[kept] = min(agreement[kept], agreement[moved], value)
        if kept != moved:
            home |= dict.fromkeys((row for row in members[moved] if row in home), kept)
            members[kept] += members.pop(moved)
    groups = [(tuple(sorted(rows)), agreement[first]) for first, rows in members.items() if len(rows) > 1]
    near = {row for one, other, _ in links for row in members[home[one]]}
    return [Group(_kind(rows, paths, sizes, near), rows, value) for rows, value in sorted(groups)]


def _kind(
    rows: Sequence[int], paths: Sequence[Path], sizes: dict[int, Size], near: set[int]
) -> Literal["same bytes", "same pixels", "near"]:
    if rows[0] in near or len({sizes[row] for row in rows}) > 1:
        return "near"
    return "same bytes" if len({fingerprint(read(paths[row])) for row in rows}) == 1 else "same pixels"
