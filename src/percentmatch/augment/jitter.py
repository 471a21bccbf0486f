"""Brightness, contrast, saturation and hue of a view, changed at once: one affine map of its colours.

Pretraining needs it: crops of one image have the same colours, and a network that can compare colours learns little
else (Chen et al. 2020, figure 5).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from percentmatch.augment.draws import uniforms

_LUMA = (0.299, 0.587, 0.114)
_YIQ = torch.tensor([_LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)], dtype=torch.float64)
_GREY = 0.5  # contrast 0 is this
CHANGED, GREY = 0.8, 0.2  # fractions of the views, as in SimCLR


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
