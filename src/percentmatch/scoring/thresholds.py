"""From which score on a class is decided for: the best F1, or a precision or recall with the best of the other."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.errors import UserError
from percentmatch.records import Task

FEW = 20  # positives; labels with fewer would choose a threshold by chance
FALLBACK = 0.5  # the threshold of a class without any


def best_thresholds(
    scores: Tensor, truth: Tensor, known: Tensor, precision: float | None = None, recall: float | None = None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The best cut through the known scores of each class: (n, k) each, where truth lies between 0 and 1.

    Returns the last score above it, the first below it (-inf: none) and the precision, recall and F1 reached: (k,).
    """
    ranked, order = torch.where(known > 0, scores, -torch.inf).T.sort(descending=True)  # (k, n): the unknown are last
    following = F.pad(ranked[:, 1:], (0, 1), value=-torch.inf)
    possible = following < ranked  # equal ones are decided alike
    hits, chosen = (truth * known).T.gather(1, order).cumsum(1), torch.arange(1, len(scores) + 1)
    reached = {"precision": hits / chosen, "recall": hits / hits[:, -1:], "F1": 2 * hits / (chosen + hits[:, -1:])}
    wanted = [reached["F1"]]
    if precision is not None:
        wanted = [reached["precision"].clamp(max=precision), reached["recall"], reached["precision"]]
    elif recall is not None:
        wanted = [reached["recall"].clamp(max=recall), reached["precision"], reached["recall"]]
    for value in wanted:
        value = value.masked_fill(~possible, -1)
        possible = possible & (value == value.amax(1, keepdim=True))
    best = possible.byte().argmax(1, keepdim=True)  # (k, 1)
    above, below, *values = (each.gather(1, best)[:, 0] for each in (ranked, following, *reached.values()))
    return above, below, dict(zip(reached, values, strict=True))


def decision_thresholds(scores: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """For each class the score whose choice as a threshold has the best F1, FALLBACK without a positive: (c,)."""
    above, _, _ = best_thresholds(scores, targets, known)
    return torch.where((targets * known).sum(0) > 0, above, FALLBACK)


def choose(
    logits: Tensor, targets: Tensor, known: Tensor, precision: float | None, recall: float | None
) -> list[dict[str, Any]]:
    """The thresholds of classes with positives from calibrated logits and labels (n, k), and what each reaches on them.

    It lies halfway between the last logit above it and the next, so that rounding decides nothing. The labels of few
    positives would choose by chance: then the probabilities stand for them, and what is reached is what they expect.
    """
    truth = torch.where((targets * known).sum(0) >= FEW, targets, logits.sigmoid())  # (n, k)
    above, below, reached = best_thresholds(logits, truth, known, precision, recall)
    between = torch.where(below.isinf(), above, (above + below) / 2).sigmoid()
    rows = torch.stack([between, *reached.values()], 1).tolist()
    return [dict(zip(("threshold", *reached), row, strict=True)) for row in rows]


def check_aim(task: Task, precision: float | None, recall: float | None) -> None:
    if precision is not None and recall is not None:
        raise UserError("a threshold is chosen for --precision or for --recall, not for both; give one of them")
    for name, value in (("precision", precision), ("recall", recall)):
        if value is None:
            continue
        if task == "single-label":
            raise UserError(f"--{name} is for thresholds; with one label an image the most probable class is taken")
        if not 0 < value <= 1:
            raise UserError(f"--{name} {value:g} must be above 0 and at most 1, such as 0.9")
