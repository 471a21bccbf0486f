"""The state of a run: built from its settings, saved, restored, scored and finished."""

import hashlib
import json
import sys
import time
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from percentmatch import __version__
from percentmatch.augment import fused_views, mix
from percentmatch.checkpoint import Saver, load_checkpoint, write_atomic, write_json
from percentmatch.config import Config
from percentmatch.data import Data, Images, Split, split_data
from percentmatch.decide import decide
from percentmatch.device import Sender
from percentmatch.distributed import is_distributed
from percentmatch.errors import UserError
from percentmatch.evaluate import BATCH, evaluate, logits, probabilities
from percentmatch.graph import Replay
from percentmatch.loader import Loader
from percentmatch.meter import Meter
from percentmatch.methods import build_method
from percentmatch.methods.base import scores_of
from percentmatch.metrics import pseudo_label_quality
from percentmatch.models import Card, Classifier, build_classifier, classifier_bytes, dropout_on, evaluating, quicken
from percentmatch.optim import Ema, build_optimizer, device_options, lr_at
from percentmatch.records import Facts, PseudoLabels
from percentmatch.run_folder import RunFolder

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
        self.split: Split = split_data(config, data, saved=folder.split if resumed else None)
        self.labels = labels_digest(data, self.split)
        whole = set(self.split.test) == set(data.test.ids)
        self.test = data.test if whole else data.test.part(self.split.test)
        self.validation = data.pool.part(self.split.validation)
        labeled = data.pool.part(self.split.labeled)
        self.num_classes = len(data.pool.class_names)
        self.facts = Facts.from_targets(
            labeled.targets,
            labeled.known,
            num_unlabeled=len(self.split.unlabeled),
            total_steps=config.total_steps,
            unlabeled_batch=config.labeled_batch * config.unlabeled_ratio,
        )
        self.method = build_method(config.method, self.facts, config.task, config.options).to(device)
        if self.method.views and not self.split.unlabeled:
            raise UserError(
                f"method '{config.method}' needs unlabeled images; give some by --unlabeled, ask for fewer "
                "--labeled, or take --method supervised"
            )
        starts = not (resumed and folder.checkpoint.exists()) or self.method.restarts  # then weights are asked for
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
        self.loader = Loader(config, data.pool, self.split, views=self.method.views, mean=mean, std=std, device=device)
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
        )
        model = model.to(self.device).to(memory_format=torch.channels_last)  # faster on CPU and GPU
        if config.compile:
            model.compile()
        elif self.can_replay:  # launched one by one, the kernels of a quick model would keep the host too busy
            quicken(model, self.device)
        return model

    def _new_followers(self) -> None:
        """What hangs on the student: its moving average and its optimizer."""
        self.ema = Ema(self.model, self.config.ema_decay)
        self.optimizer = build_optimizer(self.model, self.config, self.device)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
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
        self.folder.append({"step": step + 1, "kind": "refresh", "restarted": self.method.restarts})

    @torch.no_grad()
    def probabilities(
        self, model: Literal["student", "teacher"], *, dropout_passes: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Scores of the unlabeled images, see `methods.base.Pool`."""
        network = self.model if model == "student" else self.ema.model
        means, deviations = [], []
        mode = dropout_on(network) if dropout_passes else evaluating(network)
        with mode, torch.compiler.set_stance("force_eager"):  # compiled for training only
            for images in self.loader.unlabeled_images(BATCH):
                passes = [scores_of(network(images), self.config.task) for _ in range(max(dropout_passes, 1))]
                scores = torch.stack(passes)  # (passes, n, c)
                means.append(scores.mean(0))
                deviations.append(scores.std(0, correction=0))
        return torch.cat(means), torch.cat(deviations) if dropout_passes else None

    @property
    def images_per_step(self) -> int:
        """Images that pass through the student in one step."""
        views = len(self.method.views - {"uniforms"})
        return self.config.labeled_batch * (1 + self.config.unlabeled_ratio * views)

    def autocast(self) -> torch.autocast:
        wanted = {"auto": self.device.type == "cuda", "float32": False, "bfloat16": True}[self.config.precision]
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=wanted)

    def unseen_classes(self) -> list[str]:
        names = self.test.class_names
        return [name for name, unseen in zip(names, self.facts.unseen.tolist(), strict=True) if unseen]

    def audit(self, pseudo: PseudoLabels | None, index: Tensor | None) -> dict[str, Tensor]:
        """What the log says of the pseudo-labels, class by class, with their truth where it is known."""
        if pseudo is None or index is None:
            return {}
        quality = pseudo_label_quality(pseudo.targets, pseudo.mask, *self.loader.truth(index))
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
        means = self.meter.read()
        losses = {name: value for name, value in means.items() if not isinstance(value, list)}
        classes = {name: value for name, value in means.items() if isinstance(value, list)}
        total = sum(losses.values())
        lr = float(self.optimizer.param_groups[0]["lr"])
        self.folder.append({"step": self.step, "kind": "train", "lr": lr, "loss": total, **losses, "classes": classes})
        return total

    def validate(self) -> float | None:
        """Score the averaged model on the validation images; returns mAP."""
        self.check_finite()
        result = self.score(self.ema.model, self.validation)
        self.folder.append({"step": self.step, "kind": "validation", **result})
        return result["mAP"]

    def score(self, model: nn.Module, images: Images) -> dict[str, Any]:
        with torch.compiler.set_stance("force_eager"):
            scores = probabilities(model, images.pixels, self.card, self.device)
        return evaluate(scores, images, self.config.task)

    def check_finite(self) -> None:
        """Stop if a loss or gradient was not finite since the start (waits for the device)."""
        found = self.meter.first_bad()
        if found:
            names, step = found
            self.saver.wait()
            kept = f"'{self.folder.checkpoint}' holds the last good state" if self.folder.checkpoint.exists() else ""
            advice = "start a new run with a lower --lr or with --clip-grad 1"
            raise UserError(f"{names} not finite in step {step + 1}; {kept + ', ' if kept else ''}{advice}")

    def save(self) -> None:
        self.check_finite()
        self.seconds, self.began = self.seconds + time.monotonic() - self.began, time.monotonic()
        self.saver.save(self.folder.checkpoint, self.state())

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "split": self.split.digest,
            "labels": self.labels,
            "model": self.model.state_dict(),
            "ema": self.ema.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "meter": self.meter.state_dict(),
        }

    def restore(self) -> None:
        """Take up the last checkpoint, or begin at step 0 if the run ended before its first."""
        self.folder.complete(self.split, self.device)
        if not self.folder.checkpoint.exists():
            reached = max((row["step"] for _, row in self.folder.read_log()), default=0)
            if reached > 2 * self.config.save_every:  # the first is in its place before the second is begun
                raise UserError(
                    f"'{self.folder.checkpoint}' is missing though the log reaches step {reached}; put it back"
                )
            print(f"no checkpoint in '{self.folder.path}' yet: beginning at step 0", file=sys.stderr)
        else:
            state = load_checkpoint(self.folder.checkpoint, self.device)
            try:
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
                self.step, self.seconds = state["step"], state["seconds"]
            except (KeyError, RuntimeError, ValueError, TypeError) as error:
                raise UserError(
                    f"'{self.folder.checkpoint}' is the checkpoint of another model or method; choose another --out"
                ) from error
        self.folder.keep_log(self.step)

    def finish(self) -> dict[str, Any]:
        """Score the last iterate, once, on validation and test images, and write the model with its decisions."""
        card, summary = self.card, {}
        if len(self.validation):
            with torch.compiler.set_stance("force_eager"):
                found = logits(self.ema.model, self.validation.pixels, card, self.device)
            labels = self.validation.scoring_labels(count_difficult=False)
            if decided := decide(found, *labels, task=card.task, class_names=card.class_names):
                card, summary = replace(card, decisions=decided[0]), decided[1]
        write_atomic(self.folder.model, classifier_bytes(self.ema.model, card))
        parts = {"validation": self.validation, "test": self.test}
        metrics = {
            "method": self.config.method,
            "seed": self.config.seed,
            "split": self.split.digest,
            "step": self.step,
            "minutes": round((self.seconds + time.monotonic() - self.began) / 60, 2),
            **{
                part: {"ema": self.score(self.ema.model, images), "model": self.score(self.model, images)}
                for part, images in parts.items()
                if len(images)
            },
            **summary,
        }
        write_json(self.folder.metrics, metrics)
        return metrics


def labels_digest(data: Data, split: Split) -> str:
    """A hash of the class names, and of the labels of the split's images in its order."""
    digest = hashlib.sha256(json.dumps(data.pool.class_names).encode())
    for images, ids in ((data.pool, (*split.labeled, *split.unlabeled, *split.validation)), (data.test, split.test)):
        rows = images.rows(ids)
        for labels in (images.targets * images.known, images.known, images.difficult):
            digest.update(labels[rows].numpy())
    return digest.hexdigest()[:16]
