"""Pseudo-Label: the student learns its own hard predictions."""

from typing import Literal

import torch
from torch import Tensor, nn

from percentmatch.labelers.base import check_between, select
from percentmatch.losses import mean_over_images
from percentmatch.methods.base import forward_together, labeled_loss, step_loss
from percentmatch.methods.consistency import Ramped
from percentmatch.records import Batch, Facts, StepLoss, Task, scores_of


class PseudoLabel(Ramped):
    """The student's own prediction on the weak view, made hard, teaches the same view in the same pass (Lee 2013).

    loss: "asl" (asymmetric) or "bce"; with one label an image it is cross-entropy
    upper: scores above it are positives; with one label an image a row counts if its largest score is above it, and
        every row counts at 0.5
    lower: scores below it are negatives; not used with one label an image
    weight: of the unlabeled loss once its ramp is over
    ramp_ratio: fraction of the steps in which the weight grows linearly from 0
    """

    views = frozenset({"weak"})

    upper: Tensor
    lower: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "bce",
        upper: float = 0.5,
        lower: float = 0.5,
        weight: float = 1.0,
        ramp_ratio: float = 0.4,
    ) -> None:
        super().__init__(facts, task=task, loss=loss, weight=weight, ramp_ratio=ramp_ratio)
        check_between(0.5, 1, upper=upper)
        check_between(0, 0.5, lower=lower)
        start = 0.0 if task == "single-label" and upper == 0.5 else upper  # the largest of many may be below 0.5
        thresholds = torch.full((facts.num_classes,), start).masked_fill(facts.unseen, torch.inf)
        self.register_buffer("upper", thresholds, persistent=False)
        self.register_buffer("lower", torch.full((facts.num_classes,), lower), persistent=False)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        logits, weak_logits = forward_together(model, batch.images, batch.weak)
        scores = scores_of(weak_logits, self.task)  # (u, c)
        pseudo = select(scores, self.upper, self.lower, self.weights(batch.step), self.task, meet=True)
        supervised = labeled_loss(self.pair_loss, logits, batch)
        unlabeled = mean_over_images(self.pair_loss(weak_logits, pseudo.targets), pseudo.pair_weights)
        return step_loss(supervised, unlabeled, pseudo)
