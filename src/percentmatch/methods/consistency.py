"""What the methods share that teach soft predictions instead of hard pseudo-labels."""

import torch
from torch import Tensor

from percentmatch.methods.base import scores_of
from percentmatch.records import Facts, PseudoLabels, Task

ABSENT = -1e9  # a logit whose share of a softmax is 0


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


def consistency_loss(logits: Tensor, pseudo: PseudoLabels, task: Task) -> Tensor:
    """The mean over classes and images of the squared errors by their weights: ()."""
    return (pseudo.pair_weights * squared_error(logits, pseudo.targets, task)).mean()
