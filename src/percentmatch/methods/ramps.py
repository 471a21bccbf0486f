"""How the weight of an unlabeled loss grows over the first steps of a run."""

import math
from collections.abc import Callable

from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import check_between, check_weight
from percentmatch.records import Facts

Ramp = Callable[[Tensor | int, float], Tensor | float]  # of a step and a length


def ramp_length(facts: Facts, *, weight: float, ramp_ratio: float) -> float:
    """The steps in which the weight grows, once both options are checked."""
    check_weight(weight=weight)
    check_between(0, 1, ramp_ratio=ramp_ratio)
    if ramp_ratio and facts.total_steps < 1:
        raise UserError("ramp_ratio needs the length of the run: give Facts its total_steps, or set ramp_ratio to 0")
    return ramp_ratio * facts.total_steps


def linear_ramp(step: Tensor | int, length: float) -> Tensor | float:
    """From 0 at step 0 to 1 at step `length`, then 1."""
    if length <= 0:
        return 1.0
    share = step / length
    return share.clamp(max=1) if isinstance(share, Tensor) else min(share, 1.0)


def gaussian_ramp(step: Tensor | int, length: float) -> Tensor | float:
    """exp(-5 (1 - t)^2) where t is the linear ramp (Laine and Aila 2017): from 0.007 to 1."""
    exponent = -5 * (1 - linear_ramp(step, length)) ** 2
    return exponent.exp() if isinstance(exponent, Tensor) else math.exp(exponent)
