"""What a manifest holds, in numbers."""

import json
from pathlib import Path

import torch

from percentmatch.data.labels import Labels
from percentmatch.data.manifest import Manifest, describe


def make(targets: list[list[int]], known: list[list[int]], difficult: list[list[int]]) -> Manifest:
    n = len(targets)
    ids = tuple(f"{row}.jpg" for row in range(n))
    tensors = [torch.tensor(values, dtype=torch.uint8) for values in (targets, known, difficult)]
    parts = ("test",) + ("train",) * (n - 1)
    return Manifest(tuple(map(Path, ids)), ids, Labels.of(*tensors), parts, ("a", "b", "c"), ids)


def test_the_numbers_are_those_counted_by_hand() -> None:
    """Five images, three classes; the last image has no known label (its targets mean nothing), so four are labeled.

    a: 1 1 1 0 .  -> 3 positives, 1 negative                              prevalence 3/4
    b: 1 0 d . .  -> 1 positive, 1 negative, 1 difficult, 2 unknown       prevalence 1/3 (d is known)
    c: 1 1 0 0 .  -> 2 positives, 2 negatives                             prevalence 2/4
    Positives 3 + 1 + 2 = 6 over 4 labeled images: 1.5. Imbalance 3 / 1. Image 0 has all three, image 1 a and c.
    """
    manifest = make(
        targets=[[1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 1, 0], [1, 1, 1]],
        known=[[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 1], [0, 0, 0]],
        difficult=[[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]],
    )
    found = describe(manifest)
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "images": 5,
        "labeled_images": 4,
        "parts": {"test": 1, "train": 4},
        "cardinality": 1.5,
        "imbalance_ratio": 3.0,
        "classes": {
            "a": {"positives": 3, "negatives": 1, "difficult": 0, "unknown": 1, "prevalence": 0.75},
            "b": {"positives": 1, "negatives": 1, "difficult": 1, "unknown": 2, "prevalence": 1 / 3},
            "c": {"positives": 2, "negatives": 2, "difficult": 0, "unknown": 1, "prevalence": 0.5},
        },
        "co_occurrence": [[3, 1, 2], [1, 1, 1], [2, 1, 2]],
    }


def test_ratios_without_a_denominator_are_none() -> None:
    found = describe(make([[1, 1, 0]], [[1, 0, 1]], [[0, 0, 0]]))
    assert found["imbalance_ratio"] is None
    assert found["classes"]["b"]["prevalence"] is None
    assert describe(make([[0, 0, 0]], [[0, 0, 0]], [[0, 0, 0]]))["cardinality"] is None


def test_many_images_are_counted_in_chunks() -> None:
    targets = torch.randint(0, 2, (20_000, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    ids = tuple(map(str, range(20_000)))
    manifest = Manifest(tuple(map(Path, ids)), ids, Labels.of(targets), ("",) * 20_000, ("a", "b", "c"), ids)
    wanted = (targets.long()[:, :, None] * targets.long()[:, None]).sum(0)
    assert describe(manifest)["co_occurrence"] == wanted.tolist()
