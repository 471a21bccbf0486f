"""What a method is: a model and a batch in, a loss out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from percentmatch.losses import LOSSES, Loss, mean_over_images
from percentmatch.records import Batch, StepLoss, Task


class Pool(Protocol):
    """The unlabeled images, as a method that relabels them between steps sees them."""

    def probabilities(
        self, model: Literal["student", "teacher"], *, dropout_passes: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Scores of all unlabeled images, not augmented, in the order of `Batch.index`: (n, c) and None.

        With `dropout_passes`, dropout stays on: the mean and the standard deviation of so many passes.
        """


class Method(nn.Module, ABC):
    """The model is an argument, so `method.state_dict()` is exactly the method's own state."""

    round_steps: int | None = None  # the loop calls `refresh` before every step that is a multiple of this, but step 0
    first_step: int = 0  # before it, unlabeled images teach nothing
    restarts: bool = False  # each round begins with a new student, optimizer and learning-rate cycle

    @classmethod
    def num_students(cls, options: Mapping[str, Any]) -> int:
        """How many students divide the steps of a run with these options, of which none is left out."""
        return 1

    @property
    @abstractmethod
    def views(self) -> frozenset[str]:
        """What the loader must make for the unlabeled images: any of "weak", "weak2", "strong", "uniforms"."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        """The loss of one step. `teacher` is the loop's moving-average model, in eval mode."""

    def check_model(self, model: nn.Module) -> None:
        """Raise UserError if the method cannot train this model."""

    def refresh(self, pool: Pool) -> None:
        """Relabel the pool between two rounds; only methods with `round_steps` are asked to."""


def pair_loss(task: Task, name: str) -> Loss:
    """The elementwise loss of a task: the named one, or cross-entropy with one label an image."""
    return LOSSES["ce" if task == "single-label" else name]


def labeled_loss(loss: Loss, logits: Tensor, batch: Batch) -> Tensor:
    """The supervised loss (Eq. 2) over known labels; of mixed images, both sets of labels by their shares: ()."""
    if batch.own_share is None or batch.partner_targets is None or batch.partner_known is None:
        return mean_over_images(loss(logits, batch.targets), batch.known)
    own = mean_over_images(loss(logits, batch.targets), batch.known * batch.own_share)
    return own + mean_over_images(loss(logits, batch.partner_targets), batch.partner_known * (1 - batch.own_share))
