"""What the methods share that teach soft predictions instead of hard pseudo-labels."""

from typing import Literal

import torch
from torch import Tensor

from percentmatch.labelers.base import check_pool
from percentmatch.methods.base import Method, labeled_loss, pair_loss, step_loss
from percentmatch.methods.ramps import Ramp, ramp_length
from percentmatch.records import Batch, Facts, PseudoLabels, StepLoss, Task, scores_of

ABSENT = -1e9  # a logit whose share of a softmax is 0


class Consistency(Method):
    """The supervised loss plus the squared difference to soft targets, with a weight that grows."""

    taught: Tensor
    unseen: Tensor

    def __init__(
        self, facts: Facts, *, task: Task, loss: Literal["asl", "bce"], weight: float, ramp_ratio: float, ramp: Ramp
    ) -> None:
        super().__init__()
        check_pool(self, facts)
        self.task: Task = task
        self.pair_loss, self.ramp = pair_loss(task, loss), ramp
        self.weight, self.ramp_length = weight, ramp_length(facts, weight=weight, ramp_ratio=ramp_ratio)
        self.register_buffer("taught", taught_classes(facts, task), persistent=False)
        self.register_buffer("unseen", facts.unseen, persistent=False)

    def consistency_loss(
        self, batch: Batch, logits: Tensor, unlabeled_logits: Tensor, targets: Tensor, there: Tensor | None = None
    ) -> StepLoss:
        """`targets` (u, c) teach the unlabeled logits; `there` (u, 1) is 0 for an image without any."""
        weights = torch.ones_like(self.taught) * (self.weight * self.ramp(batch.step, self.ramp_length))
        mask = self.taught.expand_as(targets) if there is None else self.taught * there
        pseudo = PseudoLabels(targets, mask, weights)
        supervised = labeled_loss(self.pair_loss, logits, batch)
        unlabeled = (pseudo.pair_weights * squared_error(unlabeled_logits, targets, self.task)).mean()
        return step_loss(supervised, unlabeled, pseudo)


def taught_classes(facts: Facts, task: Task) -> Tensor:
    """1 for each class that soft targets teach, 0 for one without labeled positives: (c,).

    With one label an image every class is taught, since `soft_targets` gives such a class 0.
    """
    return torch.ones(facts.num_classes) if task == "single-label" else (~facts.unseen).float()


def soft_targets(logits: Tensor, task: Task, unseen: Tensor) -> Tensor:
    """Predictions as targets, without gradient: (n, c); a softmax runs over the classes with labeled positives."""
    return scores_of(logits.detach().float().masked_fill(unseen, ABSENT) if task == "single-label" else logits, task)


def squared_error(logits: Tensor, targets: Tensor, task: Task) -> Tensor:
    """(p - target)^2 of each pair, with p in float32 and its gradient: (n, c), (n, c) -> (n, c)."""
    logits = logits.float()
    probability = logits.softmax(dim=1) if task == "single-label" else logits.sigmoid()
    return (probability - targets) ** 2
