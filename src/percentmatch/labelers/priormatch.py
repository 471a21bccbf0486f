"""PriorMatch: every pair is a pseudo-label, and each class keeps to its labeled prevalence."""

from typing import Literal

import torch
from torch import Tensor

from percentmatch.labelers.base import (
    Labeler,
    UnseenClasses,
    check_between,
    check_choice,
    check_temperature,
    hard_labels,
)
from percentmatch.labelers.histogram import Bins, ScoreHistogram
from percentmatch.records import Facts, PseudoLabels, Scores, Task

Targets = Literal["soft", "hard"]


class PriorMatch(Labeler):
    """Every pair counts, and the mean target of each class is its labeled prevalence.

    targets: a target is the score itself, with the odds of each class moved ("soft"), or 1 for its highest scores and 0
        for all others ("hard")
    temperature: the logits of soft targets are divided by it; below 1 they are sharper
    prevalence_ratio: the prevalence of a class in the pool is that among the labels times this, at most 1
    momentum: of the score histogram, from which the prevalence of the scores is read
    num_bins: of the score histogram
    bins: equal in probability ("uniform") or in logit space ("logit", which resolves rare classes)
    bias_correction: forget the histogram's uniform start as soon as there is data
    weight: of the unlabeled loss
    warmup_steps: all weights are 0 before this step
    unseen_classes: a class without labeled positives is given "negatives" only, or nothing ("off")
    """

    every_pair = True
    warmup_options = ("warmup_steps",)

    negative_ratio: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        targets: Targets = "soft",
        temperature: float = 1.0,
        prevalence_ratio: float = 1.0,
        momentum: float = 0.98,
        num_bins: int = 256,
        bins: Bins = "logit",
        bias_correction: bool = True,
        weight: float = 1.0,
        warmup_steps: int = 300,
        unseen_classes: UnseenClasses = "negatives",
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_choice(Targets, targets=targets)
        check_temperature(temperature)
        check_between(0, 1, prevalence_ratio=prevalence_ratio)
        self.leave_out_unseen(unseen_classes)
        self.soft_targets, self.temperature = targets == "soft", temperature
        self.first_step = max(warmup_steps - 1, 0)  # counted from 1, as percentmatch does
        self.histogram = ScoreHistogram(
            facts.num_classes, num_bins=num_bins, momentum=momentum, bins=bins, bias_correction=bias_correction
        )
        negative_ratio = 1 - prevalence_ratio * facts.prevalence  # (c,) in the pool
        self.register_buffer("negative_ratio", negative_ratio.float(), persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        weak = scores.weak.detach().float()  # nothing is learnt through pseudo-labels
        divide = self.histogram.quantiles(self.negative_ratio[:, None])[:, 0]  # (c,) from the state before this batch
        upper = divide.masked_fill(self.unseen, torch.inf)
        mask = torch.ones_like(weak)  # (u, c)
        if self.soft_targets:
            targets = self._sharpened(self._aligned(weak))
        elif self.task == "single-label":
            targets, mask = hard_labels(weak, self.unseen, self.task)  # all rows but those of an unseen class
        else:
            targets = (weak > upper).float()
        weights = self.weights * (scores.step >= self.first_step)
        if self.training:
            self.histogram.update(weak, last=scores.last)
        return PseudoLabels(targets, mask, weights, upper, divide)

    def _aligned(self, weak: Tensor) -> Tensor:
        """Scores (u, c) whose class means are the labeled prevalence, by the histogram; 0 for an unseen class.

        With one label an image, rows are made to sum to one.
        """
        shifted = (weak.logit(1e-6) + self.histogram.logit_shift(1 - self.negative_ratio)).sigmoid()
        shifted = shifted.masked_fill(self.unseen, 0.0)
        return shifted / shifted.sum(dim=1, keepdim=True) if self.task == "single-label" else shifted

    def _sharpened(self, targets: Tensor) -> Tensor:
        """Targets (u, c) whose logits are divided by the temperature."""
        if self.temperature == 1:
            return targets
        if self.task == "single-label":
            return (targets.log() / self.temperature).softmax(dim=1)
        return (targets.logit() / self.temperature).sigmoid()
