"""Colour operations on a batch, with one parameter for each image.

Images are (n, 3, h, w) float32 that hold whole numbers from 0 to 255, and stay so; parameters are (n,) float64. The
arithmetic, down to the order of float32 operations and the final truncation, is that of torchvision on uint8 images,
and all sums are of whole numbers, so results depend neither on the batch nor on the device.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean grey level: factor 0 is flat, 1 leaves alone."""
    row_sums = _grey(images).sum(-1)  # (n, 1, h) exact: whole numbers below 2**24
    mean = row_sums.sum(-1, dtype=torch.float64) / images[0, 0].numel()  # (n, 1)
    return _blend(images, mean[:, :, None, None].float(), factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a 3x3 smoothed image (middle weight 5, others 1, rim untouched): 0 is smooth, 1 leaves alone."""
    if min(images.shape[-2:]) <= 2:
        return images
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]  # (n, 3, h - 2, w)
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]  # (n, 3, h - 2, w - 2)
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = box.add_(images[..., 1:-1, 1:-1], alpha=4).div_(13).round_()
    return _blend(images, smooth, factor)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the upper `bits` (whole, 0 to 8) of each value."""
    width = _column(2 ** (8 - bits))  # (n, 1, 1, 1)
    return (images / width).floor_().mul_(width)


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the full range; a channel of one value stays."""
    low, high = images.amin((-2, -1), keepdim=True), images.amax((-2, -1), keepdim=True)  # (n, 3, 1, 1)
    flat = low == high
    scale = (255 / (high - low)).masked_fill_(flat, 1)
    return _truncate((images - low.masked_fill_(flat, 0)).mul_(scale))


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Flatten each channel's histogram through a table of 256 values, as Pillow does."""
    value = images.flatten(0, 1).flatten(1).long()  # (3n, h * w)
    counts = torch.zeros(len(value), 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(1, value, torch.ones_like(value))  # (3n, 256)
    highest = counts.gather(1, value.amax(1, keepdim=True))  # (3n, 1) pixels of the channel's highest value
    step = (value.shape[1] - highest) // 255  # (3n, 1) pixels for one level of the result
    below = counts.cumsum(1) - counts  # (3n, 256) pixels below each value
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step == 0, torch.arange(256, device=images.device), table)  # too few levels: unchanged
    return table.to(images.dtype).gather(1, value).view_as(images)


COLOUR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda images, factor: _truncate(images * _column(factor)),  # blend with black; 1 leaves alone
    "color": lambda images, factor: _blend(images, _grey(images), factor),  # factor 0 is grey, 1 leaves alone
    "contrast": contrast,
    "sharpness": sharpness,
    "posterize": posterize,
    # invert the values from the threshold on
    "solarize": lambda images, threshold: torch.where(images >= _column(threshold), 255 - images, images),
    "autocontrast": autocontrast,
    "equalize": equalize,
}


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return _truncate((images * _column(factor)).add_(other * _column(1 - factor)))


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, 1)  # (n, 1, h, w) each
    return (0.2989 * red + 0.587 * green).add_(0.114 * blue).floor_()


def _column(parameter: Tensor) -> Tensor:
    return parameter.float().view(-1, 1, 1, 1)


def _truncate(images: Tensor) -> Tensor:
    return images.clamp_(0, 255).floor_()
