"""PercentMatch: thresholds at fixed percentiles of each class's scores, and weights that follow their gap."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, UnseenClasses, select
from percentmatch.labelers.gates import Gate, LabeledAuc, Measure
from percentmatch.labelers.histogram import Bins, ScoreHistogram
from percentmatch.labelers.schedules import Course, Schedule
from percentmatch.labelers.selections import Reach, Selection
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class PercentMatch(Labeler):
    """Percentile thresholds and gap-gated weights, as in the paper's Algorithm 1.

    upper_percentile: share of the scores that lie below the positive threshold (kappa+)
    lower_percentile: share of the scores that lie below the negative threshold (kappa-)
    momentum: of the score histogram (lambda; not given in the paper)
    num_bins: of the score histogram (K; not given in the paper)
    bins: equal in probability ("uniform", the paper's) or in logit space ("logit")
    bias_correction: forget the histogram's uniform start as soon as there is data
    gap_start: a class whose threshold gap is smaller gets weight 0 (Upsilon_0)
    gap_full: a class whose threshold gap is larger gets the full weight (Upsilon_s)
    weight: the full weight (alpha_s)
    warmup_steps: all weights are 0 before this step
    unseen_classes: a class without labeled positives is given "negatives" only, or nothing ("off")
    selection: only scores beyond the thresholds count ("hard", the paper's), or those between them count less ("soft")
    schedule: the percentiles stay ("constant", the paper's), relax from strict ones ("curriculum"), grow strict
        ("anti-curriculum"), or move until every pair is labeled at the labeled "prevalence"
    schedule_ratio: share of the run in which a schedule moves, from its first step on
    strict_ratio: share of the usual pairs that is selected at the strict end of a curriculum
    gate: what a class's weight follows: its threshold "gap" (the paper's), that gap in logits ("logit-gap"), the "auc"
        of its labeled images in recent batches, or nothing ("none")
    logit_gap_start: as gap_start, for the gate "logit-gap"
    logit_gap_full: as gap_full, for the gate "logit-gap"
    auc_start: as gap_start, for the gate "auc"
    auc_full: as gap_full, for the gate "auc"
    """

    warmup_options = ("warmup_steps",)

    upper_percentile: Tensor
    lower_percentile: Tensor
    negative_ratio: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        upper_percentile: float = 0.98,
        lower_percentile: float = 0.1,
        momentum: float = 0.98,
        num_bins: int = 100,
        bins: Bins = "uniform",
        bias_correction: bool = False,
        gap_start: float = 0.5,
        gap_full: float = 0.55,
        weight: float = 1.0,
        warmup_steps: int = 300,
        unseen_classes: UnseenClasses = "negatives",
        selection: Reach = "hard",
        schedule: Course = "constant",
        schedule_ratio: float = 0.5,
        strict_ratio: float = 0.25,
        gate: Measure = "gap",
        logit_gap_start: float = 2.2,
        logit_gap_full: float = 2.5,
        auc_start: float = 0.8,
        auc_full: float = 0.9,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        if not 0 <= lower_percentile < upper_percentile <= 1:
            raise UserError(
                "percentiles must satisfy 0 <= lower_percentile < upper_percentile <= 1, "
                f"not lower_percentile={lower_percentile} and upper_percentile={upper_percentile}"
            )
        self.leave_out_unseen(unseen_classes)
        self.first_step = max(warmup_steps - 1, 0)  # the paper counts from t = 1
        self.gate = Gate(
            gate, gap=(gap_start, gap_full), logit_gap=(logit_gap_start, logit_gap_full), auc=(auc_start, auc_full)
        )
        self.schedule = Schedule(schedule, schedule_ratio=schedule_ratio, strict_ratio=strict_ratio, facts=facts)
        self.selection = Selection(selection)
        self.histogram = ScoreHistogram(
            facts.num_classes, num_bins=num_bins, momentum=momentum, bins=bins, bias_correction=bias_correction
        )
        self.reads_labeled = gate == "auc"
        self.labeled_auc = LabeledAuc(facts.num_classes, momentum=momentum) if gate == "auc" else None
        negative_ratio = facts.negative_ratio.float()  # (c,) n
        # Algorithm 1: never more positives, nor more negatives, than the labeled set shows
        upper = negative_ratio.clamp(min=upper_percentile).masked_fill(facts.unseen, upper_percentile)  # for the gate
        self.register_buffer("upper_percentile", upper, persistent=False)
        self.register_buffer("lower_percentile", negative_ratio.clamp(max=lower_percentile), persistent=False)
        self.register_buffer("negative_ratio", negative_ratio, persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        weak = scores.weak.detach()  # nothing is learnt through pseudo-labels
        usual = self.upper_percentile, self.lower_percentile
        upper, lower = self._thresholds(*usual)  # Eq. 4, from the state before this batch
        gap = upper - lower  # whatever the schedule: it measures the model
        opened = self.gate.opened(upper, lower, self.labeled_auc)  # (c,)
        weights = self.weights * opened * (scores.step >= self.first_step)  # Eq. 5, after the warm-up
        percentiles = self.schedule.at(scores.step, *usual, self.negative_ratio)
        if percentiles:
            upper, lower = self._thresholds(*percentiles)
        upper = upper.masked_fill(self.unseen, torch.inf)
        pseudo = select(weak, upper, lower, weights, self.task, meet=self.schedule.course == "prevalence")  # Eq. 1
        if self.selection.soft:
            ranks = self.histogram.ranks(weak)  # (u, c)
            pseudo = self.selection.soften(pseudo, ranks, *(percentiles or usual), self.negative_ratio, self.task)
        if self.training:
            self.histogram.update(weak, last=scores.last)  # Eq. 3
            if self.labeled_auc is not None:
                self.labeled_auc.update(scores)
        return replace(pseudo, gap=gap)

    def _thresholds(self, upper_percentile: Tensor, lower_percentile: Tensor) -> tuple[Tensor, Tensor]:
        upper, lower = self.histogram.quantiles(torch.stack([upper_percentile, lower_percentile], dim=1)).unbind(dim=1)
        return upper, lower  # (c,) each

    @classmethod
    def gap_gate(cls, options: Mapping[str, Any]) -> tuple[float, float] | None:
        return (options["gap_start"], options["gap_full"]) if options["gate"] == "gap" else None
