"""Unlabeled images that are unlike all labeled ones: another subject or camera, a stray screenshot, a blank picture."""

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


def unlike(labeled: Tensor, unlabeled: Tensor, *, whiten: bool) -> tuple[Tensor, float]:
    """Compare descriptors (m, d) and (n, d) by the mean distance to the nearest labeled ones.

    Returns how far each unlabeled image is: (n,) distance above the upper quartile of what is usual, in FENCE quartile
    ranges, far beyond 1; and the fraction that is farther than 95% of the labeled ones are from each other. The labeled
    images are halved at random and each half is measured by the other, just as unlabeled images are. `whiten` gives all
    directions of a half the same weight.
    """
    order = torch.randperm(len(labeled), generator=torch.Generator().manual_seed(0))
    halves = labeled[order[::2]], labeled[order[1::2]]
    ratio, fraction = torch.zeros(len(unlabeled)), 0.0
    for reference, held in (halves, halves[::-1]):
        mean, weights = _whitening(reference) if whiten else (reference.mean(0), torch.eye(reference.shape[1]))
        reference, held, new = ((rows - mean) @ weights for rows in (reference, held, unlabeled))
        usual, new = _distances(held, reference), _distances(new, reference)
        low, high, rare = torch.quantile(usual, torch.tensor([0.25, 0.75, 0.95])).tolist()
        ratio += (new - high) / max(FENCE * (high - low), 1e-6) / 2
        fraction += float((new > rare).float().mean()) / 2
    return ratio, fraction


def _whitening(rows: Tensor) -> tuple[Tensor, Tensor]:
    mean = rows.mean(0)
    variance, axes = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    return mean, axes / (variance.clamp(min=0) + SHRINK * variance.mean() + 1e-9).sqrt()


def _distances(rows: Tensor, others: Tensor) -> Tensor:
    """The mean distance of each row to the nearest others: (n,)."""
    nearest, chunks = min(NEIGHBOURS, len(others)), rows.split(max(CELLS // len(others), 1))
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
