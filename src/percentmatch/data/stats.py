"""What a manifest holds, in numbers."""

from collections import Counter
from typing import Any

import torch

from percentmatch.data.manifest import Manifest

CHUNK = 8192  # images counted at a time


def describe(manifest: Manifest) -> dict[str, Any]:
    """Counts that can be written as JSON; a ratio without a denominator is None.

    An image is labeled if any of its labels is known. Cardinality: positives for each labeled image. Imbalance ratio:
    positives of the most frequent class over those of the rarest. In each class positives + negatives + difficult +
    unknown = images, and prevalence is positives / known. Co-occurrence: images positive for both classes.
    """
    known = manifest.known.bool()
    positive = manifest.targets.bool() & known
    difficult = manifest.difficult.bool() & known & ~positive
    num_classes = len(manifest.class_names)
    together = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    for chunk in positive.split(CHUNK):
        together += chunk.T.double() @ chunk.double()  # (c, c), exact: below 2 ** 53
    positives = positive.sum(0).tolist()
    num_labeled = int(known.any(1).sum())
    counts = zip(positives, known.sum(0).tolist(), difficult.sum(0).tolist(), strict=True)
    return {
        "images": len(manifest),
        "labeled_images": num_labeled,
        "parts": dict(sorted(Counter(manifest.parts).items())),
        "cardinality": _ratio(sum(positives), num_labeled),
        "imbalance_ratio": _ratio(max(positives), min(positives)),
        "classes": {
            name: {
                "positives": num_positive,
                "negatives": num_known - num_positive - num_difficult,
                "difficult": num_difficult,
                "unknown": len(manifest) - num_known,
                "prevalence": _ratio(num_positive, num_known),
            }
            for name, (num_positive, num_known, num_difficult) in zip(manifest.class_names, counts, strict=True)
        },
        "co_occurrence": together.long().tolist(),
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
