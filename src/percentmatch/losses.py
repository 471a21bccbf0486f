"""Elementwise losses, float32 inside autocast. Reduction happens in one place: `mean_over_images`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def asymmetric_loss(
    logits: Tensor, targets: Tensor, *, gamma_negative: float = 4.0, gamma_positive: float = 0.0, clip: float = 0.05
) -> Tensor:
    """ASL (Ridnik et al. 2021) of each pair: logits (n, c), targets (n, c) of 0 and 1 -> (n, c).

    Negatives are shifted by `clip`, then each term is focused by (1 - p_true)^gamma. The focusing weight carries no
    gradient, as in the authors' training scripts.
    """
    logits, targets = logits.float(), targets.float()
    probability = logits.sigmoid()
    not_p = (1 - probability + clip).clamp(max=1)  # 1 - p_m, the shifted probability of absence
    log_not_p = not_p.log() if clip > 0 else F.logsigmoid(-logits)
    log_likelihood = targets * F.logsigmoid(logits) + (1 - targets) * log_not_p
    with torch.no_grad():
        focus = targets * (1 - probability) ** gamma_positive + (1 - targets) * (1 - not_p) ** gamma_negative
    return -focus * log_likelihood


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """BCE of each pair, soft targets allowed: (n, c), (n, c) -> (n, c)."""
    return F.binary_cross_entropy_with_logits(logits.float(), targets.float(), reduction="none")


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The single-label loss, class by class: (n, c), (n, c) -> (n, c); the sum over classes is the usual one."""
    return -targets.float() * logits.float().log_softmax(dim=1)


def mean_over_images(loss: Tensor, pair_weights: Tensor | None = None) -> Tensor:
    """Sum over classes, mean over images (Eqs. 2 and 7): (n, c) -> ()."""
    return (loss if pair_weights is None else loss * pair_weights).sum(dim=1).mean()


LOSSES: dict[str, Loss] = {"asl": asymmetric_loss, "bce": binary_cross_entropy, "ce": cross_entropy}
