"""A saved model on the run's own images: scores, intervals, calibration, the pool's scores, and small pictures."""

import base64
import io
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from PIL import Image
from torch import Tensor, nn

from percentmatch.data import Images, Split
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError
from percentmatch.models import Card, Decisions
from percentmatch.report.collect import RunRecord
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.calibration import decision_thresholds, decisions_of, probabilities_of, thresholds_of
from percentmatch.scoring.decisions import DecisionTable, score_decisions
from percentmatch.scoring.intervals import Ends, Resampled, bootstrap, mean_interval, plain, resamples_of
from percentmatch.scoring.metrics import Reliability, reliability
from percentmatch.scoring.predictions import logits, probabilities
from percentmatch.use.evaluate import RunData, open_trained

MOST_POOL_IMAGES = 4000
POOL_BINS = 50
GROUPS = {
    "surest": "Surest: the highest probabilities",
    "doubtful": "Most doubtful: closest to the opposite decision",
    "false": "Most wrong: predicted, but without the class",
    "missed": "Most wrong: not predicted, but with the class",
}
SIDE = 96  # pixels
PICTURES = 480  # of a page, about; at 2 to 3 kB each


@dataclass(frozen=True)
class ScoredSubset:
    """The validation or test images under the saved model."""

    images: Images
    exact: Resampled  # one row: the images as they are
    resampled: Resampled
    reliability: Reliability  # of the network's own probabilities
    pooled: Reliability  # the same of all classes as one
    calibrated: Reliability | None  # of those that `predict` gives, pooled, if the model is calibrated
    probabilities: Tensor  # (n, c) as `predict` gives them
    decided: Tensor  # (n, c) bool: the labels predicted
    doubt: Tensor  # (n, c) distance from being decided otherwise, in logits


@dataclass(frozen=True)
class ScoredPool:
    """Unlabeled images under the saved model, at most MOST_POOL_IMAGES of them."""

    num_images: int
    num_scored: int
    histogram: Tensor  # (c, k) fraction of the images in each bin of the score
    positives: Tensor | None  # (c,) of all unlabeled images; None if no label of theirs is known


@dataclass(frozen=True)
class ScoredRun:
    class_names: tuple[str, ...]
    task: str
    subsets: dict[str, ScoredSubset]  # test and validation, where there are such images
    pool: ScoredPool | None
    labeled_positives: list[int]
    aim: str | None  # of the model's own thresholds; None: they have the best F1 on the images shown
    gallery_subset: str | None  # the largest one, whose images and decisions are shown; None if there are none
    decisions: DecisionTable | None  # on it


@dataclass(frozen=True)
class PageRun:
    """A run on the page: what its folder holds, how its model scores, and how the page numbers its classes."""

    run: RunRecord
    scored: ScoredRun | None
    missing: str | None  # why there are no scores
    class_names: tuple[str, ...]
    class_index: tuple[int, ...] = ()  # numbers of these classes on the page
    key: str = ""  # begins the ids of its elements
    most_points: int = 40  # of a curve
    shown: tuple[int, ...] = ()  # positions of the classes in figures and tables: all, unless there are very many

    @property
    def shown_classes(self) -> list[tuple[int, str, int]]:
        """Position, name and number on the page of each class in figures and tables."""
        return [(position, self.class_names[position], self.class_index[position]) for position in self.shown]

    @property
    def shown_index(self) -> list[int]:
        return [self.class_index[position] for position in self.shown]

    def subset(self, name: str | None) -> ScoredSubset | None:
        return self.scored.subsets.get(name or "") if self.scored else None

    def mean_interval(self, subset: str | None, metric: str) -> Ends | None:
        scored = self.subset(subset)
        return mean_interval(scored.resampled, scored.exact, metric) if scored else None

    def positives(self) -> dict[str, int]:
        """How many positives each class has, among the labeled images where these were scored."""
        if self.scored:
            return dict(zip(self.class_names, self.scored.labeled_positives, strict=True))
        found = self.run.final()
        return {name: row.positives for name, row in found[1].classes.items()} if found else {}


def score_own_images(run: RunRecord, device: str = "auto", **where: Unpack[RunData]) -> ScoredRun:
    """Score the images of a run. Raises UserError if the model or the images are not there.

    `where` says how to find the data of the run. Unlabeled images that are gone are left out.
    """
    if run.split is None:
        raise UserError(f"'{run.path}' has no split.json, which says which images it used")
    on = pick_device(device)
    model, card, data = open_trained(RunFolder(run.path), on, **where)
    if run.class_names and card.class_names != run.class_names:
        raise UserError(f"the model in '{run.path}' has other classes than the run's log; restore the run folder")
    images = {"test": data.test.part(run.split.test), "validation": data.pool.part(run.split.validation)}
    images = {name: each for name, each in images.items() if len(each)}
    found = {name: logits(model, each.pixels, card, on) for name, each in images.items()}
    if any(each.isnan().any() for each in found.values()):
        raise UserError("the saved model gives probabilities that are not a number (NaN): training has diverged")
    shown = max(images, key=lambda name: len(images[name]), default=None)
    decided = card if card.decisions or not shown else _with_thresholds(card, found[shown], images[shown])
    labeled = data.pool.labels.targets.select(data.pool.rows(run.split.labeled))
    subsets = {name: _score_subset(found[name], each, card, decided) for name, each in images.items()}
    decisions = None
    if shown:
        labels = images[shown].scoring_labels(count_difficult=False)
        decisions = score_decisions(subsets[shown].decided, *labels, card.class_names, thresholds_of(decided))
    return ScoredRun(
        class_names=card.class_names,
        task=card.task,
        subsets=subsets,
        pool=_score_pool(model, data.pool, run.split, card, on),
        labeled_positives=labeled.in_columns().tolist(),
        aim=card.decisions.aim if card.decisions else None,
        gallery_subset=shown,
        decisions=decisions,
    )


def _with_thresholds(card: Card, found: Tensor, images: Images) -> Card:
    """The card of a model without thresholds, with those that have the best F1 on these images."""
    number, thresholds = len(card.class_names), ()
    if card.task == "multi-label":
        labels = images.scoring_labels(count_difficult=False)
        thresholds = tuple(decision_thresholds(probabilities_of(found, card), *labels).tolist())
    return replace(card, decisions=Decisions((1.0,) * number, (0.0,) * number, thresholds, "F1"))


def _score_subset(found: Tensor, images: Images, card: Card, decided: Card) -> ScoredSubset:
    """From logits (n, c). `decided` is the card with thresholds, the model's own or not."""
    scores, final = probabilities_of(found, card, raw=True).float(), probabilities_of(found, decided)
    labels = images.scoring_labels(count_difficult=False)
    return ScoredSubset(
        images,
        exact=plain(scores, *labels),
        resampled=bootstrap(scores, *labels, resamples=resamples_of(scores.shape[1])),
        reliability=reliability(scores, *labels),
        pooled=reliability(scores, *labels, pooled=True),
        calibrated=reliability(final, *labels, pooled=True) if card.calibrated else None,
        probabilities=final,
        decided=decisions_of(found, decided).bool(),
        doubt=_doubt(final, decided),
    )


def _doubt(probabilities: Tensor, card: Card) -> Tensor:
    """How far each probability (n, c) is from its threshold or, with one label an image, from the best other class."""
    thresholds = thresholds_of(card)
    if thresholds is not None:
        return (probabilities.logit(1e-9) - torch.tensor(thresholds, dtype=torch.float64).logit(1e-9)).abs()
    best = probabilities.topk(min(2, probabilities.shape[1]), dim=1).values  # (n, 2)
    rival = torch.where(probabilities == best[:, :1], best[:, -1:], best[:, :1])
    return (probabilities.log() - rival.log()).abs()


def _score_pool(model: nn.Module, pool: Images, split: Split, card: Card, device: torch.device) -> ScoredPool | None:
    present = set(pool.ids)
    rows = pool.rows([name for name in split.unlabeled if name in present])
    if not len(rows):
        return None
    labels = pool.labels.select(rows)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:MOST_POOL_IMAGES]
    scores = probabilities(model, pool.pixels[rows[chosen]], card, device)  # (n, c)
    bin_of = (scores * POOL_BINS).long().clamp(0, POOL_BINS - 1)
    counts = torch.zeros(scores.shape[1], POOL_BINS).scatter_add_(1, bin_of.T, torch.ones_like(scores.T))
    positives = labels.targets.in_columns() if labels.known.any() else None
    return ScoredPool(len(split.unlabeled), len(chosen), counts / len(chosen), positives)


def picture(pixels: Tensor) -> str:
    """An image (3, h, w) as a data address, at most SIDE pixels wide and high."""
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=70, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def gallery(entry: PageRun, pictures: dict[str, int], num_runs: int) -> dict[str, Any] | None:
    """What the page's script shows: images with their labels, and which of them each class shows; None without images.

    `pictures` are those of the page with their numbers, each kept once; new ones are added.
    """
    if not entry.scored or not (name := entry.scored.gallery_subset):
        return None
    subset = entry.scored.subsets[name]
    most = max(2, min(6, PICTURES // (len(GROUPS) * len(entry.shown) * num_runs)))  # of a class and group
    targets, known = (table.bool() for table in subset.images.scoring_labels(count_difficult=False))  # (n, c)
    image_numbers: dict[int, int] = {}  # by row
    classes = {}
    for column, _, number in entry.shown_classes:
        sure, doubt, decided = (each[:, column] for each in (subset.probabilities, subset.doubt, subset.decided))
        shows, counted = targets[:, column], known[:, column]
        rows_of = {
            "surest": _first(sure, counted, most),
            "doubtful": _first(-doubt, counted, most),
            "false": _first(sure, counted & ~shows & decided, most),
            "missed": _first(-sure, counted & shows & ~decided, most),
        }
        classes[number] = {
            group: [[image_numbers.setdefault(row, len(image_numbers)), round(float(sure[row]), 4)] for row in rows]
            for group, rows in rows_of.items()
        }
    truth = subset.images.labels.targets
    predicted = subset.decided & known  # a pair without a known label is no mistake
    images = [
        {
            "name": subset.images.ids[row],
            "picture": pictures.setdefault(picture(subset.images.pixels[row]), len(pictures)),
            "true": [entry.class_index[c] for c in truth[[row]][0].nonzero().flatten().tolist()],
            "predicted": [entry.class_index[c] for c in predicted[row].nonzero().flatten().tolist()],
        }
        for row in image_numbers
    ]
    return {"part": name, "images": images, "classes": classes}


def _first(key: Tensor, candidates: Tensor, most: int) -> list[int]:
    """The rows with the largest keys among the candidates (n,)."""
    rows = candidates.nonzero().flatten()
    return rows[key[rows].argsort(descending=True, stable=True)[:most]].tolist()
