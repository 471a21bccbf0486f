"""What a method is: a model and a batch in, a loss out."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from percentmatch.losses import LOSSES, Loss
from percentmatch.records import Batch, StepLoss, Task


class Method(nn.Module, ABC):
    """The model is an argument, so `method.state_dict()` is exactly the method's own state."""

    @property
    @abstractmethod
    def views(self) -> frozenset[str]:
        """The unlabeled views the loader must make: any of "weak", "strong"."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        """The loss of one step. `teacher` is the loop's moving-average model, in eval mode."""


def scores_of(logits: Tensor, task: Task) -> Tensor:
    """Probabilities in float32, without gradient: (n, c) -> (n, c)."""
    logits = logits.detach().float()
    return logits.softmax(dim=1) if task == "single-label" else logits.sigmoid()


def pair_loss(task: Task, name: str) -> Loss:
    """The elementwise loss of a task: the named one, or cross-entropy with one label an image."""
    return LOSSES["ce" if task == "single-label" else name]
