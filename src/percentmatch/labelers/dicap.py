"""DiCaP: a pseudo-label weighs as much as it is likely to be right, which labels that are held out tell."""

import numpy as np
import torch
from torch import Tensor

from percentmatch.labelers.base import Labeler, check_between, round_length
from percentmatch.records import Facts, LabeledScores, PseudoLabels, Scores, Task


class DiCaP(Labeler):
    """Two thresholds a class, and weights that are calibrated on labels held out (DiCaP, Han et al. 2026).

    num_bins: of scores, in each of which the fraction of positives is counted
    held_out: one in so many labeled images is held out of the supervised loss and treated as unlabeled
    head_epochs: after the last step the head alone learns so many passes over the images held out
    weight: of a pseudo-label that is certainly right
    warmup_steps: all weights are 0 before this step, and before the first estimate
    refresh_steps: steps between two estimates; 0 is one pass over the pool, or a fifth of the run if that is less
    """

    warmup_options = ("warmup_steps", "refresh_steps")

    upper: Tensor
    lower: Tensor
    precision: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        num_bins: int = 20,
        held_out: int = 5,
        head_epochs: int = 20,
        weight: float = 1.0,
        warmup_steps: int = 300,
        refresh_steps: int = 0,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_between(2, 10_000, num_bins=num_bins)
        check_between(2, 1000, held_out=held_out)
        check_between(0, 10_000, head_epochs=head_epochs)
        check_between(0, 10**9, warmup_steps=warmup_steps)
        self.holds_out, self.head_epochs = held_out, head_epochs
        self.fit_steps = round_length(facts, refresh_steps)
        self.first_step = max(warmup_steps, self.fit_steps)
        middles = (torch.arange(num_bins) + 0.5) / num_bins
        self.register_buffer("upper", torch.ones_like(self.weights))  # (c,) no score lies above
        self.register_buffer("lower", torch.zeros_like(self.weights))  # (c,) nor below
        self.register_buffer("precision", middles)  # (k,) P(positive) in the middle of each bin

    def forward(self, scores: Scores) -> PseudoLabels:
        weak = scores.weak.detach().float()
        likely = self.probability(weak)  # (u, c) of a positive
        if self.task == "single-label":
            right = likely.gather(1, weak.argmax(dim=1, keepdim=True)).expand_as(weak)
        else:
            right = torch.where(weak > self.upper, likely, 1 - likely)
        weights = self.weights * (scores.step >= self.first_step) * right
        return self.thresholded(weak, self.upper, self.lower, weights)

    def probability(self, scores: Tensor) -> Tensor:
        """That a pair with this score is positive, linear between the middles of the bins: (u, c) -> (u, c)."""
        last = len(self.precision) - 1
        position = (scores * (last + 1) - 0.5).clamp(0, last)
        left = position.long().clamp(max=last - 1)
        return torch.lerp(self.precision[left], self.precision[left + 1], position - left)

    @torch.no_grad()
    def fit(self, labeled: LabeledScores) -> None:
        """Thresholds from the images that the supervised loss sees, the precision of each bin from the others."""
        if not self.training:
            return
        scores, held_out, known = labeled.scores.float(), labeled.held_out[:, None], labeled.known > 0
        positive, negative = known & (labeled.targets > 0), known & (labeled.targets == 0)  # (n, c)
        self.upper.copy_(_middle(scores, positive & ~held_out, none=1.0))
        self.lower.copy_(_middle(scores, negative & ~held_out, none=0.0))
        num_bins = len(self.precision)
        pairs = known & held_out
        bin_of = (scores[pairs] * num_bins).long().clamp(0, num_bins - 1).cpu()
        counts = torch.bincount(bin_of, minlength=num_bins)  # (k,)
        positives = torch.bincount(bin_of[positive[pairs].cpu()], minlength=num_bins)
        there = counts > 0
        if there.any():  # an empty bin is interpolated from its neighbours
            fractions = np.interp(np.arange(num_bins), there.nonzero()[:, 0], (positives / counts)[there])
            self.precision.copy_(torch.from_numpy(fractions))


def _middle(scores: Tensor, chosen: Tensor, none: float) -> Tensor:
    """Half way between the largest and the smallest of the chosen scores (n, c) of each class: (c,); `none` without."""
    largest, smallest = scores.masked_fill(~chosen, -torch.inf), scores.masked_fill(~chosen, torch.inf)
    return torch.where(chosen.any(0), (largest.amax(0) + smallest.amin(0)) / 2, none)
