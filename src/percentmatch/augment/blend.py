"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) of a batch: each image with the next one."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Blend:
    """How n images are mixed. A row of `box` whose sides are 0 means mixup, else CutMix."""

    share: Tensor  # (n, 1) weight of the image itself, as drawn; CutMix corrects it by the pixels it pastes
    box: Tensor  # (n, 4) float32: left, top, right, bottom of the pasted box, as fractions of the sides

    @classmethod
    def draw(cls, seed: int, n: int, *, mixup: float, cutmix: float) -> "Blend":
        """Weights from Beta(a, a); with both kinds on, each image gets either with even odds."""
        random = np.random.Generator(np.random.Philox(seed))
        pasted = random.random(n) < (cutmix > 0) / ((cutmix > 0) + (mixup > 0))  # (n,)
        strength = np.where(pasted, cutmix, mixup)
        share = random.beta(strength, strength)
        centre, side = random.random((n, 2)), np.sqrt(1 - share)[:, None] * pasted[:, None]
        box = np.concatenate([centre - side / 2, centre + side / 2], axis=1).clip(0, 1)
        return cls(torch.from_numpy(share).float()[:, None], torch.from_numpy(box).float())

    def apply(self, images: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
        """The images (n, 3, h, w), each mixed with its partner, and the weight of the image itself: (n, 1)."""
        n, (height, width) = len(images), images.shape[-2:]
        sides = torch.stack([self.box.new_full((), side) for side in (width, height, width, height)])
        left, top, right, bottom = (self.box * sides).round().T[..., None]  # (n, 1) each
        x, y = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
        inside = ((y >= top) & (y < bottom))[:, None, :, None] & ((x >= left) & (x < right))[:, None, None]
        pasted = (right > left) & (bottom > top)  # (n, 1)
        area = ((right - left) * (bottom - top)) / (height * width)  # (n, 1)
        share = torch.where(pasted, 1 - area, self.share)
        weight = torch.where(pasted.view(n, 1, 1, 1), 1.0 - inside.float(), share.view(n, 1, 1, 1))  # (n, 1, h, w)
        return torch.lerp(partners, images, weight.to(images.dtype)), share
