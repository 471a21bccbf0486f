"""What happens to whole images before their views are made: which part is kept, and how large it stays."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


def frame(images: Tensor, kind: Literal["squash", "center"]) -> Tensor:
    """All of `images` (n, 3, h, w), to be squashed later, or their central square (n, 3, s, s)."""
    if kind == "squash":
        return images
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return images[..., top : top + side, left : left + side]


def shrink(images: Tensor, side: int) -> Tensor:
    """`images` (n, 3, h, w) uint8, made smaller once, antialiased, to squares of `side` if they are larger.

    Views read single pixels, so a view much smaller than its source would pick some and miss the rest.
    """
    if min(images.shape[-2:]) <= side:
        return images
    small = (F.interpolate(chunk.float(), (side, side), mode="bilinear", antialias=True) for chunk in images.split(256))
    return torch.cat([chunk.round_().to(torch.uint8) for chunk in small])
