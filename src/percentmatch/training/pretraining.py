"""A self-supervised warm start: a backbone learns to tell the pool's images apart, without labels (SimCLR).

Each step makes two views of every image of its batch; the loss asks that they find each other among all views (Chen et
al. 2020). What is kept is a backbone for `train --weights`; the projector is thrown away. Every draw is a function of
seed, step and place in the batch, so a warm start resumes exactly, as a run does, and ranks share its batches.
"""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from percentmatch.augment import Plan, apply, draw, draw_jitter, frame, fused_views, mix, recolour, shrink
from percentmatch.console.progress import Counting, Report
from percentmatch.console.signals import Stopped, StopRequest
from percentmatch.data import Data, load_data, split_data
from percentmatch.distributed.device import Sender, pick_device
from percentmatch.distributed.group import (
    any_rank,
    average_buffers,
    averaging,
    check_same_on_all,
    first_on_each_machine,
    gather_with_gradient,
    is_distributed,
    is_main,
    joined,
    least_over_ranks,
    mean_over_ranks,
    num_ranks,
    own_numbers,
    rank,
    wait_for_all,
)
from percentmatch.distributed.ranks import launched
from percentmatch.distributed.shared_norm import share_norms
from percentmatch.errors import UserError
from percentmatch.files import read_json, write_atomic, write_json
from percentmatch.models import LinearHead, build_classifier, quicken, spare_search
from percentmatch.runs.checkpoint import BAD_STATE, Saver
from percentmatch.runs.run_folder import MAY_CHANGE
from percentmatch.runs.warm_folder import WarmFolder
from percentmatch.settings.pretraining import PretrainSettings
from percentmatch.training.graph import Replay
from percentmatch.training.loader import AHEAD, PLAN, UNLABELED, Drawn, fits, rows_at
from percentmatch.training.meter import Meter, all_finite
from percentmatch.training.optim import build_optimizer, device_options, lr_at, set_lr

INIT = 1_000_037  # stream of the initial weights
JITTER = 2  # stream of the colours; 0 and 1 are the two views
HIDDEN, WIDTH = 2048, 256  # of the projector


class Embedder(nn.Module):
    """Images (n, 3, h, w), normalised with `mean` and `std` -> embeddings (n, WIDTH)."""

    def __init__(self, backbone: str, image_size: int, device: torch.device) -> None:
        super().__init__()
        model = build_classifier(backbone, num_classes=1, head="linear", image_size=image_size)
        assert isinstance(model.head, LinearHead)
        width = model.head.linear.in_features
        model = model if is_distributed() else quicken(model, device)  # its norms know one process
        spare_search(model, device)
        self.backbone, self.mean, self.std = model.backbone, model.mean, model.std
        self.project = nn.Sequential(
            nn.Linear(width, HIDDEN, bias=False),
            nn.BatchNorm1d(HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH, affine=False),
        )

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone.forward_features(images)
        return self.project(self.backbone.forward_head(features, pre_logits=True))


def nt_xent(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """NT-Xent (Eq. 1 of Chen et al.) of embeddings (n, d) of two views of this rank's n images: the mean over its 2n.

    Each view is to pick the other view of its image among all others, of all ranks, by cosine similarity. The mean over
    ranks is the loss of the whole batch, and the mean of the ranks' gradients is its gradient.
    """
    views = torch.cat([one, other])  # (2n, d)
    unit = F.normalize(views.to(torch.promote_types(views.dtype, torch.float32)), dim=1)
    everyone = gather_with_gradient(unit)  # (ranks * 2n, d)
    own = torch.arange(len(unit), device=unit.device) + rank() * len(unit)  # (2n,) where they stand in it
    itself = own[:, None] == torch.arange(len(everyone), device=unit.device)
    similar = (unit @ everyone.T / temperature).masked_fill(itself, -torch.inf)  # (2n, ranks * 2n)
    return F.cross_entropy(similar, own.roll(len(one)))


class WarmStart:
    """Everything that moves during a warm start, so that saving it is saving all."""

    def __init__(
        self,
        settings: PretrainSettings,
        folder: WarmFolder,
        data: Data,
        device: torch.device,
        *,
        resumed: bool = False,
    ) -> None:
        self.settings, self.folder, self.device = settings, folder, device
        self.split = split_data(settings, data, saved=folder.run.split if resumed else None)
        self.rows = data.pool.rows((*self.split.labeled, *self.split.unlabeled)).sort().values  # (n,) on the host
        self.stream, self.num_images = data.stream, len(data.stream or self.rows)  # a stream alone, if there is one
        if self.num_images < settings.batch:
            raise UserError(
                f"--batch {settings.batch} asks for more images than the {self.num_images} there are to learn from, "
                "labeled and unlabeled; lower it"
            )
        self.share, rest = divmod(settings.batch, num_ranks())  # images of this rank in a step
        if rest:
            raise UserError(
                f"--batch {settings.batch} is that of all {num_ranks()} ranks and must be a multiple of {num_ranks()}"
            )
        config = settings.as_config()
        torch.manual_seed(mix(settings.seed, INIT))
        model = Embedder(settings.backbone, settings.image_size, device)
        self.model = model.to(device).to(memory_format=torch.channels_last)
        if is_distributed():
            share_norms(self.model, on_gpu=device.type == "cuda")
        self.student = averaging(self.model)
        self.optimizer = build_optimizer(self.model, config, device)
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        self.pixels = shrink(frame(data.pool.pixels, settings.frame), config.decode_size)
        self.resident = self.stream is None and fits(self.pixels, device)
        self.pixels = self.pixels.to(device).contiguous() if self.resident else self.pixels
        self.fused = fused_views(device)
        self.sender, self.saver = Sender(device), Saver()
        self.replay = Replay(device) if self.fused and not is_distributed() else None
        self.meter, self.loss, self.step = Meter(), 0.0, 0
        self.seconds, self.began = 0.0, time.monotonic()

    def draw(self, step: int) -> Drawn:
        """What a step needs to know, on the host. Places in the batch are the same for any number of ranks."""
        settings, n, batch = self.settings, self.share, self.settings.batch
        size_in, own = (self.pixels.shape[-2], self.pixels.shape[-1]), rank() * n + torch.arange(n)  # (n,) places
        plans = [
            draw(settings.view, size_in=size_in, seed=settings.seed, step=step, sample=own, stream=stream)
            for stream in (0, 1)
        ]
        drawn = {name: torch.cat([getattr(plan, name) for plan in plans]) for name in PLAN}
        if settings.view.jitter:
            drawn["jitter"] = draw_jitter(
                settings.view.jitter,
                seed=settings.seed,
                step=step,
                sample=torch.cat([own, batch + own]),  # (2n,)
                stream=JITTER,
                mean=self.model.mean,
                std=self.model.std,
            )
        rows = torch.arange(n)
        last = max(step, min(step + AHEAD, settings.total_steps - 1))
        start, *ahead = (later * batch + rank() * n for later in range(step, last + 1))
        if self.stream:
            streamed = self.stream.rows(start, n, ahead=ahead)
            drawn["pixels"] = shrink(frame(streamed, settings.frame), size_in[0])
        else:
            chosen = self.rows[rows_at(settings.seed, UNLABELED, start, n, len(self.rows))]  # (n,)
            if self.resident:
                rows = chosen
            else:
                drawn["pixels"] = self.pixels[chosen]
        lr = lr_at(step, max_lr=settings.lr, total_steps=settings.total_steps, warmup_ratio=settings.lr_warmup_ratio)
        rate = torch.tensor(lr, dtype=torch.float64)
        return {**drawn, "rows": rows.repeat(2), "lr": rate, "step": torch.tensor(step)}

    def views(self, drawn: Drawn, sent: Drawn) -> Tensor:
        """The first views of this rank's images of the batch, then the second: (2n, 3, h, w)."""
        pixels = self.pixels if self.resident else sent["pixels"]
        options = {"size": self.settings.image_size, "mean": self.model.mean, "std": self.model.std}
        if self.fused:
            views = self.fused(pixels, sent["rows"], Plan(*(sent[name] for name in PLAN)), **options)
        else:
            views = apply(pixels[sent["rows"]], Plan(*(drawn[name] for name in PLAN)), **options)
        return recolour(views, sent["jitter"]) if "jitter" in sent else views

    def log_row(self) -> float:
        """Write the mean loss since the last row, and return it."""
        self.saver.check()
        self.check_finite()
        self.loss = self.meter.read(mean_over_ranks)["loss"]
        lr = float(self.optimizer.param_groups[0]["lr"])
        if is_main():
            self.folder.run.append({"step": self.step, "loss": self.loss, "lr": lr})
        return self.loss

    def check_finite(self) -> None:
        """Stop if the loss or a gradient was not finite since the start (waits for the device)."""
        if found := self.meter.first_bad(least_over_ranks):
            raise UserError(f"{found[0]} not finite in step {found[1] + 1}; begin in another --out with a lower --lr")

    def save(self) -> None:
        """Have a checkpoint written, unless the state is not worth keeping."""
        self.check_finite()
        if not all_finite(self.model.state_dict()):
            raise UserError(f"weights not finite after step {self.step}; begin in another --out with a lower --lr")
        self.seconds, self.began = self.seconds + time.monotonic() - self.began, time.monotonic()
        state = {"step": self.step, "seconds": self.seconds, "loss": self.loss, "model": self.model.state_dict()}
        state |= {"optimizer": self.optimizer.state_dict(), "meter": self.meter.state_dict(mean_over_ranks)}
        state |= {"log": self.folder.run.log_mark(), "settings": self.settings.to_dict()}
        if is_main():
            self.saver.save(self.folder.run.checkpoint, state, self.folder.run.previous)

    def restore(self) -> None:
        """Take up the newest whole checkpoint, or begin at step 0 where there is none yet."""
        state, why = self.folder.run.newest(self.device, save_every=self.settings.save_every)
        if state:
            try:
                self.folder.run.refuse_other(state.get("settings", {}), self.settings.to_dict())
                self.model.load_state_dict(state["model"])
                for group in state["optimizer"]["param_groups"]:  # as here, not as where it was saved
                    group |= device_options(self.settings.lr, self.device)
                self.optimizer.load_state_dict(state["optimizer"])
                self.meter.load_state_dict(state["meter"])
                self.step, self.seconds, self.loss = state["step"], state["seconds"], state["loss"]
            except BAD_STATE as error:
                raise UserError(
                    f"'{self.folder.run.checkpoint}' is not the checkpoint of this warm start; choose another --out"
                ) from error
        wait_for_all()  # until all have read it
        if is_main():
            self.folder.run.go_on_from(state, why)

    def finish(self) -> dict[str, Any]:
        """Write the backbone for `train --weights`, then what became of the warm start."""
        result = {
            "minutes": round((self.seconds + time.monotonic() - self.began) / 60, 2),
            "images": self.num_images,
            "steps": self.step,
            "loss": self.loss,
            "split": self.split.digest,
            "environment": read_json(self.folder.run.environment),
        }
        if is_main():
            state = self.model.backbone.state_dict()
            state = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
            write_atomic(self.folder.backbone, save({name: value.cpu().contiguous() for name, value in state.items()}))
            self.folder.run.previous.unlink(missing_ok=True)
            write_json(self.folder.result, result)
        return result


def pretrain(
    settings: PretrainSettings, out: str | Path, *, resume: bool = False, data: Data | None = None
) -> dict[str, Any]:
    """Train a backbone as `settings` say into the folder `out`; returns what pretrain.json holds.

    It sees the labeled and unlabeled images of the split, or those of the stream alone; no labels, and no images for
    validation or test. `data` replaces the data that the settings name. With `resume` it continues from its last
    checkpoint, exactly. Processes started by torchrun or srun train together, and the first one writes.
    """
    folder = WarmFolder(Path(out))
    with joined(), folder.run:
        return _pretrain(settings, folder, resume=resume, data=data)


def _pretrain(settings: PretrainSettings, folder: WarmFolder, *, resume: bool, data: Data | None) -> dict[str, Any]:
    if data is not None:
        settings = replace(settings, data="custom")
    if resume:
        folder.check_same(settings)
        if folder.result.exists():
            return folder.read_result()
    else:
        folder.check_new()
    device = pick_device(settings.device, deterministic=settings.deterministic)
    if data is None:
        with Counting("decoding images", silent=launched().rank > 0) as progress, first_on_each_machine():
            data = load_data(settings.as_config(), progress=progress)
    warm = WarmStart(settings, folder, data, device, resumed=resume)
    own = {name: value for name, value in settings.to_dict().items() if name not in MAY_CHANGE}
    check_same_on_all({**own, "the split": warm.split.digest, "resume": resume})
    wait_for_all()  # until all have seen that the folder is new
    if is_main():
        if not resume:
            folder.create(settings)
        folder.run.complete(warm.split, device)
    if resume:
        warm.restore()

    steps = settings.total_steps
    bar = Report("pretrain", steps, warm.step, 2 * settings.batch, silent=not is_main())
    with StopRequest() as stop, warm.saver, bar as report:
        for step in range(warm.step, steps):
            pretrain_step(warm, step)
            warm.step = done = step + 1
            report.step(done)
            if done % settings.log_every == 0 or done == steps:  # the only device-to-host copies
                report.row(done, loss=warm.log_row())
            asked = any_rank(stop.number)
            if done % settings.save_every == 0 or done == steps or asked:
                warm.save()
            if asked and done < steps:
                how = f"continue with --out {folder.path} --resume"
                raise Stopped(f"stopped at step {done} of {steps}; {how}", asked)
    return warm.finish()


def pretrain_step(warm: WarmStart, step: int) -> None:
    """One optimizer step. Nothing in it waits for the device."""
    torch.manual_seed(mix(*own_numbers(warm.settings.seed, step)))  # dropout; views and samples draw by themselves
    drawn = warm.draw(step)
    do = partial(update, warm, drawn, warm.sender.send(drawn))
    warm.meter.count += 1
    warm.replay(do) if warm.replay else do()


def update(warm: WarmStart, drawn: Drawn, sent: Drawn) -> None:
    """All that a step does, from what was drawn for it and sent. On a GPU it is captured once and replayed."""
    set_lr(warm.optimizer, sent["lr"])
    warm.optimizer.zero_grad(set_to_none=True)
    views = warm.views(drawn, sent)
    with torch.autocast(warm.device.type, dtype=torch.bfloat16, enabled=warm.device.type == "cuda"):
        one, other = warm.student(views).chunk(2)
    loss = nt_xent(one, other, warm.settings.temperature)
    loss.backward()
    norm = nn.utils.get_total_norm([each.grad for each in warm.trained if each.grad is not None])
    warm.meter.watch({"loss": loss.detach(), "gradient norm": norm}, sent["step"])
    warm.meter.add({"loss": loss.detach()})
    warm.optimizer.step()
    average_buffers(warm.model)
