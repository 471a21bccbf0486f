"""Pseudo-labels of the whole pool, made anew in rounds and looked up by image: what UPS, CAP and their kin share."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from percentmatch.labelers.base import check_pool, check_weight
from percentmatch.losses import Loss, mean_over_images
from percentmatch.methods.base import Method, Pool, forward_together, labeled_loss, step_loss
from percentmatch.records import Batch, Facts, PseudoLabels, StepLoss


class Rounds(Method):
    """The supervised loss plus the selected pairs of the pool on one view. Before the first round none is selected.

    Every rank has the scores of the whole pool, so the labels agree between ranks.
    """

    views = frozenset({"weak"})
    needs_pool = True

    targets: Tensor
    mask: Tensor
    round: Tensor
    weights: Tensor
    unseen: Tensor
    labeled: Tensor

    def __init__(self, facts: Facts, *, loss: Loss, weight: float, pool_loss: Loss | None = None) -> None:
        super().__init__()
        check_pool(self, facts)
        check_weight(weight=weight)
        self.pair_loss, self.pool_loss = loss, pool_loss or loss
        n, c = facts.num_unlabeled or 0, facts.num_classes
        self.register_buffer("targets", torch.zeros(n, c, dtype=torch.uint8))  # (N, c)
        self.register_buffer("mask", torch.zeros(n, c, dtype=torch.uint8))  # (N, c)
        self.register_buffer("round", torch.zeros((), dtype=torch.int64))  # rounds begun, but the first
        self.register_buffer("weights", torch.full((c,), weight, dtype=torch.float32), persistent=False)
        self.register_buffer("unseen", facts.unseen, persistent=False)
        self.register_buffer("labeled", facts.known_counts > 0, persistent=False)  # (c,)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        assert batch.index is not None
        images = batch.strong if "strong" in self.views else batch.weak
        logits, pool_logits = forward_together(model, batch.images, images)
        targets, mask = self.targets[batch.index].float(), self.mask[batch.index].float()  # (u, c)
        pseudo = PseudoLabels(targets, mask, self.weights)
        supervised = labeled_loss(self.pair_loss, logits, batch)
        unlabeled = mean_over_images(self.pool_loss(pool_logits, targets), pseudo.pair_weights)
        return step_loss(supervised, unlabeled, pseudo)

    @torch.no_grad()
    def refresh(self, pool: Pool) -> None:
        self.round += 1
        chosen = self.choose(pool, int(self.round))
        if chosen is not None:
            positive = chosen[0] & ~self.unseen  # (N, c)
            negative = chosen[1] & self.labeled & ~positive  # a class never labeled is left out
            self.targets.copy_(positive)
            self.mask.copy_(positive | negative)

    @abstractmethod
    def choose(self, pool: Pool, round_number: int) -> tuple[Tensor, Tensor] | None:
        """The pairs labeled positive and those labeled negative, (N, c) each; None leaves the labels as they are."""


def expected_positives(facts: Facts) -> Tensor:
    """How many images of the pool show each class if it is as common there as among the labeled: (c,).

    N * positives / known to the nearest whole number, halves upwards, in whole numbers throughout.
    """
    known = facts.known_counts.long().clamp(min=1)
    return (2 * (facts.num_unlabeled or 0) * facts.positive_counts.long() + known) // (2 * known)


def share_of(count: Tensor, share: float) -> Tensor:
    """`share` of `count`, to the nearest whole number, halves upwards: (c,) -> (c,)."""
    return (share * count.double() + 0.5).floor().long()


def places(scores: Tensor) -> Tensor:
    """Each image's place in a class's ranking, 0 for the largest score, ties in the pool's order: (N, c) -> (N, c)."""
    order = scores.argsort(dim=0, descending=True, stable=True)  # (N, c) image at each place
    place = torch.arange(len(scores), device=scores.device)[:, None].expand_as(order)
    return torch.empty_like(order).scatter_(0, order, place)


def top_and_bottom(scores: Tensor, num_top: Tensor, num_bottom: Tensor) -> tuple[Tensor, Tensor]:
    """Which images are among the first `num_top` (c,) and the last `num_bottom` (c,) of each class: (N, c) each."""
    place = places(scores)
    return place < num_top.to(place.device), place >= len(scores) - num_bottom.to(place.device)


def steps_of_a_generation(facts: Facts, num_generations: int) -> int:
    """So that the run has `num_generations` of equal length, the last shorter by the remainder."""
    return max(math.ceil(facts.total_steps / num_generations), 1)
