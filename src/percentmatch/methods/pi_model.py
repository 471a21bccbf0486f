"""The Pi-model: two noisy predictions of an image should agree."""

from typing import Literal

from torch import nn

from percentmatch.methods.base import forward_together
from percentmatch.methods.consistency import Consistency, soft_targets
from percentmatch.methods.ramps import linear_ramp
from percentmatch.records import Batch, Facts, StepLoss, Task


class PiModel(Consistency):
    """The squared difference between the student's predictions on two weak views, one of them held fixed.

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
        weight: float = 10.0,
        ramp_ratio: float = 0.4,
    ) -> None:
        super().__init__(facts, task=task, loss=loss, weight=weight, ramp_ratio=ramp_ratio, ramp=linear_ramp)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        logits, first, second = forward_together(model, batch.images, batch.weak, batch.weak2)
        targets = soft_targets(second, self.task, self.unseen)  # (u, c)
        return self.consistency_loss(batch, logits, first, targets)
