"""From logits to decisions: calibrated probabilities, and a threshold for each class, learnt from validation images.

Multi-label logits are scaled and shifted class by class (Platt), with a prior that draws every class to a scale and
shift shared by all, the more the fewer images it has. Single-label logits are divided by one temperature. Scales are
positive, so the ranking within a class, or the best class of an image, stays what it was.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.errors import UserError
from percentmatch.models import Card, Decisions
from percentmatch.records import Task
from percentmatch.scoring.decisions import Counts, estimates
from percentmatch.scoring.metrics import calibration_error

FEW = 20  # positives; labels with fewer would choose a threshold by chance
FEW_SCORES = 100  # of a class; with fewer, too
FALLBACK = 0.5  # where nothing is known
FOLDS = 5
AT_ONCE = 1 << 20  # pairs of image and class that are ranked at a time
MOST_SHARED = 1 << 20  # and that choose a shared threshold
IN_CACHE = 1 << 16  # and that are differentiated
MOST_STEPS, SMALL_STEP, ROUNDING = 200, 1e-7, 1e-12  # of the minimiser
SCALE_SPREAD, SHIFT_SPREAD = 0.15, 0.5  # how far the log scale and the shift of a class may lie from the shared ones
SHARED_SPREAD = 3.0  # and those from 0
TEMPERATURE_SPREAD = 1.0  # of its logarithm: a few images that are all right do not make it certain

Affine = tuple[Tensor, Tensor]  # scale and shift, (c,) each


def probabilities_of(logits: Tensor, card: Card, *, raw: bool = False) -> Tensor:
    """Calibrated probabilities (n, c) float64; the network's own if `raw`, or where the card knows no better."""
    known, logits = card.decisions, logits.double()
    if known and not raw:
        scale, shift = torch.tensor([known.scale, known.shift], dtype=torch.float64)
        logits = logits * scale + shift
    return _scores(logits, card.task)


def decisions_of(logits: Tensor, card: Card) -> Tensor:
    """1 where a class is decided for: (n, c) uint8."""
    probabilities, thresholds = probabilities_of(logits, card), thresholds_of(card)
    if thresholds is None:
        return F.one_hot(probabilities.argmax(1), probabilities.shape[1]).byte()
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

    Thresholds have the best F1, or reach the `precision` or `recall` asked for with the best of the other; classes with
    few positives and scores share one. Calibration is kept if it lowers the log loss of images it was not fitted on, by
    more than the standard error of that; the error after it is measured on such images, too. None if the logits are not
    finite or no label is known to be 1, or to be 0.
    """
    check_aim(task, precision, recall)
    logits, targets, known = logits.double(), targets.double(), known.double()
    positives, judged = (targets * known).sum(0), known.sum(0)  # (c,)
    if not logits.isfinite().all() or not 0 < positives.sum() < judged.sum():
        return None
    fit = _fit_temperature if task == "single-label" else fit_platt
    fitted = fit(logits, targets, known)
    again = fit if task == "single-label" else partial(fit_platt, start=fitted)  # a fold's minimum is near
    held_out = _cross_fitted(again, logits, targets, known)  # (n, c)
    before = after = calibration_error(_scores(logits, task), targets, known, task)
    affine = torch.ones_like(positives), torch.zeros_like(positives)
    gains = _log_losses(logits, targets, known, task) - _log_losses(held_out, targets, known, task)
    kept = len(gains) > 1 and bool(gains.mean() > gains.std() / math.sqrt(len(gains)))
    if kept:
        affine = fitted
        after = calibration_error(_scores(held_out, task), targets, known, task)
    scale, shift = (tuple(each.tolist()) for each in affine)
    errors = {"ece_before": before, "ece_after": after, "num_images": len(logits), "kept": kept}
    summary: dict[str, Any] = {"calibration": errors}
    if task == "single-label":
        return Decisions(scale, shift, (), "best class"), {**summary, "decisions": {"aim": "best class"}}
    name, value = ("precision", precision) if precision is not None else ("recall", recall)
    aim = "F1" if value is None else f"{name} {value:g}"
    calibrated = logits * affine[0] + affine[1]
    sharing = (positives < FEW) & ((judged < FEW_SCORES) | (positives == 0))
    shared = _shared_threshold(calibrated, known, precision, recall) if sharing.any() else None
    chosen = torch.full_like(positives, shared or 0)  # (c,)
    for columns in (~sharing).nonzero()[:, 0].split(max(1, AT_ONCE // len(logits))):
        z, truth, sure = (table[:, columns] for table in (calibrated, targets, known))
        truth = torch.where(positives[columns] >= FEW, truth, z.sigmoid())
        chosen[columns] = between(*best_thresholds(z, truth, sure, precision, recall)[:2])
    reached = estimates(Counts.of(calibrated.sigmoid() >= chosen, targets > 0, known > 0))
    columns = zip(class_names, positives.long().tolist(), chosen.tolist(), reached, strict=True)
    rows = {each: {"positives": n, "threshold": t, **scores.to_dict()} for each, n, t, scores in columns}
    summary["decisions"] = {
        "aim": aim,
        "shared_threshold": shared,
        "without_positives": [each for each, row in rows.items() if not row["positives"]],
        "few_positives": [each for each, row in rows.items() if 0 < row["positives"] < FEW],
        "missed": [
            each for each, row in rows.items() if value and row["positives"] >= FEW and (row[name] or 0) < value
        ],
        "classes": rows,
    }
    return Decisions(scale, shift, tuple(chosen.tolist()), aim), summary


def _shared_threshold(logits: Tensor, known: Tensor, precision: float | None, recall: float | None) -> float:
    """The threshold for all classes at once that is best in expectation under the calibrated probabilities.

    For a class with few positives the probabilities stand for its labels, which would choose by chance. If it has few
    scores as well, a cut between two of these would be chance, too.
    """
    rows = torch.arange(0, len(logits), -(-logits.numel() // MOST_SHARED))  # of very many pairs, every so many-th image
    column = logits[rows][known[rows] > 0][:, None]  # (pairs, 1)
    above, below, _ = best_thresholds(column, column.sigmoid(), torch.ones_like(column), precision, recall)
    return float(between(above, below))


def between(above: Tensor, below: Tensor) -> Tensor:
    """Halfway between the last logit above a cut and the next, so that rounding decides nothing."""
    return torch.where(below.isinf(), above, (above + below) / 2).sigmoid()


def best_thresholds(
    scores: Tensor, truth: Tensor, known: Tensor, precision: float | None = None, recall: float | None = None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The best cut through the known scores of each class: (n, k) each, where truth lies between 0 and 1.

    Returns the last score above it, the first below it (-inf: none) and the precision, recall and F1 reached: (k,).
    """
    ranked, order = torch.where(known > 0, scores, -torch.inf).T.sort(descending=True)  # (k, n): the unknown are last
    following = F.pad(ranked[:, 1:], (0, 1), value=-torch.inf)
    possible = following < ranked  # equal ones are decided alike
    hits, chosen = (truth * known).T.gather(1, order).cumsum(1), torch.arange(1, len(scores) + 1)
    reached = {"precision": hits / chosen, "recall": hits / hits[:, -1:], "F1": 2 * hits / (chosen + hits[:, -1:])}
    wanted = [reached["F1"]]
    if precision is not None:
        wanted = [reached["precision"].clamp(max=precision), reached["recall"], reached["precision"]]
    elif recall is not None:
        wanted = [reached["recall"].clamp(max=recall), reached["precision"], reached["recall"]]
    for value in wanted:
        value = value.masked_fill(~possible, -1)
        possible = possible & (value == value.amax(1, keepdim=True))
    best = possible.byte().argmax(1, keepdim=True)  # (k, 1)
    above, below, *values = (each.gather(1, best)[:, 0] for each in (ranked, following, *reached.values()))
    return above, below, dict(zip(reached, values, strict=True))


def decision_thresholds(scores: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """For each class the score whose choice as a threshold has the best F1, FALLBACK without a positive: (c,)."""
    above, _, _ = best_thresholds(scores, targets, known)
    return torch.where((targets * known).sum(0) > 0, above, FALLBACK)


def check_aim(task: Task, precision: float | None, recall: float | None) -> None:
    if precision is not None and recall is not None:
        raise UserError("a threshold is chosen for --precision or for --recall, not for both; give one of them")
    for name, value in (("precision", precision), ("recall", recall)):
        if value is None:
            continue
        if task == "single-label":
            raise UserError(f"--{name} is for thresholds; with one label an image the most probable class is taken")
        if not 0 < value <= 1:
            raise UserError(f"--{name} {value:g} must be above 0 and at most 1, such as 0.9")


def fit_platt(
    logits: Tensor,
    targets: Tensor,
    known: Tensor,
    *,
    start: Affine | None = None,
    scale_spread: float = SCALE_SPREAD,
    shift_spread: float = SHIFT_SPREAD,
) -> Affine:
    """The most probable scale and shift of each class, if log scales and shifts are normal about shared ones: (c,).

    Newton's method: given the shared step, that of each class solves two equations of its own.
    """
    spread = torch.tensor([scale_spread, shift_spread], dtype=torch.float64)
    tables = [table.split(max(1, IN_CACHE // len(logits)), dim=1) for table in (logits, targets, known)]
    start = start or (torch.ones(logits.shape[1]).double(), torch.zeros(logits.shape[1]).double())
    shared, own = torch.zeros(2).double(), torch.stack([start[0].log(), start[1]], 1) / spread  # own: in spreads

    def measured(shared: Tensor, own: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        loss, slope, bends = _slopes(tables, shared + own * spread)
        return loss + own.square().sum() / 2 + (shared / SHARED_SPREAD).square().sum() / 2, slope, bends

    value, slope, bends = measured(shared, own)
    for _ in range(MOST_STEPS):
        shared_step, own_step = next(step for bend in bends if (step := _newton(shared, own, spread, slope, bend)))
        size = 1.0
        while not (tried := measured(shared + size * shared_step, own + size * own_step))[0] <= value * (1 + ROUNDING):
            size /= 2
        shared, own, (value, slope, bends) = shared + size * shared_step, own + size * own_step, tried
        if (shared_step + own_step * spread).abs().max() < SMALL_STEP:
            break
    log_scale, shift = (shared + own * spread).T
    return log_scale.exp(), shift


def _newton(shared: Tensor, own: Tensor, spread: Tensor, slope: Tensor, bend: Tensor) -> tuple[Tensor, Tensor] | None:
    """The step (2,), (c, 2) to where the slope would vanish if the bend (c, 2, 2) stayed; None if at no minimum."""
    around = torch.eye(2) + spread[:, None] * bend * spread  # (c, 2, 2)
    inside = torch.linalg.inv_ex(around).inverse
    through = bend * spread @ inside  # (c, 2, 2)
    uphill = slope * spread + own  # (c, 2)
    both = (bend - through * spread @ bend).sum(0) + torch.eye(2) / SHARED_SPREAD**2  # (2, 2)
    if min(around[:, 0, 0].min(), around.det().min(), both[0, 0], both.det()) <= 0:
        return None
    pull = (through @ uphill[:, :, None])[:, :, 0] - slope  # (c, 2)
    shared_step = torch.linalg.solve(both, pull.sum(0) - shared / SHARED_SPREAD**2)
    return shared_step, -(inside @ (uphill + spread * (bend @ shared_step))[:, :, None])[:, :, 0]


def _slopes(tables: list[tuple[Tensor, ...]], at: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Log loss () of the known pairs, its slope (c, 2) by each class's log scale and shift (c, 2), and its bend.

    The bend (c, 2, 2) comes in three forms, whole, without the term that may be negative, and 0: a step must lead down.
    """
    total, sums = torch.zeros((), dtype=torch.float64), []
    width = tables[0][0].shape[1]
    for logits, truth, known, (log_scale, shift) in zip(*tables, (each.T for each in at.split(width)), strict=True):
        scaled = logits * log_scale.exp()
        moved = scaled + shift
        p = moved.sigmoid()
        rest = 1 - p
        off, weight = (p - truth) * known, p * rest * known
        total += ((moved.clamp(min=0) - truth * moved - torch.maximum(p, rest).log()) * known).sum()
        weighted = weight * scaled
        sums.append(torch.stack([each.sum(0) for each in (off * scaled, off, weighted * scaled, weighted, weight)]))
    by_scale, by_shift, twice, cross, weight = torch.cat(sums, 1)
    bends = [torch.stack([each, cross, cross, weight], 1).view(-1, 2, 2) for each in (twice + by_scale, twice)]
    return total, torch.stack([by_scale, by_shift], 1), [*bends, torch.zeros_like(bends[0])]


def _fit_temperature(logits: Tensor, targets: Tensor, known: Tensor) -> Affine:
    log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [log_scale], max_iter=500, tolerance_grad=1e-8, tolerance_change=1e-11, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        prior = (log_scale / TEMPERATURE_SPREAD).square() / 2 / (targets * known).sum()
        loss = (
            _log_losses(logits * log_scale.exp(), targets, known, "single-label").sum() / (targets * known).sum()
            + prior
        )
        loss.backward()
        return loss.detach()

    solver.step(closure)
    one = torch.ones(logits.shape[1], dtype=torch.float64)
    return log_scale.detach().exp() * one, 0 * one


def _scores(logits: Tensor, task: Task) -> Tensor:
    return logits.softmax(dim=1) if task == "single-label" else logits.sigmoid()


def _log_losses(logits: Tensor, targets: Tensor, known: Tensor, task: Task) -> Tensor:
    """Of each image, the sum over its known pairs, or that of its class: (n,)."""
    if task == "single-label":
        return -(targets * known * logits.log_softmax(dim=1)).sum(1)
    return F.binary_cross_entropy_with_logits(logits, targets, known, reduction="none").sum(1)


def _cross_fitted(fit: Callable[..., Affine], logits: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Each image's calibrated logits (n, c), fitted on the other folds; unchanged where these know no label."""
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    held_out = logits.clone()
    for fold in order.chunk(min(FOLDS, len(logits))):
        rest = torch.ones(len(logits), dtype=torch.bool).index_fill_(0, fold, False)
        if (targets[rest] * known[rest]).any():
            scale, shift = fit(logits[rest], targets[rest], known[rest])
            held_out[fold] = logits[fold] * scale + shift
    return held_out
