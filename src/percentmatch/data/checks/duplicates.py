"""Groups of files that show the same image: the same bytes, the same pixels, or nearly the same picture.

Near-duplicates are saved, scaled, cropped or lit a little differently. Each image becomes a small grey square. Squares
with roughly the same outlines are aligned by the small shift and stretch that fits best. If they then agree, and so do
the colours, they are near-duplicates. Mirrored, turned and colourless copies and large crops are not found.
"""

import io
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from percentmatch.data.pixels.cache import Progress
from percentmatch.data.pixels.decode import FORMATS, MEMBER, fingerprint, read

SIDE = 32
LUMA = torch.tensor([0.299, 0.587, 0.114])
ROUGH = 0.7  # pairs of squares that agree less are not compared further
SAME = 0.92  # agreement of a near-duplicate, once fitted
TINT = 0.15  # the largest difference of its colours, as a fraction of the brightness
RIVALS = 4  # of each image, so many that agree best are compared
SIGMAS = (1.5, 1.5, 1.5, 1.0, 1.0, 1.0)  # of the blur in each step of the fit: rough outlines first
REACH = 0.25  # the largest shift or stretch, as a fraction of half the side
FLAT = 0.5  # grey levels: images with less to see than this are like no other
CHUNK = 64  # pairs fitted at a time
MATRIX = 1 << 24  # agreements computed at a time

Size = tuple[int, int]
Kind = Literal["same bytes", "same pixels", "near"]


@dataclass(frozen=True)
class Group:
    """Two or more files, by their rows."""

    kind: Kind  # the least that two of them have in common
    rows: tuple[int, ...]
    agreement: float  # of the least alike that were compared, 1 if their squares are the same


def file_sizes(paths: Sequence[Path], rows: Sequence[int]) -> dict[int, Size]:
    """Width and height in pixels, from the files' headers."""
    sizes = {}
    with warnings.catch_warnings(action="ignore"):  # of very large images
        for row in rows:
            file = io.BytesIO(read(paths[row])) if MEMBER.match(str(paths[row])) else paths[row]
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
    members = {rows[0]: rows for rows in alike.values()}
    agreement, home = dict.fromkeys(members, 1.0), {row: row for row in members}
    pairs = near_pairs(pixels, list(members), progress)
    for one, other, value in pairs:
        kept, moved = home[one], home[other]
        agreement[kept] = min(agreement[kept], agreement[moved], value)
        if kept != moved:
            home |= dict.fromkeys((row for row in members[moved] if row in home), kept)
            members[kept] += members.pop(moved)
    near = {home[one] for one, *_ in pairs}
    groups = []
    for first, rows in members.items():
        kind: Kind = "near"
        if first not in near and len({sizes[row] for row in rows}) == 1:
            kind = "same pixels" if len({fingerprint(read(paths[row])) for row in rows}) > 1 else "same bytes"
        groups += [Group(kind, tuple(sorted(rows)), agreement[first])] if len(rows) > 1 else []
    return sorted(groups, key=lambda group: group.rows)


def near_pairs(pixels: Tensor, rows: Sequence[int], progress: Progress | None = None) -> list[tuple[int, int, float]]:
    """Near-duplicates among these rows of images (n, 3, h, w) uint8 with sides of at least SIDE, and their agreement.

    Each row is compared with the few that are most like it.
    """
    greys, tints = [], []
    for chunk in torch.tensor(rows).split(1024):
        small = F.adaptive_avg_pool2d(pixels[chunk].float(), SIDE)
        fields = F.adaptive_avg_pool2d(small, 4)
        tint = (fields - fields.mean(1, keepdim=True)) / (fields.mean((1, 2, 3), keepdim=True) + 8)
        greys.append(torch.einsum("nchw,c->nhw", small, LUMA).round().byte())
        tints.append(tint.flatten(1))  # colour without brightness, as a fraction of that of the image
    grey, tint = torch.cat(greys), torch.cat(tints)  # (rows, SIDE, SIDE) and (rows, 48)
    pairs = torch.unique(torch.cat(list(_rough_pairs(_outlines(grey)))).sort(1).values, dim=0)
    one, other = (tint[side] for side in pairs.unbind(1))
    pairs = pairs[(one - other).square().mean(1).sqrt() <= TINT]
    found = []
    for chunk in pairs.split(CHUNK) if len(pairs) else ():
        one, other = (grey[side].float() for side in chunk.unbind(1))
        agreement = fitted_agreement(one, other)
        again = agreement < SAME  # the other may be the crop: only a picture with more around it can be moved
        agreement[again] = fitted_agreement(other[again], one[again]).maximum(agreement[again])
        found += [(*pair, value) for pair, value in zip(chunk.tolist(), agreement.tolist(), strict=True)]
        if progress:
            progress(len(found), len(pairs))
    return [(rows[one], rows[other], value) for one, other, value in found if value >= SAME]


def fitted_agreement(moved: Tensor, fixed: Tensor) -> Tensor:
    """The correlation of the outlines of squares (n, SIDE, SIDE), in pairs, where `moved` fits `fixed` best: (n,).

    Gauss-Newton on shift and stretch along both axes, and brightness and contrast, over what both show.
    """
    x = y = ((torch.arange(SIDE) + 0.5) * 2 / SIDE - 1).float()  # positions of the pixels, from -1 to 1
    x, y = (axis.expand(SIDE, SIDE).flatten() for axis in (x[None, :], y[:, None]))
    warp = torch.zeros(len(moved), 4)  # stretch and shift along x, then y
    for sigma in SIGMAS:
        picture, target = _blur(moved, sigma), _blur(fixed, sigma).flatten(1)
        down, right = torch.gradient(picture, spacing=2 / SIDE, dim=(1, 2))
        (values, dx, dy), seen = _sample(torch.stack([picture, right, down], 1), warp, x, y)
        slopes = torch.stack([dx * x, dx, dy * y, dy, values, torch.ones_like(values)], 1) * seen[:, None]
        normal = slopes @ slopes.mT + 1e-3 * torch.eye(6)  # (n, 6, 6)
        step = torch.linalg.solve(normal, (slopes @ (target * seen)[..., None])[..., 0])
        step = (step[:, :4] / step[:, 4:5].clamp(min=0.3)).clamp(-0.08, 0.08)
        warp = (warp + step).clamp(-REACH, REACH)
    (values,), seen = _sample(_outline(moved)[:, None], warp, x, y)
    one, other = (_centred(outline, seen) for outline in (values, _outline(fixed).flatten(1)))
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)).clamp(min=1e-3)


def _sample(pictures: Tensor, warp: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures (n, k, SIDE, SIDE) read where `warp` moves the pixels: (k, n, pixels), and which lie inside."""
    across = (1 + warp[:, 0:1]) * x + warp[:, 1:2]
    down = (1 + warp[:, 2:3]) * y + warp[:, 3:4]
    grid = torch.stack([across, down], -1).view(-1, SIDE, SIDE, 2)
    values = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    return values.flatten(2).transpose(0, 1), ((across.abs() < 1) & (down.abs() < 1)).float()


def _centred(values: Tensor, seen: Tensor) -> Tensor:
    mean = (values * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
    return (values - mean) * seen


def _rough_pairs(outlines: Tensor) -> Iterator[Tensor]:
    """(pairs, 2) rows of the few that agree best with each; a block of the matrix of all pairs at a time."""
    first = 0
    for block in outlines.split(max(MATRIX // max(len(outlines), 1), 1)):
        agreement = block @ outlines.T
        agreement.diagonal(first).fill_(-1)
        best = agreement.topk(min(RIVALS, len(outlines)), dim=1)
        row, rank = (best.values >= ROUGH).nonzero(as_tuple=True)
        yield torch.stack([row + first, best.indices[row, rank]], 1)
        first += len(block)


def _outlines(grey: Tensor) -> Tensor:
    """Rough outlines of squares as vectors of length 1, or 0 for flat pictures: (n, (SIDE / 2) ** 2)."""
    found = []
    for squares in map(Tensor.float, grey.split(1024)):
        outline = F.avg_pool2d(_blur(squares, 1.5) - _blur(squares, 4.5), 2).flatten(1)
        outline = outline - outline.mean(1, keepdim=True)
        length = outline.norm(dim=1, keepdim=True)
        found.append(outline / length * (length > FLAT * outline.shape[1] ** 0.5))
    return torch.cat(found).nan_to_num()


def _outline(squares: Tensor) -> Tensor:
    return _blur(squares, 0.5) - _blur(squares, 4.0)


def _blur(squares: Tensor, sigma: float) -> Tensor:
    at = torch.arange(SIDE).float()
    kernel = torch.softmax(-((at[:, None] - at) ** 2) / (2 * sigma**2), 1)
    return kernel @ squares @ kernel.T
