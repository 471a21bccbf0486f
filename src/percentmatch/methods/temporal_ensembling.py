"""Temporal ensembling: the student should agree with the mean of its own earlier predictions."""

from typing import Literal

import torch
from torch import Tensor, nn

from percentmatch.distributed.group import StepRows
from percentmatch.errors import UserError
from percentmatch.methods.base import forward_together
from percentmatch.methods.consistency import Consistency, soft_targets
from percentmatch.methods.ramps import gaussian_ramp
from percentmatch.records import Batch, Facts, StepLoss, Task


class TemporalEnsembling(Consistency):
    """The squared difference between the student on the weak view and a memory of its predictions of that image.

    loss: of the labeled images, "asl" (asymmetric) or "bce"; with one label an image it is cross-entropy
    momentum: share of the memory that outlives a visit (alpha)
    weight: of the unlabeled loss once its ramp is over
    ramp_ratio: share of the steps in which the weight grows, by the Gaussian exp(-5 (1 - t)^2)
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
        super().__init__(facts, task=task, loss=loss, weight=weight, ramp_ratio=ramp_ratio, ramp=gaussian_ramp)
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
            self._remember(soft_targets(weak_logits, self.task, self.unseen), batch.index, last=batch.last)
        seen = visits > 0  # at first sight there is nothing to agree with
        return self.consistency_loss(batch, logits, weak_logits, targets, seen)

    @torch.no_grad()
    def _remember(self, scores: Tensor, index: Tensor, *, last: bool) -> None:
        """Z <- alpha Z + (1 - alpha) p for the images of the step.

        An image that the step shows several times counts once, with the mean of its scores. Sums run in float64, so
        that the order of parts and ranks does not show.
        """
        rows = self._rows.add(torch.cat([index[:, None].double(), scores.double()], dim=1), last=last)  # (m, 1 + c)
        if rows is None:
            return
        index, scores = rows[:, 0].long(), rows[:, 1:]  # of all parts and ranks
        same = (index[:, None] == index).double()  # (m, m)
        mean = (same @ scores / same.sum(dim=1, keepdim=True)).float()  # (m, c)
        self.memory[index] = torch.lerp(mean, self.memory[index], self.momentum)  # what repeats writes the same
        self.visits[index] = self.visits[index] + 1
