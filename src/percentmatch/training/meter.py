"""What the log says of training: means over steps, kept on the device until a row is due, and audits."""

from typing import Any

import torch
from torch import Tensor

from percentmatch.distributed.group import least_over_ranks, mean_over_ranks, num_ranks
from percentmatch.files import check_count
from percentmatch.records import PseudoLabels
from percentmatch.scoring.metrics import pseudo_label_quality

NEVER = torch.iinfo(torch.int64).max


class Meter:
    """Sums of named tensors since the last row, and the first step at which each checked one was not finite.

    Means are over micro-batches, so counts are those of a micro-batch.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.bad_steps: dict[str, Tensor] = {}
        self.count = 0  # additions since the last row, counted by the loop

    def add(self, values: dict[str, Tensor]) -> None:
        """Add numbers to their sums, in place."""
        for name, value in values.items():
            if name in self.sums:
                self.sums[name].add_(value)
            else:
                self.sums[name] = value.clone()

    def watch(self, values: dict[str, Tensor], step: Tensor) -> None:
        """Remember the first step at which a value () is not finite. Nothing is read back."""
        for name, value in values.items():
            bad = torch.where(value.isfinite(), NEVER, step)
            if name in self.bad_steps:
                torch.minimum(self.bad_steps[name], bad, out=self.bad_steps[name])
            else:
                self.bad_steps[name] = bad

    def first_bad(self) -> tuple[str, int] | None:
        """What was first not finite on any rank, and in which step (waits for the device)."""
        first = {name: int(least_over_ranks(step)) for name, step in self.bad_steps.items()}
        step = min(first.values(), default=NEVER)
        return (" and ".join(name for name in first if first[name] == step), step) if step < NEVER else None

    def read(self) -> dict[str, Any]:
        """The means over ranks as numbers and lists, None where not finite, and start anew (waits for the device)."""
        means = {name: _plain((mean_over_ranks(total) / self.count).tolist()) for name, total in self.sums.items()}
        for total in self.sums.values():
            total.zero_()
        self.count = 0
        return means

    def state_dict(self) -> dict[str, Any]:
        """The means over ranks, so that any number of them can go on from it."""
        sums = {name: mean_over_ranks(total) for name, total in self.sums.items()}
        return {"sums": sums, "bad_steps": self.bad_steps, "count": self.count}

    def load_state_dict(self, state: dict[str, Any], num_classes: int) -> None:
        """ValueError if it is not what a run with so many classes saves: numbers, of each class or alone."""
        shapes = {"sums": {(), (num_classes,)}, "bad_steps": {()}}
        for part, known in shapes.items():
            for name, value in state[part].items():
                if (
                    not isinstance(name, str)
                    or tuple(value.shape) not in known
                    or value.is_complex()
                    or value.is_sparse
                ):
                    raise ValueError(f"{part} of something else")
        check_count(state["count"], "the number of sums")
        self.sums, self.bad_steps, self.count = dict(state["sums"]), dict(state["bad_steps"]), state["count"]


def audit(pseudo: PseudoLabels | None, truth: Tensor | None, known: Tensor | None) -> dict[str, Tensor]:
    """What the log says of pseudo-labels, class by class; `truth` is their labels, None for those of a stream."""
    if pseudo is None:
        return {}
    quality = pseudo_label_quality(pseudo.targets, pseudo.mask, truth, known) if truth is not None else {}
    quality = {name: count * num_ranks() for name, count in quality.items()}  # the mean over ranks is then the sum
    thresholds = {"upper": pseudo.upper, "lower": pseudo.lower, "gap": pseudo.gap}
    return {
        **{name: value for name, value in thresholds.items() if value is not None},
        "weights": pseudo.weights if pseudo.weights.ndim == 1 else pseudo.weights.mean(0),
        "positive_rate": (pseudo.mask * pseudo.targets).mean(0),
        "negative_rate": (pseudo.mask * (1 - pseudo.targets)).mean(0),
        **quality,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if abs(value) < float("inf") else None
