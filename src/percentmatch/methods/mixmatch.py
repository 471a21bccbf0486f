"""MixMatch: sharpened guesses for the unlabeled images, and mixup of them with the labeled ones.

The labels that are mixed may be unknown; the fractions come from a beta distribution without a random generator.
"""

import torch
from torch import Tensor, nn

from percentmatch.distributed.group import gather_rows, own_rows
from percentmatch.errors import UserError
from percentmatch.losses import mean_over_images
from percentmatch.methods.base import step_loss
from percentmatch.methods.ramped import Ramped, squared_error
from percentmatch.records import Batch, Facts, PseudoLabels, StepLoss, Task

TABLE = 4097  # entries of the table that turns uniform numbers into fractions


class MixMatch(Ramped):
    """Mixup over labeled images and two views of each unlabeled one, which both carry its sharpened mean prediction.

    temperature: below 1 it sharpens the guesses (T)
    mixup: fractions of the mixtures come from Beta(mixup, mixup) (the paper has 0.75)
    weight: of the unlabeled loss once its ramp is over
    ramp_ratio: fraction of the steps in which the weight grows linearly from 0
    """

    views = frozenset({"weak", "weak2", "uniforms"})
    own_loss = "bce"  # linear in the target, so it takes soft ones; ASL is not

    table: Tensor

    def __init__(
        self,
        facts: Facts,
        *,
        task: Task = "multi-label",
        temperature: float = 0.5,
        mixup: float = 0.5,
        weight: float = 75.0,
        ramp_ratio: float = 0.4,
    ) -> None:
        super().__init__(facts, task=task, loss="bce", weight=weight, ramp_ratio=ramp_ratio)
        if not 0 < temperature <= 1:
            raise UserError(f"temperature must be above 0 and at most 1, not {temperature}")
        if not 0.01 <= mixup <= 10:
            raise UserError(f"mixup must lie between 0.01 and 10, not {mixup}")
        self.temperature = temperature
        self.register_buffer("table", larger_shares(mixup), persistent=False)

    def forward(self, model: nn.Module, batch: Batch, teacher: nn.Module) -> StepLoss:
        assert batch.weak is not None
        assert batch.weak2 is not None
        assert batch.uniforms is not None
        b = len(batch.images)
        with torch.no_grad():
            both = self.soft_targets(model(torch.cat([batch.weak, batch.weak2])))  # (2u, c)
        guesses = self._sharpen(both.view(2, len(batch.weak), -1).mean(0))  # (u, c)
        targets, known = labels_of(batch)
        pseudo = PseudoLabels(guesses, self.taught.expand_as(guesses), self.weights(batch.step))
        own = (batch.images, batch.weak, batch.weak2)
        images = torch.cat([gather_rows(rows) for rows in own])  # (n, 3, h, w): labeled, weak, weak2 of all ranks
        targets = torch.cat([gather_rows(rows) for rows in (targets, guesses, guesses)])  # (n, c)
        known = torch.cat([gather_rows(rows) for rows in (known, pseudo.mask, pseudo.mask)])  # (n, c)

        mine = own_rows([len(rows) for rows in own], images.device)  # (b + 2u,)
        partner = batch.uniforms[:, 0].argsort(stable=True)[mine]
        fraction = look_up(self.table, batch.uniforms[mine, 1])[:, None]  # (b + 2u, 1) max(l, 1 - l)
        mixed = torch.lerp(images[partner], images[mine], fraction[:, :, None, None].to(images.dtype))
        targets, known = blend(targets[mine], known[mine], targets[partner], known[partner], fraction)

        logits = model(mixed)
        supervised = mean_over_images(self.pair_loss(logits[:b], targets[:b]), known[:b])
        errors = squared_error(logits[b:], targets[b:], self.task)  # (2u, c)
        unlabeled = (known[b:] * pseudo.weights * errors).mean()
        return step_loss(supervised, unlabeled, pseudo)

    def _sharpen(self, scores: Tensor) -> Tensor:
        """p^(1/T) over its sum, of the pair (p, 1 - p) or of the whole row: (u, c) -> (u, c)."""
        if self.task == "multi-label":
            return (scores.logit() / self.temperature).sigmoid()
        return (scores.clamp(min=1e-30).log() / self.temperature).softmax(dim=1)


def blend(targets: Tensor, known: Tensor, other: Tensor, other_known: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """The targets (n, c) of mixtures, and how much of each pair is known: what is unknown in either does not count.

    For a loss that is linear in its target, known x loss(target) is then ratio x known_1 x loss(target_1)
    + (1 - ratio) x known_2 x loss(target_2).
    """
    mine, theirs = ratio * known, (1 - ratio) * other_known  # (n, c)
    both = mine + theirs
    return (mine * targets + theirs * other) / both.clamp(min=1e-30), both


def labels_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Targets and known (b, c) of the labeled images as the network sees them: of mixed ones, both by their ratio."""
    if batch.own_share is None or batch.partner_targets is None or batch.partner_known is None:
        return batch.targets, batch.known
    return blend(batch.targets, batch.known, batch.partner_targets, batch.partner_known, batch.own_share)


def larger_shares(strength: float) -> Tensor:
    """Quantiles of max(l, 1 - l) for l from Beta(strength, strength), from the largest down: (TABLE,).

    The upper half of the density is integrated over s with 1 - l = s^(1/m), m = min(strength, 1): by s it is
    l^(a-1) s^((a-m)/m), which has no pole, unlike the density by l for a < 1.
    """
    m = min(strength, 1.0)
    s = torch.linspace(0, 0.5**m, 16 * TABLE, dtype=torch.float64)  # l = 1 at s = 0, l = 1/2 at the end
    density = (1 - s ** (1 / m)) ** (strength - 1) * s ** ((strength - m) / m)
    mass = torch.cumulative_trapezoid(density, s)
    mass = torch.cat([mass.new_zeros(1), mass]) / mass[-1]  # P[max(l, 1 - l) > l(s)]
    wanted = torch.linspace(0, 1, TABLE, dtype=torch.float64)
    right = torch.searchsorted(mass, wanted).clamp(1, len(s) - 1)
    inside = (wanted - mass[right - 1]) / (mass[right] - mass[right - 1]).clamp(min=1e-300)
    return (1 - torch.lerp(s[right - 1], s[right], inside.clamp(0, 1)) ** (1 / m)).float()


def look_up(table: Tensor, uniform: Tensor) -> Tensor:
    """The table at `uniform` (n,) in [0, 1), interpolated: (n,)."""
    position = uniform * (len(table) - 1)
    left = position.long()
    return torch.lerp(table[left], table[left + 1], position - left)
