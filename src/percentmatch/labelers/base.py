"""What a labeler is, and the rules they share: Eq. 1, hard labels, confidence and distribution alignment."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.records import Facts, LabeledScores, PseudoLabels, Scores, Task, check_task

UnseenClasses = Literal["negatives", "off"]  # what a class without labeled positives is given


class Labeler(nn.Module, ABC):
    """Scores in, pseudo-labels out. Its state lives in buffers; train mode updates them, eval mode only reads.

    What a labeler needs, it declares as attributes of its class or of itself.
    """

    soft_targets: bool = False  # targets between 0 and 1: the unlabeled loss is then BCE, or cross-entropy
    every_pair: bool = False  # every pair counts: a score above `PseudoLabels.upper` is rather positive
    first_step: int = 0  # before it nothing is selected
    warmup_options: tuple[str, ...] = ()  # the options that set it
    reads_labeled: bool = False  # learns from `Scores.labeled`: teacher scores then include the labeled images
    needs_pool: bool = False  # keeps a row for each unlabeled image, so it cannot train on a stream
    fit_steps: int | None = None  # `fit` is called before every step that is a multiple of this, but step 0
    holds_out: int = 0  # one in so many labeled images is treated as unlabeled, and `fit` learns from its labels
    head_epochs: int = 0  # at the end the head alone learns so many passes over the images held out

    weights: Tensor
    unseen: Tensor

    def __init__(self, facts: Facts, task: Task = "multi-label", *, weight: float = 1.0) -> None:
        super().__init__()
        check_weight(weight=weight)
        check_pool(self, facts)
        self.task: Task = check_task(task)
        c = facts.num_classes
        self.chance = 1 / c if task == "single-label" else 0.5  # the least probability of a likelier answer
        self.register_buffer("weights", torch.full((c,), weight, dtype=torch.float32), persistent=False)  # (c,)
        self.register_buffer("unseen", facts.unseen, persistent=False)  # (c,)

    @abstractmethod
    def forward(self, scores: Scores) -> PseudoLabels: ...

    def fit(self, labeled: LabeledScores) -> None:
        """Learn from the scores of all labeled images; only labelers with `fit_steps` are asked to."""

    def penalty(self, strong: Tensor, pseudo: PseudoLabels) -> Tensor | None:
        """A term () of the loss beside the selected pairs, from the strong view's probabilities (u, c), or None."""
        return None

    def leave_out_unseen(self, unseen_classes: UnseenClasses) -> None:
        """With "off", classes without labeled positives have no weight; with "negatives" the usual one."""
        check_choice(UnseenClasses, unseen_classes=unseen_classes)
        if unseen_classes == "off":
            self.weights.masked_fill_(self.unseen, 0.0)

    def thresholded(self, weak: Tensor, upper: Tensor, lower: Tensor, weights: Tensor | None = None) -> PseudoLabels:
        """Eq. 1 for scores (u, c) and thresholds (c,) that may be equal; an unseen class gets no positives.

        With one label an image the lower threshold is 0. `weights` are the usual ones if not given.
        """
        upper = upper.masked_fill(self.unseen, torch.inf)
        lower = torch.zeros_like(upper) if self.task == "single-label" else lower
        pseudo = select(weak, upper, lower, self.weights if weights is None else weights, self.task, meet=True)
        return replace(pseudo, gap=upper - lower)

    @classmethod
    def gap_gate(cls, options: Mapping[str, Any]) -> tuple[float, float] | None:
        """The threshold gaps between which a class's weight rises with these options, of which none is left out."""
        return None


def select(
    weak: Tensor, upper: Tensor, lower: Tensor, weights: Tensor, task: Task, *, meet: bool = False
) -> PseudoLabels:
    """Eq. 1: scores (u, c) above `upper` (c,) become positives, those below `lower` (c,) negatives.

    A class whose lower threshold is not below its upper one selects nothing; with `meet`, they may be equal. With one
    label an image, the whole row counts if its largest score exceeds that class's upper threshold; `lower` is not used.
    """
    weak = weak.float()
    if task == "single-label":
        best = weak.argmax(dim=1, keepdim=True)  # (u, 1)
        targets = torch.zeros_like(weak).scatter_(1, best, 1.0)  # (u, c)
        mask = (weak.gather(1, best) > upper[best]).expand_as(weak).float()
    else:
        positive, negative = weak > upper, weak < lower  # (u, c)
        targets = positive.float()
        apart = upper >= lower if meet else upper > lower  # (c,)
        mask = ((positive | negative) & apart).float()
    return PseudoLabels(targets, mask, weights, upper, lower)


def hard_labels(weak: Tensor, unseen: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """The likelier answer of every pair (u, c), and a mask (u, c) that is 0 where it is a positive of an unseen class.

    With one label an image, the answer is the best class, and a row whose best class is unseen is masked whole.
    """
    weak = weak.float()
    if task == "single-label":
        best = weak.argmax(dim=1, keepdim=True)  # (u, 1)
        return torch.zeros_like(weak).scatter_(1, best, 1.0), (~unseen[best]).expand_as(weak).float()
    positive = weak >= 0.5  # (u, c)
    return (positive & ~unseen).float(), (~(positive & unseen)).float()


def confidence(scores: Tensor, task: Task) -> Tensor:
    """q: the probability of the likelier answer of each pair; with one label an image, the row's best: (n, c)."""
    scores = scores.float()
    if task == "single-label":
        return scores.amax(dim=1, keepdim=True).expand_as(scores)
    return torch.maximum(scores, 1 - scores)


def labeled_scores(scores: Scores) -> tuple[Tensor, Tensor]:
    """The scores of the labeled images, and how much of each label is known: (b, c) each."""
    if scores.labeled is None:
        raise UserError("this method learns from the scores of labeled images: give Scores its labeled")
    labeled = scores.labeled.float()
    return labeled, torch.ones_like(labeled) if scores.known is None else scores.known.float()


def align(weak: Tensor, mean: Tensor, wanted: Tensor, task: Task) -> Tensor:
    """Scores (u, c) whose odds are moved by those of a `wanted` mean (c,) over the present one (c,): (u, c).

    With one label an image, a row is multiplied by wanted / mean and made to sum to one.
    """
    weak = weak.float()
    mean, wanted = mean.clamp(1e-6, 1 - 1e-6), wanted.clamp(1e-6, 1 - 1e-6)
    present = weak * (wanted / mean)  # (u, c)
    if task == "single-label":
        return present / present.sum(dim=1, keepdim=True).clamp(min=1e-12)
    absent = (1 - weak) * ((1 - wanted) / (1 - mean))
    return present / (present + absent)


def round_length(facts: Facts, refresh_steps: int) -> int:
    """Steps between two looks at all images: as given, or one pass over the pool, or a fifth of the run if less."""
    check_between(0, 10**9, refresh_steps=refresh_steps)
    if not refresh_steps and (facts.num_unlabeled is None or not facts.unlabeled_batch):
        raise UserError("refresh_steps must be given for a stream, or where the unlabeled batch is not known")
    one_pass = math.ceil((facts.num_unlabeled or 0) / max(facts.unlabeled_batch, 1))
    return refresh_steps or max(min(one_pass, facts.total_steps // 5 or one_pass), 1)


def check_pool(learner: Any, facts: Facts) -> None:
    """Refuse a stream for a labeler or method that needs a pool."""
    if learner.needs_pool and facts.num_unlabeled is None:
        name = type(learner).__name__
        raise UserError(f"{name} needs a pool, not a stream; choose another --method, such as mean_teacher or fixmatch")


def check_choice(kind: Any, **options: str) -> None:
    """Refuse options that are none of the choices of a Literal."""
    choices = [f"'{choice}'" for choice in get_args(kind)]
    for name, value in options.items():
        if value not in get_args(kind):
            raise UserError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, not '{value}'")


def check_between(low: float, high: float, **options: float) -> None:
    """Refuse options outside [low, high], which not-a-number is."""
    for name, value in options.items():
        if not low <= value <= high:
            raise UserError(f"{name} must lie between {low} and {high}, not {value}")


def check_weight(**options: float) -> None:
    """Refuse weights that are negative or not finite."""
    for name, value in options.items():
        if not 0 <= value < torch.inf:
            raise UserError(f"{name} must be finite and not negative, not {value}")


def check_temperature(temperature: float) -> None:
    """Refuse one that logits cannot be divided by."""
    if not 0 < temperature < torch.inf:
        raise UserError(f"temperature must be above 0 and finite, not {temperature}")
