"""Self-supervised pretraining: a backbone learns to tell the pool's images apart, without labels (SimCLR).

Each step makes two views of every image of its batch; the loss asks that they find each other among all views (Chen et
al. 2020). The result is a backbone for `train --weights`; the projector is thrown away. Every draw is a function of
seed, step and slot in the batch, so a pretraining resumes exactly, as a run does, and ranks share its batches.
"""

import json
import time
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from percentmatch.augment import draw, draw_jitter, mix, recolour
from percentmatch.data import Data, split_data
from percentmatch.distributed.device import Sender
from percentmatch.distributed.group import averaging, gather_with_gradient, is_distributed, is_main, num_ranks, rank
from percentmatch.distributed.shared_norm import share_norms
from percentmatch.errors import UserError
from percentmatch.files import check_number, read_json, write_atomic, write_json
from percentmatch.models import LinearHead, build_classifier, quicken, spare_search
from percentmatch.models.weights import KEY
from percentmatch.records import StepLoss
from percentmatch.runs.checkpoint import Checkpoint
from percentmatch.runs.run_folder import PretrainFolder
from percentmatch.settings.config import Config, PretrainSettings
from percentmatch.training.loader import UNLABELED, Drawn, Pixels, join_plans, rows_at
from percentmatch.training.loop import Replay, minutes
from percentmatch.training.meter import Meter
from percentmatch.training.optim import build_optimizer, load_optimizer, lr_at
from percentmatch.training.same_images import SeenImages

INIT = 1_000_037  # random stream of the initial weights
JITTER = 2  # random stream of the colours; 0 and 1 are those of the two views
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


class Contrastive(nn.Module):
    """The loss of pretraining, as a method of training gives it: a model and a batch in, a loss out."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, model: nn.Module, views: Tensor, teacher: None) -> StepLoss:
        """Of the first views of some images, then the second: (2n, 3, h, w)."""
        one, other = model(views).chunk(2)  # (n, d) each
        with torch.autocast(views.device.type, enabled=False):
            loss = nt_xent(one, other, self.temperature)
        return StepLoss(loss, {"loss": loss.detach()})


class PairLoader:
    """Makes the two views of each image of a step."""

    def __init__(self, settings: PretrainSettings, pixels: Pixels, rows: Tensor) -> None:
        self.settings, self.pixels, self.rows = settings, pixels, rows
        self.num_images = len(pixels.stream or rows)  # a stream alone, if there is one
        if self.num_images < settings.batch:
            how = f"asks for more images than the {self.num_images} there are, labeled and unlabeled; lower it"
            raise UserError(f"--batch {settings.batch} {how}")
        self.count, rest = divmod(settings.batch, num_ranks())  # images of this rank in a step
        if rest:
            raise UserError(f"--batch {settings.batch} must be a multiple of {num_ranks()}, the number of ranks")

    def draw(self, step: int) -> Drawn:
        """All that the views of a step are made of. Slots in the batch are the same for any number of ranks."""
        settings, n, batch = self.settings, self.count, self.settings.batch
        slots = rank() * n + torch.arange(n)  # (n,)
        same: dict[str, Any] = {"size_in": self.pixels.size, "seed": settings.seed, "step": step, "sample": slots}
        drawn = join_plans([draw(settings.view, stream=stream, **same) for stream in (0, 1)])
        if settings.view.jitter:
            slots = torch.cat([slots, batch + slots])  # (2n,)
            same = {"seed": settings.seed, "step": step, "mean": self.pixels.mean, "std": self.pixels.std}
            drawn["jitter"] = draw_jitter(settings.view.jitter, sample=slots, stream=JITTER, **same)
        if self.pixels.stream:
            drawn["pixels"], rows = self.pixels.streamed(step, n), torch.arange(n)
        else:
            rows = self.rows[rows_at(settings.seed, UNLABELED, step * batch + rank() * n, n, len(self.rows))]  # (n,)
            if not self.pixels.resident:
                drawn["pixels"], rows = self.pixels.pool[rows], torch.arange(n)
        return {**drawn, "rows": rows.repeat(2), "step": torch.tensor(step)}

    def make(self, drawn: Drawn, sent: Drawn, micro: int = 0) -> Tensor:
        """The first views of this rank's images of the batch, then the second: (2n, 3, h, w)."""
        views = self.pixels.views(drawn, sent)
        return recolour(views, sent["jitter"]) if "jitter" in sent else views


class Pretraining:
    """Everything that moves during a pretraining, so that saving it is saving all. A `State` of the training loop."""

    name, remedy = "pretrain", "begin in another --out with a lower --lr"
    ema, labels = None, ""  # it has no teacher and sees no labels

    def __init__(
        self,
        settings: PretrainSettings,
        config: Config,
        folder: PretrainFolder,
        data: Data,
        device: torch.device,
        *,
        resumed: bool = False,
    ) -> None:
        self.settings, self.config, self.folder, self.device = settings, config, folder, device
        self.split = split_data(settings, data, saved=folder.split if resumed else None)
        self.seen = SeenImages(data, self.split, scored=False)
        torch.manual_seed(mix(settings.seed, INIT))
        model = Embedder(settings.backbone, settings.image_size, device)
        self.model = model.to(device).to(memory_format=torch.channels_last)
        if is_distributed():
            share_norms(self.model, on_gpu=device.type == "cuda")
        self.student = averaging(self.model)
        self.method = Contrastive(settings.temperature)
        self.optimizer = build_optimizer(self.model, self.config, device)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        rows = data.pool.rows((*self.split.labeled, *self.split.unlabeled)).sort().values  # (n,) on the host
        pixels = Pixels(self.config, data.pool.pixels, data.stream, model.mean, model.std, device)
        self.loader = PairLoader(settings, pixels, rows)
        self.replay = Replay(device) if pixels.fused and not is_distributed() else None
        self.images_per_step = 2 * settings.batch
        self.sender, self.meter, self.loss = Sender(device), Meter(), 0.0
        self.step, self.drawn_ahead, self.began = 0, {}, time.monotonic()

    def draw(self, step: int) -> Drawn:
        config = self.config
        lr = lr_at(step, max_lr=config.lr, total_steps=config.total_steps, warmup_ratio=config.lr_warmup_ratio)
        return {**self.loader.draw(step), "lr": torch.tensor(lr, dtype=torch.float64)}

    def state_dict(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "meter": self.meter}
        return {
            "loss": self.loss,
            **self.seen.state_dict(),
            **{name: part.state_dict() for name, part in parts.items()},
        }

    def load_state_dict(self, state: Checkpoint) -> None:
        self.seen.check(state, self.folder.path)
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.meter.load_state_dict(state["meter"], 1)
        check_number(state["loss"])
        self.loss = float(state["loss"])


def log_pretraining(state: Pretraining) -> dict[str, float]:
    """Write the mean loss since the last log row, and return it."""
    state.loss = state.meter.read()["loss"]
    lr = float(state.optimizer.param_groups[0]["lr"])
    state.folder.log.append({"step": state.step, "loss": state.loss, "lr": lr})
    return {"loss": state.loss}


def finish_pretraining(state: Pretraining) -> dict[str, Any]:
    """Write the backbone for `train --weights`, and pretrain.json."""
    environment = read_json(state.folder.environment)
    result: dict[str, Any] = {"minutes": minutes(state), "images": state.loader.num_images, "steps": state.step}
    result |= {"loss": state.loss, "split": state.split.digest, "environment": environment}
    if is_main():
        weights = state.model.backbone.state_dict().items()
        weights = {name: value.float() if value.is_floating_point() else value for name, value in weights}
        tensors = {name: value.cpu().contiguous() for name, value in weights.items()}
        about = {KEY: json.dumps({"backbone": state.settings.backbone})}
        write_atomic(state.folder.backbone, save(tensors, metadata=about))
        state.folder.checkpoints.finish()
        write_json(state.folder.result, result)
    return result
