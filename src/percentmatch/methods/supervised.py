"""The baseline: labeled images only."""

from typing import Literal

from torch import nn

from percentmatch.methods.base import Method, labeled_loss, pair_loss
from percentmatch.records import Batch, Facts, StepLoss, Task


class Supervised(Method):
    """Labeled images only; every other method is this plus an unlabeled loss.

    loss: "asl" (asymmetric, the paper's) or "bce"; with one label an image it is cross-entropy
    """

    def __init__(self, facts: Facts, *, task: Task = "multi-label", loss: Literal["asl", "bce"] = "asl") -> None:
        super().__init__()
        self.pair_loss = pair_loss(task, loss)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        total = labeled_loss(self.pair_loss, model(batch.images), batch)
        return StepLoss(total, {"supervised": total.detach()})
