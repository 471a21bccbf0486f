"""Pseudo-labels against the truth, where it is known: for the log, never for training."""

from torch import Tensor

from percentmatch.distributed.group import num_ranks
from percentmatch.records import PseudoLabels
from percentmatch.scoring.metrics import pseudo_label_quality


def audit(pseudo: PseudoLabels | None, truth: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
    """What the log says of pseudo-labels, class by class; `truth` is their labels and where they are known."""
    if pseudo is None:
        return {}
    quality = pseudo_label_quality(pseudo.targets, pseudo.mask, *truth) if truth else {}
    quality = {name: count * num_ranks() for name, count in quality.items()}  # the mean over ranks is then the sum
    thresholds = {"upper": pseudo.upper, "lower": pseudo.lower, "gap": pseudo.gap}
    return {
        **{name: value for name, value in thresholds.items() if value is not None},
        "weights": pseudo.weights if pseudo.weights.ndim == 1 else pseudo.weights.mean(0),
        "positive_rate": (pseudo.mask * pseudo.targets).mean(0),
        "negative_rate": (pseudo.mask * (1 - pseudo.targets)).mean(0),
        **quality,
    }
