"""What the saved model says of the run's own images: scores, intervals, calibration, and the pool's distribution."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from percentmatch.data import Data, Images, Split, load_data
from percentmatch.data.cache import Progress
from percentmatch.device import pick_device
from percentmatch.errors import UserError
from percentmatch.evaluate import probabilities
from percentmatch.models import Card, load_classifier
from percentmatch.report.collect import RunRecord
from percentmatch.report.statistics import Calibration, Resampled, bootstrap, calibrate, decision_thresholds, plain
from percentmatch.run_folder import RunFolder

MOST_POOL_IMAGES = 4000
POOL_BINS = 50


@dataclass(frozen=True)
class ScoredPart:
    """The validation or test images under the saved model."""

    images: Images
    scores: Tensor  # (n, c)
    exact: Resampled  # one row: the images as they are
    resampled: Resampled
    calibration: Calibration


@dataclass(frozen=True)
class ScoredPool:
    """Unlabeled images under the saved model, at most MOST_POOL_IMAGES of them."""

    num_images: int
    num_scored: int
    histogram: Tensor  # (c, k) share of the images in each bin of the score
    positives: Tensor | None  # (c,) known to show the class among all unlabeled images, None if nothing is known


@dataclass(frozen=True)
class ScoredRun:
    class_names: tuple[str, ...]
    task: str
    parts: dict[str, ScoredPart]  # test and validation, where there are such images
    pool: ScoredPool | None
    labeled_positives: list[int]
    thresholds: Tensor  # (c,) the best F1 on the validation images, or on the test images if there are none


def score_own_images(
    run: RunRecord,
    device: str = "auto",
    *,
    data: Data | None = None,
    moved: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ScoredRun:
    """Score the images of a run. Raises UserError if the model or the images are not there.

    `moved` may say where the run's root, labels or images are now. Unlabeled images that are gone are left out.
    """
    if run.split is None:
        raise UserError(f"'{run.path}' has no split.json, which says which images it used")
    place = pick_device(device)
    model, card = load_classifier(RunFolder(run.path).model, place)
    if run.class_names and card.class_names != run.class_names:
        raise UserError(f"the model in '{run.path}' has other classes than the run's log")
    data = data or load_data(RunFolder(run.path).read_moved(moved or {}), progress=progress)
    if data.pool.class_names != card.class_names:
        raise UserError(f"the data has other classes than the model in '{run.path}'")
    parts = {
        name: _score_part(model, source.part(ids), card, place)
        for name, source, ids in (("test", data.test, run.split.test), ("validation", data.pool, run.split.validation))
        if ids
    }
    judged = parts.get("validation") or parts.get("test")
    labeled = data.pool.rows(run.split.labeled)
    return ScoredRun(
        class_names=card.class_names,
        task=card.task,
        parts=parts,
        pool=_score_pool(model, data.pool, run.split, card, place),
        labeled_positives=(data.pool.targets[labeled] * data.pool.known[labeled]).sum(0, dtype=torch.long).tolist(),
        thresholds=_thresholds(judged) if judged else torch.full((len(card.class_names),), torch.inf),
    )


def _score_part(model: nn.Module, images: Images, card: Card, device: torch.device) -> ScoredPart:
    scores = probabilities(model, images.pixels, card, device)
    labels = images.scoring_labels(count_difficult=False)
    if scores.isnan().any():
        raise UserError("the saved model gives probabilities that are not a number (NaN): training has diverged")
    return ScoredPart(images, scores, plain(scores, *labels), bootstrap(scores, *labels), calibrate(scores, *labels))


def _thresholds(part: ScoredPart) -> Tensor:
    return decision_thresholds(part.scores, *part.images.scoring_labels(count_difficult=False))


def _score_pool(model: nn.Module, pool: Images, split: Split, card: Card, device: torch.device) -> ScoredPool | None:
    there = set(pool.ids)
    rows = pool.rows([name for name in split.unlabeled if name in there])
    if not len(rows):
        return None
    known = pool.known[rows]
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:MOST_POOL_IMAGES]
    scores = probabilities(model, pool.pixels[rows[chosen]], card, device)  # (n, c)
    bin_of = (scores * POOL_BINS).long().clamp(0, POOL_BINS - 1)
    counts = torch.zeros(scores.shape[1], POOL_BINS).scatter_add_(1, bin_of.T, torch.ones_like(scores.T))
    positives = (pool.targets[rows] * known).sum(0, dtype=torch.long) if known.any() else None
    return ScoredPool(len(split.unlabeled), len(chosen), counts / len(chosen), positives)
