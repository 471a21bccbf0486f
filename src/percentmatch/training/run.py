"""The state of a run: built from its settings, saved, restored, scored and finished."""

import contextlib
import hashlib
import json
import sys
import time
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from percentmatch import __version__
from percentmatch.augment import fused_views, mix
from percentmatch.data import Data, Images, Split, split_data
from percentmatch.distributed.device import Sender
from percentmatch.distributed.group import (
    averaging,
    gather_shares,
    is_distributed,
    is_main,
    least_over_ranks,
    mean_over_ranks,
    num_ranks,
    wait_for_all,
)
from percentmatch.distributed.shared_norm import share_norms
from percentmatch.errors import Diverged, UserError, several
from percentmatch.files import write_atomic, write_json
from percentmatch.methods import build_method, options_of
from percentmatch.models import (
    Card,
    Classifier,
    build_classifier,
    classifier_bytes,
    dropout_on,
    drops,
    evaluating,
    quicken,
    spare_search,
)
from percentmatch.records import Facts, PseudoLabels, scores_of
from percentmatch.runs.checkpoint import BAD_STATE, Saver
from percentmatch.runs.run_folder import RunFolder, from_anywhere
from percentmatch.scoring.calibration import decide
from percentmatch.scoring.metrics import pseudo_label_quality
from percentmatch.scoring.predictions import BATCH, evaluate, logits, probabilities
from percentmatch.scoring.table import ScoreTable
from percentmatch.settings.config import Config
from percentmatch.training.graph import Replay
from percentmatch.training.loader import Loader
from percentmatch.training.meter import Meter, all_finite
from percentmatch.training.optim import Ema, build_optimizer, device_options, lr_at

MANY = 1000  # classes; of more, the log tells in fewer rows what each does, so that it grows no further
INIT, REFRESH = 1_000_003, 1_000_033  # streams of the model's initial weights, and of dropout while the pool is scored


class Run:
    """Everything that moves during a run, so that saving it is saving the run."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        data: Data,
        device: torch.device,
        *,
        resumed: bool = False,
    ) -> None:
        self.config, self.folder, self.device = config, folder, device
        saved, learns = folder.split if resumed else None, config.method != "supervised"
        self.split: Split = split_data(config, data, saved=saved, unlabeled_needed=learns)
        self.labels = labels_digest(data, self.split)
        whole = set(self.split.test) == set(data.test.ids)
        self.test = data.test if whole else data.test.part(self.split.test)
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
            raise UserError(
                f"method '{config.method}' needs unlabeled images; give some by --unlabeled, ask for fewer "
                "--labeled, or take --method supervised"
            )
        starts = not (resumed and folder.has_checkpoint) or self.method.restarts  # then weights are asked for
        self.model: Classifier = self._new_model(config.weights if starts else "none", first_step=0)
        self.card = Card(
            backbone=config.backbone,
            head=config.head,
            dropout=config.dropout,
            image_size=config.image_size,
            decode_size=config.decode_size,
            frame=config.frame,
            task=config.task,
            class_names=data.pool.class_names,
            mean=self.model.mean,
            std=self.model.std,
            version=__version__,
        )
        self.method.check_model(self.model)
        self.sender, self.saver = Sender(device), Saver()
        self._new_followers()
        mean, std = self.model.mean, self.model.std
        views = self.method.views
        self.loader = Loader(
            config, data.pool, self.split, views=views, mean=mean, std=std, device=device, stream=data.stream
        )
        self.meter = Meter()
        self.step, self.drawn_ahead = 0, {}
        self.seconds, self.began = 0.0, time.monotonic()

    def _new_model(self, weights: str, first_step: int) -> Classifier:
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
        if config.compile:
            model.compile()
        elif self.can_replay and config.precision != "float64":  # in float32; one by one they keep the host too busy
            quicken(model, self.device)
        spare_search(model, self.device)
        return model

    def _new_followers(self) -> None:
        """What hangs on the student: its moving average and its optimizer."""
        self.ema = Ema(self.model, self.config.ema_decay)
        self.optimizer = build_optimizer(self.model, self.config, self.device)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.student = averaging(self.model)
        self.replay = Replay(self.device) if self.can_replay else None

    @property
    def can_replay(self) -> bool:
        """Whether the step can be captured as a CUDA graph."""
        return self.config.cuda_graph and fused_views(self.device) is not None and not is_distributed()

    def draw(self, step: int) -> dict[str, Tensor]:
        """What a step needs to know, on the host."""
        place, length = self.cycle(step)
        config = self.config
        lr = lr_at(place, max_lr=config.lr, total_steps=length, warmup_ratio=config.lr_warmup_ratio)
        rate, weight = (torch.tensor(number, dtype=torch.float64) for number in (lr, self.ema.weight(place)))
        return {**self.loader.draw(step), "lr": rate, "ema_weight": weight}

    def cycle(self, step: int) -> tuple[int, int]:
        """Where `step` stands in the learning-rate cycle, and the cycle's length: the run's, or the round's."""
        total, length = self.config.total_steps, self.method.round_steps
        if not self.method.restarts or not length:
            return step, total
        first = step - step % length
        return step - first, min(length, total - first)

    def refresh(self, step: int) -> None:
        """Before `step`: let a method that relabels the pool do so when its round begins, and renew the student."""
        length = self.method.round_steps
        if not length or step == 0 or step % length:
            return
        self.check_finite()
        torch.manual_seed(mix(self.config.seed, REFRESH, step))
        self.method.refresh(self)
        if self.method.restarts:
            self.model = self._new_model(self.config.weights, first_step=step)
            self._new_followers()
        self.write_row({"step": step + 1, "kind": "refresh", "restarted": self.method.restarts})

    @torch.no_grad()
    def probabilities(
        self, model: Literal["student", "teacher"], *, dropout_passes: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Scores of the unlabeled images, see `methods.base.Pool`."""
        network = self.model if model == "student" else self.ema.model
        assert isinstance(network, Classifier)
        means, deviations, empty = [], [], torch.zeros(0, self.num_classes, device=self.device)
        mode = dropout_on(network) if dropout_passes else evaluating(network)
        with mode, torch.compiler.set_stance("force_eager"):  # compiled for training only
            for images in self.loader.unlabeled_images(BATCH):
                if drops(network.backbone):
                    outputs = [network(images) for _ in range(max(dropout_passes, 1))]
                else:  # then every pass reads the same
                    seen = network.read(images)
                    outputs = [network.head(seen) for _ in range(max(dropout_passes, 1))]
                scores = torch.stack([scores_of(each, self.config.task) for each in outputs])  # (passes, n, c)
                means.append(scores.mean(0))
                deviations.append(scores.std(0, correction=0))
        total = len(self.loader.unlabeled)
        mean, deviation = (gather_shares(torch.cat([empty, *parts]), total) for parts in (means, deviations))
        return mean, deviation if dropout_passes else None

    @property
    def images_per_step(self) -> int:
        """Images that pass through the student in one step."""
        views = len(self.method.views - {"uniforms"})
        return self.config.labeled_batch * (1 + self.config.unlabeled_ratio * views)

    def autocast(self) -> torch.autocast:
        wanted = self.config.precision == "bfloat16" or (self.config.precision == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=wanted)

    def no_exchange(self, micro: int) -> contextlib.AbstractContextManager[None]:
        """Before the last part of a step the ranks need not agree on a gradient."""
        waits = isinstance(self.student, DistributedDataParallel) and micro < self.config.accumulate - 1
        return self.student.no_sync() if waits else contextlib.nullcontext()

    def unseen_classes(self) -> list[str]:
        names = self.test.class_names
        return [name for name, unseen in zip(names, self.facts.unseen.tolist(), strict=True) if unseen]

    def audit(self, pseudo: PseudoLabels | None, truth: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
        """What the log says of the pseudo-labels, class by class, with their truth where it is known."""
        if pseudo is None:
            return {}
        quality = pseudo_label_quality(pseudo.targets, pseudo.mask, *truth) if truth else {}
        quality = {name: count * num_ranks() for name, count in quality.items()}  # the mean over ranks is then the sum
        thresholds = {"upper": pseudo.upper, "lower": pseudo.lower, "gap": pseudo.gap}
        return {
            **{name: value for name, value in thresholds.items() if value is not None},
            "weights": pseudo.weights if pseudo.weights.ndim == 1 else pseudo.weights.mean(0),
            "positive_rate": (pseudo.mask * pseudo.targets).mean(0),
            "negative_rate": (pseudo.mask * (1 - pseudo.targets)).mean(0),
            **quality,
        }

    def log_row(self) -> float:
        """Write the means since the last row; returns the loss."""
        self.saver.check()
        self.check_finite()
        means = self.meter.read(mean_over_ranks)
        losses = {name: value for name, value in means.items() if not isinstance(value, list)}
        classes = {name: value for name, value in means.items() if isinstance(value, list)}
        rest = self.step // self.config.log_every % -(-self.num_classes // MANY)  # 0 in every row up to MANY classes
        if rest and self.step < self.config.total_steps:
            classes = {}
        total = sum(losses.values())
        lr = float(self.optimizer.param_groups[0]["lr"])
        self.write_row({"step": self.step, "kind": "train", "lr": lr, "loss": total, **losses, "classes": classes})
        return total

    def write_row(self, row: dict[str, Any]) -> None:
        """To the log, once for all ranks."""
        if is_main():
            self.folder.append(row)

    def validate(self) -> float | None:
        """Score the averaged model on the validation images; returns mAP."""
        self.check_finite()
        result = self.score(self.ema.model, self.validation)
        row = result.to_dict(short=self.num_classes > MANY)
        self.write_row({"step": self.step, "kind": "validation", **row})
        return result.means["mAP"]

    def score(self, model: nn.Module, images: Images) -> ScoreTable:
        with torch.compiler.set_stance("force_eager"):
            scores = probabilities(model, images.pixels, self.card, self.device)
        return evaluate(scores, images, self.config.task)

    def check_finite(self) -> None:
        """Stop if a loss or gradient was not finite since the start (waits for the device)."""
        if found := self.meter.first_bad(least_over_ranks):
            raise self._diverged(f"{found[0]} not finite in step {found[1] + 1}")

    def _diverged(self, what: str) -> Diverged:
        self.saver.wait()
        kept = f"'{self.folder.checkpoint}' holds the last good state, " if self.folder.checkpoint.exists() else ""
        return Diverged(f"{what}; {kept}start a new run with a lower --lr or with --clip-grad 1")

    def save(self) -> None:
        """Have a checkpoint written, unless the state is not worth keeping."""
        self.check_finite()
        if not all_finite(self.model.state_dict()):
            raise self._diverged(f"weights not finite after step {self.step}")
        self.seconds, self.began = self.seconds + time.monotonic() - self.began, time.monotonic()
        state = self.state()  # all ranks have a part in it
        if is_main():
            self.saver.save(self.folder.checkpoint, state, self.folder.previous)

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "log": self.folder.log_mark(),
            "settings": from_anywhere(self.config.to_dict()),
            "split": self.split.digest,
            "labels": self.labels,
            "model": self.model.state_dict(),
            "ema": self.ema.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "meter": self.meter.state_dict(mean_over_ranks),
        }

    def restore(self) -> None:
        """Take up the newest whole checkpoint, or begin at step 0 if the run ended before its first."""
        if is_main():
            self.folder.complete(self.split, self.device)
        state, why = self.folder.newest(self.device, save_every=self.config.save_every)
        if state:
            try:
                self.folder.refuse_other(state.get("settings", {}), self.config.to_dict())  # if its file was changed
                if state["split"] != self.split.digest:
                    raise UserError(
                        f"'{self.folder.checkpoint}' belongs to a run on other images; choose another --out"
                    )
                if state["labels"] != self.labels:
                    raise UserError(
                        f"the class names or labels in '{self.config.labels or self.config.root or 'the data'}' have "
                        f"changed since '{self.folder.path}' was begun; put them back or start a new run"
                    )
                self.model.load_state_dict(state["model"])
                self.ema.model.load_state_dict(state["ema"])
                for group in state["optimizer"]["param_groups"]:  # as here, not as where it was saved
                    group |= device_options(self.config.lr, self.device)
                self.optimizer.load_state_dict(state["optimizer"])
                self.method.load_state_dict(state["method"])
                self.meter.load_state_dict(state["meter"])
                self.step, self.seconds = int(state["step"]), float(state["seconds"])
            except BAD_STATE as error:
                raise UserError(
                    f"'{self.folder.checkpoint}' is the checkpoint of another model or method; choose another --out"
                ) from error
        wait_for_all()  # until all have read it
        if is_main():
            self.folder.go_on_from(state, why)
            if not self.folder.log_bytes:
                self.write_start()

    def write_start(self) -> None:
        """The first row of the log."""
        unseen = self.unseen_classes()
        self.write_row({"step": 0, "kind": "start", "split": self.split.digest, "unseen_classes": unseen})
        if unseen and is_main():
            print(f"no labeled image shows {several(unseen)}: never a positive pseudo-label", file=sys.stderr)
        first, total = self.method.first_step, self.config.total_steps
        if first >= total and is_main():
            known = options_of(self.config.method)
            options = " or ".join(name for name in ("warmup_steps", "refresh_steps") if name in known)
            print(
                f"{self.config.method} learns from unlabeled images after {first:,} steps and the run has {total:,}: "
                f"it never does; lower --option {options}, or raise --total-steps",
                file=sys.stderr,
            )

    def finish(self) -> dict[str, Any]:
        """Score the last iterate, once, on validation and test images, and write the model with its decisions."""
        card, summary = self.card, {}
        if len(self.validation):
            with torch.compiler.set_stance("force_eager"):
                found = logits(self.ema.model, self.validation.pixels, card, self.device)
            labels = self.validation.scoring_labels(count_difficult=False)
            if decided := decide(found, *labels, task=card.task, class_names=card.class_names):
                card, summary = replace(card, decisions=decided[0]), decided[1]
        if is_main():
            write_atomic(self.folder.model, classifier_bytes(self.ema.model, card))
        parts = {"validation": self.validation, "test": self.test}
        scored = {"ema": self.ema.model, "model": self.model}
        metrics = {
            "method": self.config.method,
            "seed": self.config.seed,
            "split": self.split.digest,
            "step": self.step,
            "minutes": round((self.seconds + time.monotonic() - self.began) / 60, 2),
            **{
                part: {name: self.score(model, images).to_dict() for name, model in scored.items()}
                for part, images in parts.items()
                if len(images)
            },
            **summary,
        }
        if is_main():
            self.saver.wait()  # only a run whose last checkpoint is there is finished
            self.folder.previous.unlink(missing_ok=True)
            write_json(self.folder.metrics, metrics)
        return metrics


def labels_digest(data: Data, split: Split) -> str:
    """A hash of the class names, and of the labels of the split's images in its order."""
    digest = hashlib.sha256(json.dumps(data.pool.class_names).encode())
    for images, ids in ((data.pool, (*split.labeled, *split.unlabeled, *split.validation)), (data.test, split.test)):
        rows = images.rows(ids)
        for piece in images.labels.bytes_of(rows):
            digest.update(piece)
    return digest.hexdigest()[:16]
