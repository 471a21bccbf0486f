"""Pseudo-labels from the weak view teach the strong view: FixMatch, PercentMatch and their kin, one labeler each."""

from typing import Literal

import torch
from torch import nn

from percentmatch.labelers import Labeler
from percentmatch.labelers.base import check_choice
from percentmatch.losses import mean_over_images
from percentmatch.methods.base import Method, Pool, Source, forward_together, labeled_loss, pair_loss, step_loss
from percentmatch.methods.mixmatch import labels_of
from percentmatch.records import Batch, Scores, StepLoss, Task, scores_of


class WeakToStrong(Method):
    """The supervised loss plus the labeler's selected pairs on the strong view (Eqs. 2, 6 and 7).

    loss: "asl" (asymmetric, the paper's) or "bce"; with one label an image it is cross-entropy. "asl" lifts the scores,
        which is too much for labelers that take them for probabilities; soft targets have "bce" on unlabeled pairs
    scores: pseudo-labels come from the "student" (one concatenated forward pass, as FixMatch does) or from the moving
        average of its weights ("teacher", a pass without gradient)
    """

    views = frozenset({"weak", "strong"})

    def __init__(
        self,
        labeler: Labeler,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "asl",
        scores: Source = "student",
    ) -> None:
        super().__init__()
        check_choice(Source, scores=scores)
        self.labeler, self.task, self.scores_from = labeler, task, scores
        self.first_step, self.round_steps = labeler.first_step, labeler.fit_steps
        self.holds_out, self.head_epochs = labeler.holds_out, labeler.head_epochs
        self.pair_loss = pair_loss(task, loss)
        self.unlabeled_loss = pair_loss(task, "bce") if labeler.soft_targets else self.pair_loss

    def refresh(self, pool: Pool) -> None:
        if self.round_steps:
            self.labeler.fit(pool.labeled(self.scores_from))

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        if self.scores_from == "student":
            logits, weak_logits, strong_logits = forward_together(model, batch.images, batch.weak, batch.strong)
            labeled_logits = logits
        else:
            logits, strong_logits = forward_together(model, batch.images, batch.strong)
            with torch.no_grad():
                if self.labeler.reads_labeled:
                    labeled_logits, weak_logits = forward_together(teacher, batch.images, batch.weak)
                else:
                    labeled_logits, weak_logits = logits, teacher(batch.weak)
        targets, known = labels_of(batch)
        weak, labeled = scores_of(weak_logits, self.task), scores_of(labeled_logits, self.task)
        pseudo = self.labeler(Scores(weak, batch.step, batch.last, batch.index, labeled, targets, known))
        supervised = labeled_loss(self.pair_loss, logits, batch)
        unlabeled = mean_over_images(self.unlabeled_loss(strong_logits, pseudo.targets), pseudo.pair_weights)
        found = step_loss(supervised, unlabeled, pseudo)
        strong = strong_logits.float()
        strong = strong.softmax(dim=1) if self.task == "single-label" else strong.sigmoid()  # (u, c) with gradient
        penalty = self.labeler.penalty(strong, pseudo)
        if penalty is None:
            return found
        return StepLoss(found.total + penalty, {**found.parts, "fairness": penalty.detach()}, pseudo)
