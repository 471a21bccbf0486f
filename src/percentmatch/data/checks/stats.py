"""What a manifest holds, in numbers."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from percentmatch.data.labels import Flags, Labels, rows_at_once
from percentmatch.data.manifest import Manifest

MOST_PAIRED = 1000  # classes; of more, pairs are not counted, as there are more of them than anybody reads


def describe(manifest: Manifest) -> dict[str, Any]:
    """Counts that can be written as JSON; a ratio without a denominator is None.

    An image is labeled if any of its labels is known. Cardinality: positives for each labeled image. Imbalance ratio:
    positives of the most frequent class over those of the rarest. In each class positives + negatives + difficult +
    unknown = images, and prevalence is positives / known. Co-occurrence: images positive for both classes, None for
    more than MOST_PAIRED classes.
    """
    labels = manifest.labels
    positives, num_labeled = labels.targets.in_columns().tolist(), int((labels.known.in_rows() > 0).sum())
    counts = zip(positives, labels.known.in_columns().tolist(), _difficult(labels).tolist(), strict=True)
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
        "co_occurrence": _together(labels.targets) if len(positives) <= MOST_PAIRED else None,
    }


def _difficult(labels: Labels) -> Tensor:
    """How many pairs of each class are difficult and nothing else: (c,)."""
    counts = torch.zeros(labels.known.width, dtype=torch.long)
    for rows in labels.difficult.in_rows().nonzero().flatten().split(rows_at_once(len(counts))):
        counts += (labels.difficult[rows] & labels.known[rows] & (1 - labels.targets[rows])).sum(0)
    return counts


def _together(targets: Flags) -> list[list[int]]:
    """How many images show both of two classes: (c, c)."""
    counts = torch.zeros(targets.width, targets.width, dtype=torch.long)
    for block in targets.blocks():
        counts += (block.T.float() @ block.float()).long()  # exact: a block has at most 2 ** 24 rows
    return counts.tolist()


def _ratio(count: int, of: int) -> float | None:
    return count / of if of else None
