"""Dash: a bound on the loss of a pseudo-label, which starts at the labeled images' and shrinks."""

import math

import torch
from torch import Tensor

from percentmatch.distributed.group import StepSums
from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, check_between, check_weight, confidence, labeled_scores
from percentmatch.records import Facts, PseudoLabels, Scores, Task

PASSES = 10  # over the unlabeled images, between two falls of the bound


class Dash(Labeler):
    """Pairs whose own loss -log q is below a bound that falls in stages (Dash, Xu et al. 2021).

    factor: of the first bound (C)
    decay: the bound is divided by it at every stage (gamma)
    lowest: the bound never falls below it (rho_min)
    warmup_steps: the first bound is the labeled images' mean -log q in so many first steps, which select nothing
    decay_steps: steps between two stages, counted from the warm-up's end; 0 means ten passes over the unlabeled images
    weight: of the unlabeled loss
    """

    reads_labeled = True
    warmup_options = ("warmup_steps",)

    first_bound: Tensor
    steps_learnt: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        factor: float = 1.0001,
        decay: float = 1.27,
        lowest: float = 0.05,
        warmup_steps: int = 300,
        decay_steps: int = 0,
        weight: float = 1.0,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_weight(factor=factor, lowest=lowest)
        check_between(1, 10**6, decay=decay)
        check_between(1, 10**9, warmup_steps=warmup_steps)
        check_between(0, 10**9, decay_steps=decay_steps)
        if decay_steps == 0:
            if not facts.num_unlabeled or not facts.unlabeled_batch:
                raise UserError("dash cannot count passes over a stream or an unknown unlabeled_batch: set decay_steps")
            decay_steps = math.ceil(PASSES * facts.num_unlabeled / facts.unlabeled_batch)
        self.factor, self.decay, self.lowest = factor, decay, lowest
        self.first_step, self.decay_steps = warmup_steps, decay_steps
        self._sums = StepSums()
        self.register_buffer("first_bound", torch.zeros(()))  # rho_0, the mean over the steps learnt
        self.register_buffer("steps_learnt", torch.zeros(()))

    def forward(self, scores: Scores) -> PseudoLabels:
        stage = torch.ones_like(self.first_bound) * (scores.step - self.first_step)
        stage = (stage / self.decay_steps).floor().clamp(min=0)  # k
        bound = (self.factor * self.decay**-stage * self.first_bound).clamp(min=self.lowest)  # rho
        least = (-bound).exp()  # () -log q < rho
        if self.task == "multi-label":
            least = least.clamp(min=0.5)
        upper = least.expand_as(self.weights)  # (c,)
        started = self.steps_learnt >= self.first_step
        pseudo = self.thresholded(scores.weak, upper, 1 - upper, self.weights * started)
        if self.training:
            self._learn(scores)
        return pseudo

    @torch.no_grad()
    def _learn(self, scores: Scores) -> None:
        """Take a step's labeled images into the first bound until the warm-up's end."""
        labeled, known = labeled_scores(scores)
        loss = -confidence(labeled, self.task).log()  # (b, c)
        sums = self._sums.add(torch.stack([(loss * known).sum(), known.sum()]), last=scores.last)  # (2,)
        if sums is None:
            return
        learns = (sums[1] > 0) & (self.steps_learnt < self.first_step)  # a step without known labels does not count
        self.steps_learnt.add_(learns)
        change = sums[0] / sums[1].clamp(min=1e-12) - self.first_bound
        self.first_bound.add_(learns * change / self.steps_learnt.clamp(min=1))
