"""The records that modules pass to each other.

Axes: b labeled images of a batch, u unlabeled images of a batch, c classes, k histogram bins, h w pixels.

The paper's symbols and our words: p `weak` scores; p~ `targets`; g `mask`; alpha `weights`; tau+ tau- `upper` `lower`;
kappa+ kappa- `upper_percentile` `lower_percentile`; Delta-tau `gap`; lambda `momentum`; omega, Omega the `weak` and
`strong` views. Scores are probabilities; logits are always called logits.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from percentmatch.errors import UserError

Task = Literal["multi-label", "single-label"]
MOST_CLASSES = 25_000  # that data or a model may have


@dataclass(frozen=True)
class Batch:
    """What one step sees. Views that the method did not ask for are None."""

    images: Tensor  # (b, 3, h, w) the labeled view
    targets: Tensor  # (b, c) 0 or 1
    known: Tensor  # (b, c) 1 where the label is known
    step: Tensor  # () the optimizer step, from 0
    seed: int
    weak: Tensor | None = None  # (u, 3, h, w)
    strong: Tensor | None = None  # (u, 3, h, w)
    weak2: Tensor | None = None  # (u, 3, h, w) a second weak view, drawn apart from the first
    index: Tensor | None = None  # (u,) rows of the unlabeled pool
    uniforms: Tensor | None = None  # (b + 2u, 2) in [0, 1), of all ranks, for a method that mixes images itself
    last: bool = True  # the last part of the step's batch, where it comes in parts
    partner_targets: Tensor | None = None  # (b, c) of the images mixed into `images`; None: not mixed
    partner_known: Tensor | None = None  # (b, c)
    own_share: Tensor | None = None  # (b, 1) how much of each labeled image is its own


def check_task(task: Task) -> Task:
    if task not in get_args(Task):
        raise UserError(f"task must be one of {', '.join(get_args(Task))}, not {task!r}")
    return task


def scores_of(logits: Tensor, task: Task) -> Tensor:
    """Probabilities in float32, without gradient: (n, c) -> (n, c)."""
    logits = logits.detach().float()
    return logits.softmax(dim=1) if task == "single-label" else logits.sigmoid()


@dataclass(frozen=True)
class Scores:
    """What a labeler sees: probabilities on the weak views, the step, and what some labelers need besides."""

    weak: Tensor  # (u, c)
    step: Tensor | int  # () from 0
    last: bool = True  # the last part of the step's batch, where it comes in parts
    index: Tensor | None = None  # (u,) rows of the unlabeled pool
    labeled: Tensor | None = None  # (b, c) probabilities on the labeled views
    targets: Tensor | None = None  # (b, c) their labels, 0 or 1; of mixed images, between them
    known: Tensor | None = None  # (b, c) how much of the label is known, 0 to 1


@dataclass(frozen=True)
class LabeledScores:
    """The labeled images of a run with their probabilities, as a labeler sees them that is fitted between steps."""

    scores: Tensor  # (n, c)
    targets: Tensor  # (n, c) 0 or 1
    known: Tensor  # (n, c) 1 where the label is known
    held_out: Tensor  # (n,) True for images that the supervised loss does not see


@dataclass(frozen=True)
class PseudoLabels:
    """What a labeler returns. A pair (image, class) counts with `mask * weights`."""

    targets: Tensor  # (u, c) p~
    mask: Tensor  # (u, c) g
    weights: Tensor  # (c,) or (u, c) alpha
    upper: Tensor | None = None  # (c,) tau+
    lower: Tensor | None = None  # (c,) tau-
    gap: Tensor | None = None  # (c,) Delta-tau; of the scores' own quantiles where a class has no upper threshold

    @property
    def pair_weights(self) -> Tensor:
        return self.mask * self.weights  # (u, c)


@dataclass(frozen=True)
class StepLoss:
    """The loss of one step: `total` is differentiated; `parts` are detached and stay on the device until read."""

    total: Tensor  # ()
    parts: dict[str, Tensor] = field(default_factory=dict)  # () each
    pseudo: PseudoLabels | None = None  # for the log and for audits where the truth is known


@dataclass(frozen=True)
class Facts:
    """What a method may know of the data before training."""

    positive_counts: Tensor  # (c,) labeled images known to show the class
    known_counts: Tensor  # (c,) labeled images whose label for the class is known
    num_labeled: int
    num_unlabeled: int | None  # None: a stream
    total_steps: int
    unlabeled_batch: int = 0  # unlabeled images a step; 0: not known

    @classmethod
    def from_targets(
        cls,
        targets: Tensor,
        known: Tensor | None = None,
        num_unlabeled: int | None = None,
        total_steps: int = 0,
        unlabeled_batch: int = 0,
    ) -> "Facts":
        """Count the labeled set: `targets` (n, c) of 0 and 1, `known` (n, c) where not every label is known."""
        known = torch.ones_like(targets) if known is None else known
        if targets.ndim != 2 or known.shape != targets.shape:
            shapes = f"{tuple(targets.shape)} and {tuple(known.shape)}"
            raise UserError(f"targets and known must be tables (images, classes), not of shapes {shapes}")
        if not ((targets == 0) | (targets == 1) | (known == 0)).all():
            raise UserError("targets must be 0 or 1 where they are known; say by `known` which are not")
        positives = torch.where(known > 0, targets * known, 0).sum(0, dtype=torch.float64)
        counts = known.sum(0, dtype=torch.float64)
        return cls(positives, counts, len(targets), num_unlabeled, total_steps, unlabeled_batch)

    @property
    def num_classes(self) -> int:
        return len(self.positive_counts)

    @property
    def prevalence(self) -> Tensor:
        """Fraction of the known labels of each class that are positive (pi); 0 for a class never labeled."""
        return self.positive_counts / self.known_counts.clamp(min=1)  # (c,)

    def prior_logits(self, task: Task) -> Tensor:
        """Logits that predict the prevalence of each class, with one positive and one negative added."""
        smoothed = (self.positive_counts + 1) / (self.known_counts + 2)
        return smoothed.logit() if task == "multi-label" else smoothed.log()  # (c,)

    @property
    def negative_ratio(self) -> Tensor:
        """Fraction of the known labels of each class that are negative; 1 for a class never labeled."""
        return 1 - self.prevalence  # (c,)

    @property
    def unseen(self) -> Tensor:
        """Classes without one labeled positive: they never get a positive pseudo-label."""
        return self.positive_counts == 0  # (c,)
