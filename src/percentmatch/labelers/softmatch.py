"""SoftMatch: every pair counts, by how far its confidence lies below the mean."""

from typing import Literal

import torch
from torch import Tensor

from percentmatch.distributed.group import StepSums
from percentmatch.labelers.base import Labeler, align, check_between, check_choice, check_weight, hard_labels
from percentmatch.records import Facts, PseudoLabels, Scores, Task

Alignment = Literal["none", "uniform"]


class SoftMatch(Labeler):
    """A truncated Gaussian weight for each pair (SoftMatch, Chen et al. 2023).

    momentum: of the moving mean and variance of the confidence
    n_sigma: how many times narrower the Gaussian is than the spread of the confidence
    alignment: the confidence is taken after moving scores to a "uniform" mean, or as it is ("none")
    weight: of a pair at least as confident as the mean
    """

    mean: Tensor
    variance: Tensor
    score_mean: Tensor
    even: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        momentum: float = 0.999,
        n_sigma: float = 2.0,
        alignment: Alignment = "none",
        weight: float = 1.0,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_between(0, 1, momentum=momentum)
        check_weight(n_sigma=n_sigma)
        check_choice(Alignment, alignment=alignment)
        self.momentum, self.n_sigma, self.alignment = momentum, n_sigma, alignment
        even = torch.full_like(self.weights, self.chance)
        self._sums = StepSums()
        self.register_buffer("mean", even.clone())  # mu, of q
        self.register_buffer("variance", torch.ones_like(even))
        self.register_buffer("score_mean", even.clone())  # of p
        self.register_buffer("even", even, persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        weak = scores.weak.detach().float()  # nothing is learnt through pseudo-labels
        targets, mask = hard_labels(weak, self.unseen, self.task)  # (u, c)
        sure = self._confidence(weak)
        below = (sure - self.mean).clamp(max=0)  # (u, c)
        spread = self.variance.clamp(min=1e-12)
        weights = self.weights * (-((self.n_sigma * below) ** 2) / (2 * spread)).exp()  # (u, c)
        if self.training:
            self._learn(scores, sure)
        return PseudoLabels(targets, mask, weights)

    def _confidence(self, weak: Tensor) -> Tensor:
        """The probability, aligned if asked, of each pair's likelier answer before alignment: (u, c)."""
        moved = weak if self.alignment == "none" else align(weak, self.score_mean, self.even, self.task)
        if self.task == "single-label":
            return moved.gather(1, weak.argmax(dim=1, keepdim=True)).expand_as(weak)
        return torch.where(weak >= 0.5, moved, 1 - moved)

    @torch.no_grad()
    def _learn(self, scores: Scores, sure: Tensor) -> None:
        off = sure - self.mean  # (u, c) sums of small numbers lose less
        sums = torch.stack([off.sum(0), off.square().sum(0), scores.weak.float().sum(0), torch.ones_like(off).sum(0)])
        sums = self._sums.add(sums, last=scores.last)  # (4, c)
        if sums is None:
            return
        off, square, total, count = sums
        variance = (square - off * off / count).clamp(min=0) / (count - 1).clamp(min=1)  # unbiased
        rate = 1 - self.momentum
        self.variance.lerp_(torch.where(count > 1, variance, self.variance), rate)  # one image has none
        self.mean.add_(off / count.clamp(min=1), alpha=rate)
        self.score_mean.lerp_(torch.where(count > 0, total / count, self.score_mean), rate)
