"""Moving histograms of each class's scores, their quantiles, and gates (Eqs. 3, 4 and 5 of the paper).

A gate says how much a class weighs, by how well the model separates its images.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from percentmatch.distributed.group import StepSums
from percentmatch.errors import UserError
from percentmatch.labelers.base import check_between, check_choice
from percentmatch.records import Scores

Bins = Literal["uniform", "logit"]
HALVINGS = 16  # of a range of 48 logits: to 0.0004
LOGIT_RANGE = 12.0  # logit bins cover [-12, 12]; scores beyond fall into the outer bins
Measure = Literal["gap", "logit-gap", "auc", "none"]
Range = tuple[float, float]  # of a measure: up to the first a class has no weight, from the second on the full weight
AUC_BINS = 256  # equal in logit space whatever the loss does to the scores
FORGOTTEN = 1e-6  # labeled images that weigh less than this together are ignored


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


class Gate:
    """The weight of each class (Eq. 5), by the chosen `measure` and its range."""

    def __init__(self, measure: Measure, *, gap: Range, logit_gap: Range, auc: Range) -> None:
        check_choice(Measure, gate=measure)
        if not 0 <= auc[0] <= auc[1] <= 1:
            raise UserError(f"auc_start ({auc[0]}) and auc_full ({auc[1]}) must rise within 0 and 1")
        for name, (start, full) in (("gap", gap), ("logit_gap", logit_gap)):
            if not -math.inf < start <= full < math.inf:
                raise UserError(f"{name}_start ({start}) must be finite and not exceed {name}_full ({full})")
        self.measure = measure
        self.range = {"gap": gap, "logit-gap": logit_gap, "auc": auc}.get(measure)

    def opened(self, upper: Tensor, lower: Tensor, labeled_auc: "LabeledAuc | None") -> Tensor:
        """The fraction of the full weight that each class has, by its thresholds (c,) or its AUC: (c,)."""
        if self.range is None:
            return torch.ones_like(upper)
        if labeled_auc is not None:
            return ramp(labeled_auc.auc(), *self.range)
        return ramp(upper - lower if self.measure == "gap" else logit_gap(upper, lower), *self.range)


class LabeledAuc(nn.Module):
    """Moving score histograms of the labeled positives and negatives of each class, and the AUC between them."""

    masses: Tensor

    def __init__(self, num_classes: int, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self._sums = StepSums()
        self.register_buffer("masses", torch.zeros(2, num_classes, AUC_BINS))  # of positives, of negatives

    @torch.no_grad()
    def update(self, scores: Scores) -> None:
        """Learn from the labeled images of one batch, summed over ranks and micro-batches; unknown labels do not count.

        A mixed image counts by how far its target is from one half, which counts as neither.
        """
        if scores.labeled is None or scores.targets is None:
            raise UserError("gate 'auc' learns from labeled images: give Scores its labeled and targets")
        targets = scores.targets.float()
        known = torch.ones_like(targets) if scores.known is None else scores.known.float()
        bin_of = bins_of(scores.labeled, AUC_BINS, "logit")[0].T.expand(2, -1, -1)  # (2, c, b)
        lean = (2 * targets - 1) * known  # (b, c) from -1, surely a negative, to 1
        weights = torch.stack([lean, -lean]).clamp(min=0).mT  # (2, c, b)
        counts = self._sums.add(torch.zeros_like(self.masses).scatter_add_(2, bin_of, weights), last=scores.last)
        if counts is not None:
            self.masses.lerp_(counts, 1 - self.momentum)

    def auc(self) -> Tensor:
        """P(positive > negative) + P(tie) / 2 over the bins: (c,); 0 where either side is missing."""
        positives, negatives = self.masses  # (c, k) each
        below = negatives.cumsum(dim=1) - negatives / 2  # (c, k) negatives that a positive in each bin beats
        totals = self.masses.sum(dim=2)  # (2, c)
        auc = (positives * below).sum(dim=1) / totals.clamp(min=FORGOTTEN).prod(dim=0)
        return torch.where((totals > FORGOTTEN).all(dim=0), auc, 0.0)


def logit_gap(upper: Tensor, lower: Tensor) -> Tensor:
    """The gap of two thresholds (c,) in logits, each kept inside the range of the histogram: (c,)."""
    return upper.logit().clamp(-LOGIT_RANGE, LOGIT_RANGE) - lower.logit().clamp(-LOGIT_RANGE, LOGIT_RANGE)


def ramp(measure: Tensor, start: float, full: float) -> Tensor:
    """0 up to `start`, 1 from `full` on, linear between (Eq. 5): (c,) -> (c,)."""
    return ((measure - start) / max(full - start, 1e-12)).clamp(0, 1)
