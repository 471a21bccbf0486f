"""UPS: pseudo-labels that are confident and certain under dropout, both ways, from one generation to the next."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import check_choice
from percentmatch.methods.base import Pool, Source, pair_loss
from percentmatch.methods.rounds import Rounds, steps_of_a_generation
from percentmatch.records import Facts, Task


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
        pool_loss = negative_learning if task == "single-label" else None
        super().__init__(facts, loss=pair_loss(task, loss), weight=weight, pool_loss=pool_loss)
        check_choice(Source, scores=scores)
        if passes < 2:
            raise UserError(f"passes must be at least 2, not {passes}")
        if not 0 <= negative_threshold <= positive_threshold <= 1:
            raise UserError(
                "thresholds must satisfy 0 <= negative_threshold <= positive_threshold <= 1, "
                f"not negative_threshold={negative_threshold} and positive_threshold={positive_threshold}"
            )
        if not (positive_uncertainty > 0 and negative_uncertainty > 0):
            raise UserError(
                f"positive_uncertainty ({positive_uncertainty}) and negative_uncertainty ({negative_uncertainty}) "
                "must be above 0"
            )
        self.task, self.scores_from, self.passes = task, scores, passes
        self.positive_threshold, self.positive_uncertainty = positive_threshold, positive_uncertainty
        self.negative_threshold, self.negative_uncertainty = negative_threshold, negative_uncertainty
        self.round_steps = steps_of_a_generation(facts, self.num_students({"num_generations": num_generations}))

    @classmethod
    def num_students(cls, options: Mapping[str, Any]) -> int:
        if not 2 <= options["num_generations"] <= 100:
            raise UserError(f"num_generations must lie between 2 and 100, not {options['num_generations']}")
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
