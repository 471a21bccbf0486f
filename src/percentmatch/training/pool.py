"""Between two rounds of a run: scores of the unlabeled pool, new labels for it, and a new student."""

from typing import Literal

import torch
from torch import Tensor

from percentmatch.augment import mix
from percentmatch.distributed.group import gather_shares
from percentmatch.models import Classifier, dropout_on, drops, evaluating
from percentmatch.records import scores_of
from percentmatch.scoring.predictions import BATCH
from percentmatch.training.loop import check_finite
from percentmatch.training.run import Run

REFRESH = 1_000_033  # random stream of dropout while the pool is scored


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
