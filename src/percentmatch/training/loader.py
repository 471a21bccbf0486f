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
from percentmatch.distributed.group import num_ranks, rank
from percentmatch.errors import UserError
from percentmatch.records import Batch
from percentmatch.settings.config import Config
from percentmatch.settings.views import View

LABELED, UNLABELED = 0, 1  # streams of the samplers
LABELED_VIEW, WEAK_VIEW, STRONG_VIEW, WEAK2_VIEW, UNIFORMS, BLEND = range(6)  # streams of the views
AHEAD = 8  # micro-batches whose streamed images are read in advance
Drawn = dict[str, Tensor]
Colour = tuple[float, ...]  # of each channel
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


def join_plans(plans: list[Plan]) -> Drawn:
    """The plans of several views as one, by names that `Pixels.views` reads."""
    return {f"plan.{field}": torch.cat([getattr(plan, field) for plan in plans]) for field in PLAN}


class Pixels:
    """The pixels that views are made of: on the device that trains, on the host, or from a stream beside the pool's."""

    def __init__(
        self, config: Config, pool: Tensor, stream: Stream | None, mean: Colour, std: Colour, device: torch.device
    ) -> None:
        self.config, self.stream, self.mean, self.std, self.device = config, stream, mean, std, device
        self.pool = shrink(frame(pool, config.frame), config.decode_size)  # (n, 3, h, w)
        self.resident = config.images_on == "device" and stream is None
        self.pool = self.pool.to(device).contiguous() if self.resident else self.pool
        self.size = self.pool.shape[-2], self.pool.shape[-1]
        self.fused = fused_views(device)
        self.rank, self.ranks = rank(), num_ranks()

    def streamed(self, index: int, count: int) -> Tensor:
        """This rank's `count` streamed images of micro-batch `index` of the run; the next are read in advance."""
        assert self.stream is not None
        last = min(index + AHEAD, self.config.total_steps * self.config.accumulate - 1)
        start, *ahead = ((each * self.ranks + self.rank) * count for each in range(index, max(last, index) + 1))
        return shrink(frame(self.stream.rows(start, count, ahead=ahead), self.config.frame), self.size[0])

    def views(self, drawn: Drawn, sent: Drawn) -> Tensor:
        """All views of the plans on the host or, where one kernel makes the views, on the device: (n, 3, h, w)."""
        pixels = self.pool if self.resident else sent["pixels"]
        options = {"size": self.config.image_size, "mean": self.mean, "std": self.std}
        if self.fused:
            return self.fused(pixels, sent["rows"], Plan(*(sent[f"plan.{field}"] for field in PLAN)), **options)
        return apply(pixels[sent["rows"]], Plan(*(drawn[f"plan.{field}"] for field in PLAN)), **options)


class Loader:
    """Makes the batch of any step of a run."""

    def __init__(self, config: Config, pixels: Pixels, pool: Images, split: Split, views: frozenset[str]) -> None:
        self.config, self.pixels, self.labels, self.asked = config, pixels, pool.labels, views
        self.labeled, self.unlabeled = pool.rows(split.labeled), pool.rows(split.unlabeled)  # (n,), (N,) on the host
        kinds = (("labeled", config.labeled_view, LABELED_VIEW), ("weak", config.weak_view, WEAK_VIEW))
        kinds += (("weak2", config.weak_view, WEAK2_VIEW), ("strong", config.strong_view, STRONG_VIEW))
        self.views = [kind for kind in kinds if kind[0] in {"labeled", *views}]
        self.num_ops = max(view.ops for _, view, _ in self.views)
        self.rank, self.ranks = rank(), num_ranks()
        divisor = config.accumulate * self.ranks
        if config.labeled_batch % divisor:
            how = f"must be a multiple of {divisor}, the number of ranks x --accumulate"
            raise UserError(f"--labeled-batch {config.labeled_batch} {how}")
        self.b = config.labeled_batch // divisor  # of this rank, in one micro-batch
        self.u = self.b * config.unlabeled_ratio
        self.extra = int(self.ranks > 1 and (config.mixup or config.cutmix) > 0)  # the next rank's first, to mix with

    def draw(self, step: int) -> Drawn:
        """All that the batches of a step are made of, on the host; names begin with the micro-batch's number."""
        drawn = {"step": torch.tensor(step)}
        for micro in range(self.config.accumulate):
            drawn |= {f"{micro}.{name}": value for name, value in self._draw_micro(step, micro).items()}
        return drawn

    def _draw_micro(self, step: int, micro: int) -> Drawn:
        """This rank's share of a micro-batch: micro-batch and slot in it are the same for any number of ranks."""
        config, b, u, ranks = self.config, self.b, self.u, self.ranks
        index = step * config.accumulate + micro  # of all micro-batches of the run
        own = torch.arange(self.rank * b, self.rank * b + b + self.extra) % (ranks * b)  # (b + extra,) slots
        rows = self.labeled[rows_at(config.seed, LABELED, index * ranks * b, ranks * b, len(self.labeled))[own]]
        drawn = {"targets": self.labels.targets[rows], "known": self.labels.known[rows]}  # (b + extra, c) each
        if self.asked and not self.pixels.stream:
            drawn["index"] = rows_at(config.seed, UNLABELED, (index * ranks + self.rank) * u, u, len(self.unlabeled))
            unlabeled = self.unlabeled[drawn["index"]]
            drawn["truth"], drawn["truth_known"] = self.labels.certain(unlabeled)  # (u, c) each, for audits alone
            rows = torch.cat([rows, unlabeled])  # (b + extra + u,)
        if not self.pixels.resident:
            drawn["pixels"] = self.pixels.pool[rows]
            if self.pixels.stream:
                drawn["pixels"] = torch.cat([drawn["pixels"], self.pixels.streamed(index, u)])
            rows = torch.arange(len(drawn["pixels"]))
        split = len(own)
        drawn["rows"] = torch.cat([rows[:split] if name == "labeled" else rows[split:] for name, _, _ in self.views])
        slots = (micro * ranks + self.rank) * u + torch.arange(u)
        slots_of = {"labeled": micro * ranks * b + own}  # in the step: an image drawn twice gets two views
        views = [(view, stream, slots_of.get(name, slots)) for name, view, stream in self.views]
        drawn |= join_plans([self._plan(view, step, stream, at) for view, stream, at in views])
        if "uniforms" in self.asked:
            n = ranks * (b + 2 * u)  # of all ranks: who is mixed with whom must be known to all
            drawn["uniforms"] = uniforms(config.seed, step, torch.arange(n) + micro * n, 2, UNIFORMS)
        if config.mixup or config.cutmix:
            seed = mix(config.seed, BLEND, step, micro)
            blend = Blend.draw(seed, ranks * b, mixup=config.mixup, cutmix=config.cutmix)
            drawn |= {"blend.share": blend.share[own[:b]], "blend.box": blend.box[own[:b]]}
        return drawn

    def _plan(self, view: View, step: int, stream: int, slots: Tensor) -> Plan:
        """The plan of one view, with as many slots for operations as the longest has."""
        plan = draw(view, size_in=self.pixels.size, seed=self.config.seed, step=step, sample=slots, stream=stream)
        more = self.num_ops - plan.op.shape[1]
        return replace(plan, op=F.pad(plan.op, (0, more)), value=F.pad(plan.value, (0, more)))  # 0 is the identity

    def make(self, drawn: Drawn, sent: Drawn, micro: int = 0) -> Batch:
        """A micro-batch of a step, from what was drawn and the same on the device.

        The union of a step's `accumulate` micro-batches is the whole batch.
        """
        step, prefix, b = sent["step"], f"{micro}.", self.b
        drawn, sent = (
            {key.removeprefix(prefix): each[key] for key in each if key.startswith(prefix)} for each in (drawn, sent)
        )
        sizes = [b + self.extra if name == "labeled" else self.u for name, _, _ in self.views]
        images = self.pixels.views(drawn, sent).split(sizes)
        views = {name: view for (name, _, _), view in zip(self.views, images, strict=True)}
        labeled, targets, known = views.pop("labeled"), sent["targets"].float(), sent["known"].float()
        batch = Batch(
            images=labeled[:b],
            targets=targets[:b],
            known=known[:b],
            step=step,
            seed=self.config.seed,
            index=sent.get("index"),
            uniforms=sent.get("uniforms"),
            last=micro == self.config.accumulate - 1,
            **views,
        )
        if "blend.share" not in sent:
            return batch
        others, truth, sure = (each[1:] if self.extra else each.roll(-1, 0) for each in (labeled, targets, known))
        mixed, share = Blend(sent["blend.share"], sent["blend.box"]).apply(batch.images, others)
        return replace(batch, images=mixed, own_share=share, partner_targets=truth, partner_known=sure)

    def plain_images(self, rows: Tensor, size: int) -> Iterator[Tensor]:
        """The images of these rows of the pool, not augmented, `size` at a time."""
        for some in rows.split(size):
            images = self.pixels.pool[some.to(self.pixels.pool.device)].to(self.pixels.device)
            yield resize(images, self.config.image_size, self.pixels.mean, self.pixels.std)
