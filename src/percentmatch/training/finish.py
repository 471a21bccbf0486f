"""The end of a run: its last model is scored and written, and metrics.json last of all."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from percentmatch.data import Images
from percentmatch.distributed.group import is_main
from percentmatch.files import write_atomic, write_json
from percentmatch.models import classifier_bytes
from percentmatch.scoring.calibration import decide
from percentmatch.scoring.predictions import evaluate, logits, probabilities
from percentmatch.scoring.table import ScoreTable
from percentmatch.training.run import Run
from percentmatch.training.state import minutes


def score(run: Run, model: nn.Module, images: Images) -> ScoreTable:
    with torch.compiler.set_stance("force_eager"):
        scores = probabilities(model, images.pixels, run.card, run.device)
    return evaluate(scores, images, run.config.task)


def finish_run(run: Run) -> dict[str, Any]:
    """Score the last iterate, once, on validation and test images, and write the model with its decisions."""
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
