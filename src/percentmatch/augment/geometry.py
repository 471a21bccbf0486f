"""Geometric operations as 3x3 matrices, and the one resampling that carries out their product.

A matrix takes a position in the result to the position it is read from. Positions are (x, y, 1) with x and y from -1
(left or top edge) to 1 (right or bottom edge), so matrices know no image size. The result is always square; the input
need not be. Signs and centres follow torchvision's RandAugment: shears leave the upper or left edge where it is,
rotation is counter-clockwise about the centre.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F


def rotate(degrees: Tensor) -> Tensor:
    """Turn counter-clockwise about the centre."""
    angle = torch.deg2rad(degrees)
    return _matrix(degrees, {(0, 0): angle.cos(), (1, 1): angle.cos(), (1, 0): angle.sin(), (0, 1): -angle.sin()})


GEOMETRY: dict[str, Callable[[Tensor], Tensor]] = {
    "shear_x": lambda shear: _matrix(shear, {(0, 1): shear, (0, 2): shear}),  # x is read at x + shear * (y + 1)
    "shear_y": lambda shear: _matrix(shear, {(1, 0): shear, (1, 2): shear}),  # y is read at y + shear * (x + 1)
    # to the right by a fraction of the width, which is 2 in our coordinates; down by a fraction of the height
    "translate_x": lambda fraction: _matrix(fraction, {(0, 2): -2 * fraction}),
    "translate_y": lambda fraction: _matrix(fraction, {(1, 2): -2 * fraction}),
    "rotate": rotate,
}


def flip(flipped: Tensor) -> Tensor:
    """Mirror left to right where `flipped` (...,) bool is true."""
    return _matrix(flipped.double(), {(0, 0): torch.where(flipped, -1.0, 1.0)})


def crop(left: Tensor, top: Tensor, width: Tensor, height: Tensor) -> Tensor:
    """Show a rectangle of the input; all four are fractions of the input's width or height."""
    return _matrix(left, {(0, 0): width, (0, 2): 2 * left + width - 1, (1, 1): height, (1, 2): 2 * top + height - 1})


def product(first: Tensor, second: Tensor) -> Tensor:
    """Matrix product (..., 3, 3), written out: a batched matmul may round differently in another batch."""
    terms = [first[..., :, k, None] * second[..., None, k, :] for k in range(3)]
    return terms[0] + terms[1] + terms[2]


def warp(images: Tensor, matrix: Tensor, shown: Tensor, size: int) -> Tensor:
    """Read `images` (n, 3, H, W) through `matrix` (n, 2, 3): bilinear, 0 outside the image, not rounded.

    `shown` (n, 2) is the fraction of width and height that the crop shows. The image's edge fades out over one pixel of
    the *result*, as if the crop had been resized first and then moved; reading zeros around the input instead would
    darken the rim of every enlarged image. The result (n, 3, size, size) has the matrix's dtype.
    """
    centre = (torch.arange(size, device=images.device) * 2 + 1).to(matrix.dtype) / size - 1  # (size,)
    along_x = matrix[:, :, 0, None] * centre  # (n, 2, w)
    along_y = matrix[:, :, 1, None] * centre + matrix[:, :, 2, None]  # (n, 2, h)
    position = along_x[:, :, None, :] + along_y[:, :, :, None]  # (n, 2, h, w) x and y
    half_side = (size / 2 / shown)[:, :, None, None]  # (n, 2, 1, 1) half the input's side, in pixels of the result
    inside = position.abs().mul_(-half_side).add_(half_side + 0.5).clamp_(0, 1)  # (n, 2, h, w) 0.5 on the very edge
    grid = position.permute(0, 2, 3, 1)  # (n, h, w, 2)
    read = F.grid_sample(images.to(matrix.dtype), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return read.mul_(inside[:, :1] * inside[:, 1:])  # (n, 3, h, w)


def _matrix(like: Tensor, entries: Mapping[tuple[int, int], Tensor]) -> Tensor:
    """For each number of `like` the identity with other entries in some (row, column): (..., 3, 3)."""
    matrix = torch.eye(3, dtype=like.dtype, device=like.device).expand(*like.shape, 3, 3).clone()
    for (row, column), entry in entries.items():
        matrix[..., row, column] = entry
    return matrix
