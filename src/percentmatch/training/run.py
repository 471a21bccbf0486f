"""The state of a run: built from its settings, saved, restored, and renewed between two rounds."""

import hashlib
import json
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from percentmatch import __version__
from percentmatch.augment import fused_views, mix
from percentmatch.data import Data, Split, split_data
from percentmatch.data.labels import Flags
from percentmatch.distributed.device import Sender
from percentmatch.distributed.group import averaging, gather_shares, is_distributed, own_share
from percentmatch.distributed.shared_norm import share_norms
from percentmatch.errors import UserError
from percentmatch.methods import build_method, uses_unlabeled
from percentmatch.methods.base import Source
from percentmatch.models import (
    Card,
    Classifier,
    build_classifier,
    dropout_on,
    drops,
    evaluating,
    freeze_batch_norm,
    quicken,
    spare_search,
)
from percentmatch.records import Facts, LabeledScores, scores_of
from percentmatch.runs.checkpoint import Checkpoint
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.predictions import BATCH
from percentmatch.settings.config import Config
from percentmatch.training.loader import Drawn, Loader, Pixels
from percentmatch.training.loop import Replay, check_finite
from percentmatch.training.meter import Meter
from percentmatch.training.optim import Ema, build_optimizer, load_optimizer, lr_at
from percentmatch.training.probe import Probe, folds, start_at_probe
from percentmatch.training.same_images import SeenImages

INIT = 1_000_003  # random stream of the model's initial weights
REFRESH = 1_000_033  # random stream of dropout while the pool is scored
OF_THE_MODEL = ("backbone", "head", "dropout", "image_size", "decode_size", "frame", "task")  # settings on its card


class Run:
    """Everything that moves during a run, so that saving it is saving the run. A `State` of the training loop."""

    remedy = "start a new run with a lower --lr or with --clip-grad 1"

    def __init__(
        self, config: Config, folder: RunFolder, data: Data, device: torch.device, *, resumed: bool = False
    ) -> None:
        self.folder, self.device, self.name = folder, device, config.method
        saved = folder.split if resumed else None
        self.split: Split = split_data(config, data, saved=saved, unlabeled_needed=uses_unlabeled(config.method))
        self.labels = labels_digest(data, self.split)
        self.seen = SeenImages(data, self.split)
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
        self.use(config)
        if self.method.views and not self.split.unlabeled and not data.stream:
            how = "give some by --unlabeled, lower --labeled, or take --method supervised"
            raise UserError(f"method '{config.method}' needs unlabeled images; {how}")
        shown, held_out = hold_out(self.split, labeled.targets, self.method.holds_out, config.seed)
        self.held_out = data.pool.rows(held_out)  # (m,) rows of the pool
        probed = config.head_start == "probe" or not self.method.trains
        self.labeled = data.pool.part(shown.labeled) if probed else None
        self.probe: Probe | None = None  # that the head of a new run starts as
        self.class_names = data.pool.class_names
        loads = resumed and folder.checkpoints.exist and not self.method.restarts
        self.new_student(loads=loads)
        mean, std = self.model.mean, self.model.std
        self.method.check_model(self.model)
        views = self.method.views
        pixels = Pixels(config, data.pool.pixels, data.stream if views else None, mean, std, device)
        self.loader = Loader(config, pixels, data.pool, shown, views)
        self.images_per_step = config.labeled_batch * (1 + config.unlabeled_ratio * len(views - {"uniforms"}))
        self.sender, self.meter = Sender(device), Meter()
        self.step, self.drawn_ahead, self.began = 0, {}, time.monotonic()

    def use(self, config: Config) -> None:
        """Take the settings, and the method with their options, for a run that has not begun."""
        self.settings = self.config = config
        self.method = build_method(config.method, self.facts, config.task, config.options).to(self.device)

    def new_student(self, first_step: int = 0, *, loads: bool = False) -> None:
        """A model that starts at `first_step`, and what belongs to it: EMA, optimizer, the captured step.

        With `loads`, a checkpoint will fill in its weights.
        """
        config = self.config
        torch.manual_seed(mix(config.seed, INIT, first_step) if first_step else mix(config.seed, INIT))
        model = build_classifier(
            config.backbone,
            num_classes=self.num_classes,
            head=config.head,
            image_size=config.image_size,
            weights="none" if loads else config.weights,
            dropout=config.dropout,
            bias=self.facts.prior_logits(config.task) if config.head_start == "prior" else None,
        )
        model = model.to(self.device).to(memory_format=torch.channels_last)  # faster on CPU and GPU
        if config.precision == "float64":
            model = model.double()
        same = {name: getattr(config, name) for name in OF_THE_MODEL}
        self.card = Card(**same, mean=model.mean, std=model.std, class_names=self.class_names, version=__version__)
        if self.labeled and not loads:
            self.probe = start_at_probe(model, self.labeled, self.card, self.device)
        if is_distributed():
            share_norms(model, on_gpu=self.device.type == "cuda")
        captured = config.cuda_graph and fused_views(self.device) is not None and not is_distributed()
        if config.compile:
            model.compile()
        elif captured and config.precision != "float64":  # in float32; one by one they keep the host too busy
            quicken(model, self.device)
        spare_search(model, self.device)
        if config.freeze_batch_norm:
            freeze_batch_norm(model)
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
            **self.seen.state_dict(),
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
        self.seen.check(state, folder)
        self.model.load_state_dict(state["model"])
        self.ema.model.load_state_dict(state["ema"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.method.load_state_dict(state["method"])
        self.meter.load_state_dict(state["meter"], self.num_classes)


def hold_out(split: Split, targets: Flags, one_in: int, seed: int) -> tuple[Split, tuple[str, ...]]:
    """The split with one in so many of its labeled images, of `targets`, among the unlabeled ones; and their ids.

    Both parts get their share of each class's positives, as far as that is possible. With 0 none is held out.
    """
    if not one_in:
        return split, ()
    if len(split.labeled) < 2:
        raise UserError("one labeled image is too few to hold some out; label more")
    fold = folds(targets.dense().double(), seed, one_in).tolist()
    kept, held = (
        tuple(name for name, number in zip(split.labeled, fold, strict=True) if (number == 0) is out)
        for out in (False, True)
    )
    return replace(split, labeled=kept, unlabeled=(*split.unlabeled, *held)), held


class RunPool:
    """The images of a run, see `methods.base.Pool`."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def labeled(self, model: Source) -> LabeledScores:
        """Scores of all labeled images, and which of them are held out."""
        run = self.run
        rows = torch.cat([run.loader.labeled, run.held_out])
        scores, _ = self._scores(model, rows)
        targets, known = run.loader.labels.targets[rows], run.loader.labels.known[rows]
        held_out = torch.arange(len(rows)) >= len(run.loader.labeled)
        return LabeledScores(scores, *(each.to(run.device) for each in (targets, known, held_out)))

    def probabilities(self, model: Source, *, dropout_passes: int = 0) -> tuple[Tensor, Tensor | None]:
        """Scores of all unlabeled images; with `dropout_passes`, mean and deviation of so many passes with dropout."""
        return self._scores(model, self.run.loader.unlabeled, dropout_passes)

    @torch.no_grad()
    def _scores(self, model: Source, rows: Tensor, dropout_passes: int = 0) -> tuple[Tensor, Tensor | None]:
        run = self.run
        network = run.model if model == "student" else run.ema.model
        assert isinstance(network, Classifier)
        means, deviations, empty = [], [], torch.zeros(0, run.num_classes, device=run.device)
        mode = dropout_on(network) if dropout_passes else evaluating(network)
        with mode, torch.compiler.set_stance("force_eager"):  # compiled for training only
            for images in run.loader.plain_images(rows[own_share(len(rows))], BATCH):
                layers, given = network, images
                if not drops(network.backbone):  # then every pass reads the same
                    layers, given = network.head, network.read(images)
                outputs = [layers(given) for _ in range(max(dropout_passes, 1))]
                scores = torch.stack([scores_of(each, run.config.task) for each in outputs])  # (passes, n, c)
                means.append(scores.mean(0))
                deviations.append(scores.std(0, correction=0))
        mean, deviation = (gather_shares(torch.cat([empty, *each]), len(rows)) for each in (means, deviations))
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
        run.new_student(first_step=step)
    run.folder.log.append({"step": step + 1, "kind": "refresh", "restarted": run.method.restarts})


def labels_digest(data: Data, split: Split) -> str:
    """A hash of the class names, and of the labels of the split's images in its order."""
    digest = hashlib.sha256(json.dumps(data.pool.class_names).encode())
    for images, ids in ((data.pool, (*split.labeled, *split.unlabeled, *split.validation)), (data.test, split.test)):
        for piece in images.labels.bytes_of(images.rows(ids)):
            digest.update(piece)
    return digest.hexdigest()[:16]
