"""Fixed thresholds for all classes: FixMatch."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

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

    upper: Tensor
    lower: Tensor

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
        c = facts.num_classes
        upper = torch.full((c,), threshold).masked_fill(facts.unseen, torch.inf)
        lower = torch.zeros(c) if variant == "paper" else torch.full((c,), 1 - threshold)
        self.register_buffer("upper", upper, persistent=False)
        self.register_buffer("lower", lower, persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        pseudo = select(scores.weak, self.upper, self.lower, self.weights, self.task)
        return replace(pseudo, gap=self.upper - self.lower)
