"""CAP: every class gets as many positives in the pool as its labeled share."""

import math
from typing import Literal

from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.methods.base import Pool, pair_loss
from percentmatch.methods.rounds import Rounds, expected_positives, top_and_bottom
from percentmatch.records import Facts, Task


class CAP(Rounds):
    """Class-distribution-aware pseudo-labels (Xie et al. 2023): the teacher's top pi_c share of the pool is positive.

    The rest is negative, so that nothing is left out. With one label an image, see `choose`.

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
        super().__init__(facts, loss=pair_loss(task, loss), weight=weight)
        if warmup_steps < 0 or refresh_steps < 0:
            raise UserError(f"warmup_steps ({warmup_steps}) and refresh_steps ({refresh_steps}) must not be negative")
        if not refresh_steps and not facts.unlabeled_batch:
            raise UserError("refresh_steps must be given where the unlabeled batch is not known")
        one_pass = math.ceil((facts.num_unlabeled or 0) / max(facts.unlabeled_batch, 1))
        length = refresh_steps or max(min(one_pass, facts.total_steps // 5 or one_pass), 1)
        self.task, self.round_steps, self.first_round = task, length, math.ceil(warmup_steps / length)
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
            positive = (positive.new_zeros(positive.shape).scatter_(1, best, value=True)) & chosen
            negative = ~positive & chosen  # the whole row counts
        return positive, negative
