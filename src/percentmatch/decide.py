"""From logits to decisions: calibrated probabilities, and a threshold for each class, learnt from validation images.

Multi-label logits are scaled and shifted class by class (Platt), with a prior that draws every class to a scale and
shift shared by all, the more the fewer images it has. Single-label logits are divided by one temperature. Scales are
positive, so the ranking within a class, or the best class of an image, stays what it was.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.errors import UserError
from percentmatch.models import Card, Decisions
from percentmatch.records import Task

FOLDS = 5
AT_ONCE = 1 << 20  # pairs of image and class that are differentiated at a time
BINS = 10
SCALE_SPREAD, SHIFT_SPREAD = 0.15, 0.5  # how far the log scale and the shift of a class may lie from the shared ones
SHARED_SPREAD = 3.0  # and those from 0
ENOUGH = 20  # positives that choose a threshold; with fewer, the calibrated probabilities stand for the labels
FALLBACK = 0.5  # the threshold of a class without any

Affine = tuple[Tensor, Tensor]  # scale and shift, (c,) each


def probabilities_of(logits: Tensor, card: Card, *, raw: bool = False) -> Tensor:
    """Calibrated probabilities (n, c) float64; the network's own if `raw`, or where the card knows no better."""
    known, logits = card.decisions, logits.double()
    if known and not raw:
        scale, shift = (torch.tensor(each, dtype=torch.float64) for each in (known.scale, known.shift))
        logits = _apply(logits, scale, shift)
    return _scores(logits, card.task)


def decisions_of(logits: Tensor, card: Card) -> Tensor:
    """1 where a class is decided for: (n, c) uint8."""
    probabilities, thresholds = probabilities_of(logits, card), thresholds_of(card)
    if thresholds is None:
        return torch.zeros_like(probabilities).scatter_(1, probabilities.argmax(1, keepdim=True), 1).byte()
    return (probabilities >= torch.tensor(thresholds, dtype=torch.float64)).byte()


def thresholds_of(card: Card) -> tuple[float, ...] | None:
    """From which probability on each class is decided for; None if it is the most probable class."""
    if card.task == "single-label":
        return None
    return card.decisions.thresholds if card.decisions else (FALLBACK,) * len(card.class_names)


def decide(
    logits: Tensor,
    targets: Tensor,
    known: Tensor,
    *,
    task: Task,
    class_names: Sequence[str],
    precision: float | None = None,
    recall: float | None = None,
) -> tuple[Decisions, dict[str, Any]] | None:
    """Calibrate and choose thresholds on labeled images, (n, c) each; the second answer is a summary ready for JSON.

    Thresholds have the best F1, or reach the `precision` or `recall` asked for with the best of the other. Calibration
    is kept if it lowers the log loss of images it was not fitted on; the error after it is measured on such images,
    too. None if the logits are not finite or no label is known to be 1, or to be 0.
    """
    _check_aim(task, precision, recall)
    logits, targets, known = logits.double(), targets.double(), known.double()
    positives, judged = (targets * known).sum(0), known.sum(0)  # (c,)
    if not logits.isfinite().all() or not 0 < positives.sum() < judged.sum():
        return None
    fit = _fit_temperature if task == "single-label" else fit_platt
    held_out = _cross_fitted(fit, logits, targets, known)  # (n, c)
    before = after = calibration_error(_scores(logits, task), targets, known, task)
    affine = torch.ones(logits.shape[1]).double(), torch.zeros(logits.shape[1]).double()
    if _log_loss(held_out, targets, known, task) < _log_loss(logits, targets, known, task):
        affine = fit(logits, targets, known)
        after = calibration_error(_scores(held_out, task), targets, known, task)
    scale, shift = (tuple(each.tolist()) for each in affine)
    summary = {"calibration": {"ece_before": before, "ece_after": after, "num_images": len(logits)}}
    if task == "single-label":
        return Decisions(scale, shift, (), "best class"), {**summary, "decisions": {"aim": "best class"}}
    name, value = ("precision", precision) if precision is not None else ("recall", recall)
    aim = "F1" if value is None else f"{name} {value:g}"
    calibrated = _apply(logits, *affine)
    rows, thresholds = {}, []
    for column, class_name in enumerate(class_names):
        mine = known[:, column] > 0
        found = _choose(calibrated[mine, column], targets[mine, column], precision, recall)
        thresholds.append(found["threshold"])
        rows[class_name] = {"positives": int(positives[column]), **found}
    summary["decisions"] = {
        "aim": aim,
        "without_positives": [each for each, row in rows.items() if not row["positives"]],
        "few_positives": [each for each, row in rows.items() if 0 < row["positives"] < ENOUGH],
        "missed": [each for each, row in rows.items() if value and row["positives"] and row[name] < value],
        "classes": rows,
    }
    return Decisions(scale, shift, tuple(thresholds), aim), summary


def fit_platt(
    logits: Tensor,
    targets: Tensor,
    known: Tensor,
    *,
    scale_spread: float = SCALE_SPREAD,
    shift_spread: float = SHIFT_SPREAD,
) -> Affine:
    """The most probable scale and shift of each class, if log scales and shifts are normal about shared ones: (c,)."""
    shared = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    own = torch.zeros(2, logits.shape[1], dtype=torch.float64, requires_grad=True)  # in units of the spreads
    spread = torch.tensor([[scale_spread], [shift_spread]], dtype=torch.float64)

    def affine() -> Affine:
        log_scale, shift = shared + own * spread
        return log_scale.exp(), shift

    tables = [table.split(max(1, AT_ONCE // logits.shape[1])) for table in (logits, targets, known)]
    total = known.sum()

    def losses() -> Iterator[Tensor]:
        for mine, truth, sure in zip(*tables, strict=True):
            pairs = F.binary_cross_entropy_with_logits(_apply(mine, *affine()), truth, sure, reduction="sum")
            prior = own.square().sum() + (shared / SHARED_SPREAD).square().sum()
            yield (pairs + prior / (2 * len(tables[0]))) / total

    return _minimise(losses, [shared, own], affine)


def _fit_temperature(logits: Tensor, targets: Tensor, known: Tensor) -> Affine:
    log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    one = torch.ones(logits.shape[1], dtype=torch.float64)

    def affine() -> Affine:
        return log_scale.exp() * one, 0 * one

    def losses() -> Iterator[Tensor]:
        prior = (log_scale / SHARED_SPREAD).square() / 2 / known.sum()
        yield _log_loss(_apply(logits, *affine()), targets, known, "single-label") + prior

    return _minimise(losses, [log_scale], affine)


def calibration_error(scores: Tensor, targets: Tensor, known: Tensor, task: Task) -> float:
    """ECE: the mean distance of probability and share of positives in equal bins, each weighted by its pairs.

    All known pairs count as one set; with one label an image, the best class of each image whose class is known does.
    """
    if task == "single-label":
        rows = (targets * known).sum(1) > 0
        scores, best = scores[rows].max(dim=1)
        truth = targets[rows].gather(1, best[:, None])[:, 0]
    else:
        scores, truth = scores[known > 0], targets[known > 0]
    bin_of = (scores * BINS).long().clamp(max=BINS - 1)
    apart = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bin_of, scores - truth)
    return float(apart.abs().sum() / len(scores))


def _apply(logits: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return logits * scale + shift


def _scores(logits: Tensor, task: Task) -> Tensor:
    return logits.softmax(dim=1) if task == "single-label" else logits.sigmoid()


def _log_loss(logits: Tensor, targets: Tensor, known: Tensor, task: Task) -> Tensor:
    """The mean over known pairs, or over images whose class is known: ()."""
    if task == "single-label":
        positive = targets * known  # (n, c)
        return -(positive * logits.log_softmax(dim=1)).sum() / positive.sum()
    return F.binary_cross_entropy_with_logits(logits, targets, known, reduction="sum") / known.sum()


def _minimise(losses: Callable[[], Iterator[Tensor]], parameters: list[Tensor], answer: Callable[[], Affine]) -> Affine:
    """The answer where the sum of the losses is least; they are differentiated one after the other."""
    solver = torch.optim.LBFGS(
        parameters, max_iter=500, tolerance_grad=1e-8, tolerance_change=1e-11, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        value = torch.zeros((), dtype=torch.float64)
        for loss in losses():
            loss.backward()
            value += loss.detach()
        return value

    solver.step(closure)
    scale, shift = answer()
    return scale.detach(), shift.detach()


def _cross_fitted(fit: Callable[..., Affine], logits: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Each image's calibrated logits (n, c), fitted on the other folds; unchanged where these know no label."""
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    held_out = logits.clone()
    for fold in order.chunk(min(FOLDS, len(logits))):
        rest = torch.ones(len(logits), dtype=torch.bool).index_fill_(0, fold, False)
        if (targets[rest] * known[rest]).any():
            held_out[fold] = _apply(logits[fold], *fit(logits[rest], targets[rest], known[rest]))
    return held_out


def _choose(logits: Tensor, targets: Tensor, precision: float | None, recall: float | None) -> dict[str, float | None]:
    """The threshold of one class from its calibrated logits and known labels (m,), and what it reaches on them.

    It lies halfway between the last logit above it and the next, so that rounding decides nothing. The labels of few
    positives would choose by chance: then the probabilities stand for them, and what is reached is what they expect.
    """
    num_positives = int(targets.sum())
    if not num_positives:
        return {"threshold": FALLBACK, "precision": None, "recall": None, "F1": None}
    ranked, order = logits.sort(descending=True)
    lasts = torch.cat([ranked[1:] < ranked[:-1], torch.ones(1, dtype=torch.bool)])  # equal ones are decided alike
    truth = targets if num_positives >= ENOUGH else logits.sigmoid()
    hits = truth[order].cumsum(0)[lasts]
    chosen = torch.arange(1, len(ranked) + 1)[lasts]
    ranked = ranked[lasts]
    reached = list(zip((hits / chosen).tolist(), (hits / hits[-1]).tolist(), strict=True))
    f1 = (2 * hits / (chosen + hits[-1])).tolist()

    def worth(place: int) -> tuple[float, ...]:
        mine, its_recall = reached[place]
        if precision is not None:
            return min(mine, precision), its_recall, mine
        if recall is not None:
            return min(its_recall, recall), mine, its_recall
        return (f1[place],)

    best = max(range(len(f1)), key=worth)
    between = ranked[best : best + 2].mean().sigmoid()
    return {
        "threshold": float(between),
        "precision": reached[best][0],
        "recall": reached[best][1],
        "F1": f1[best],
    }


def _check_aim(task: Task, precision: float | None, recall: float | None) -> None:
    given = {name: value for name, value in (("precision", precision), ("recall", recall)) if value is not None}
    if len(given) > 1:
        raise UserError("a threshold is chosen for --precision or for --recall, not for both; give one of them")
    for name, value in given.items():
        if task == "single-label":
            raise UserError(
                f"--{name} chooses thresholds; with one label an image the most probable class is decided for"
            )
        if not 0 < value <= 1:
            raise UserError(f"--{name} {value:g} must be above 0 and at most 1, such as 0.9")
