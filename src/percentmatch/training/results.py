"""What a run writes: the rows of its log, and at the end its model and scores, metrics.json last of all."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from percentmatch.console.notices import print_to_stderr
from percentmatch.data import Images
from percentmatch.distributed.group import is_main
from percentmatch.errors import several
from percentmatch.files import write_atomic, write_json
from percentmatch.methods import method_row
from percentmatch.models import classifier_bytes
from percentmatch.scoring.calibration import decide
from percentmatch.scoring.predictions import evaluate, logits, probabilities
from percentmatch.scoring.table import ScoreTable
from percentmatch.training.loop import minutes
from percentmatch.training.run import Run

MANY = 1000  # classes; with more, fewer rows of the log hold values of each class, so that it grows no further


def log_start(run: Run) -> None:
    """The first row; warns where the run can learn less than its settings promise."""
    unseen = [name for name, never in zip(run.test.class_names, run.facts.unseen.tolist(), strict=True) if never]
    run.folder.log.append({"step": 0, "kind": "start", "split": run.split.digest, "unseen_classes": unseen})
    if unseen:
        they = "it gets" if len(unseen) == 1 else "they get"
        print_to_stderr(f"no labeled image shows {several(unseen)}, so {they} no positive pseudo-labels")
    if (first := run.method.first_step) >= (total := run.config.total_steps):
        options = " or ".join(method_row(run.config.method).warmup_options)
        late = f"starts using unlabeled images after {first:,} steps, but the run has only {total:,}"
        print_to_stderr(f"{run.config.method} {late}; lower --option {options}, or raise --total-steps")


def log_training(run: Run) -> dict[str, float]:
    """The means since the last row; returns the terms of the loss."""
    means = run.meter.read()
    losses = {name: value for name, value in means.items() if not isinstance(value, list)}
    classes = {name: value for name, value in means.items() if isinstance(value, list)}
    skipped = run.step // run.config.log_every % -(-run.num_classes // MANY)  # 0 in every row up to MANY classes
    if skipped and run.step < run.config.total_steps:
        classes = {}
    row = {"lr": float(run.optimizer.param_groups[0]["lr"]), "loss": sum(losses.values()), **losses, "classes": classes}
    run.folder.log.append({"step": run.step, "kind": "train", **row})
    return {f"{name} loss": value for name, value in losses.items()}


def log_validation(run: Run) -> float | None:
    """The scores of the EMA model on the validation images; returns mAP."""
    table = score(run, run.ema.model, run.validation)
    row = table.to_dict(short=run.num_classes > MANY)
    run.folder.log.append({"step": run.step, "kind": "validation", **row})
    return table.means["mAP"]


def score(run: Run, model: nn.Module, images: Images) -> ScoreTable:
    with torch.compiler.set_stance("force_eager"):
        scores = probabilities(model, images.pixels, run.card, run.device)
    return evaluate(scores, images, run.config.task)


def finish_run(run: Run) -> dict[str, Any]:
    """Score the weights of the last step, once, on validation and test images; write the model with its thresholds."""
    card, summary = run.card, {}
    if len(run.validation):
        with torch.compiler.set_stance("force_eager"):
            found = logits(run.ema.model, run.validation.pixels, card, run.device)
        labels = run.validation.scoring_labels(count_difficult=False)
        if decided := decide(found, *labels, task=card.task, class_names=card.class_names):
            card, summary = replace(card, decisions=decided[0]), decided[1]
    if is_main():
        write_atomic(run.folder.model, classifier_bytes(run.ema.model, card))
    models = {"ema": run.ema.model, "model": run.model}
    metrics = {
        "method": run.config.method,
        "seed": run.config.seed,
        "split": run.split.digest,
        "step": run.step,
        "minutes": minutes(run),
        **{
            subset: {name: score(run, model, images).to_dict() for name, model in models.items()}
            for subset, images in (("validation", run.validation), ("test", run.test))
            if len(images)
        },
        **summary,
    }
    if is_main():
        run.folder.checkpoints.finish()
        write_json(run.folder.metrics, metrics)
    return metrics
