"""Pairs of images that show the same picture, saved, scaled, cropped or lit a little differently.

Each image becomes a small grey square. Squares whose outlines agree roughly are laid over each other, by a small shift
and stretch that makes them fit best. If little is left of the difference, and the colours are the same, they are near
duplicates. Mirrored, turned and colourless copies, and what is left after a large crop, are not found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.data.pixels.cache import Progress

SIDE = 32
LUMA = torch.tensor([0.299, 0.587, 0.114])
ROUGH = 0.7  # pairs of squares that agree less are not looked at
SAME = 0.92  # agreement of a near duplicate, once fitted
TINT = 0.15  # the largest difference of its colours, as a share of the brightness
RIVALS = 4  # of each image, so many that agree best are looked at
SIGMAS = (1.5, 1.5, 1.5, 1.0, 1.0, 1.0)  # a step of the fit each: rough outlines first
REACH = 0.25  # the largest shift or stretch, as a share of half the side
FLAT = 0.5  # grey levels: images with less to see than this are like no other
CHUNK = 64  # pairs fitted at a time
MATRIX = 1 << 24  # agreements kept at a time


@dataclass(frozen=True)
class Sketches:
    """n images, as small as comparing them allows."""

    grey: Tensor  # (n, SIDE, SIDE) uint8
    tint: Tensor  # (n, 48) colour of 4 x 4 fields without their brightness, as a share of that of the image


def sketch(pixels: Tensor, rows: Sequence[int]) -> Sketches:
    """Of these rows of the images (n, 3, h, w) uint8, whose sides are at least SIDE pixels."""
    chunks = []
    for chunk in torch.tensor(rows).split(1024):
        small = F.adaptive_avg_pool2d(pixels[chunk].float(), SIDE)
        fields = F.adaptive_avg_pool2d(small, 4)
        tint = (fields - fields.mean(1, keepdim=True)) / (fields.mean((1, 2, 3), keepdim=True) + 8)
        chunks.append((torch.einsum("nchw,c->nhw", small, LUMA).round().byte(), tint.flatten(1)))
    return Sketches(*(torch.cat(each) for each in zip(*chunks, strict=True)))


def near_pairs(sketches: Sketches, progress: Progress | None = None) -> list[tuple[int, int, float]]:
    """Rows of near duplicates, and how well they agree; each row with its closest few at most."""
    pairs = torch.cat(list(_rough_pairs(_outlines(sketches.grey))) or [torch.zeros(0, 2, dtype=torch.long)])
    pairs = torch.unique(pairs.sort(1).values, dim=0)
    one, other = (sketches.tint[rows] for rows in pairs.unbind(1))
    pairs = pairs[(one - other).square().mean(1).sqrt() <= TINT]
    found = []
    for first in range(0, len(pairs), CHUNK):
        chunk = pairs[first : first + CHUNK]
        one, other = (sketches.grey[rows].float() for rows in chunk.unbind(1))
        agreement = fitted_agreement(one, other)
        again = agreement < SAME  # the other may be the crop: only a picture with more around it can be moved
        agreement[again] = fitted_agreement(other[again], one[again]).maximum(agreement[again])
        found += [(*rows, value) for rows, value in zip(chunk.tolist(), agreement.tolist(), strict=True)]
        if progress:
            progress(min(first + CHUNK, len(pairs)), len(pairs))
    return [(one, other, value) for one, other, value in found if value >= SAME]


def fitted_agreement(moved: Tensor, fixed: Tensor) -> Tensor:
    """The correlation of the outlines of squares (n, SIDE, SIDE), in pairs, where `moved` fits `fixed` best: (n,).

    Gauss-Newton on shift and stretch along both axes, and brightness and contrast, over what both show.
    """
    x = y = ((torch.arange(SIDE) + 0.5) * 2 / SIDE - 1).float()  # places of the pixels, from -1 to 1
    x, y = (axis.expand(SIDE, SIDE).flatten() for axis in (x[None, :], y[:, None]))
    fit = torch.zeros(len(moved), 4)  # stretch and shift along x, then y
    for sigma in SIGMAS:
        picture, target = _blur(moved, sigma), _blur(fixed, sigma).flatten(1)
        down, right = torch.gradient(picture, spacing=2 / SIDE, dim=(1, 2))
        (values, dx, dy), seen = _sample(torch.stack([picture, right, down], 1), fit, x, y)
        slopes = torch.stack([dx * x, dx, dy * y, dy, values, torch.ones_like(values)], 1) * seen[:, None]
        normal = slopes @ slopes.mT + 1e-3 * torch.eye(6)  # (n, 6, 6)
        step = torch.linalg.solve(normal, (slopes @ (target * seen)[..., None])[..., 0])
        step = (step[:, :4] / step[:, 4:5].clamp(min=0.3)).clamp(-0.08, 0.08)
        fit = (fit + step).clamp(-REACH, REACH)
    (values,), seen = _sample(_outline(moved)[:, None], fit, x, y)
    one, other = (_centred(each, seen) for each in (values, _outline(fixed).flatten(1)))
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)).clamp(min=1e-3)


def _sample(pictures: Tensor, fit: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures (n, k, SIDE, SIDE) read where `fit` moves the pixels: (k, n, pixels), and which lie inside."""
    across = (1 + fit[:, 0:1]) * x + fit[:, 1:2]
    down = (1 + fit[:, 2:3]) * y + fit[:, 3:4]
    grid = torch.stack([across, down], -1).view(-1, SIDE, SIDE, 2)
    values = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    return values.flatten(2).transpose(0, 1), ((across.abs() < 1) & (down.abs() < 1)).float()


def _centred(values: Tensor, seen: Tensor) -> Tensor:
    mean = (values * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
    return (values - mean) * seen


def _rough_pairs(outlines: Tensor) -> Iterator[Tensor]:
    """(pairs, 2) rows of the few that agree best with each; a block of the matrix of all pairs at a time."""
    total = len(outlines)
    if total < 2:
        return
    height = max(MATRIX // total, 1)
    for first in range(0, total, height):
        agreement = outlines[first : first + height] @ outlines.T
        rows = torch.arange(len(agreement))
        agreement[rows, rows + first] = -1
        best = agreement.topk(min(RIVALS, total), dim=1)
        row, rank = (best.values >= ROUGH).nonzero(as_tuple=True)
        yield torch.stack([row + first, best.indices[row, rank]], 1)


def _outlines(grey: Tensor) -> Tensor:
    """Rough outlines of squares as vectors of length 1, or 0 for flat pictures: (n, (SIDE / 2) ** 2)."""
    chunks = []
    for squares in grey.split(1024):
        outline = F.avg_pool2d(_blur(squares.float(), 1.5) - _blur(squares.float(), 4.5), 2).flatten(1)
        outline = outline - outline.mean(1, keepdim=True)
        length = outline.norm(dim=1, keepdim=True)
        chunks.append(outline / length * (length > FLAT * outline.shape[1] ** 0.5))
    return torch.cat(chunks).nan_to_num() if chunks else torch.zeros(0, (SIDE // 2) ** 2)


def _outline(squares: Tensor) -> Tensor:
    return _blur(squares, 0.5) - _blur(squares, 4.0)


def _blur(squares: Tensor, sigma: float) -> Tensor:
    at = torch.arange(SIDE).float()
    kernel = torch.softmax(-((at[:, None] - at) ** 2) / (2 * sigma**2), 1)
    return kernel @ squares @ kernel.T
