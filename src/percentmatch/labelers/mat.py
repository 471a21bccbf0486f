"""MAT: each class's threshold is the one with the largest F1 on the labeled images."""

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.labelers.base import Labeler, check_between, round_length
from percentmatch.records import Facts, LabeledScores, PseudoLabels, Scores, Task


class MAT(Labeler):
    """Metric-adaptive thresholds (D2L, Xiao et al. 2024): the one with the largest F1 on the labeled images.

    weight: of the unlabeled loss
    warmup_steps: all weights are 0 before this step, and before the first thresholds
    refresh_steps: steps between two estimates of the thresholds; 0 is one pass over the pool, or a fifth of the run if
        that is less
    """

    every_pair = True
    warmup_options = ("warmup_steps", "refresh_steps")

    upper: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        weight: float = 1.0,
        warmup_steps: int = 300,
        refresh_steps: int = 0,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_between(0, 10**9, warmup_steps=warmup_steps)
        self.fit_steps = round_length(facts, refresh_steps)
        self.first_step = max(warmup_steps, self.fit_steps)
        self.register_buffer("upper", torch.full_like(self.weights, 0.5))  # (c,)

    def forward(self, scores: Scores) -> PseudoLabels:
        weights = self.weights * (scores.step >= self.first_step)
        return self.thresholded(scores.weak.detach(), self.upper, self.upper, weights)

    @torch.no_grad()
    def fit(self, labeled: LabeledScores) -> None:
        if self.training:
            self.upper.copy_(best_f1(labeled.scores.float(), labeled.targets, labeled.known))


def best_f1(scores: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """The threshold of each class with the largest F1 over scores (n, c) whose labels (n, c) are known: (c,).

    It lies half way between two neighbouring scores, of which the lower one may be 0; of equally good ones it is the
    highest. Meaningless for a class without positives.
    """
    known = known > 0
    order = scores.masked_fill(~known, -1.0).argsort(dim=0, descending=True, stable=True)  # unknown ones last
    scores, known = scores.gather(0, order), known.gather(0, order)
    right = ((targets.gather(0, order) > 0) & known).cumsum(0)  # (n, c) of the so many first ones
    f1 = 2 * right / (known.cumsum(0) + right[-1:]).clamp(min=1)  # (n, c)
    below = F.pad(scores[1:] * known[1:], (0, 0, 0, 1))  # (n, c) the next score
    best = f1.masked_fill(~known | (scores == below), -1.0).argmax(dim=0, keepdim=True)  # (1, c)
    return ((scores + below) / 2).gather(0, best)[0]
