"""FreeMatch: thresholds that follow the model's own confidence, and a term that keeps rare answers alive."""

import torch
from torch import Tensor

from percentmatch.distributed.group import StepSums, sum_over_ranks, sum_with_gradient
from percentmatch.labelers.base import Labeler, check_between, check_weight
from percentmatch.records import Facts, PseudoLabels, Scores, Task


class FreeMatch(Labeler):
    """Self-adaptive thresholds and fairness (FreeMatch, Wang et al. 2023).

    Each class is a question with two answers, present and absent; with one label an image, there is one question with
    c answers. Axes of the state: g questions, a answers.

    momentum: of the moving means
    fairness: weight of the fairness term
    weight: of the unlabeled loss
    """

    certainty: Tensor
    mean: Tensor
    histogram: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        momentum: float = 0.999,
        fairness: float = 0.01,
        weight: float = 1.0,
    ) -> None:
        super().__init__(facts, task, weight=weight)
        check_between(0, 1, momentum=momentum)
        check_weight(fairness=fairness)
        self.momentum, self.fairness = momentum, fairness
        c = facts.num_classes
        g, a = (1, c) if task == "single-label" else (c, 2)
        self._sums = StepSums()
        self.register_buffer("certainty", torch.full((g, 1), 1 / a))  # t, mean q
        self.register_buffer("mean", torch.full((g, a), 1 / a))  # m, mean p of each answer
        self.register_buffer("histogram", torch.full((g, a), 1 / a))  # h, fraction of images with each likelier answer

    def forward(self, scores: Scores) -> PseudoLabels:
        thresholds = self.certainty * self.mean / self.mean.amax(dim=1, keepdim=True)  # (g, a) t m / max(m)
        if self.task == "single-label":
            upper, absent = thresholds[0], thresholds[0]  # (c,)
        else:
            upper, absent = thresholds.clamp(min=0.5).unbind(dim=1)  # the likelier answer has at least .5
        pseudo = self.thresholded(scores.weak, upper, 1 - absent)
        if self.training:
            self._learn(scores)
        return pseudo

    @torch.no_grad()
    def _learn(self, scores: Scores) -> None:
        answers = self._answers(scores.weak.float())  # (u, g, a)
        sums = [answers.sum(0), _likelier(answers).sum(0), answers.amax(dim=2, keepdim=True).sum(0)]
        sums = self._sums.add(torch.cat(sums, dim=1), last=scores.last)  # (g, 2a + 1)
        if sums is None:
            return
        mean, histogram, certainty = sums.split([self.mean.shape[1], self.mean.shape[1], 1], dim=1)
        num_images = histogram.sum(dim=1, keepdim=True)  # of all micro-batches and ranks
        for state, total in ((self.mean, mean), (self.histogram, histogram), (self.certainty, certainty)):
            state.lerp_(torch.where(num_images > 0, total / num_images, state), 1 - self.momentum)

    def penalty(self, strong: Tensor, pseudo: PseudoLabels) -> Tensor:
        """Cross-entropy from m / h of the moving means to that of this batch's selected strong scores: ().

        Both are made to sum to one over the answers that occur in the batch; a question with one such answer adds 0.
        """
        answers = self._answers(strong)  # (u, g, a)
        mask = pseudo.mask[:, :1] if self.task == "single-label" else pseudo.mask  # (u, g)
        num_selected = sum_over_ranks(mask.sum(dim=0)).clamp(min=1)[:, None]  # (g, 1)
        mean = sum_with_gradient((mask[:, :, None] * answers).sum(dim=0)) / num_selected  # (g, a)
        histogram = sum_over_ranks((mask[:, :, None] * _likelier(answers)).sum(dim=0)) / num_selected  # (g, a)
        occurs = histogram > 0
        occurs = occurs & ~(self.unseen if self.task == "single-label" else self.unseen[:, None])
        wanted = _normalised(self.mean / self.histogram.clamp(min=1e-12), occurs)
        found = _normalised(mean / torch.where(occurs, histogram, 1.0), occurs)
        log_found = torch.where(occurs, found, 1.0).clamp(min=1e-12).log()
        return -self.fairness * (wanted * log_found).sum()

    def _answers(self, scores: Tensor) -> Tensor:
        """Probabilities of the answers to each question: (u, c) -> (u, g, a)."""
        return scores[:, None] if self.task == "single-label" else torch.stack([scores, 1 - scores], dim=2)


def _likelier(answers: Tensor) -> Tensor:
    """1 at the likelier answer to each question: (u, g, a)."""
    return torch.zeros_like(answers).scatter_(2, answers.argmax(dim=2, keepdim=True), 1.0)


def _normalised(values: Tensor, occurs: Tensor) -> Tensor:
    """Rows (g, a) that sum to one over the answers that occur, 0 elsewhere."""
    values = torch.where(occurs, values, 0.0)
    return values / values.sum(dim=1, keepdim=True).clamp(min=1e-12)
