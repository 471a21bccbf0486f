"""UDA: sharpened soft targets of confident pairs."""

from dataclasses import replace

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, check_between, select
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class UDA(Labeler):
    """Confident pairs, with their own sharpened scores as soft targets (UDA, Xie et al. 2020).

    threshold: a pair counts if its likelier answer has more than this probability
    temperature: logits are divided by it, so below 1 targets are sharper than scores
    weight: of the unlabeled loss
    """

    soft_targets = True

    upper: Tensor
    lower: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        threshold: float = 0.8,
        temperature: float = 0.4,
        weight: float = 1.0,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_between(0.5, 1, threshold=threshold)
        if not 0 < temperature < torch.inf:
            raise UserError(f"temperature must be above 0 and finite, not {temperature}")
        self.temperature = temperature
        c = facts.num_classes
        upper = torch.full((c,), threshold).masked_fill(facts.unseen, torch.inf)
        lower = torch.full((c,), 0.0 if task == "single-label" else 1 - threshold)
        self.register_buffer("upper", upper, persistent=False)
        self.register_buffer("lower", lower, persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        scores = replace(scores, weak=scores.weak.detach())  # nothing is learnt through pseudo-labels
        pseudo = select(scores.weak, self.upper, self.lower, self.weights, self.task, meet=True)
        weak = scores.weak.float()
        if self.task == "single-label":
            sharp = (weak.log() / self.temperature).softmax(dim=1)
        else:
            sharp = (weak.logit() / self.temperature).sigmoid()  # (u, c) sigmoid(z / T)
        return replace(pseudo, targets=sharp.masked_fill(self.unseen, 0.0), gap=self.upper - self.lower)
