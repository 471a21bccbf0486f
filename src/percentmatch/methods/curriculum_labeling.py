"""Curriculum labeling: each round teaches a new student the easiest, and ever more, of the pool."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import check_choice
from percentmatch.methods.base import Pool, Source, pair_loss
from percentmatch.methods.rounds import (
    Rounds,
    expected_positives,
    places,
    share_of,
    steps_of_a_generation,
    top_and_bottom,
)
from percentmatch.records import Facts, Task


class CurriculumLabeling(Rounds):
    """Rounds that label 20, 40, ..., 100% of the pool, each with a new student (Cascante-Bonilla et al. 2021).

    The first round is supervised. Round r then labels the share s = r * share_step of each class's pairs: the top
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
        super().__init__(facts, loss=pair_loss(task, loss), weight=weight)
        check_choice(Source, scores=scores)
        self.task, self.scores_from, self.share_step = task, scores, share_step
        self.round_steps = steps_of_a_generation(facts, self.num_students({"share_step": share_step}))
        self.num_positive = expected_positives(facts)  # (c,)
        self.num_negative = (facts.num_unlabeled or 0) - self.num_positive  # (c,)

    @classmethod
    def num_students(cls, options: Mapping[str, Any]) -> int:
        if not 0.01 <= options["share_step"] <= 1:
            raise UserError(f"share_step must lie between 0.01 and 1, not {options['share_step']}")
        return 1 + math.ceil(1 / options["share_step"] - 1e-9)

    def choose(self, pool: Pool, round_number: int) -> tuple[Tensor, Tensor]:
        """With one label an image the paper's rule applies as it is: the images of the largest scores, all classes."""
        scores, _ = pool.probabilities(self.scores_from)  # (N, c)
        share = min(round_number * self.share_step, 1.0)
        if self.task == "single-label":
            best, label = scores.masked_fill(self.unseen, -1.0).max(dim=1, keepdim=True)  # (N, 1)
            chosen = places(best) < share_of(torch.tensor(len(scores)), share).to(scores.device)  # (N, 1)
            hot = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, label, value=True)
            return hot & chosen, ~hot & chosen
        return top_and_bottom(scores, share_of(self.num_positive, share), share_of(self.num_negative, share))
