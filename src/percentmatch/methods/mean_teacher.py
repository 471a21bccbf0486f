"""Mean Teacher: the student should agree with the moving average of its own weights."""

from typing import Literal

import torch
from torch import nn

from percentmatch.methods.base import forward_together
from percentmatch.methods.consistency import Consistency, soft_targets
from percentmatch.methods.ramps import linear_ramp
from percentmatch.records import Batch, Facts, StepLoss, Task


class MeanTeacher(Consistency):
    """The squared difference between the student on one weak view and the moving-average teacher on another.

    loss: of the labeled images, "asl" (asymmetric) or "bce"; with one label an image it is cross-entropy
    weight: of the unlabeled loss once its ramp is over
    ramp_ratio: share of the steps in which the weight grows linearly from 0
    """

    views = frozenset({"weak", "weak2"})

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "asl",
        weight: float = 50.0,
        ramp_ratio: float = 0.4,
    ) -> None:
        super().__init__(facts, task=task, loss=loss, weight=weight, ramp_ratio=ramp_ratio, ramp=linear_ramp)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        logits, student = forward_together(model, batch.images, batch.weak2)
        with torch.no_grad():
            targets = soft_targets(teacher(batch.weak), self.task, self.unseen)  # (u, c)
        return self.consistency_loss(batch, logits, student, targets)
