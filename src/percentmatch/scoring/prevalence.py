"""How often a pool shows the classes, by a classifier's scores."""

import torch
from torch import Tensor

from percentmatch.scoring.intervals import draws

RESAMPLES = 200
PLAUSIBLE = 0.84  # quantile of the resamples: a standard deviation above the mean


def prevalence_ratio(held_out: Tensor, targets: Tensor, known: Tensor, pool: Tensor, *, seed: int = 0) -> float:
    """The positives per image of a pool over those of the labeled images: the largest plausible value, at most 1.

    `held_out` (n, c) are scores of labeled images by classifiers that did not learn them, `pool` (m, c) those of the
    pool. A class with prevalence q in the pool has the mean score q p + (1 - q) a there, with p and a the means of its
    labeled positives and negatives. So q can be read from the mean (Lipton et al. 2018); over all classes the sums of q
    are compared. 1 where the scores cannot tell positives from negatives.
    """
    held_out, pool = held_out.double(), pool.double()
    positive, negative = targets.double() * known, (1 - targets.double()) * known  # (n, c)
    means = torch.cat([w.T.double() @ pool for w in draws(len(pool), RESAMPLES, seed=seed + 1)]) / len(pool)  # (r, c)
    ratios, first = [], 0
    for drawn in draws(len(held_out), RESAMPLES, seed=seed):  # (n, r), not always as many as of the pool
        weights = drawn.T.double()
        mean, first = means[first : first + len(weights)], first + len(weights)
        positives, negatives = weights @ positive, weights @ negative  # (r, c)
        both = (positives > 0) & (negatives > 0)
        present = weights @ (held_out * positive) / positives
        absent = weights @ (held_out * negative) / negatives
        found = torch.where(both, mean - absent, 0).sum(1)  # (r,)
        expected = torch.where(both, (present - absent) * positives / (positives + negatives), 0).sum(1)
        ratios.append(torch.where(expected > 0, found / expected, 1))  # else positives score no higher
    ratio = torch.cat(ratios)  # (r,)
    ratio = ratio[ratio.isfinite()]
    return float(ratio.quantile(PLAUSIBLE).clamp(0, 1)) if len(ratio) else 1.0
