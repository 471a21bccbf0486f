"""What a method is: a model and a batch in, a loss out; and the supervised baseline."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.losses import LOSSES, Loss, mean_over_images
from percentmatch.records import Batch, Facts, LabeledScores, PseudoLabels, StepLoss, Task

Source = Literal["student", "teacher"]  # whose scores become pseudo-labels: the student's, or its EMA's


class Pool(Protocol):
    """The images of a run, as a method sees them that looks at all of them between steps."""

    def probabilities(self, model: Source, *, dropout_passes: int = 0) -> tuple[Tensor, Tensor | None]:
        """Scores of all unlabeled images, not augmented, in the order of `Batch.index`: (n, c) and None.

        With `dropout_passes`, dropout stays on: the mean and the standard deviation of so many passes.
        """

    def labeled(self, model: Source) -> LabeledScores:
        """Scores of all labeled images, not augmented, and their labels."""


class Method(nn.Module, ABC):
    """The model is an argument, so `method.state_dict()` is exactly the method's own state.

    What a method needs, it declares as attributes of its class; what depends on its options, as attributes of itself.
    """

    # what the loader makes for the unlabeled images: any of "weak", "weak2", "strong", "uniforms"; nothing: they are
    # not used at all
    views: frozenset[str] = frozenset()
    own_loss: Literal["asl", "bce"] | None = None  # of the labeled images, where there is no option for it
    needs_pool: bool = False  # keeps a row for each unlabeled image, so it cannot train on a stream
    needs_dropout: bool = False  # of the model
    warmup_options: tuple[str, ...] = ()  # the options that set `first_step`
    round_steps: int | None = None  # the loop calls `refresh` before every step that is a multiple of this, but step 0
    first_step: int = 0  # before it, unlabeled images teach nothing
    trains: bool = True  # False: the model is done before the first step, as its head starts
    pair_loss: Loss  # of the labeled images
    holds_out: int = 0  # one in so many labeled images is treated as unlabeled; `Pool.labeled` tells its labels
    head_epochs: int = 0  # after the last step the head alone learns so many passes over the images held out
    restarts: bool = False  # each round begins with a new student, optimizer and learning-rate cycle

    @classmethod
    def num_students(cls, options: Mapping[str, Any]) -> int:
        """How many students divide the steps of a run with these options, of which none is left out."""
        return 1

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        """The loss of one step. `teacher` is the loop's moving-average model, in eval mode."""

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that the method cannot train."""
        if self.needs_dropout and not any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in model.modules()):
            advice = "add --dropout 0.2 with --head linear, or use --head ml-decoder"
            raise UserError(f"{type(self).__name__} needs dropout and this model has none; {advice}")

    def refresh(self, pool: Pool) -> None:
        """Learn from all images between two rounds, or relabel them; only methods with `round_steps` are asked to."""


def forward_together(model: nn.Module, *images: Tensor | None) -> tuple[Tensor, ...]:
    """The logits of several stacks of images (n, 3, h, w) from one forward pass: (n, c) each."""
    stacks = [stack for stack in images if stack is not None]
    return model(torch.cat(stacks)).split([len(stack) for stack in stacks])


def step_loss(supervised: Tensor, unlabeled: Tensor, pseudo: PseudoLabels) -> StepLoss:
    """The sum of both losses, and what the log says of it."""
    parts = {"supervised": supervised.detach(), "unlabeled": unlabeled.detach()}
    return StepLoss(supervised + unlabeled, parts, pseudo)


def pair_loss(task: Task, name: str) -> Loss:
    """The elementwise loss of a task: the named one, or cross-entropy with one label an image."""
    return LOSSES["ce" if task == "single-label" else name]


def labeled_loss(loss: Loss, logits: Tensor, batch: Batch) -> Tensor:
    """The supervised loss (Eq. 7) over known labels; of mixed images, both sets of labels by their fractions: ()."""
    if batch.own_share is None or batch.partner_targets is None or batch.partner_known is None:
        return mean_over_images(loss(logits, batch.targets), batch.known)
    own = mean_over_images(loss(logits, batch.targets), batch.known * batch.own_share)
    return own + mean_over_images(loss(logits, batch.partner_targets), batch.partner_known * (1 - batch.own_share))


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


class Probe(Supervised):
    """A linear probe: the best linear classifier of the labeled images on the features of the frozen backbone.

    It is logistic regression with a squared penalty, whose strength 5-fold cross-validation chooses. No step is taken.
    """

    trains = False

    def __init__(self, facts: Facts, *, task: Task = "multi-label") -> None:
        super().__init__(facts, task=task, loss="bce")
