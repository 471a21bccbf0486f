"""Fixed thresholds for all classes: FixMatch."""

from dataclasses import replace
from typing import Literal

import torch

from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, check_choice, select
from percentmatch.records import Facts, PseudoLabels, Scores, Task

Variant = Literal["paper", "symmetric"]


class FixedThreshold(Labeler):
    """One threshold for every class and step (FixMatch, Sohn et al. 2020).

    variant: "paper" selects positives only, as the PercentMatch paper ran FixMatch (lower threshold 0); "symmetric"
        also selects negatives below 1 - threshold, which the same paper calls the implied one
    threshold: scores above it are positives
    weight: of the unlabeled loss
    """

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        variant: Variant = "paper",
        threshold: float = 0.95,
        weight: float = 1.0,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_choice(Variant, variant=variant)
        if not 0.5 < threshold < 1:
            raise UserError(f"threshold must lie between 0.5 and 1, not {threshold}")
        self.threshold, self.lowest = threshold, 0.0 if variant == "paper" else 1 - threshold

    def forward(self, scores: Scores) -> PseudoLabels:
        upper = torch.full_like(self.weights, self.threshold).masked_fill(self.unseen, torch.inf)
        lower = torch.full_like(self.weights, self.lowest)
        return replace(select(scores.weak, upper, lower, self.weights, self.task), gap=upper - lower)
