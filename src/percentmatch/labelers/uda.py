"""UDA: sharpened soft targets of confident pairs."""

from dataclasses import replace

import torch

from percentmatch.labelers.base import Labeler, check_between, check_temperature
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class UDA(Labeler):
    """Confident pairs, with their own sharpened scores as soft targets (UDA, Xie et al. 2020).

    threshold: a pair counts if its likelier answer has more than this probability
    temperature: logits are divided by it, so below 1 targets are sharper than scores
    weight: of the unlabeled loss
    """

    soft_targets = True

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
        check_temperature(temperature)
        self.threshold, self.temperature = threshold, temperature

    def forward(self, scores: Scores) -> PseudoLabels:
        weak = scores.weak.detach().float()  # nothing is learnt through pseudo-labels
        upper, lower = (torch.full_like(self.weights, each) for each in (self.threshold, 1 - self.threshold))
        if self.task == "single-label":
            sharp = (weak.log() / self.temperature).softmax(dim=1)
        else:
            sharp = (weak.logit() / self.temperature).sigmoid()  # (u, c) sigmoid(z / T)
        return replace(self.thresholded(weak, upper, lower), targets=sharp.masked_fill(self.unseen, 0.0))
