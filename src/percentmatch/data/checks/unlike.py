"""Unlabeled images that are unlike all labeled ones: another subject or camera, a stray screenshot, a blank picture."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NEIGHBOURS = 5
FENCE = 6.0  # quartile ranges above the upper quartile of what is usual
SHRINK = 0.05  # of the mean variance, added to each when descriptors are whitened
FEWEST = 60  # labeled images that tell what is usual
CELLS = 1 << 24  # distances kept at a time
SIDE = 64
OPPONENT = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, -0.5, 0.0], [0.25, 0.25, -0.5]])  # light, red-green, yellow-blue


@dataclass(frozen=True)
class Unlike:
    """How far n unlabeled images are from the labeled ones."""

    ratio: Tensor  # (n,) distance above the upper quartile of what is usual, over FENCE quartile ranges; beyond 1: far
    share: float  # of images that are farther than 95% of the labeled ones are from each other


def unlike(labeled: Tensor, unlabeled: Tensor, *, whiten: bool) -> Unlike:
    """Compare descriptors (m, d) and (n, d) by the mean distance to the nearest labeled ones.

    One half of the labeled images, drawn at random, says what is usual for the other, and the halves change places; so
    an unlabeled image is measured just as a labeled one is. `whiten` gives all directions of the half the same weight.
    """
    order = torch.randperm(len(labeled), generator=torch.Generator().manual_seed(0))
    halves = labeled[order[::2]], labeled[order[1::2]]
    ratio, share = torch.zeros(len(unlabeled)), 0.0
    for known, held in (halves, halves[::-1]):
        mean, weights = _whitening(known) if whiten else (known.mean(0), torch.eye(known.shape[1]))
        known, own, new = ((each - mean) @ weights for each in (known, held, unlabeled))
        own, new = _distances(own, known), _distances(new, known)
        low, high, rare = torch.quantile(own, torch.tensor([0.25, 0.75, 0.95])).tolist()
        ratio += (new - high) / max(FENCE * (high - low), 1e-6) / 2
        share += float((new > rare).float().mean()) / 2
    return Unlike(ratio, share)


def _whitening(rows: Tensor) -> tuple[Tensor, Tensor]:
    mean = rows.mean(0)
    variance, axes = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    return mean, axes / (variance.clamp(min=0) + SHRINK * variance.mean() + 1e-9).sqrt()


def _distances(rows: Tensor, others: Tensor) -> Tensor:
    """The mean distance of each row to the nearest others: (n,)."""
    nearest = min(NEIGHBOURS, len(others))
    chunks = rows.split(max(CELLS // len(others), 1))
    return torch.cat([torch.cdist(chunk, others).topk(nearest, largest=False).values.mean(1) for chunk in chunks])


def looks(pixels: Tensor) -> Tensor:
    """Colours and edges of images (n, 3, h, w) uint8, without any network: (n, 35).

    Light and two colour differences: their means, also by quarter, spreads, edges at five scales; the slant of edges.
    """
    images = torch.einsum("oc,nchw->nohw", OPPONENT, F.adaptive_avg_pool2d(pixels.float() / 255, SIDE))
    found = [images.mean((2, 3)), images.std((2, 3)).add(0.01).log(), F.avg_pool2d(images, SIDE // 2).flatten(1)]
    down, across = torch.gradient(F.avg_pool2d(images[:, :1], 2)[:, 0], dim=(1, 2))
    upright = (across.abs().mean((1, 2)) + 1e-3).log() - (down.abs().mean((1, 2)) + 1e-3).log()
    slant = (across * down).mean((1, 2)) / ((across**2 + down**2).mean((1, 2)) + 1e-5)
    for _ in range(5):
        half = F.avg_pool2d(images, 2)
        edges = images - F.interpolate(half, scale_factor=2)
        found.append(edges.square().mean((2, 3)).add(1e-5).log() / 2)
        images = half
    return torch.cat([*found, upright[:, None], slant[:, None]], 1)
