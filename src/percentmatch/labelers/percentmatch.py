"""PercentMatch: thresholds at fixed percentiles of each class's scores, and weights that follow their gap."""

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.histogram import ScoreHistogram
from percentmatch.labelers.base import Labeler, select
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class PercentMatch(Labeler):
    """Percentile thresholds and gap-gated weights, as in the paper's Algorithm 1.

    upper_percentile: share of the scores that lie below the positive threshold (kappa+)
    lower_percentile: share of the scores that lie below the negative threshold (kappa-)
    momentum: of the score histogram (lambda; not given in the paper)
    num_bins: of the score histogram (K; not given in the paper)
    bins: equal in probability ("uniform", the paper's) or in logit space ("logit")
    bias_correction: forget the histogram's uniform start as soon as there is data
    gap_start: a class whose threshold gap is smaller gets weight 0 (Upsilon_0)
    gap_full: a class whose threshold gap is larger gets the full weight (Upsilon_s)
    weight: the full weight (alpha_s)
    warmup_steps: all weights are 0 before this step
    unseen_classes: a class without labeled positives is given "negatives" only, or nothing ("off")
    """

    upper_percentile: Tensor
    lower_percentile: Tensor
    unseen: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        upper_percentile: float = 0.98,
        lower_percentile: float = 0.1,
        momentum: float = 0.98,
        num_bins: int = 100,
        bins: Literal["uniform", "logit"] = "uniform",
        bias_correction: bool = False,
        gap_start: float = 0.5,
        gap_full: float = 0.55,
        weight: float = 1.0,
        warmup_steps: int = 300,
        unseen_classes: Literal["negatives", "off"] = "negatives",
    ) -> None:
        super().__init__()
        if not 0 <= lower_percentile < upper_percentile <= 1:
            raise UserError(
                "percentiles must satisfy 0 <= lower_percentile < upper_percentile <= 1, "
                f"not lower_percentile={lower_percentile} and upper_percentile={upper_percentile}"
            )
        if not gap_start <= gap_full:
            raise UserError(f"gap_start ({gap_start}) must not exceed gap_full ({gap_full})")
        if unseen_classes not in ("negatives", "off"):
            raise UserError(f"unseen_classes must be 'negatives' or 'off', not '{unseen_classes}'")
        self.task: Task = task
        self.gap_start, self.gap_full, self.weight, self.warmup_steps = gap_start, gap_full, weight, warmup_steps
        self.unseen_classes = unseen_classes
        negative_ratio = facts.negative_ratio.float()  # (c,)
        if not (math.isfinite(weight) and weight >= 0 and math.isfinite(gap_start) and math.isfinite(gap_full)):
            raise UserError(
                f"weight ({weight}), gap_start ({gap_start}) and gap_full ({gap_full}) must be finite numbers"
            )
        self.histogram = ScoreHistogram(
            facts.num_classes, num_bins=num_bins, momentum=momentum, bins=bins, bias_correction=bias_correction
        )
        # Algorithm 1: never more positives, nor more negatives, than the labeled set shows
        upper = negative_ratio.clamp(min=upper_percentile).masked_fill(facts.unseen, upper_percentile)  # for the gate
        self.register_buffer("upper_percentile", upper, persistent=False)
        self.register_buffer("lower_percentile", negative_ratio.clamp(max=lower_percentile), persistent=False)
        self.register_buffer("unseen", facts.unseen, persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        percentiles = torch.stack([self.upper_percentile, self.lower_percentile], dim=1)  # (c, 2)
        upper, lower = self.histogram.quantiles(percentiles).unbind(dim=1)  # (c,) from the state before this batch
        gap = upper - lower
        weights = self._weights(gap, scores.step)
        pseudo = select(scores.weak, upper.masked_fill(self.unseen, torch.inf), lower, weights, self.task)
        if self.training:
            self.histogram.update(scores.weak, last=scores.last)
        return replace(pseudo, gap=gap)

    def _weights(self, gap: Tensor, step: Tensor | int) -> Tensor:
        """Eq. 5: 0 below gap_start or before the warm-up's end, `weight` above gap_full, linear between: (c,)."""
        ramp = (gap - self.gap_start) / max(self.gap_full - self.gap_start, 1e-12)
        started = step + 1 >= self.warmup_steps  # the paper counts from t = 1
        weights = self.weight * ramp.clamp(0, 1) * started
        return weights.masked_fill(self.unseen, 0.0) if self.unseen_classes == "off" else weights
