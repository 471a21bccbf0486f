"""Methods that label the whole pool anew in rounds: CAP, curriculum labeling and UPS."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.labelers.base import check_between, check_choice, check_pool, check_weight, round_length
from percentmatch.losses import mean_over_images
from percentmatch.methods.base import Method, Pool, Source, forward_together, labeled_loss, pair_loss, step_loss
from percentmatch.records import Batch, Facts, PseudoLabels, StepLoss, Task


class Rounds(Method):
    """The supervised loss plus the selected pairs of the pool on one view. Before the first round none is selected.

    Every rank has the scores of the whole pool, so the labels agree between ranks.
    """

    views = frozenset({"weak"})
    needs_pool = True

    targets: Tensor
    mask: Tensor
    round: Tensor
    weights: Tensor
    unseen: Tensor
    labeled: Tensor

    def __init__(self, facts: Facts, *, task: Task, loss: str, weight: float, num_students: int = 0) -> None:
        super().__init__()
        check_pool(self, facts)
        check_weight(weight=weight)
        self.task: Task = task
        self.pair_loss = self.pool_loss = pair_loss(task, loss)
        if num_students:  # of equal numbers of steps, but the last, which has the remainder
            self.round_steps = max(math.ceil(facts.total_steps / num_students), 1)
        n, c = facts.num_unlabeled or 0, facts.num_classes
        self.register_buffer("targets", torch.zeros(n, c, dtype=torch.uint8))  # (N, c)
        self.register_buffer("mask", torch.zeros(n, c, dtype=torch.uint8))  # (N, c)
        self.register_buffer("round", torch.zeros((), dtype=torch.int64))  # rounds begun after the first one
        self.register_buffer("weights", torch.full((c,), weight, dtype=torch.float32), persistent=False)
        self.register_buffer("unseen", facts.unseen, persistent=False)
        self.register_buffer("labeled", facts.known_counts > 0, persistent=False)  # (c,)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        assert batch.index is not None
        images = batch.strong if "strong" in self.views else batch.weak
        logits, pool_logits = forward_together(model, batch.images, images)
        targets, mask = self.targets[batch.index].float(), self.mask[batch.index].float()  # (u, c)
        pseudo = PseudoLabels(targets, mask, self.weights)
        supervised = labeled_loss(self.pair_loss, logits, batch)
        unlabeled = mean_over_images(self.pool_loss(pool_logits, targets), pseudo.pair_weights)
        return step_loss(supervised, unlabeled, pseudo)

    @torch.no_grad()
    def refresh(self, pool: Pool) -> None:
        self.round += 1
        chosen = self.choose(pool, int(self.round))
        if chosen is not None:
            positive = chosen[0] & ~self.unseen  # (N, c)
            negative = chosen[1] & self.labeled & ~positive  # a class never labeled is left out
            self.targets.copy_(positive)
            self.mask.copy_(positive | negative)

    @abstractmethod
    def choose(self, pool: Pool, round_number: int) -> tuple[Tensor, Tensor] | None:
        """The pairs labeled positive and those labeled negative, (N, c) each; None leaves the labels as they are."""


def expected_positives(facts: Facts) -> Tensor:
    """How many images of the pool show each class if it is as common there as among the labeled: (c,).

    N * positives / known to the nearest whole number, halves upwards, in whole numbers throughout.
    """
    known = facts.known_counts.long().clamp(min=1)
    return (2 * (facts.num_unlabeled or 0) * facts.positive_counts.long() + known) // (2 * known)


def rounded(fraction: float, count: Tensor) -> Tensor:
    """A fraction of `count`, to the nearest whole number, halves upwards: (c,) -> (c,)."""
    return (fraction * count.double() + 0.5).floor().long()


def positions(scores: Tensor) -> Tensor:
    """Each image's position in a class's ranking, 0 for the largest score, ties in pool order: (N, c) -> (N, c)."""
    return scores.argsort(dim=0, descending=True, stable=True).argsort(dim=0)


def top_and_bottom(scores: Tensor, num_top: Tensor, num_bottom: Tensor) -> tuple[Tensor, Tensor]:
    """Which images are among the first `num_top` (c,) and the last `num_bottom` (c,) of each class: (N, c) each."""
    position = positions(scores)
    return position < num_top.to(scores.device), position >= len(scores) - num_bottom.to(scores.device)


class CAP(Rounds):
    """Class-distribution-aware pseudo-labels (Xie et al. 2023): the top fraction pi_c of the pool is positive.

    The teacher's scores rank it. The rest is negative, so that nothing is left out. With one label an image, see
    `choose`.

    loss: "asl" (asymmetric, the paper's) or "bce"; with one label an image it is cross-entropy
    weight: of the unlabeled loss
    warmup_steps: labeled images only before this step; the pool is first labeled at the next of its labelings
    refresh_steps: steps between two labelings of the pool; 0 is one pass over it, or a fifth of the run if that is less
    """

    views = frozenset({"strong"})
    warmup_options = ("warmup_steps", "refresh_steps")

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "asl",
        weight: float = 1.0,
        warmup_steps: int = 300,
        refresh_steps: int = 0,
    ) -> None:
        super().__init__(facts, task=task, loss=loss, weight=weight)
        check_between(0, 10**9, warmup_steps=warmup_steps)
        length = round_length(facts, refresh_steps)
        self.round_steps, self.first_round = length, math.ceil(warmup_steps / length)
        self.first_step = max(self.first_round, 1) * length
        self.num_pool, self.num_positive = facts.num_unlabeled or 0, expected_positives(facts)  # (c,)

    def choose(self, pool: Pool, round_number: int) -> tuple[Tensor, Tensor] | None:
        """With one label an image, it goes to the class that scores highest among those that rank it high enough.

        An image that no class ranks so gets none.
        """
        if round_number < self.first_round:
            return None
        scores, _ = pool.probabilities("teacher")  # (N, c)
        positive, negative = top_and_bottom(scores, self.num_positive, self.num_pool - self.num_positive)
        if self.task == "single-label":
            best = scores.masked_fill(~positive, -1.0).argmax(dim=1, keepdim=True)  # (N, 1)
            chosen = positive.any(dim=1, keepdim=True)  # (N, 1)
            positive = torch.zeros_like(positive).scatter_(1, best, value=True) & chosen
            negative = ~positive & chosen  # the whole row counts
        return positive, negative


class CurriculumLabeling(Rounds):
    """Rounds that label 20, 40, ..., 100% of the pool, each with a new student (Cascante-Bonilla et al. 2021).

    The first round is supervised. Round r then labels the fraction s = r * share_step of each class's pairs: the top
    s * pi_c of the pool as positives and the bottom s * (1 - pi_c) as negatives, pi_c being the labeled prevalence.

    loss: "asl" (asymmetric) or "bce"; with one label an image it is cross-entropy
    weight: of the unlabeled loss
    scores: the pool is labeled by the moving average of the last student ("teacher"), or by the "student" itself
    share_step: how much more of the pool each round labels; the rounds are 1 / share_step and the supervised one
    """

    restarts = True

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "asl",
        weight: float = 1.0,
        scores: Source = "teacher",
        share_step: float = 0.2,
    ) -> None:
        num_students = self.num_students({"share_step": share_step})
        super().__init__(facts, task=task, loss=loss, weight=weight, num_students=num_students)
        check_choice(Source, scores=scores)
        self.scores_from, self.share_step = scores, share_step
        self.num_positive = expected_positives(facts)  # (c,)
        self.num_negative = (facts.num_unlabeled or 0) - self.num_positive  # (c,)

    @classmethod
    def num_students(cls, options: Mapping[str, Any]) -> int:
        check_between(0.01, 1, share_step=options["share_step"])
        return 1 + math.ceil(1 / options["share_step"] - 1e-9)

    def choose(self, pool: Pool, round_number: int) -> tuple[Tensor, Tensor]:
        """With one label an image the paper's rule applies as it is: the images of the largest scores, all classes."""
        scores, _ = pool.probabilities(self.scores_from)  # (N, c)
        fraction = min(round_number * self.share_step, 1.0)
        if self.task == "single-label":
            best, label = scores.masked_fill(self.unseen, -1.0).max(dim=1, keepdim=True)  # (N, 1)
            chosen = positions(best) < rounded(fraction, torch.tensor(len(scores))).to(scores.device)  # (N, 1)
            hot = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, label, value=True)
            return hot & chosen, ~hot & chosen
        return top_and_bottom(scores, rounded(fraction, self.num_positive), rounded(fraction, self.num_negative))


class UPS(Rounds):
    """Uncertainty-aware pseudo-label selection with negative learning (Rizve et al. 2021).

    The first generation is supervised; each later one is a new student that also learns from the pairs its predecessor
    selects. p and u are the mean and the standard deviation of passes with dropout on.

    loss: "asl" (asymmetric) or "bce" (the paper's); with one label an image it is cross-entropy, and -log(1 - p) of a
        negative pseudo-label
    weight: of the unlabeled loss
    scores: the pool is labeled by the moving average of the last student ("teacher"), or by the "student" itself
    num_generations: with the supervised one; a run of few steps may have fewer
    positive_threshold: a positive has p of at least this
    negative_threshold: a negative has p below this
    positive_uncertainty: a positive has u below this
    negative_uncertainty: a negative has u below this
    passes: with dropout, over which p and u are taken
    """

    restarts = True
    needs_dropout = True

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        loss: Literal["asl", "bce"] = "bce",
        weight: float = 1.0,
        scores: Source = "teacher",
        num_generations: int = 5,
        positive_threshold: float = 0.5,
        negative_threshold: float = 0.05,
        positive_uncertainty: float = 0.05,
        negative_uncertainty: float = 0.005,
        passes: int = 10,
    ) -> None:
        num_students = self.num_students({"num_generations": num_generations})
        super().__init__(facts, task=task, loss=loss, weight=weight, num_students=num_students)
        if task == "single-label":
            self.pool_loss = negative_learning
        check_choice(Source, scores=scores)
        if passes < 2:
            raise UserError(f"passes must be at least 2, not {passes}")
        if not 0 <= negative_threshold <= positive_threshold <= 1:
            found = f"negative_threshold={negative_threshold} and positive_threshold={positive_threshold}"
            raise UserError(f"thresholds must satisfy 0 <= negative <= positive <= 1, not {found}")
        if not (positive_uncertainty > 0 and negative_uncertainty > 0):
            found = f"positive_uncertainty ({positive_uncertainty}) and negative_uncertainty ({negative_uncertainty})"
            raise UserError(f"{found} must be above 0")
        self.scores_from, self.passes = scores, passes
        self.positive_threshold, self.positive_uncertainty = positive_threshold, positive_uncertainty
        self.negative_threshold, self.negative_uncertainty = negative_threshold, negative_uncertainty

    @classmethod
    def num_students(cls, options: Mapping[str, Any]) -> int:
        check_between(2, 100, num_generations=options["num_generations"])
        return options["num_generations"]

    def choose(self, pool: Pool, round_number: int) -> tuple[Tensor, Tensor]:
        """The paper's selection g; with one label an image only its largest score can be a positive."""
        p, u = pool.probabilities(self.scores_from, dropout_passes=self.passes)  # (N, c)
        assert u is not None
        positive = (p >= self.positive_threshold) & (u < self.positive_uncertainty)
        negative = (p < self.negative_threshold) & (u < self.negative_uncertainty)
        if self.task == "single-label":
            positive &= torch.zeros_like(positive).scatter_(1, p.argmax(dim=1, keepdim=True), value=True)
        return positive, negative


def negative_learning(logits: Tensor, targets: Tensor) -> Tensor:
    """-log p of a softmax where the target is 1, -log(1 - p) where it is 0: (n, c), (n, c) -> (n, c)."""
    log_p = logits.float().log_softmax(dim=1)
    log_not_p = torch.log1p(-log_p.exp().clamp(max=1 - 1e-6))
    return -(targets.float() * log_p + (1 - targets.float()) * log_not_p)
