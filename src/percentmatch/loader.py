"""Batches: which images a step sees, and their views. A pure function of the seed and the step, so it has no state."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from percentmatch.augment import Blend, frame, make_view, mix, resize, shrink, uniforms
from percentmatch.config import Config, View
from percentmatch.data import Images, Split
from percentmatch.device import send
from percentmatch.records import Batch

LABELED, UNLABELED = 0, 1  # streams of the samplers
LABELED_VIEW, WEAK_VIEW, STRONG_VIEW, WEAK2_VIEW, UNIFORMS, BLEND = range(6)  # streams of the views


def rows_at(seed: int, stream: int, start: int, count: int, total: int) -> Tensor:
    """Rows `start` to `start + count` of an endless series of shuffled passes over `total` rows: (count,)."""
    position = torch.arange(start, start + count)  # (count,)
    epochs = range(start // total, (start + count - 1) // total + 1)
    orders = torch.cat([_order(seed, stream, epoch, total) for epoch in epochs])
    return orders[position - epochs[0] * total]


@lru_cache(maxsize=8)
def _order(seed: int, stream: int, epoch: int, total: int) -> Tensor:
    return torch.randperm(total, generator=torch.Generator().manual_seed(mix(seed, stream, epoch)))


class Loader:
    """Makes the batch of any step. The pool's pixels stay on the device that trains."""

    def __init__(
        self,
        config: Config,
        pool: Images,
        split: Split,
        *,
        views: frozenset[str],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device,
    ) -> None:
        self.config, self.views, self.mean, self.std, self.device = config, views, mean, std, device
        self.labeled, self.unlabeled = pool.rows(split.labeled), pool.rows(split.unlabeled)  # (n,), (N,) on the host
        self.unlabeled_on_device = self.unlabeled.to(device)
        self.pixels = shrink(frame(pool.pixels, config.frame), config.decode_size).to(device)
        self.targets, self.known = pool.targets.to(device), pool.known.to(device)
        self.true_known = pool.scoring_labels(count_difficult=False)[1].to(device)  # (n, c)

    def batch(self, step: int, micro: int = 0) -> Batch:
        """Part `micro` of the batch of `step`; with `accumulate` parts a step, their union is the whole batch."""
        config = self.config
        b = config.labeled_batch // config.accumulate
        u = b * config.unlabeled_ratio
        first = step * config.accumulate + micro
        row = send(self.labeled[rows_at(config.seed, LABELED, first * b, b, len(self.labeled))], self.device)
        batch = Batch(
            images=self._view(row, config.labeled_view, LABELED_VIEW, step, micro * b),
            targets=self.targets[row].float(),
            known=self.known[row].float(),
            step=torch.full((), step, device=self.device),
            seed=config.seed,
            last=micro == config.accumulate - 1,
        )
        if config.mixup or config.cutmix:
            batch = self._blend(batch, mix(config.seed, BLEND, step, micro))
        if not self.views:
            return batch
        picked = rows_at(config.seed, UNLABELED, first * u, u, len(self.unlabeled))
        row = send(self.unlabeled[picked], self.device)
        weak = self._view(row, config.weak_view, WEAK_VIEW, step, micro * u) if "weak" in self.views else None
        strong = self._view(row, config.strong_view, STRONG_VIEW, step, micro * u) if "strong" in self.views else None
        weak2 = self._view(row, config.weak_view, WEAK2_VIEW, step, micro * u) if "weak2" in self.views else None
        numbers = None
        if "uniforms" in self.views:
            slots = torch.arange(b + 2 * u) + micro * (b + 2 * u)
            numbers = send(uniforms(config.seed, step, slots, 2, UNIFORMS), self.device)
        index = send(picked, self.device)
        return replace(batch, weak=weak, strong=strong, weak2=weak2, index=index, uniforms=numbers)

    def unlabeled_images(self, size: int) -> Iterator[Tensor]:
        """All unlabeled images in the order of `Batch.index`, not augmented, `size` at a time."""
        for row in self.unlabeled_on_device.split(size):
            yield resize(self.pixels[row], self.config.image_size, self.mean, self.std)

    def truth(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of unlabeled rows and where they are known: for audits of pseudo-labels, never for training."""
        row = self.unlabeled_on_device[index]
        return self.targets[row], self.true_known[row]

    def _blend(self, batch: Batch, seed: int) -> Batch:
        """Each labeled image with the next one of the batch mixed in."""
        blend = Blend.draw(seed, len(batch.images), mixup=self.config.mixup, cutmix=self.config.cutmix)
        images, share = blend.apply(batch.images)
        partner = {"partner_targets": batch.targets.roll(-1, 0), "partner_known": batch.known.roll(-1, 0)}
        return replace(batch, images=images, own_share=share, **partner)

    def _view(self, row: Tensor, view: View, stream: int, step: int, first_slot: int) -> Tensor:
        slots = torch.arange(first_slot, first_slot + len(row))  # an image drawn twice in a step gets two views
        return make_view(
            self.pixels[row],
            view,
            size=self.config.image_size,
            mean=self.mean,
            std=self.std,
            seed=self.config.seed,
            step=step,
            sample=slots,
            stream=stream,
        )
