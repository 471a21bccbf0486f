"""Which part of an image that is not square becomes the square."""

from typing import Literal

from torch import Tensor


def frame(images: Tensor, kind: Literal["squash", "center"]) -> Tensor:
    """All of `images` (n, 3, h, w), to be squashed later, or their central square (n, 3, s, s)."""
    if kind == "squash":
        return images
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return images[..., top : top + side, left : left + side]
