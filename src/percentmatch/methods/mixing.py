"""Mixtures of labels that may be unknown, and fractions from a beta distribution without a random generator."""

import torch
from torch import Tensor

from percentmatch.records import Batch

TABLE = 4097  # entries of the table that turns uniform numbers into fractions


def blend(targets: Tensor, known: Tensor, other: Tensor, other_known: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """The targets (n, c) of mixtures, and how much of each pair is known: what is unknown in either does not count.

    For a loss that is linear in its target, known x loss(target) is then ratio x known_1 x loss(target_1)
    + (1 - ratio) x known_2 x loss(target_2).
    """
    mine, theirs = ratio * known, (1 - ratio) * other_known  # (n, c)
    both = mine + theirs
    return (mine * targets + theirs * other) / both.clamp(min=1e-30), both


def labels_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Targets and known (b, c) of the labeled images as the network sees them: of mixed ones, both by their ratio."""
    if batch.own_share is None or batch.partner_targets is None or batch.partner_known is None:
        return batch.targets, batch.known
    return blend(batch.targets, batch.known, batch.partner_targets, batch.partner_known, batch.own_share)


def larger_shares(strength: float) -> Tensor:
    """Quantiles of max(l, 1 - l) for l from Beta(strength, strength), from the largest down: (TABLE,).

    The upper half of the density is integrated over s with 1 - l = s^(1/m), m = min(strength, 1): by s it is
    l^(a-1) s^((a-m)/m), which has no pole, unlike the density by l for a < 1.
    """
    m = min(strength, 1.0)
    s = torch.linspace(0, 0.5**m, 16 * TABLE, dtype=torch.float64)  # l = 1 at s = 0, l = 1/2 at the end
    density = (1 - s ** (1 / m)) ** (strength - 1) * s ** ((strength - m) / m)
    mass = torch.cumulative_trapezoid(density, s)
    mass = torch.cat([mass.new_zeros(1), mass]) / mass[-1]  # P[max(l, 1 - l) > l(s)]
    wanted = torch.linspace(0, 1, TABLE, dtype=torch.float64)
    right = torch.searchsorted(mass, wanted).clamp(1, len(s) - 1)
    inside = (wanted - mass[right - 1]) / (mass[right] - mass[right - 1]).clamp(min=1e-300)
    return (1 - torch.lerp(s[right - 1], s[right], inside.clamp(0, 1)) ** (1 / m)).float()


def look_up(table: Tensor, uniform: Tensor) -> Tensor:
    """The table at `uniform` (n,) in [0, 1), interpolated: (n,)."""
    position = uniform * (len(table) - 1)
    left = position.long()
    return torch.lerp(table[left], table[left + 1], position - left)
