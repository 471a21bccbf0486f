"""The state of a run: built from its settings, saved, restored, and renewed between two rounds."""

import hashlib
import json
import time
from typing import Any, Literal

import torch
from torch import Tensor

from percentmatch import __version__
from percentmatch.augment import fused_views, mix
from percentmatch.data import Data, Split, split_data
from percentmatch.distributed.device import Sender
from percentmatch.distributed.group import averaging, gather_shares, is_distributed
from percentmatch.distributed.shared_norm import share_norms
from percentmatch.errors import UserError
from percentmatch.methods import build_method, uses_unlabeled
from percentmatch.models import Card, Classifier, build_classifier, dropout_on, drops, evaluating, quicken, spare_search
from percentmatch.records import Facts, scores_of
from percentmatch.runs.checkpoint import Checkpoint
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.predictions import BATCH
from percentmatch.settings.config import Config
from percentmatch.training.loader import Drawn, Loader, Pixels
from percentmatch.training.loop import Replay, check_finite
from percentmatch.training.meter import Meter
from percentmatch.training.optim import Ema, build_optimizer, load_optimizer, lr_at

INIT = 1_000_003  # random stream of the model's initial weights
REFRESH = 1_000_033  # random stream of dropout while the pool is scored
OF_THE_MODEL = ("backbone", "head", "dropout", "image_size", "decode_size", "frame", "task")  # settings on its card


class Run:
    """Everything that moves during a run, so that saving it is saving the run. A `State` of the training loop."""

    remedy = "start a new run with a lower --lr or with --clip-grad 1"

    def __init__(
        self, config: Config, folder: RunFolder, data: Data, device: torch.device, *, resumed: bool = False
    ) -> None:
        self.settings = self.config = config
        self.folder, self.device, self.name = folder, device, config.method
        saved = folder.split if resumed else None
        self.split: Split = split_data(config, data, saved=saved, unlabeled_needed=uses_unlabeled(config.method))
        self.labels = labels_digest(data, self.split)
        all_tested = set(self.split.test) == set(data.test.ids)
        self.test = data.test if all_tested else data.test.part(self.split.test)
        self.validation = data.pool.part(self.split.validation)
        labeled = data.pool.labels.select(data.pool.rows(self.split.labeled))
        self.num_classes = len(data.pool.class_names)
        self.facts = Facts(
            labeled.targets.in_columns().double(),
            labeled.known.in_columns().double(),
            num_labeled=len(self.split.labeled),
            num_unlabeled=None if data.stream else len(self.split.unlabeled),
            total_steps=config.total_steps,
            unlabeled_batch=config.labeled_batch * config.unlabeled_ratio,
        )
        self.method = build_method(config.method, self.facts, config.task, config.options).to(device)
        if self.method.views and not self.split.unlabeled and not data.stream:
            how = "give some by --unlabeled, lower --labeled, or take --method supervised"
            raise UserError(f"method '{config.method}' needs unlabeled images; {how}")
        loads = resumed and folder.checkpoints.exist and not self.method.restarts  # then a checkpoint has the weights
        self.new_student("none" if loads else config.weights)
        mean, std = self.model.mean, self.model.std
        same = {name: getattr(config, name) for name in OF_THE_MODEL}
        self.card = Card(**same, mean=mean, std=std, class_names=data.pool.class_names, version=__version__)
        self.method.check_model(self.model)
        views = self.method.views
        pixels = Pixels(config, data.pool.pixels, data.stream if views else None, mean, std, device)
        self.loader = Loader(config, pixels, data.pool, self.split, views)
        self.images_per_step = config.labeled_batch * (1 + config.unlabeled_ratio * len(views - {"uniforms"}))
        self.sender, self.meter = Sender(device), Meter()
        self.step, self.drawn_ahead, self.began = 0, {}, time.monotonic()

    def new_student(self, weights: str, first_step: int = 0) -> None:
        """A model that starts at `first_step`, and what belongs to it: EMA, optimizer, the captured step."""
        config = self.config
        torch.manual_seed(mix(config.seed, INIT, first_step) if first_step else mix(config.seed, INIT))
        model = build_classifier(
            config.backbone,
            num_classes=self.num_classes,
            head=config.head,
            image_size=config.image_size,
            weights=weights,
            dropout=config.dropout,
            bias=self.facts.prior_logits(config.task) if config.prior_bias else None,
        )
        model = model.to(self.device).to(memory_format=torch.channels_last)  # faster on CPU and GPU
        if config.precision == "float64":
            model = model.double()
        if is_distributed():
            share_norms(model, on_gpu=self.device.type == "cuda")
        captured = config.cuda_graph and fused_views(self.device) is not None and not is_distributed()
        if config.compile:
            model.compile()
        elif captured and config.precision != "float64":  # in float32; one by one they keep the host too busy
            quicken(model, self.device)
        spare_search(model, self.device)
        self.model: Classifier = model
        self.ema = Ema(model, config.ema_decay)
        self.optimizer = build_optimizer(model, config, self.device)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.student = averaging(model)
        self.replay = Replay(self.device) if captured else None

    def draw(self, step: int) -> Drawn:
        cycle_step, length = self.cycle(step)
        config = self.config
        lr = lr_at(cycle_step, max_lr=config.lr, total_steps=length, warmup_ratio=config.lr_warmup_ratio)
        rate, weight = (torch.tensor(number, dtype=torch.float64) for number in (lr, self.ema.weight(cycle_step)))
        return {**self.loader.draw(step), "lr": rate, "ema_weight": weight}

    def cycle(self, step: int) -> tuple[int, int]:
        """The step within the learning-rate cycle, and the cycle's length: the run's, or the round's."""
        total, length = self.config.total_steps, self.method.round_steps
        if not self.method.restarts or not length:
            return step, total
        first = step - step % length
        return step - first, min(length, total - first)

    def state_dict(self) -> dict[str, Any]:
        return {
            "split": self.split.digest,
            "labels": self.labels,
            "model": self.model.state_dict(),
            "ema": self.ema.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "meter": self.meter.state_dict(),
        }

    def load_state_dict(self, state: Checkpoint) -> None:
        folder, source = self.folder.path, self.config.labels or self.config.root or "the data"
        if state["split"] != self.split.digest:
            raise UserError(f"'{folder / 'last.pt'}' belongs to a run on other images; choose another --out")
        if state["labels"] != self.labels:
            how = f"have changed since '{folder}' was begun; put them back or start a new run"
            raise UserError(f"the class names or labels in '{source}' {how}")
        self.model.load_state_dict(state["model"])
        self.ema.model.load_state_dict(state["ema"])
        load_optimizer(self.optimizer, state["optimizer"], self.config.lr, self.device)
        self.method.load_state_dict(state["method"])
        self.meter.load_state_dict(state["meter"])


class RunPool:
    """The unlabeled images of a run, see `methods.base.Pool`."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @torch.no_grad()
    def probabilities(
        self, model: Literal["student", "teacher"], *, dropout_passes: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Scores of all unlabeled images; with `dropout_passes`, mean and deviation of so many passes with dropout."""
        run = self.run
        network = run.model if model == "student" else run.ema.model
        assert isinstance(network, Classifier)
        means, deviations, empty = [], [], torch.zeros(0, run.num_classes, device=run.device)
        mode = dropout_on(network) if dropout_passes else evaluating(network)
        with mode, torch.compiler.set_stance("force_eager"):  # compiled for training only
            for images in run.loader.unlabeled_images(BATCH):
                layers, given = network, images
                if not drops(network.backbone):  # then every pass reads the same
                    layers, given = network.head, network.read(images)
                outputs = [layers(given) for _ in range(max(dropout_passes, 1))]
                scores = torch.stack([scores_of(each, run.config.task) for each in outputs])  # (passes, n, c)
                means.append(scores.mean(0))
                deviations.append(scores.std(0, correction=0))
        total = len(run.loader.unlabeled)
        mean, deviation = (gather_shares(torch.cat([empty, *each]), total) for each in (means, deviations))
        return mean, deviation if dropout_passes else None


def refresh(run: Run, step: int) -> None:
    """Before `step`: let a method that relabels the pool do so when its round begins, and renew the student."""
    length = run.method.round_steps
    if not length or step == 0 or step % length:
        return
    check_finite(run)
    torch.manual_seed(mix(run.config.seed, REFRESH, step))
    run.method.refresh(RunPool(run))
    if run.method.restarts:
        run.new_student(run.config.weights, first_step=step)
    run.folder.log.append({"step": step + 1, "kind": "refresh", "restarted": run.method.restarts})


def labels_digest(data: Data, split: Split) -> str:
    """A hash of the class names, and of the labels of the split's images in its order."""
    digest = hashlib.sha256(json.dumps(data.pool.class_names).encode())
    for images, ids in ((data.pool, (*split.labeled, *split.unlabeled, *split.validation)), (data.test, split.test)):
        for piece in images.labels.bytes_of(images.rows(ids)):
            digest.update(piece)
    return digest.hexdigest()[:16]
