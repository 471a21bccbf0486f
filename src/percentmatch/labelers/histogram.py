"""A moving histogram of each class's scores, and its quantiles (Eqs. 3 and 4 of the paper)."""

from typing import Literal

import torch
from torch import Tensor, nn

from percentmatch.distributed.group import StepSums
from percentmatch.labelers.base import check_between, check_choice

Bins = Literal["uniform", "logit"]
HALVINGS = 16  # of a range of 48 logits: to 0.0004
LOGIT_RANGE = 12.0  # logit bins cover [-12, 12]; scores beyond fall into the outer bins


def bins_of(scores: Tensor, num_bins: int, bins: Bins) -> tuple[Tensor, Tensor]:
    """The bin of each score, and where in it the score lies, from 0 to 1: two tensors of the scores' shape."""
    scores = scores.float()
    if bins == "uniform":
        position = scores * num_bins
    else:
        position = (scores.logit() + LOGIT_RANGE) * (num_bins / (2 * LOGIT_RANGE))
    position = position.clamp(0, num_bins)  # before the cast: an infinite logit has no integer
    bin_of = position.long().clamp(0, num_bins - 1)  # after it too: nor has a NaN
    return bin_of, position - bin_of


class ScoreHistogram(nn.Module):
    """Exponential moving average of the score histograms of the batches, one row a class.

    `mass` holds what was learnt, sum over s of (1 - m) m^(t-s) hist_s, and `prior_weight` what the uniform start still
    weighs, m^t. The paper's histogram is their sum (P(0) = 1/K); with `bias_correction` the prior is dropped and the
    rest rescaled as soon as there is a batch. momentum = 1 never learns, momentum = 0 is the last batch's histogram.

    Bins are equal in probability ("uniform", the paper's) or in logit space ("logit", which resolves scores that crowd
    at 0 or 1). A quantile is interpolated linearly inside its bin, in the space of the bins.
    """

    mass: Tensor
    prior_weight: Tensor
    prior: Tensor
    edges: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        num_bins: int = 100,
        momentum: float = 0.98,
        bins: Bins = "uniform",
        bias_correction: bool = False,
    ) -> None:
        super().__init__()
        check_between(0, 1, momentum=momentum)
        check_between(2, 65536, num_bins=num_bins)
        check_choice(Bins, bins=bins)
        self.num_bins, self.momentum, self.bins, self.bias_correction = num_bins, momentum, bins, bias_correction
        low, high = (0.0, 1.0) if bins == "uniform" else (-LOGIT_RANGE, LOGIT_RANGE)
        edges = torch.linspace(low, high, num_bins + 1, dtype=torch.float64)  # (k + 1,)
        width = (edges if bins == "uniform" else edges.sigmoid()).diff()  # (k,) in probability
        self._sums = StepSums()
        self.register_buffer("mass", torch.zeros(num_classes, num_bins))
        self.register_buffer("prior_weight", torch.ones(()))
        self.register_buffer("prior", (width / width.sum()).float(), persistent=False)
        self.register_buffer("edges", edges.float(), persistent=False)

    @torch.no_grad()
    def update(self, scores: Tensor, *, last: bool = True) -> None:
        """Learn from one batch of scores (u, c) with u > 0, summed over ranks.

        A batch may come in micro-batches; it is learnt as one when the `last` of them is there.
        """
        bin_of, _ = bins_of(scores, self.num_bins, self.bins)  # (u, c)
        ones = torch.ones_like(bin_of.T, dtype=self.mass.dtype)
        counts = self._sums.add(torch.zeros_like(self.mass).scatter_add_(1, bin_of.T, ones), last=last)  # (c, k)
        if counts is None:
            return
        num_images = counts[:1].sum()  # of all ranks, the same for every class
        self.mass.mul_(self.momentum).addcmul_(counts, (1 - self.momentum) / num_images.clamp(min=1))
        self.prior_weight.mul_(self.momentum)

    def distribution(self) -> Tensor:
        """P(t), each row summing to one: (c, k), a tensor of its own."""
        if not self.bias_correction:
            return self.mass + self.prior_weight * self.prior
        learnt = 1 - self.prior_weight
        return torch.where(learnt > 0, self.mass / learnt.clamp(min=1e-30), self.prior)

    def quantiles(self, percentiles: Tensor) -> Tensor:
        """Scores below which the given fractions of each class lie: percentiles (c, q) -> (c, q), as probabilities."""
        above = self.distribution().cumsum_(dim=1)  # (c, k) P[score <= right edge], but for rounding of its end
        wanted = percentiles.to(above.dtype) * above[:, -1:]  # (c, q)
        bin_of = torch.searchsorted(above, wanted).clamp(max=self.num_bins - 1)  # (c, q)
        right = above.gather(1, bin_of)
        left = torch.where(bin_of > 0, above.gather(1, (bin_of - 1).clamp(min=0)), 0.0)
        inside = ((wanted - left) / (right - left).clamp(min=1e-30)).clamp(0, 1)
        start, end = self.edges[bin_of], self.edges[bin_of + 1]
        threshold = start + inside * (end - start)
        if self.bins == "logit":
            threshold = threshold.sigmoid()
        return torch.where(wanted <= 0, 0.0, threshold)  # no score lies below the 0th percentile

    def logit_shift(self, mean: Tensor) -> Tensor:
        """What to add to the logits of each class so that its scores have the given mean (c,), up to the bins: (c,)."""
        middle = (self.edges[:-1] + self.edges[1:]) / 2  # (k,)
        logits = middle.logit() if self.bins == "uniform" else middle
        mass = self.distribution()
        fraction = mass / mass.sum(dim=1, keepdim=True)  # (c, k)
        low, high = (torch.full_like(mean, side * 2 * LOGIT_RANGE) for side in (-1, 1))
        for _ in range(HALVINGS):
            half = (low + high) / 2
            less = (fraction * (logits + half[:, None]).sigmoid()).sum(dim=1) < mean
            low, high = torch.where(less, half, low), torch.where(less, high, half)
        return (low + high) / 2

    def ranks(self, scores: Tensor) -> Tensor:
        """The fraction of each class that lies below the given scores, the inverse of `quantiles`: (u, c) -> (u, c)."""
        distribution = self.distribution()
        above = distribution.cumsum(dim=1)  # (c, k) P[score <= right edge], but for rounding of its end
        bin_of, inside = (found.T for found in bins_of(scores, self.num_bins, self.bins))  # (c, u) each
        right, mass = above.gather(1, bin_of), distribution.gather(1, bin_of)
        return ((right - (1 - inside) * mass) / above[:, -1:]).clamp(0, 1).T
