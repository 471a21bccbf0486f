"""Percentiles that move during training."""

from typing import Literal

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import check_between, check_choice
from percentmatch.records import Facts

Course = Literal["constant", "curriculum", "anti-curriculum", "prevalence"]


class Schedule:
    """How the percentiles move, from the first step on, in `schedule_ratio` of the run."""

    def __init__(self, course: Course, *, schedule_ratio: float, strict_ratio: float, facts: Facts) -> None:
        check_choice(Course, schedule=course)
        check_between(0, 1, strict_ratio=strict_ratio)
        if not 0 < schedule_ratio <= 1:
            raise UserError(f"schedule_ratio must be above 0 and at most 1, not {schedule_ratio}")
        if course != "constant" and facts.total_steps < 1:
            raise UserError(f"schedule '{course}' needs the length of the run: give Facts its total_steps")
        self.course, self.strict_ratio, self.steps = course, strict_ratio, schedule_ratio * facts.total_steps

    def at(
        self, step: Tensor | int, upper: Tensor, lower: Tensor, negative_ratio: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """The upper and lower percentile of each class (c,) at a step; None where they stay the usual ones.

        `upper` and `lower` (c,) are the usual ones. At the strict end of a curriculum, `strict_ratio` of the usual
        shares are selected, at its other end the usual ones, so the labeled set's limits on them hold throughout.
        """
        if self.course == "constant":
            return None
        share = (torch.ones_like(upper) * (step / self.steps)).clamp(max=1)  # (c,) of the way
        if self.course == "prevalence":  # both towards the labeled share of negatives
            return torch.lerp(upper, negative_ratio, share), torch.lerp(lower, negative_ratio, share)
        strict = 1 - share if self.course == "curriculum" else share
        selected = 1 - (1 - self.strict_ratio) * strict  # (c,) of the usual share
        return 1 - selected * (1 - upper), selected * lower
