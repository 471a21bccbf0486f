"""Batches: which images a step sees, and their views. A pure function of the seed and the step, so it has no state.

`draw` decides everything on the host, as tensors that have the same names, shapes and types in every step; `make` turns
them into batches on the device and never asks back. So a step can be sent in one copy, drawn ahead, and captured.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.augment import Blend, Plan, apply, draw, frame, fused_views, mix, resize, shrink, uniforms
from percentmatch.config import Config, View
from percentmatch.data import Images, Split
from percentmatch.records import Batch

LABELED, UNLABELED = 0, 1  # streams of the samplers
LABELED_VIEW, WEAK_VIEW, STRONG_VIEW, WEAK2_VIEW, UNIFORMS, BLEND = range(6)  # streams of the views
Drawn = dict[str, Tensor]
PLAN = tuple(each.name for each in fields(Plan))


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
    """Makes the batch of any step. The pool's pixels stay on the device that trains, or on the host if told so."""

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
        self.pixels = shrink(frame(pool.pixels, config.frame), config.decode_size)
        self.resident = fits(self.pixels, device) if config.images_on == "auto" else config.images_on == "device"
        self.pixels = self.pixels.to(device).contiguous() if self.resident else self.pixels
        self.targets, self.known = pool.targets.to(device), pool.known.to(device)
        self.true_known = pool.scoring_labels(count_difficult=False)[1].to(device)  # (n, c)
        self.fused = fused_views(device)
        parts = (("labeled", config.labeled_view, LABELED_VIEW), ("weak", config.weak_view, WEAK_VIEW))
        parts += (("weak2", config.weak_view, WEAK2_VIEW), ("strong", config.strong_view, STRONG_VIEW))
        self.parts = [part for part in parts if part[0] in {"labeled", *views}]
        self.num_ops = max(view.ops for _, view, _ in self.parts)

    def draw(self, step: int) -> Drawn:
        """All that the batches of a step are made of, on the host; the names begin with the part's number."""
        drawn = {"step": torch.tensor(step)}
        for micro in range(self.config.accumulate):
            drawn |= {f"{micro}.{name}": value for name, value in self._draw_part(step, micro).items()}
        return drawn

    def _draw_part(self, step: int, micro: int) -> Drawn:
        config = self.config
        b = config.labeled_batch // config.accumulate
        u = b * config.unlabeled_ratio
        first = step * config.accumulate + micro
        rows = self.labeled[rows_at(config.seed, LABELED, first * b, b, len(self.labeled))]
        drawn = {"labeled": rows}
        if self.views:
            drawn["index"] = rows_at(config.seed, UNLABELED, first * u, u, len(self.unlabeled))
            rows = torch.cat([rows, self.unlabeled[drawn["index"]]])  # (b + u,)
        if not self.resident:
            drawn["pixels"], rows = self.pixels[rows], torch.arange(len(rows))
        drawn["rows"] = torch.cat([rows[:b] if name == "labeled" else rows[b:] for name, _, _ in self.parts])
        plans = [
            self._plan(view, step, b if name == "labeled" else u, micro, stream) for name, view, stream in self.parts
        ]
        drawn |= {f"plan.{field}": torch.cat([getattr(plan, field) for plan in plans]) for field in PLAN}
        if "uniforms" in self.views:
            slots = torch.arange(b + 2 * u) + micro * (b + 2 * u)
            drawn["uniforms"] = uniforms(config.seed, step, slots, 2, UNIFORMS)
        if config.mixup or config.cutmix:
            blend = Blend.draw(mix(config.seed, BLEND, step, micro), b, mixup=config.mixup, cutmix=config.cutmix)
            drawn |= {"blend.share": blend.share, "blend.box": blend.box}
        return drawn

    def _plan(self, view: View, step: int, n: int, micro: int, stream: int) -> Plan:
        """The plan of one view, with as many slots for operations as the longest has."""
        size_in = self.pixels.shape[-2], self.pixels.shape[-1]
        slots = torch.arange(micro * n, (micro + 1) * n)  # an image drawn twice in a step gets two views
        plan = draw(view, size_in=size_in, seed=self.config.seed, step=step, sample=slots, stream=stream)
        more = self.num_ops - plan.op.shape[1]
        return replace(plan, op=F.pad(plan.op, (0, more)), value=F.pad(plan.value, (0, more)))  # 0 is the identity

    def make(self, drawn: Drawn, sent: Drawn, micro: int = 0) -> Batch:
        """Part `micro` of a step's batch, from what was drawn and the same on the device.

        With `accumulate` parts a step, their union is the whole batch. Where one kernel makes the views, the host's
        tensors are not looked at.
        """
        prefix = f"{micro}."
        host, mine = (
            {key.removeprefix(prefix): each[key] for key in each if key.startswith(prefix)} for each in (drawn, sent)
        )
        pixels = self.pixels if self.resident else mine["pixels"]
        options = {"size": self.config.image_size, "mean": self.mean, "std": self.std}
        if self.fused:
            images = self.fused(pixels, mine["rows"], Plan(*(mine[f"plan.{field}"] for field in PLAN)), **options)
        else:
            images = apply(pixels[mine["rows"]], Plan(*(host[f"plan.{field}"] for field in PLAN)), **options)
        row, b = mine["labeled"], len(mine["labeled"])
        u = b * self.config.unlabeled_ratio
        sizes = [b if name == "labeled" else u for name, _, _ in self.parts]
        views = {name: view for (name, _, _), view in zip(self.parts, images.split(sizes), strict=True)}
        batch = Batch(
            images=views.pop("labeled"),
            targets=self.targets[row].float(),
            known=self.known[row].float(),
            step=sent["step"],
            seed=self.config.seed,
            index=mine.get("index"),
            uniforms=mine.get("uniforms"),
            last=micro == self.config.accumulate - 1,
            **views,
        )
        if "blend.share" not in mine:
            return batch
        mixed, share = Blend(mine["blend.share"], mine["blend.box"]).apply(batch.images)
        partner = {"partner_targets": batch.targets.roll(-1, 0), "partner_known": batch.known.roll(-1, 0)}
        return replace(batch, images=mixed, own_share=share, **partner)

    def batch(self, step: int, micro: int = 0) -> Batch:
        """Part `micro` of the batch of a step, at once."""
        drawn = self.draw(step)
        return self.make(drawn, {name: value.to(self.device) for name, value in drawn.items()}, micro)

    def unlabeled_images(self, size: int) -> Iterator[Tensor]:
        """All unlabeled images in the order of `Batch.index`, not augmented, `size` at a time."""
        for row in self.unlabeled.split(size):
            images = self.pixels[row.to(self.pixels.device)].to(self.device)
            yield resize(images, self.config.image_size, self.mean, self.std)

    def truth(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of unlabeled rows and where they are known: for audits of pseudo-labels, never for training."""
        row = self.unlabeled_on_device[index]
        return self.targets[row], self.true_known[row]


def fits(pixels: Tensor, device: torch.device) -> bool:
    """Whether so many pixels leave half of the device's free memory to the model."""
    return device.type == "cpu" or pixels.numel() < torch.cuda.mem_get_info(device)[0] / 2
