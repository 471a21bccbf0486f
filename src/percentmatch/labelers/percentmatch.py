"""PercentMatch: thresholds at fixed percentiles of each class's scores, and weights that follow their gap."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, UnseenClasses, check_between, check_choice, select
from percentmatch.labelers.histogram import Bins, Gate, LabeledAuc, Measure, ScoreHistogram
from percentmatch.records import Facts, PseudoLabels, Scores, Task

Schedule = Literal["constant", "curriculum", "anti-curriculum", "prevalence"]
Selection = Literal["hard", "soft"]


class PercentMatch(Labeler):
    """Percentile thresholds and gap-gated weights, as in the paper's Algorithm 1.

    upper_percentile: fraction of the scores that lie below the positive threshold (kappa+)
    lower_percentile: fraction of the scores that lie below the negative threshold (kappa-)
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
    schedule_ratio: fraction of the run, from its start, in which a schedule moves
    strict_ratio: fraction of the usual pairs that is selected at the strict end of a curriculum
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
        selection: Selection = "hard",
        schedule: Schedule = "constant",
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
            found = f"lower_percentile={lower_percentile} and upper_percentile={upper_percentile}"
            raise UserError(f"percentiles must satisfy 0 <= lower < upper <= 1, not {found}")
        check_choice(Selection, selection=selection)
        check_choice(Schedule, schedule=schedule)
        check_between(0, 1, strict_ratio=strict_ratio)
        if not 0 < schedule_ratio <= 1:
            raise UserError(f"schedule_ratio must be above 0 and at most 1, not {schedule_ratio}")
        if schedule != "constant" and facts.total_steps < 1:
            raise UserError(f"schedule '{schedule}' needs the length of the run: give Facts its total_steps")
        self.selection, self.schedule, self.strict_ratio = selection, schedule, strict_ratio
        self.schedule_steps = schedule_ratio * facts.total_steps
        self.leave_out_unseen(unseen_classes)
        self.first_step = max(warmup_steps - 1, 0)  # the paper counts from t = 1
        self.gate = Gate(
            gate, gap=(gap_start, gap_full), logit_gap=(logit_gap_start, logit_gap_full), auc=(auc_start, auc_full)
        )
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
        upper, lower = self._thresholds(self.upper_percentile, self.lower_percentile)  # Eq. 3, before this batch
        gap = upper - lower  # whatever the schedule: it measures the model
        opened = self.gate.opened(upper, lower, self.labeled_auc)  # (c,)
        weights = self.weights * opened * (scores.step >= self.first_step)  # Eq. 5, after the warm-up
        percentiles = self._percentiles(scores.step)
        if self.schedule != "constant":
            upper, lower = self._thresholds(*percentiles)
        upper = upper.masked_fill(self.unseen, torch.inf)
        pseudo = select(weak, upper, lower, weights, self.task, meet=self.schedule == "prevalence")  # Eq. 1
        if self.selection == "soft":
            pseudo = self._soften(pseudo, self.histogram.ranks(weak), *percentiles)
        if self.training:
            self.histogram.update(weak, last=scores.last)  # Eq. 4
            if self.labeled_auc is not None:
                self.labeled_auc.update(scores)
        return replace(pseudo, gap=gap)

    def _thresholds(self, upper_percentile: Tensor, lower_percentile: Tensor) -> tuple[Tensor, Tensor]:
        upper, lower = self.histogram.quantiles(torch.stack([upper_percentile, lower_percentile], dim=1)).unbind(dim=1)
        return upper, lower  # (c,) each

    def _percentiles(self, step: Tensor | int) -> tuple[Tensor, Tensor]:
        """The upper and the lower percentile of each class (c,) at a step.

        At the strict end of a curriculum, `strict_ratio` of the usual fractions are selected, at its other end the
        usual ones, so the labeled set's limits on them hold throughout.
        """
        upper, lower = self.upper_percentile, self.lower_percentile
        if self.schedule == "constant":
            return upper, lower
        progress = (torch.ones_like(upper) * (step / self.schedule_steps)).clamp(max=1)  # (c,)
        if self.schedule == "prevalence":  # both move to the labeled fraction of negatives
            return torch.lerp(upper, self.negative_ratio, progress), torch.lerp(lower, self.negative_ratio, progress)
        strictness = 1 - progress if self.schedule == "curriculum" else progress
        selected = 1 - (1 - self.strict_ratio) * strictness  # (c,) of the usual fraction
        return 1 - selected * (1 - upper), selected * lower

    def _soften(self, pseudo: PseudoLabels, ranks: Tensor, upper: Tensor, lower: Tensor) -> PseudoLabels:
        """Full weight beyond the percentiles `upper` and `lower` (c,), none at the labeled fraction of negatives.

        In between, the mask is linear in a score's own percentile, its rank (u, c). With one label an image, the whole
        row has the weight of its best class as a positive.
        """
        above = (ranks - self.negative_ratio) / (upper - self.negative_ratio).clamp(min=1e-6)  # (u, c)
        below = (self.negative_ratio - ranks) / (self.negative_ratio - lower).clamp(min=1e-6)
        positive, negative = above.clamp(0, 1), below.clamp(0, 1)  # positive is 0 if unseen: the ratio is 1
        if self.task == "single-label":
            return replace(pseudo, mask=(positive * pseudo.targets).sum(dim=1, keepdim=True).expand_as(positive))
        return replace(pseudo, targets=(positive > 0).float(), mask=torch.maximum(positive, negative))

    @classmethod
    def gap_gate(cls, options: Mapping[str, Any]) -> tuple[float, float] | None:
        return (options["gap_start"], options["gap_full"]) if options["gate"] == "gap" else None
