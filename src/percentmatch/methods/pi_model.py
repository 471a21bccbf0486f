"""The Pi-model: two noisy predictions of an image should agree."""

from typing import Literal

import torch
from torch import Tensor, nn

from percentmatch.methods.base import Method, labeled_loss, pair_loss
from percentmatch.methods.consistency import consistency_loss, soft_targets, taught_classes
from percentmatch.methods.ramps import full_weights, linear_ramp, ramp_length
from percentmatch.records import Batch, Facts, PseudoLabels, StepLoss, Task


class PiModel(Method):
    """The squared difference between the student's predictions on two weak views, one of them held fixed.

    loss: of the labeled images, "asl" (asymmetric) or "bce"; with one label an image it is cross-entropy
    weight: of the unlabeled loss once its ramp is over
    ramp_ratio: share of the steps in which the weight grows linearly from 0
    """

    taught: Tensor
    unseen: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "asl",
        weight: float = 10.0,
        ramp_ratio: float = 0.4,
    ) -> None:
        super().__init__()
        self.task: Task = task
        self.pair_loss = pair_loss(task, loss)
        self.weight, self.ramp_length = weight, ramp_length(facts, weight=weight, ramp_ratio=ramp_ratio)
        self.register_buffer("taught", taught_classes(facts, task), persistent=False)
        self.register_buffer("unseen", facts.unseen, persistent=False)

    @property
    def views(self) -> frozenset[str]:
        return frozenset({"weak", "weak2"})

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        assert batch.weak is not None
        assert batch.weak2 is not None
        b, u = len(batch.images), len(batch.weak)
        logits, first, second = model(torch.cat([batch.images, batch.weak, batch.weak2])).split([b, u, u])
        targets = soft_targets(second, self.task, self.unseen)  # (u, c)
        weights = full_weights(self.taught, self.weight * linear_ramp(batch.step, self.ramp_length))
        pseudo = PseudoLabels(targets, self.taught.expand_as(targets), weights)
        supervised = labeled_loss(self.pair_loss, logits, batch)
        unlabeled = consistency_loss(first, pseudo, self.task)
        parts = {"supervised": supervised.detach(), "unlabeled": unlabeled.detach()}
        return StepLoss(supervised + unlabeled, parts, pseudo)
