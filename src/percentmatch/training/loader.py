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
from percentmatch.data import Images, Split, Stream
from percentmatch.distributed.group import num_ranks, own_share, rank
from percentmatch.errors import UserError
from percentmatch.records import Batch
from percentmatch.settings.config import Config, View

LABELED, UNLABELED = 0, 1  # streams of the samplers
LABELED_VIEW, WEAK_VIEW, STRONG_VIEW, WEAK2_VIEW, UNIFORMS, BLEND = range(6)  # streams of the views
AHEAD = 8  # parts of steps whose streamed images are on their way
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
        stream: Stream | None = None,
    ) -> None:
        self.stream = stream if views else None  # of unlabeled images, instead of the split's
        self.config, self.views, self.mean, self.std, self.device = config, views, mean, std, device
        self.labeled, self.unlabeled = pool.rows(split.labeled), pool.rows(split.unlabeled)  # (n,), (N,) on the host
        self.pixels = shrink(frame(pool.pixels, config.frame), config.decode_size)
        self.resident = fits(self.pixels, device) if config.images_on == "auto" else config.images_on == "device"
        self.resident = self.resident and self.stream is None
        self.pixels = self.pixels.to(device).contiguous() if self.resident else self.pixels
        self.labels = pool.labels
        self.fused = fused_views(device)
        parts = (("labeled", config.labeled_view, LABELED_VIEW), ("weak", config.weak_view, WEAK_VIEW))
        parts += (("weak2", config.weak_view, WEAK2_VIEW), ("strong", config.strong_view, STRONG_VIEW))
        self.parts = [part for part in parts if part[0] in {"labeled", *views}]
        self.num_ops = max(view.ops for _, view, _ in self.parts)
        self.rank, self.ranks = rank(), num_ranks()
        parts_a_step = config.accumulate * self.ranks
        if config.labeled_batch % parts_a_step:
            raise UserError(
                f"--labeled-batch {config.labeled_batch} is that of all {self.ranks} ranks and must be a multiple of "
                f"{parts_a_step} (ranks x --accumulate)"
            )
        self.b = config.labeled_batch // parts_a_step  # of this rank, in one part of a step
        self.u = self.b * config.unlabeled_ratio
        self.extra = int(self.ranks > 1 and (config.mixup or config.cutmix) > 0)  # the next rank's first, to mix with

    def draw(self, step: int) -> Drawn:
        """All that the batches of a step are made of, on the host; the names begin with the part's number."""
        drawn = {"step": torch.tensor(step)}
        for micro in range(self.config.accumulate):
            drawn |= {f"{micro}.{name}": value for name, value in self._draw_part(step, micro).items()}
        return drawn

    def _draw_part(self, step: int, micro: int) -> Drawn:
        """This rank's share of part `micro`: part and place in it are the same for any number of ranks."""
        config, b, u, ranks = self.config, self.b, self.u, self.ranks
        part = step * config.accumulate + micro
        own = torch.arange(self.rank * b, self.rank * b + b + self.extra) % (ranks * b)  # (b + extra,) in the part
        rows = self.labeled[rows_at(config.seed, LABELED, part * ranks * b, ranks * b, len(self.labeled))[own]]
        drawn = {"targets": self.labels.targets[rows], "known": self.labels.known[rows]}  # (b + extra, c) each
        if self.views and not self.stream:
            drawn["index"] = rows_at(config.seed, UNLABELED, (part * ranks + self.rank) * u, u, len(self.unlabeled))
            unlabeled = self.unlabeled[drawn["index"]]
            drawn["truth"], drawn["truth_known"] = self.labels.certain(unlabeled)  # (u, c) each
            rows = torch.cat([rows, unlabeled])  # (b + extra + u,)
        if not self.resident:
            pixels = self.pixels[rows]
            drawn["pixels"] = torch.cat([pixels, self._streamed(self.stream, part)]) if self.stream else pixels
            rows = torch.arange(len(drawn["pixels"]))
        split = len(own)
        drawn["rows"] = torch.cat([rows[:split] if name == "labeled" else rows[split:] for name, _, _ in self.parts])
        labeled_slots = micro * ranks * b + own  # places in the step: an image drawn twice gets two views
        slots = (micro * ranks + self.rank) * u + torch.arange(u)
        plans = [
            self._plan(view, step, labeled_slots if name == "labeled" else slots, stream)
            for name, view, stream in self.parts
        ]
        drawn |= {f"plan.{field}": torch.cat([getattr(plan, field) for plan in plans]) for field in PLAN}
        if "uniforms" in self.views:
            n = ranks * (b + 2 * u)  # of all ranks: who is mixed with whom must be known to all
            drawn["uniforms"] = uniforms(config.seed, step, torch.arange(n) + micro * n, 2, UNIFORMS)
        if config.mixup or config.cutmix:
            seed = mix(config.seed, BLEND, step, micro)
            blend = Blend.draw(seed, ranks * b, mixup=config.mixup, cutmix=config.cutmix)
            drawn |= {"blend.share": blend.share[own[:b]], "blend.box": blend.box[own[:b]]}
        return drawn

    def _streamed(self, stream: Stream, part: int) -> Tensor:
        """This rank's unlabeled pixels of the run's part number `part`; those of the next are fetched meanwhile."""
        last = min(part + AHEAD, self.config.total_steps * self.config.accumulate - 1)
        start, *ahead = ((each * self.ranks + self.rank) * self.u for each in range(part, max(last, part) + 1))
        pixels = stream.rows(start, self.u, ahead=ahead)
        return shrink(frame(pixels, self.config.frame), self.config.decode_size)

    def _plan(self, view: View, step: int, slots: Tensor, stream: int) -> Plan:
        """The plan of one view, with as many slots for operations as the longest has."""
        size_in = self.pixels.shape[-2], self.pixels.shape[-1]
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
        b = self.b
        sizes = [b + self.extra if name == "labeled" else self.u for name, _, _ in self.parts]
        views = {name: view for (name, _, _), view in zip(self.parts, images.split(sizes), strict=True)}
        labeled, targets, known = views.pop("labeled"), mine["targets"].float(), mine["known"].float()
        batch = Batch(
            images=labeled[:b],
            targets=targets[:b],
            known=known[:b],
            step=sent["step"],
            seed=self.config.seed,
            index=mine.get("index"),
            uniforms=mine.get("uniforms"),
            last=micro == self.config.accumulate - 1,
            **views,
        )
        if "blend.share" not in mine:
            return batch
        following = (each[1:] if self.extra else each.roll(-1, 0) for each in (labeled, targets, known))  # the next one
        partners, partner_targets, partner_known = following
        mixed, share = Blend(mine["blend.share"], mine["blend.box"]).apply(batch.images, partners)
        return replace(
            batch, images=mixed, own_share=share, partner_targets=partner_targets, partner_known=partner_known
        )

    def batch(self, step: int, micro: int = 0) -> Batch:
        """Part `micro` of the batch of a step, at once."""
        drawn = self.draw(step)
        return self.make(drawn, {name: value.to(self.device) for name, value in drawn.items()}, micro)

    def unlabeled_images(self, size: int) -> Iterator[Tensor]:
        """This rank's share of all unlabeled images, in the order of `Batch.index`, not augmented, `size` at a time."""
        for row in self.unlabeled[own_share(len(self.unlabeled))].split(size):
            images = self.pixels[row.to(self.pixels.device)].to(self.device)
            yield resize(images, self.config.image_size, self.mean, self.std)

    def truth(self, sent: Drawn, micro: int = 0) -> tuple[Tensor, Tensor] | None:
        """Labels of the unlabeled images of part `micro` and where they are known; None for those of a stream.

        For audits of pseudo-labels, never for training.
        """
        truth = sent.get(f"{micro}.truth")
        return None if truth is None else (truth, sent[f"{micro}.truth_known"])


def fits(pixels: Tensor, device: torch.device) -> bool:
    """Whether so many pixels leave half of the device's free memory to the model."""
    return device.type == "cpu" or pixels.numel() < torch.cuda.mem_get_info(device)[0] / 2
