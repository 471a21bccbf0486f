"""How good scores and pseudo-labels are: exact AP and AUC of each class, VOC's 11-point AP, accuracy, counts.

A class without a known positive has no AP, and one without a known positive and a known negative no AUC; it is left
out of the mean and named. AP is not interpolated (it equals scikit-learn's), except where it is called 11-point.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from percentmatch.errors import UserError


def score(probabilities: Tensor, targets: Tensor, known: Tensor | None, class_names: Sequence[str]) -> dict[str, Any]:
    """Score probabilities (n, c) against targets (n, c) of 0 and 1; pairs with `known` 0 are ignored. Ready for JSON.

    AP is the sum of precision x gain in recall down the ranking, where equal scores enter at once; AUC is the share of
    (positive, negative) pairs in the right order, where equal scores count half. Fractions from 0 to 1, or None.
    """
    known = torch.ones_like(targets, dtype=torch.bool) if known is None else known.bool()  # (n, c)
    _check_probabilities(probabilities, targets, known)
    if len(class_names) != targets.shape[1] or len(set(class_names)) != len(class_names):
        raise UserError(f"{targets.shape[1]} classes need as many different names, not {', '.join(class_names)}")
    if (((targets != 0) & (targets != 1)) & known).any():
        raise UserError("known targets must be 0 or 1")
    scores = probabilities if probabilities.dtype == torch.float64 else probabilities.float()  # (n, c)
    classes = {}
    for column, name in enumerate(class_names):
        rows = known[:, column]
        classes[name] = _score_class(scores[rows, column], targets[rows, column].long())
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


def _score_class(scores: Tensor, targets: Tensor) -> dict[str, Any]:
    """The values of one class from its known pairs: (m,), (m,)."""
    from torchmetrics.functional.classification import binary_auroc, binary_precision_recall_curve  # 10 s to import

    num_positives = int(targets.sum())
    num_negatives = len(targets) - num_positives
    ap = ap_11point = auc = None
    if num_positives:
        precision, recall, _ = binary_precision_recall_curve(scores, targets, validate_args=False)
        precision, recall = precision.double(), recall.double()  # (t + 1,): from recall 1 to an added point at 0
        ap = min(float((precision[:-1] * (recall[:-1] - recall[1:])).sum()), 1.0)
        ap_11point = _eleven_points(precision[:-1], recall[:-1])
    if num_positives and num_negatives:
        auc = min(float(binary_auroc(scores, targets, validate_args=False)), 1.0)
    return {"AP": ap, "AUC": auc, "AP_11point": ap_11point, "positives": num_positives, "negatives": num_negatives}


def _eleven_points(precision: Tensor, recall: Tensor) -> float:
    """VOC2007's AP from the curve (t,), (t,): the mean over r = 0, 0.1, ..., 1 of the best precision at recall >= r.

    A recall of 3/10 reaches 0.3: `recall` and the steps are both one division rounded to float32.
    """
    steps = (torch.arange(11, device=recall.device) / 10).double()  # (11,)
    reached = recall >= steps[:, None]  # (11, t)
    return float((precision * reached).amax(dim=1).mean())


def _mean(classes: dict[str, dict[str, Any]], key: str) -> float | None:
    values = [values[key] for values in classes.values() if values[key] is not None]
    return sum(values) / len(values) if values else None


def _check_probabilities(probabilities: Tensor, targets: Tensor, known: Tensor | None = None) -> None:
    shapes = [tuple(tensor.shape) for tensor in (probabilities, targets, known) if tensor is not None]
    if len(set(shapes)) > 1 or targets.ndim != 2:
        raise UserError(
            f"probabilities and labels must be one table (images, classes), not {', '.join(map(str, shapes))}"
        )
    num_nan = int(probabilities.isnan().sum())
    if num_nan:
        raise UserError(
            f"{num_nan} of {probabilities.numel()} predicted probabilities are not a number (NaN), "
            "so training has diverged: try a smaller learning rate"
        )
    if ((probabilities < 0) | (probabilities > 1)).any():
        raise UserError("scores must be probabilities from 0 to 1: apply a sigmoid or a softmax to logits first")
