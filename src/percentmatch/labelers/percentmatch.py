"""PercentMatch: thresholds at fixed percentiles of each class's scores, and weights that follow their gap."""

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers.base import Labeler, hard_labels, select
from percentmatch.labelers.gates import Gate, LabeledAuc, logit_gap, ramp
from percentmatch.labelers.histogram import ScoreHistogram
from percentmatch.labelers.schedules import Schedule, moving_steps, percentiles_at
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
    selection: only scores beyond the thresholds count ("hard", the paper's), those between them count less ("soft"), or
        every pair counts, divided at the labeled prevalence ("all")
    targets: pseudo-labels are 0 or 1 ("hard", the paper's), or the scores themselves ("soft"), with the odds of each
        class moved so that its mean is its labeled prevalence
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

    upper_percentile: Tensor
    lower_percentile: Tensor
    negative_ratio: Tensor
    unseen: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        upper_percentile: float = 0.98,
        lower_percentile: float = 0.1,
        momentum: float = 0.98,
        num_bins: int = 100,
        bins: Literal["uniform", "logit"] = "uniform",
        bias_correction: bool = False,
        gap_start: float = 0.5,
        gap_full: float = 0.55,
        weight: float = 1.0,
        warmup_steps: int = 300,
        unseen_classes: Literal["negatives", "off"] = "negatives",
        selection: Literal["hard", "soft", "all"] = "hard",
        targets: Literal["hard", "soft"] = "hard",
        schedule: Schedule = "constant",
        schedule_ratio: float = 0.5,
        strict_ratio: float = 0.25,
        gate: Gate = "gap",
        logit_gap_start: float = 2.2,
        logit_gap_full: float = 2.5,
        auc_start: float = 0.8,
        auc_full: float = 0.9,
    ) -> None:
        super().__init__()
        if not 0 <= lower_percentile < upper_percentile <= 1:
            raise UserError(
                "percentiles must satisfy 0 <= lower_percentile < upper_percentile <= 1, "
                f"not lower_percentile={lower_percentile} and upper_percentile={upper_percentile}"
            )
        if not (math.isfinite(weight) and weight >= 0):
            raise UserError(f"weight must be finite and not negative, not {weight}")
        if unseen_classes not in ("negatives", "off"):
            raise UserError(f"unseen_classes must be 'negatives' or 'off', not '{unseen_classes}'")
        if selection not in ("hard", "soft", "all"):
            raise UserError(f"selection must be 'hard', 'soft' or 'all', not '{selection}'")
        if targets not in ("hard", "soft"):
            raise UserError(f"targets must be 'hard' or 'soft', not '{targets}'")
        if gate not in ("gap", "logit-gap", "auc", "none"):
            raise UserError(f"gate must be 'gap', 'logit-gap', 'auc' or 'none', not '{gate}'")
        if not 0 <= auc_start <= auc_full <= 1:
            raise UserError(f"auc_start ({auc_start}) and auc_full ({auc_full}) must rise within 0 and 1")
        for name, start, full in (("gap", gap_start, gap_full), ("logit_gap", logit_gap_start, logit_gap_full)):
            if not -math.inf < start <= full < math.inf:
                raise UserError(f"{name}_start ({start}) must be finite and not exceed {name}_full ({full})")
        self.task: Task = task
        self.weight, self.unseen_classes = weight, unseen_classes
        self.first_step = max(warmup_steps - 1, 0)  # the paper counts from t = 1
        self.selection, self.schedule, self.gate = selection, schedule, gate
        self.soft_targets = targets == "soft"
        self.reads_labeled = gate == "auc"
        self.strict_ratio, self.moving_steps = strict_ratio, moving_steps(schedule, schedule_ratio, strict_ratio, facts)
        self.gate_range = {
            "gap": (gap_start, gap_full),
            "logit-gap": (logit_gap_start, logit_gap_full),
            "auc": (auc_start, auc_full),
        }.get(gate)
        self.histogram = ScoreHistogram(
            facts.num_classes, num_bins=num_bins, momentum=momentum, bins=bins, bias_correction=bias_correction
        )
        self.labeled_auc = LabeledAuc(facts.num_classes, momentum=momentum) if gate == "auc" else None
        negative_ratio = facts.negative_ratio.float()  # (c,)
        # Algorithm 1: never more positives, nor more negatives, than the labeled set shows
        upper = negative_ratio.clamp(min=upper_percentile).masked_fill(facts.unseen, upper_percentile)  # for the gate
        self.register_buffer("upper_percentile", upper, persistent=False)
        self.register_buffer("lower_percentile", negative_ratio.clamp(max=lower_percentile), persistent=False)
        self.register_buffer("negative_ratio", negative_ratio, persistent=False)
        self.register_buffer("unseen", facts.unseen, persistent=False)

    def forward(self, scores: Scores) -> PseudoLabels:
        scores = replace(scores, weak=scores.weak.detach())  # nothing is learnt through pseudo-labels
        usual = self.upper_percentile, self.lower_percentile
        upper, lower = self._thresholds(*usual)  # (c,) from the state before this batch
        gap = upper - lower  # whatever the schedule: it measures the model
        weights = self._weights(upper, lower, scores.step)
        percentiles = usual
        if self.schedule != "constant":
            percentiles = self._moved(scores.step)
            upper, lower = self._thresholds(*percentiles)
        meet = self.schedule == "prevalence" or self.selection == "all"
        if self.selection == "all":
            upper, lower = self._thresholds(self.negative_ratio, self.negative_ratio)
        upper = upper.masked_fill(self.unseen, torch.inf)
        pseudo = select(scores.weak, upper, lower, weights, self.task, meet=meet)
        if self.selection == "soft":
            pseudo = self._soften(pseudo, scores.weak, *percentiles)
        if self.selection == "all":
            pseudo = replace(pseudo, mask=self._every_pair(scores.weak))
        if self.soft_targets:
            pseudo = replace(pseudo, targets=self._aligned(scores.weak))
            if self.task == "single-label" and self.gate != "none":  # a row is one loss: the weight of its best class
                best = pseudo.targets.argmax(dim=1, keepdim=True)  # (u, 1)
                pseudo = replace(pseudo, weights=weights[best].expand_as(pseudo.targets))
        if self.training:
            self.histogram.update(scores.weak, last=scores.last)
            if self.labeled_auc is not None:
                self.labeled_auc.update(scores)
        return replace(pseudo, gap=gap)

    def _thresholds(self, upper_percentile: Tensor, lower_percentile: Tensor) -> tuple[Tensor, Tensor]:
        upper, lower = self.histogram.quantiles(torch.stack([upper_percentile, lower_percentile], dim=1)).unbind(dim=1)
        return upper, lower  # (c,) each

    def _moved(self, step: Tensor | int) -> tuple[Tensor, Tensor]:
        """The percentiles (c,) at a step."""
        upper, lower = self.upper_percentile, self.lower_percentile
        share = (torch.ones_like(upper) * (step / self.moving_steps)).clamp(max=1)  # (c,) of the way
        return percentiles_at(share, self.schedule, upper, lower, self.negative_ratio, self.strict_ratio)

    def _weights(self, upper: Tensor, lower: Tensor, step: Tensor | int) -> Tensor:
        """Eq. 5: 0 below the gate's start or before the warm-up's end, `weight` above its full value: (c,)."""
        if self.gate_range is None:
            opened = torch.ones_like(upper)
        elif self.labeled_auc is not None:
            opened = ramp(self.labeled_auc.auc(), *self.gate_range)
        else:
            gap = upper - lower if self.gate == "gap" else logit_gap(upper, lower)
            opened = ramp(gap, *self.gate_range)
        started = step >= self.first_step
        weights = self.weight * opened * started
        return weights.masked_fill(self.unseen, 0.0) if self.unseen_classes == "off" else weights

    def _aligned(self, weak: Tensor) -> Tensor:
        """Scores (u, c) whose class means are the labeled prevalence, by the histogram; 0 for an unseen class.

        With one label an image, rows are made to sum to one.
        """
        shifted = (weak.float().logit(1e-6) + self.histogram.logit_shift(1 - self.negative_ratio)).sigmoid()
        shifted = shifted.masked_fill(self.unseen, 0.0)
        return shifted / shifted.sum(dim=1, keepdim=True) if self.task == "single-label" else shifted

    def _every_pair(self, weak: Tensor) -> Tensor:
        """A mask (u, c) of all pairs but, with one hard label an image, rows whose best class is unseen."""
        if self.task == "single-label" and not self.soft_targets:
            return hard_labels(weak, self.unseen, self.task)[1]
        return torch.ones_like(weak, dtype=torch.float32)

    def _soften(self, pseudo: PseudoLabels, weak: Tensor, upper: Tensor, lower: Tensor) -> PseudoLabels:
        """Full weight beyond the percentiles `upper` and `lower` (c,), none at the labeled share of negatives.

        In between, the mask is linear in a score's own percentile. With one label an image, the whole row has the
        weight of its best class as a positive.
        """
        ranks = self.histogram.ranks(weak)  # (u, c)
        above, below = ranks - self.negative_ratio, self.negative_ratio - ranks
        positive = (above / (upper - self.negative_ratio).clamp(min=1e-6)).clamp(0, 1)  # 0 if unseen: ratio 1
        negative = (below / (self.negative_ratio - lower).clamp(min=1e-6)).clamp(0, 1)
        if self.task == "single-label":
            return replace(pseudo, mask=(positive * pseudo.targets).sum(dim=1, keepdim=True).expand_as(positive))
        return replace(pseudo, targets=(positive > 0).float(), mask=torch.maximum(positive, negative))
