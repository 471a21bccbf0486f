"""Methods whose unlabeled loss has a weight that grows: Pseudo-Label, Pi-model, Mean Teacher, temporal ensembling."""

from typing import Literal

import torch
from torch import Tensor, nn

from percentmatch.distributed.group import StepRows
from percentmatch.errors import UserError
from percentmatch.labelers.base import check_between, check_pool, check_weight, select
from percentmatch.losses import mean_over_images
from percentmatch.methods.base import Method, forward_together, labeled_loss, pair_loss, step_loss
from percentmatch.records import Batch, Facts, PseudoLabels, StepLoss, Task, scores_of

ABSENT = -1e9  # a logit whose probability in a softmax is 0


class Ramped(Method):
    """What the methods share whose unlabeled loss has a weight that grows over the first steps."""

    taught: Tensor
    unseen: Tensor

    def __init__(self, facts: Facts, *, task: Task, loss: str, weight: float, ramp_ratio: float) -> None:
        super().__init__()
        check_pool(self, facts)
        check_weight(weight=weight)
        check_between(0, 1, ramp_ratio=ramp_ratio)
        if ramp_ratio and facts.total_steps < 1:
            raise UserError("ramp_ratio needs the run's length: give Facts its total_steps, or set ramp_ratio to 0")
        self.task: Task = task
        self.pair_loss, self.weight, self.ramp_length = pair_loss(task, loss), weight, ramp_ratio * facts.total_steps
        # (c,) 0 for a class without labeled positives; with one label an image, `soft_targets` gives such a class 0
        taught = torch.ones(facts.num_classes) if task == "single-label" else (~facts.unseen).float()
        self.register_buffer("taught", taught, persistent=False)
        self.register_buffer("unseen", facts.unseen, persistent=False)

    def ramp(self, step: Tensor | int) -> Tensor:
        """The fraction of the full weight at a step: ()."""
        return linear_ramp(step, self.ramp_length)

    def weights(self, step: Tensor | int) -> Tensor:
        """The weight of each class at a step: (c,)."""
        return torch.ones_like(self.taught) * (self.weight * self.ramp(step))

    def soft_targets(self, logits: Tensor) -> Tensor:
        """Predictions as targets, without gradient: (n, c); a softmax runs over the classes with labeled positives."""
        if self.task == "single-label":
            logits = logits.detach().float().masked_fill(self.unseen, ABSENT)
        return scores_of(logits, self.task)

    def consistency_loss(
        self, batch: Batch, logits: Tensor, unlabeled_logits: Tensor, targets: Tensor, there: Tensor | None = None
    ) -> StepLoss:
        """`targets` (u, c) teach the unlabeled logits; `there` (u, 1) is 0 for an image without any."""
        mask = self.taught.expand_as(targets) if there is None else self.taught * there
        pseudo = PseudoLabels(targets, mask, self.weights(batch.step))
        supervised = labeled_loss(self.pair_loss, logits, batch)
        unlabeled = (pseudo.pair_weights * squared_error(unlabeled_logits, targets, self.task)).mean()
        return step_loss(supervised, unlabeled, pseudo)


def squared_error(logits: Tensor, targets: Tensor, task: Task) -> Tensor:
    """(p - target)^2 of each pair, with p in float32 and its gradient: (n, c), (n, c) -> (n, c)."""
    logits = logits.float()
    probability = logits.softmax(dim=1) if task == "single-label" else logits.sigmoid()
    return (probability - targets) ** 2


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


class PiModel(Ramped):
    """The squared difference between the student's predictions on two weak views, one of them held fixed.

    loss: of the labeled images, "asl" (asymmetric) or "bce"; with one label an image it is cross-entropy
    weight: of the unlabeled loss once its ramp is over
    ramp_ratio: fraction of the steps in which the weight grows linearly from 0
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
        super().__init__(facts, task=task, loss=loss, weight=weight, ramp_ratio=ramp_ratio)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        logits, first, second = forward_together(model, batch.images, batch.weak, batch.weak2)
        targets = self.soft_targets(second)  # (u, c)
        return self.consistency_loss(batch, logits, first, targets)


class MeanTeacher(PiModel):
    """The squared difference between the student on one weak view and the moving-average teacher on another.

    loss: of the labeled images, "asl" (asymmetric) or "bce"; with one label an image it is cross-entropy
    weight: of the difference to the teacher once its ramp is over
    ramp_ratio: fraction of the steps in which this weight grows linearly from 0
    """

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "asl",
        weight: float = 50.0,
        ramp_ratio: float = 0.4,
    ) -> None:
        super().__init__(facts, task=task, loss=loss, weight=weight, ramp_ratio=ramp_ratio)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        logits, student = forward_together(model, batch.images, batch.weak2)
        with torch.no_grad():
            targets = self.soft_targets(teacher(batch.weak))  # (u, c)
        return self.consistency_loss(batch, logits, student, targets)


class TemporalEnsembling(Ramped):
    """The squared difference between the student on the weak view and a memory of its predictions of that image.

    loss: of the labeled images, "asl" (asymmetric) or "bce"; with one label an image it is cross-entropy
    momentum: fraction of the memory that is kept when an image is seen again (alpha)
    weight: of the unlabeled loss once its ramp is over
    ramp_ratio: fraction of the steps in which the weight grows, by the Gaussian exp(-5 (1 - t)^2)
    """

    views = frozenset({"weak"})
    needs_pool = True

    memory: Tensor
    visits: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "asl",
        momentum: float = 0.6,
        weight: float = 30.0,
        ramp_ratio: float = 0.4,
    ) -> None:
        super().__init__(facts, task=task, loss=loss, weight=weight, ramp_ratio=ramp_ratio)
        if not 0 <= momentum < 1:
            raise UserError(f"momentum must be at least 0 and below 1, not {momentum}")
        self.momentum = momentum
        self._rows = StepRows()
        n = facts.num_unlabeled or 0
        self.register_buffer("memory", torch.zeros(n, facts.num_classes))  # (N, c) Z
        self.register_buffer("visits", torch.zeros(n, 1, dtype=torch.int32))  # steps that saw each

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        assert batch.index is not None
        logits, weak_logits = forward_together(model, batch.images, batch.weak)
        visits = self.visits[batch.index]  # (u, 1)
        learnt = (1 - torch.pow(self.momentum, visits)).clamp(min=1e-30)  # (u, 1) what Z weighs
        targets = self.memory[batch.index] / learnt  # (u, c) Z / (1 - alpha^n), from before this step
        if self.training:
            self._remember(self.soft_targets(weak_logits), batch.index, last=batch.last)
        seen = visits > 0  # at first sight there is nothing to agree with
        return self.consistency_loss(batch, logits, weak_logits, targets, seen)

    def ramp(self, step: Tensor | int) -> Tensor:
        return gaussian_ramp(step, self.ramp_length)

    @torch.no_grad()
    def _remember(self, scores: Tensor, index: Tensor, *, last: bool) -> None:
        """Z <- alpha Z + (1 - alpha) p for the images of the step.

        An image that the step shows several times counts once, with the mean of its scores. Sums run in float64, so
        that the order of micro-batches and ranks does not matter.
        """
        rows = self._rows.add(torch.cat([index[:, None].double(), scores.double()], dim=1), last=last)  # (m, 1 + c)
        if rows is None:
            return
        index, scores = rows[:, 0].long(), rows[:, 1:]  # of all micro-batches and ranks
        same = (index[:, None] == index).double()  # (m, m)
        mean = (same @ scores / same.sum(dim=1, keepdim=True)).float()  # (m, c)
        self.memory[index] = torch.lerp(mean, self.memory[index], self.momentum)  # what repeats writes the same
        self.visits[index] = self.visits[index] + 1


def linear_ramp(step: Tensor | int, length: float) -> Tensor:
    """From 0 at step 0 to 1 at step `length`, then 1: ()."""
    return torch.as_tensor(step / length if length > 0 else 1.0).clamp(max=1)


def gaussian_ramp(step: Tensor | int, length: float) -> Tensor:
    """exp(-5 (1 - t)^2) where t is the linear ramp (Laine and Aila 2017), from 0.007 to 1: ()."""
    return (-5 * (1 - linear_ramp(step, length)) ** 2).exp()
