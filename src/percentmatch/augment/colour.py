"""Colour operations on a batch, with one parameter for each image.

Images are (n, 3, h, w) float32 that hold whole numbers from 0 to 255, and stay so; parameters are (n,) float64. The
arithmetic, down to the order of float32 operations and the final truncation, is that of torchvision on uint8 images,
and all sums are of whole numbers, so results depend neither on the batch nor on the device.

Colour jitter changes brightness, contrast, saturation and hue of a finished view at once: one affine map of its
colours. Pretraining needs it: crops of one image have the same colours, and a network that can compare colours learns
little else (Chen et al. 2020, figure 5).
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from percentmatch.augment.draws import uniforms

_LUMA = (0.299, 0.587, 0.114)
_YIQ = torch.tensor([_LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)], dtype=torch.float64)
_GREY = 0.5  # contrast 0 is this
CHANGED, GREY = 0.8, 0.2  # fractions of the views, as in SimCLR


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


def draw_jitter(
    strength: float, *, seed: int, step: int, sample: Tensor, stream: int, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Maps (n, 3, 4) of colours normalised with `mean` and `std`, for the images numbered `sample` (n,), on the host.

    Strength 1 is SimCLR's: factors of 0.2 to 1.8, and a turn of the hue by up to a fifth of the circle.
    """
    u = uniforms(seed, step, sample, 6, stream).double()  # (n, 6)
    strengths = strength * (u[:, 0] < CHANGED)  # (n,)
    bright, contrast, saturation = (1 + 0.8 * strengths[:, None] * (2 * u[:, 1:4] - 1)).unbind(1)
    saturation = saturation.masked_fill((u[:, 4] < GREY) & (strength > 0), 0.0)
    angle = 2 * math.pi * 0.2 * strengths * (2 * u[:, 5] - 1)
    chroma = torch.zeros(len(u), 3, 3, dtype=torch.float64)  # in YIQ: luma stays, colour shrinks and turns
    chroma[:, 0, 0] = 1
    chroma[:, 1, 1] = chroma[:, 2, 2] = saturation * angle.cos()
    chroma[:, 1, 2], chroma[:, 2, 1] = -saturation * angle.sin(), saturation * angle.sin()
    turn = (bright * contrast)[:, None, None] * (torch.linalg.inv(_YIQ) @ chroma @ _YIQ)  # (n, 3, 3) of colours
    shift = (bright * (1 - contrast) * _GREY)[:, None]  # (n, 1)
    middle, spread = torch.tensor([mean, std], dtype=torch.float64)
    turned = turn * spread / spread[:, None]
    return torch.cat([turned, ((turn @ middle + shift - middle) / spread)[:, :, None]], dim=2).float()


def recolour(views: Tensor, maps: Tensor) -> Tensor:
    """The colours of `views` (n, 3, h, w) under `maps` (n, 3, 4), not clipped; channels last."""
    colours = views.permute(0, 2, 3, 1).flatten(1, 2)  # (n, h * w, 3)
    changed = torch.baddbmm(maps[:, None, :, 3], colours, maps[:, :, :3].mT)
    return changed.unflatten(1, views.shape[2:]).permute(0, 3, 1, 2)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return _truncate((images * _column(factor)).add_(other * _column(1 - factor)))


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, 1)  # (n, 1, h, w) each
    return (0.2989 * red + 0.587 * green).add_(0.114 * blue).floor_()


def _column(parameter: Tensor) -> Tensor:
    return parameter.float().view(-1, 1, 1, 1)


def _truncate(images: Tensor) -> Tensor:
    return images.clamp_(0, 255).floor_()
