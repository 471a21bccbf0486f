"""Fixed thresholds for all classes: FixMatch."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, select
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class FixedThreshold(Labeler):
    """One threshold for every class and step (FixMatch, Sohn et al. 2020).

    variant: "paper" selects positives only, as the PercentMatch paper ran FixMatch (lower threshold 0); "symmetric"
        also selects negatives below 1 - threshold, which the same paper calls the implied one
    threshold: scores above it are positives
    weight: of the unlabeled loss
    """

    upper: Tensor
    lower: Tensor
    weights: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        variant: Literal["paper", "symmetric"] = "paper",
        threshold: float = 0.95,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        if variant not in ("paper", "symmetric"):
            raise UserError(f"variant must be 'paper' or 'symmetric', not '{variant}'")
        if not 0.5 < threshold < 1:
            raise UserError(f"threshold must lie between 0.5 and 1, not {threshold}")
        if not 0 <= weight < torch.inf:
            raise UserError(f"weight must be finite and not negative, not {weight}")
        self.task: Task = task
        c = facts.num_classes
        upper = torch.full((c,), threshold).masked_fill(facts.unseen, torch.inf)
        lower = torch.zeros(c) if variant == "paper" else torch.full((c,), 1 - threshold)
        self.register_buffer("upper", upper, persistent=False)
        self.register_buffer("lower", lower, persistent=False)
        self.register_buffer("weights", torch.full((c,), weight), persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        pseudo = select(scores.weak, self.upper, self.lower, self.weights, self.task)
        return replace(pseudo, gap=self.upper - self.lower)
