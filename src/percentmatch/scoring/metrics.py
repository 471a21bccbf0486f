"""How good scores and pseudo-labels are: exact AP and AUC of each class, VOC's 11-point AP, accuracy, counts.

A class without a known positive has no AP, and one without a known positive and a known negative no AUC; it is left
out of the mean and named. AP is not interpolated (it equals scikit-learn's), except where it is called 11-point.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.errors import UserError

CHUNK, AT_ONCE = 256, 1 << 23  # classes, and pairs of image and class, that are ranked at a time


def score(probabilities: Tensor, targets: Tensor, known: Tensor | None, class_names: Sequence[str]) -> dict[str, Any]:
    """Score probabilities (n, c) against targets (n, c) of 0 and 1; pairs with `known` 0 are ignored. Ready for JSON.

    AP is the sum of precision x gain in recall down the ranking, where equal scores enter at once; AUC is the share of
    (positive, negative) pairs in the right order, where equal scores count half. Fractions from 0 to 1, or None.
    """
    known = torch.ones_like(targets, dtype=torch.bool) if known is None else known.bool()  # (n, c)
    _check_probabilities(probabilities, targets, known)
    if len(class_names) != targets.shape[1] or len(set(class_names)) != len(class_names):
        raise UserError(f"{targets.shape[1]} classes need as many different names, not {', '.join(class_names)}")
    if any((((part != 0) & (part != 1)) & sure).any() for part, sure in _by_rows(targets, known)):
        raise UserError("known targets must be 0 or 1")
    scores = probabilities if probabilities.dtype == torch.float64 else probabilities.float()  # (n, c)
    number = max(1, min(CHUNK, AT_ONCE // max(len(targets), 1)))
    chunks = zip(*(table.split(number, dim=1) for table in (scores, targets, known)), strict=True)
    rows = [row for scored, truth, sure in chunks for row in _score_classes(scored, truth == 1, sure)]
    classes = dict(zip(class_names, rows, strict=True))
    return {
        "mAP": _mean(classes, "AP"),
        "AUC": _mean(classes, "AUC"),
        "mAP_11point": _mean(classes, "AP_11point"),
        "num_images": len(targets),
        "num_pairs_ignored": int((~known).sum()),
        "left_out_AP": [name for name, values in classes.items() if values["AP"] is None],
        "left_out_AUC": [name for name, values in classes.items() if values["AUC"] is None],
        "classes": classes,
    }


def accuracy_top1(probabilities: Tensor, targets: Tensor, known: Tensor | None = None) -> float | None:
    """The share of images whose most probable class is the true one; single-label data: (n, c), (n, c) one-hot.

    Images whose class is not known are left out: no label that is `known` is 1, and not all are. None if none is left.
    """
    known = torch.ones_like(targets, dtype=torch.bool) if known is None else known.bool()  # (n, c)
    _check_probabilities(probabilities, targets, known)
    positive = (targets == 1) & known  # (n, c)
    judged = positive.any(1) | known.all(1)  # (n,)
    best = probabilities.argmax(dim=1, keepdim=True)  # (n, 1)
    right = positive.gather(1, best).squeeze(1)[judged]
    return float(right.double().mean()) if len(right) else None


def pseudo_label_quality(
    pseudo_targets: Tensor, mask: Tensor, truth: Tensor, known: Tensor | None = None
) -> dict[str, Tensor]:
    """Counts (c,) of the pseudo-labels (u, c) of each class against the truth (u, c), where it is known.

    A pair is selected where `mask` is above 0, as a positive if its target is 0.5 or more. Precision of positives is
    positives_right / positives_selected, recall positives_right / positives_true. Counts add up over batches and ranks;
    they stay on the device, and nothing here waits for it.
    """
    counted = torch.ones_like(mask, dtype=torch.bool) if known is None else known > 0
    selected = (mask > 0) & counted
    says, is_true = pseudo_targets >= 0.5, truth > 0.5
    pairs = {
        "positives_right": selected & says & is_true,
        "positives_selected": selected & says,
        "negatives_right": selected & ~says & ~is_true,
        "negatives_selected": selected & ~says,
        "positives_true": counted & is_true,
    }
    return {name: chosen.sum(dim=0) for name, chosen in pairs.items()}


def _score_classes(scores: Tensor, positive: Tensor, known: Tensor) -> list[dict[str, Any]]:
    """The values of each of some classes from its known pairs: (n, k) each. Sums are exact, means in float64."""
    scores, order = scores.sort(dim=0, descending=True)
    known = known.gather(0, order)
    positive = positive.gather(0, order) & known
    last = torch.ones_like(known)  # (n, k): the last of equal scores; a threshold cannot lie between them
    last[:-1] = scores[:-1] != scores[1:]
    right, wrong = positive.cumsum(0), (known & ~positive).cumsum(0)  # (n, k): down to and with this row
    num_positives, num_negatives = positive.sum(0), known.sum(0) - positive.sum(0)  # (k,)
    precision = torch.where(last, right / (right + wrong).clamp(min=1).double(), 0.0)  # (n, k)
    recall = right / num_positives.double()
    new_right, new_wrong = _gains(right, last), _gains(wrong, last)
    ap = (precision * new_right).sum(0) / num_positives  # (k,)
    auc = (new_wrong * (right - new_right.double() / 2)).sum(0) / (num_positives * num_negatives)
    reached = [F.pad(precision * (recall >= step / 10), (0, 0, 0, 1)).amax(0) for step in range(11)]  # 3/10 is 0.3
    ap_11point = torch.stack(reached).mean(0)
    return [
        {
            "AP": row[0] if row[3] else None,
            "AUC": row[1] if row[3] and row[4] else None,
            "AP_11point": row[2] if row[3] else None,
            "positives": row[3],
            "negatives": row[4],
        }
        for row in zip(*(each.tolist() for each in (ap, auc, ap_11point, num_positives, num_negatives)), strict=True)
    ]


def _gains(counts: Tensor, last: Tensor) -> Tensor:
    """What running counts (n, k) have gained at each last row since the one before; 0 at other rows."""
    at_last = torch.where(last, counts, 0)
    before = F.pad(at_last.cummax(0).values[:-1], (0, 0, 1, 0))  # counts never fall
    return torch.where(last, counts - before, 0)


def _mean(classes: dict[str, dict[str, Any]], key: str) -> float | None:
    values = [values[key] for values in classes.values() if values[key] is not None]
    return sum(values) / len(values) if values else None


def _by_rows(*tables: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tables (n, c), some rows at a time."""
    number = max(1, AT_ONCE // max(tables[0].shape[1], 1))
    return zip(*(table.split(number) for table in tables), strict=True)


def _check_probabilities(probabilities: Tensor, targets: Tensor, known: Tensor | None = None) -> None:
    shapes = [tuple(tensor.shape) for tensor in (probabilities, targets, known) if tensor is not None]
    if len(set(shapes)) > 1 or targets.ndim != 2:
        raise UserError(
            f"probabilities and labels must be one table (images, classes), not {', '.join(map(str, shapes))}"
        )
    num_nan = sum(int(part.isnan().sum()) for (part,) in _by_rows(probabilities))
    if num_nan:
        raise UserError(
            f"{num_nan} of {probabilities.numel()} predicted probabilities are not a number (NaN), "
            "so training has diverged: try a smaller learning rate"
        )
    if any(((part < 0) | (part > 1)).any() for (part,) in _by_rows(probabilities)):
        raise UserError("scores must be probabilities from 0 to 1: apply a sigmoid or a softmax to logits first")
