"""Pseudo-labels from the weak view teach the strong view: FixMatch, PercentMatch and their kin, one labeler each."""

from typing import Literal

import torch
from torch import nn

from percentmatch.errors import UserError
from percentmatch.labelers import Labeler
from percentmatch.losses import mean_over_images
from percentmatch.methods.base import Method, labeled_loss, pair_loss
from percentmatch.methods.mixing import labels_of
from percentmatch.records import Batch, Scores, StepLoss, Task, scores_of


class WeakToStrong(Method):
    """The supervised loss plus the labeler's selected pairs on the strong view (Eqs. 2, 6 and 7).

    loss: "asl" (asymmetric, the paper's) or "bce"; with one label an image it is cross-entropy. A labeler with soft
        targets has "bce" on unlabeled pairs, where "asl" is not defined
    scores: pseudo-labels come from the "student" (one concatenated forward pass, as FixMatch does) or from the moving
        average of its weights ("teacher", a pass without gradient)
    """

    def __init__(
        self,
        labeler: Labeler,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "asl",
        scores: Literal["student", "teacher"] = "student",
    ) -> None:
        super().__init__()
        if scores not in ("student", "teacher"):
            raise UserError(f"scores must be 'student' or 'teacher', not '{scores}'")
        self.labeler, self.task, self.scores_from = labeler, task, scores
        self.first_step = labeler.first_step
        self.pair_loss = pair_loss(task, loss)
        self.unlabeled_loss = pair_loss(task, "bce") if labeler.soft_targets else self.pair_loss

    @property
    def views(self) -> frozenset[str]:
        return frozenset({"weak", "strong"})

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        assert batch.weak is not None
        assert batch.strong is not None
        b, u = len(batch.images), len(batch.weak)
        if self.scores_from == "student":
            logits, weak_logits, strong_logits = model(torch.cat([batch.images, batch.weak, batch.strong])).split(
                [b, u, u]
            )
            labeled_logits = logits
        else:
            logits, strong_logits = model(torch.cat([batch.images, batch.strong])).split([b, u])
            with torch.no_grad():
                if self.labeler.reads_labeled:
                    labeled_logits, weak_logits = teacher(torch.cat([batch.images, batch.weak])).split([b, u])
                else:
                    labeled_logits, weak_logits = logits, teacher(batch.weak)
        targets, known = labels_of(batch)
        pseudo = self.labeler(
            Scores(
                weak=scores_of(weak_logits, self.task),
                step=batch.step,
                last=batch.last,
                index=batch.index,
                labeled=scores_of(labeled_logits, self.task),
                targets=targets,
                known=known,
            )
        )
        supervised = labeled_loss(self.pair_loss, logits, batch)
        unlabeled = mean_over_images(self.unlabeled_loss(strong_logits, pseudo.targets), pseudo.pair_weights)
        parts = {"supervised": supervised.detach(), "unlabeled": unlabeled.detach()}
        total = supervised + unlabeled
        strong = strong_logits.float()
        strong = strong.softmax(dim=1) if self.task == "single-label" else strong.sigmoid()  # (u, c) with gradient
        penalty = self.labeler.penalty(strong, pseudo)
        if penalty is not None:
            parts["fairness"], total = penalty.detach(), total + penalty
        return StepLoss(total, parts, pseudo)


class CalibratedToStrong(WeakToStrong):
    """The same for a labeler that takes scores for probabilities.

    loss: "bce", or "asl", which lifts the scores, so that nearly every pair becomes a positive; with one label an image
        it is cross-entropy
    scores: pseudo-labels come from the "student" (one concatenated forward pass) or from the moving average of its
        weights ("teacher", a pass without gradient)
    """

    def __init__(
        self,
        labeler: Labeler,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "bce",
        scores: Literal["student", "teacher"] = "student",
    ) -> None:
        super().__init__(labeler, task=task, loss=loss, scores=scores)
