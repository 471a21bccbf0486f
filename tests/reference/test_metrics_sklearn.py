"""AP and AUC against scikit-learn, 11-point AP against a plain loop."""

import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from percentmatch.scoring.table import score

TOLERANCE = 1e-6


def compare(probabilities: torch.Tensor, targets: torch.Tensor, known: torch.Tensor | None = None) -> None:
    """Every class equals scikit-learn on its known pairs, and the means are the means."""
    names = [f"class {k}" for k in range(targets.shape[1])]
    result = score(probabilities, targets, known, names).to_dict()
    aps, aucs = [], []
    for k, name in enumerate(names):
        rows = torch.ones(len(targets), dtype=torch.bool) if known is None else known[:, k].bool()
        p, y = probabilities[rows, k].numpy(), targets[rows, k].numpy()
        values = result["classes"][name]
        assert (values["positives"], values["negatives"]) == ((y == 1).sum(), (y == 0).sum())
        if y.any():
            aps.append(average_precision_score(y, p))
            assert values["AP"] == pytest.approx(aps[-1], abs=TOLERANCE)
            assert values["AP_11point"] == pytest.approx(eleven_points(y, p), abs=TOLERANCE)
        else:
            assert values["AP"] is values["AP_11point"] is None
        if 0 < y.sum() < len(y):
            aucs.append(roc_auc_score(y, p))
            assert values["AUC"] == pytest.approx(aucs[-1], abs=TOLERANCE)
        else:
            assert values["AUC"] is None
    assert result["mAP"] == (pytest.approx(np.mean(aps), abs=TOLERANCE) if aps else None)
    assert result["AUC"] == (pytest.approx(np.mean(aucs), abs=TOLERANCE) if aucs else None)
    assert len(result["left_out_AP"]) == len(names) - len(aps)
    assert len(result["left_out_AUC"]) == len(names) - len(aucs)


def eleven_points(y: np.ndarray, p: np.ndarray) -> float:
    """The definition, in whole numbers: best precision over thresholds with 10 * true positives >= r * positives."""
    order = np.argsort(-p, kind="stable")
    p, hits = p[order], np.cumsum(y[order].astype(int))
    ends = np.append(p[1:] != p[:-1], True)  # equal scores enter at once
    hits, taken = hits[ends], np.arange(1, len(p) + 1)[ends]
    return float(np.mean([(hits / taken)[10 * hits >= r * hits[-1]].max() for r in range(11)]))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 40), c=st.integers(1, 4), masked=st.booleans())
def test_any_small_table(data: st.DataObject, n: int, c: int, masked: bool) -> None:
    """Few distinct scores, so ties, constant columns and the ends 0 and 1 are common."""
    scores = st.sampled_from([0.0, 1e-30, 0.1, 0.3, 0.30000001192092896, 0.5, 0.9999999, 1.0])

    def table(values: st.SearchStrategy) -> list:
        return data.draw(st.lists(st.lists(values, min_size=c, max_size=c), min_size=n, max_size=n))

    targets = torch.tensor(table(st.integers(0, 1)))
    known = torch.tensor(table(st.integers(0, 1))) if masked else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no complaint about classes without positives either
        compare(torch.tensor(table(scores), dtype=torch.float32), targets, known)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("decimals", [None, 2])
def test_larger_tables(seed: int, decimals: int | None) -> None:
    """3,000 images, prevalence from rare to nearly all, with and without rounding the scores to many ties."""
    generator = torch.Generator().manual_seed(seed)
    targets = (torch.rand(3000, 8, generator=generator) < torch.linspace(0.001, 0.98, 8)).to(torch.uint8)
    probabilities = (torch.randn(3000, 8, generator=generator) + targets).sigmoid()
    probabilities = probabilities if decimals is None else probabilities.round(decimals=decimals)
    compare(probabilities, targets, (torch.rand(3000, 8, generator=generator) < 0.8).to(torch.uint8))


def test_the_size_of_coco() -> None:
    """40,504 x 80 in a few seconds; four classes are checked, the last one half positive, where rounding is worst."""
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(40504, 80, generator=generator) < torch.linspace(0.001, 0.5, 80)).to(torch.uint8)
    probabilities = (torch.randn(40504, 80, generator=generator) + targets).sigmoid()
    names = [str(k) for k in range(80)]
    score(probabilities[:9], targets[:9], None, names)  # imports
    start = time.process_time()
    result = score(probabilities, targets, None, names)
    assert time.process_time() - start < 8
    result = result.to_dict()
    for k in (0, 20, 50, 79):
        y, p = targets[:, k].numpy(), probabilities[:, k].numpy()
        assert result["classes"][str(k)]["AP"] == pytest.approx(average_precision_score(y, p), abs=TOLERANCE)
        assert result["classes"][str(k)]["AUC"] == pytest.approx(roc_auc_score(y, p), abs=TOLERANCE)


def test_more_classes_than_are_scored_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percentmatch.scoring.metrics.CHUNK", 4)
    generator = torch.Generator().manual_seed(3)
    probabilities = (torch.rand(40, 13, generator=generator) * 20).round() / 20
    targets, known = (torch.rand(probabilities.shape, generator=generator) < share for share in (0.1, 0.9))
    compare(probabilities, targets.long(), known)
