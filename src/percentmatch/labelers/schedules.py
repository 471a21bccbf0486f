"""Percentiles that move during training."""

from typing import Literal

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.records import Facts

Schedule = Literal["constant", "curriculum", "anti-curriculum", "prevalence"]


def moving_steps(schedule: Schedule, schedule_ratio: float, strict_ratio: float, facts: Facts) -> float:
    """The number of steps in which the percentiles move, once the options are checked."""
    if schedule not in ("constant", "curriculum", "anti-curriculum", "prevalence"):
        raise UserError(
            f"schedule must be 'constant', 'curriculum', 'anti-curriculum' or 'prevalence', not '{schedule}'"
        )
    if not 0 < schedule_ratio <= 1:
        raise UserError(f"schedule_ratio must be above 0 and at most 1, not {schedule_ratio}")
    if not 0 <= strict_ratio <= 1:
        raise UserError(f"strict_ratio must lie between 0 and 1, not {strict_ratio}")
    if schedule != "constant" and facts.total_steps < 1:
        raise UserError(f"schedule '{schedule}' needs the length of the run: give Facts its total_steps")
    return schedule_ratio * facts.total_steps


def percentiles_at(
    share: Tensor, schedule: Schedule, upper: Tensor, lower: Tensor, negative_ratio: Tensor, strict_ratio: float
) -> tuple[Tensor, Tensor]:
    """The upper and lower percentile of each class (c,) after a `share` (c,) of the way, from 0 to 1.

    `upper` and `lower` (c,) are the usual ones. At the strict end of a curriculum, `strict_ratio` of the usual shares
    are selected, at its other end the usual ones, so the labeled set's limits on `upper` and `lower` hold throughout.
    """
    if schedule == "prevalence":  # both towards the labeled share of negatives
        return torch.lerp(upper, negative_ratio, share), torch.lerp(lower, negative_ratio, share)
    strict = 1 - share if schedule == "curriculum" else share
    selected = 1 - (1 - strict_ratio) * strict  # (c,) of the usual share
    return 1 - selected * (1 - upper), selected * lower
