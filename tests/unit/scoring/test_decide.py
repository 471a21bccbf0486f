"""Calibration and thresholds against scikit-learn, torchmetrics and numbers derived by hand."""

import math
import warnings
from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, precision_recall_curve, precision_score, recall_score
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from percentmatch.errors import UserError
from percentmatch.models import Card
from percentmatch.scoring import calibration as deciding
from percentmatch.scoring.calibration import (
    FEW,
    SCALE_SPREAD,
    SHARED_SPREAD,
    SHIFT_SPREAD,
    decide,
    decisions_of,
    fit_platt,
    probabilities_of,
)
from percentmatch.scoring.metrics import calibration_error

NAMES = ("a", "b", "c", "d")
CARD = Card("test_resnet", "linear", 0.0, 32, 32, "squash", "multi-label", NAMES, (0.5,) * 3, (0.5,) * 3, "0")


def drawn(n: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits that are too large by half and too high by one, labels, and what is known of them: (n, 4) each."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(n, 4, generator=generator, dtype=torch.float64) * 2 - 1 + torch.tensor([0.5, 0.0, 0.0, -0.5])
    targets = (torch.rand(n, 4, generator=generator) < truth.sigmoid()).double()
    known = (torch.rand(n, 4, generator=generator) < 0.9).double()
    return truth * 1.5 + 1, targets, known


def rough(n: int, c: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits in steps of a quarter, so with ties, labels from common to rare, some unknown; (n, c) each.

    Every tenth class has no positive, the second is always positive, and of the last nothing is known.
    """
    generator = torch.Generator().manual_seed(3)
    targets = (torch.rand(n, c, generator=generator) < torch.linspace(0.6, 0.01, c)).double()
    targets[:, ::10], targets[:, 1] = 0, 1
    known = (torch.rand(n, c, generator=generator) < 0.8).double()
    known[:, -1] = 0
    logits = torch.randn(n, c, generator=generator, dtype=torch.float64) * 1.5 + targets - 2
    return (logits * 4).round() / 4, targets, known


def judged(logits: Tensor, targets: Tensor, known: Tensor, **aim: float):
    found = decide(logits, targets, known, task="multi-label", class_names=NAMES, **aim)
    assert found
    return found


def platt(logits: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    found = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000).fit(logits[:, None], targets)
    return found.coef_[0, 0], found.intercept_[0]


def test_with_a_wide_prior_every_class_is_scikit_learn_s_logistic_regression() -> None:
    logits, targets, known = drawn(300)
    scale, shift = fit_platt(logits, targets, known, scale_spread=1e4, shift_spread=1e4)
    for column in range(4):
        rows = known[:, column] > 0
        wanted = platt(logits[rows, column].numpy(), targets[rows, column].numpy())
        assert (scale[column].item(), shift[column].item()) == pytest.approx(wanted, abs=2e-3)


def test_with_a_narrow_prior_all_classes_share_one_regression() -> None:
    logits, targets, known = drawn(300)
    scale, shift = fit_platt(logits, targets, known, scale_spread=1e-6, shift_spread=1e-6)
    wanted = platt(logits[known > 0].numpy(), targets[known > 0].numpy())
    assert torch.stack([scale, shift], 1).tolist() == [pytest.approx(wanted, abs=2e-3)] * 4


@pytest.mark.parametrize("size", [1.0, 60.0, 1e20])
def test_the_fit_is_where_autograd_finds_no_slope(size: float) -> None:
    """Log loss of the known pairs and the prior, by scales and shifts (2, c) and what they share; here 60 classes.

    With the shared pair free, its best value is the sum of the classes' weights times theirs, as normals combine.
    """
    logits, targets, known = rough(80, 60)
    fitted = fit_platt(logits * size, targets, known)
    at = torch.stack([fitted[0].log(), fitted[1]]).requires_grad_()  # (2, c)
    spread = torch.tensor([[SCALE_SPREAD], [SHIFT_SPREAD]], dtype=torch.float64)
    shared = (at / spread**2).sum(1, keepdim=True) / (60 / spread**2 + 1 / SHARED_SPREAD**2)
    prior = ((at - shared) / spread).square().sum() / 2 + (shared / SHARED_SPREAD).square().sum() / 2
    moved = logits * size * at[0].exp() + at[1]
    (binary_cross_entropy_with_logits(moved, targets, known, reduction="sum") + prior).backward()
    assert at.grad is not None
    assert (at.grad * spread).abs().max() < 1e-6
    for start in (fitted, (fitted[0] * 5, fitted[1] - 3)):
        again = fit_platt(logits * size, targets, known, start=start)
        torch.testing.assert_close(again[0] / fitted[0], torch.ones(60).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(again[1], fitted[1], atol=1e-6, rtol=0)


def test_the_prior_by_hand() -> None:
    """One class, all logits 0, one positive of four: the shift maximises the likelihood of share 1/4 less the prior.

    With logits 0 the scale is free and stays 1. With shift s, the derivative of the log likelihood is 1 - 4 sigmoid(s),
    and of the prior s / (spread^2 + 9), the shared and the own part together, as normals add: 9 is the shared variance.
    """
    logits, known = torch.zeros(4, 1, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    targets = torch.tensor([[1.0], [0], [0], [0]], dtype=torch.float64)
    scale, shift = fit_platt(logits, targets, known, shift_spread=2.0)
    assert scale.item() == 1
    assert 1 - 4 * shift.sigmoid().item() == pytest.approx(shift.item() / (4 + 9), abs=1e-6)
    assert log(1 / 3) < shift.item() < 0


def test_the_calibration_error_by_hand() -> None:
    """Bins of a tenth. Known pairs: 0.02 and 0.08 (one positive), 0.55 (positive), 1.0 (not).

    |0.02 + 0.08 - 1| + |0.55 - 1| + |1 - 0| = 0.9 + 0.45 + 1, over four pairs: 0.5875.
    """
    scores = torch.tensor([[0.02, 0.55], [0.08, 1.0], [0.5, 0.3]], dtype=torch.float64)
    targets = torch.tensor([[0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    known = torch.tensor([[1, 1], [1, 1], [0, 0]], dtype=torch.float64)
    assert calibration_error(scores, targets, known, "multi-label") == pytest.approx(0.5875)


def test_the_calibration_error_is_torchmetrics_s() -> None:
    logits, targets, known = drawn(200)
    mine = calibration_error(logits.sigmoid(), targets, known, "multi-label")
    pairs = known > 0
    theirs = binary_calibration_error(logits.sigmoid()[pairs], targets[pairs].long(), n_bins=10)
    assert mine == pytest.approx(float(theirs), abs=1e-6)
    label = torch.arange(200) % 4
    one_hot = torch.nn.functional.one_hot(label, 4).double()
    mine = calibration_error(logits.softmax(1), one_hot, torch.ones_like(one_hot), "single-label")
    theirs = multiclass_calibration_error(logits.softmax(1), label, num_classes=4, n_bins=10)
    assert mine == pytest.approx(float(theirs), abs=1e-6)


def test_wrong_probabilities_are_set_right_and_the_error_after_is_that_of_new_images() -> None:
    """The logits are 1.5 z + 1, so scale 2/3 and shift -2/3 undo it; the classes differ in nothing else."""
    logits, targets, known = drawn(600)
    decisions, summary = judged(logits, targets, known)
    assert np.mean(decisions.scale) == pytest.approx(2 / 3, abs=0.06)
    assert np.mean(decisions.shift) == pytest.approx(-2 / 3, abs=0.12)
    errors = summary["calibration"]
    new_logits, new_targets, _ = drawn(20_000, seed=1)
    after = probabilities_of(new_logits, replace(CARD, decisions=decisions))
    fresh = calibration_error(after, new_targets, torch.ones_like(after), "multi-label")
    assert errors["ece_before"] > 3 * errors["ece_after"]
    assert fresh < 0.03
    assert abs(errors["ece_after"] - fresh) < 0.03


def test_the_error_after_is_measured_on_images_that_were_not_fitted() -> None:
    """Labels that no logit explains: fitted to them, each class could be right; on other images none is."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(24, 4, generator=generator).double()
    targets = (torch.rand(24, 4, generator=generator) < 0.5).double()
    _, summary = judged(logits, targets, torch.ones_like(targets))
    scale, shift = fit_platt(logits, targets, torch.ones_like(targets))
    fitted = calibration_error((logits * scale + shift).sigmoid(), targets, torch.ones_like(targets), "multi-label")
    assert summary["calibration"]["ece_after"] > fitted


def test_calibration_that_does_not_help_is_left_out() -> None:
    """Half of the labels are 1, and logits of about 0 say so. Of three images two thirds are not what the fourth is."""
    targets = torch.tensor([1.0, 1, 0, 0])[:, None].expand(-1, 4)
    logits = torch.tensor([0.3, -0.3, 0.3, -0.3])[:, None].expand(-1, 4)
    decisions, summary = judged(logits, targets, torch.ones(4, 4))
    assert fit_platt(logits.double(), targets.double(), torch.ones(4, 4).double())[0].max() < 0.95
    assert decisions.scale == (1,) * 4
    assert decisions.shift == (0,) * 4
    assert summary["calibration"]["ece_after"] == summary["calibration"]["ece_before"]
    assert summary["calibration"]["kept"] is False
    assert not replace(CARD, decisions=decisions).calibrated
    assert judged(*drawn(200))[1]["calibration"]["kept"] is True
    assert replace(CARD, decisions=judged(*drawn(200))[0]).calibrated


@given(st.integers(0, 10_000), st.integers(1, 30), st.floats(0.1, 60))
@settings(max_examples=10, deadline=None)
def test_the_ranking_within_a_class_stays(seed: int, n: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, generator=generator, dtype=torch.float64) * size
    targets = (torch.rand(n, 4, generator=generator) < 0.3).double()
    found = decide(logits, targets, torch.ones_like(targets), task="multi-label", class_names=NAMES)
    if found is None:
        assert targets.mean() in (0, 1)
        return
    scale, shift = (torch.tensor(each, dtype=torch.float64) for each in (found[0].scale, found[0].shift))
    assert torch.equal((logits * scale + shift).argsort(dim=0), logits.argsort(dim=0))
    assert all(0 <= t <= 1 for t in found[0].thresholds)


def columns(logits: Tensor, targets: Tensor, known: Tensor, decisions) -> list[tuple[np.ndarray, ...]]:
    """Truth, decision and calibrated probability of the known pairs of each class."""
    card = replace(CARD, decisions=decisions)
    tables = targets, decisions_of(logits, card), probabilities_of(logits, card)
    return [tuple(table[known[:, c] > 0, c].numpy() for table in tables) for c in range(4)]


def test_thresholds_have_scikit_learn_s_best_f1() -> None:
    logits, targets, known = drawn(200)
    logits = (logits * 4).round() / 4  # with ties
    decisions, summary = judged(logits, targets, known)
    for (truth, decided, p), name in zip(columns(logits, targets, known, decisions), NAMES, strict=True):
        precision, recall, _ = precision_recall_curve(truth, p)
        best = np.max(2 * precision * recall / np.maximum(precision + recall, 1e-12))
        assert f1_score(truth, decided) == pytest.approx(best)
        row = summary["decisions"]["classes"][name]
        assert row["F1"] == pytest.approx(best)
        assert row["precision"] == pytest.approx(precision_score(truth, decided))
        assert row["recall"] == pytest.approx(recall_score(truth, decided))


def best_by_trying(logits: list[float], truth: list[float], aim: dict[str, float]) -> dict[str, float]:
    """The rule in plain Python, for one class: each known logit as the lowest that is decided for, highest first."""
    ladder, total, best, best_worth = sorted(set(logits), reverse=True), math.fsum(truth), {}, ()
    for place, lowest in enumerate(ladder):
        hits = math.fsum(t for z, t in zip(logits, truth, strict=True) if z >= lowest)
        chosen = sum(z >= lowest for z in logits)
        row = {"precision": hits / chosen, "recall": hits / total, "F1": 2 * hits / (chosen + total)}
        worth: tuple[float, ...] = (row["F1"],)
        for mine, other in (("precision", "recall"), ("recall", "precision")):
            if mine in aim:
                worth = (min(row[mine], aim[mine]), row[other], row[mine])
        if [round(each, 12) for each in worth] > [round(each, 12) for each in best_worth]:
            between = np.mean(ladder[place : place + 2])
            best, best_worth = {"threshold": 1 / (1 + math.exp(-between)), **row}, worth
    return best


@pytest.mark.parametrize("at_once", [1, 200, 1 << 20])
@pytest.mark.parametrize("aim", [{}, {"precision": 0.6}, {"precision": 1.0}, {"recall": 0.7}, {"recall": 1.0}])
def test_many_classes_at_once_are_each_class_alone(
    aim: dict[str, float], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties, unknown labels, many and few positives, none, and a class of which nothing is known."""
    monkeypatch.setattr(deciding, "AT_ONCE", at_once)
    logits, targets, known = rough(80, 60)
    names = [f"class {c}" for c in range(60)]
    found = decide(logits, targets, known, task="multi-label", class_names=names, **aim)
    assert found
    decisions, summary = found
    rows = list(summary["decisions"]["classes"].values())
    assert list(summary["decisions"]["classes"]) == names
    assert [row["threshold"] for row in rows] == list(decisions.thresholds)
    scale, shift = (torch.tensor(each, dtype=torch.float64) for each in (decisions.scale, decisions.shift))
    calibrated, few, many = logits * scale + shift, 0, 0
    for c, row in enumerate(rows):
        mine = known[:, c] > 0
        positives = int(targets[mine, c].sum())
        assert row["positives"] == positives
        decided = (calibrated[mine, c].sigmoid() >= row["threshold"]).long().numpy()
        for name, score in (("precision", precision_score), ("recall", recall_score), ("F1", f1_score)):
            with warnings.catch_warnings(action="ignore"):
                value = score(targets[mine, c], decided, zero_division=np.nan) if mine.any() else np.nan
            assert row[name] == (None if np.isnan(value) else pytest.approx(value))
        few, many = few + (positives < FEW), many + (positives >= FEW)
        if positives < FEW:
            assert row["threshold"] == summary["decisions"]["shared_threshold"]
            continue
        wanted = best_by_trying(calibrated[mine, c].tolist(), targets[mine, c].tolist(), aim)
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, abs=1e-10)
    assert few >= 10
    assert many >= 10


@pytest.mark.parametrize("aim", [{}, {"precision": 0.6}, {"recall": 0.7}])
def test_classes_with_few_positives_share_what_all_probabilities_expect_to_be_best(aim: dict[str, float]) -> None:
    """Of 12 images no class has 20 positives: each known pair counts as its probability says, whatever its label."""
    logits, targets, known = rough(12, 8)
    found = decide(logits, targets, known, task="multi-label", class_names=[f"class {c}" for c in range(8)], **aim)
    assert found
    decisions, summary = found
    scale, shift = (torch.tensor(each, dtype=torch.float64) for each in (decisions.scale, decisions.shift))
    pairs = (logits * scale + shift)[known > 0]
    wanted = best_by_trying(pairs.tolist(), pairs.sigmoid().tolist(), aim)["threshold"]
    assert decisions.thresholds == pytest.approx([wanted] * 8)
    few = {name for key in ("few_positives", "without_positives") for name in summary["decisions"][key]}
    assert few == {f"class {c}" for c in range(8)}
    assert summary["decisions"]["missed"] == []


@pytest.mark.parametrize("wanted", [0.6, 0.9])
def test_a_precision_is_reached_with_the_best_recall(wanted: float) -> None:
    logits, targets, known = drawn(200)
    decisions, summary = judged(logits, targets, known, precision=wanted)
    assert decisions.aim == f"precision {wanted}"
    for truth, decided, p in columns(logits, targets, known, decisions):
        precision, recall, _ = precision_recall_curve(truth, p)
        assert precision_score(truth, decided) >= wanted
        assert recall_score(truth, decided) == pytest.approx(max(recall[:-1][precision[:-1] >= wanted]))
    assert not summary["decisions"]["missed"]


@pytest.mark.parametrize("wanted", [0.5, 0.9, 1.0])
def test_a_recall_is_reached_with_the_best_precision(wanted: float) -> None:
    logits, targets, known = drawn(200)
    decisions, _ = judged(logits, targets, known, recall=wanted)
    for truth, decided, p in columns(logits, targets, known, decisions):
        precision, recall, _ = precision_recall_curve(truth, p)
        assert recall_score(truth, decided) >= wanted
        assert precision_score(truth, decided) == pytest.approx(max(precision[:-1][recall[:-1] >= wanted]))


def test_a_precision_that_is_not_there_is_named_and_the_nearest_taken() -> None:
    logits, targets, known = drawn(200)
    top = logits[:, 2].argmax()
    targets[top, 2], known[top, 2] = 0, 1  # so that no threshold of c is right about all
    decisions, summary = judged(logits, targets, known, precision=1.0)
    assert "c" in summary["decisions"]["missed"]
    truth, decided, p = columns(logits, targets, known, decisions)[2]
    assert precision_score(truth, decided) == pytest.approx(precision_recall_curve(truth, p)[0][:-1].max())


def test_a_threshold_lies_between_two_scores() -> None:
    """20 positives with logit 3, 20 negatives with logit -1: best from 3 on; calibrated, the middle of both."""
    logits = torch.tensor([3.0, -1.0]).repeat(20)[:, None].expand(-1, 4)
    targets = (logits > 0).double()
    decisions, _ = judged(logits, targets, torch.ones_like(targets))
    for scale, shift, threshold in zip(decisions.scale, decisions.shift, decisions.thresholds, strict=True):
        assert log(threshold / (1 - threshold)) == pytest.approx(scale * 1 + shift, abs=1e-6)


def test_few_positives_choose_by_the_calibrated_probabilities() -> None:
    """Of class d, 3 of 120 images are positive, and those with the lowest logits: chance. Expected F1 ranks instead.

    The best threshold maximises 2 sum(p of the chosen) / (number chosen + sum(p)), here found by trying all.
    """
    logits, targets, _ = drawn(200)
    logits, targets = logits[:120], targets[:120].clone()
    targets[:, :3] = (logits[:, :3] > 0).double()
    targets[:, 3] = 0
    targets[logits[:, 3].argsort()[:3], 3] = 1
    assert targets[:, 0].sum() >= FEW > 3
    decisions, summary = judged(logits, targets, torch.ones_like(targets))
    assert summary["decisions"]["few_positives"] == ["d"]
    assert summary["decisions"]["shared_threshold"] is None
    p = probabilities_of(logits, replace(CARD, decisions=decisions))[:, 3].sort(descending=True)[0]
    expected = [(2 * p[:k].sum() / (k + p.sum())).item() for k in range(1, 121)]
    assert int((p >= decisions.thresholds[3]).sum()) == 1 + int(np.argmax(expected))


def test_a_class_without_a_positive_leans_on_the_others() -> None:
    logits, targets, known = drawn(200)
    targets[:, 1] = 0
    decisions, summary = judged(logits, targets, known)
    assert summary["decisions"]["without_positives"] == ["b"]
    assert decisions.thresholds[1] == summary["decisions"]["shared_threshold"] > 0.2
    assert decisions.shift[1] < min(decisions.shift[c] for c in (0, 2, 3))
    assert decisions.shift[1] > -5  # the prior holds it


def test_nothing_is_decided_from_nothing() -> None:
    logits, targets, known = drawn(20)
    for labels, mask, scores in (
        (targets * 0, known, logits),
        (targets * 0 + 1, known, logits),
        (targets, known * 0, logits),
        (targets, known, logits * torch.nan),
    ):
        assert decide(scores, labels, mask, task="multi-label", class_names=NAMES) is None


def test_single_label_has_one_temperature_and_the_best_class() -> None:
    """Logits three times too large: the temperature is found, the best class stays."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(2000, 4, generator=generator, dtype=torch.float64)
    label = torch.multinomial(truth.softmax(1), 1, generator=generator)[:, 0]
    targets = torch.nn.functional.one_hot(label, 4).double()
    found = decide(truth * 3, targets, torch.ones_like(targets), task="single-label", class_names=NAMES)
    assert found
    decisions, summary = found
    assert decisions.scale == pytest.approx([1 / 3] * 4, abs=0.05)
    assert decisions.thresholds == ()
    assert summary["decisions"] == {"aim": "best class"}
    assert summary["calibration"]["ece_after"] < 0.05 < 0.2 < summary["calibration"]["ece_before"]
    card = replace(CARD, task="single-label", decisions=decisions)
    decided = decisions_of(truth * 3, card)
    assert torch.equal(decided.argmax(1), truth.argmax(1))
    assert torch.equal(decided.sum(1), torch.ones(2000))
    torch.testing.assert_close(probabilities_of(truth * 3, card).sum(1), torch.ones(2000, dtype=torch.float64))


@pytest.mark.parametrize(
    ("aim", "sentence"),
    [
        ({"precision": 0.9, "recall": 0.9}, "not for both"),
        ({"precision": 0.0}, "--precision 0 must be above 0"),
        ({"recall": 1.5}, r"--recall 1\.5 must be"),
    ],
)
def test_an_aim_that_makes_no_sense(aim: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        decide(*drawn(20), task="multi-label", class_names=NAMES, **aim)


def test_one_label_an_image_has_no_thresholds_to_aim_with() -> None:
    with pytest.raises(UserError, match="most probable class"):
        decide(*drawn(20), task="single-label", class_names=NAMES, recall=0.9)


def test_without_decisions_the_network_s_own_probabilities_count_from_a_half_on() -> None:
    logits = torch.tensor([[0.1, -0.1, 5, -5]])
    torch.testing.assert_close(probabilities_of(logits, CARD), logits.double().sigmoid())
    assert decisions_of(logits, CARD).tolist() == [[1, 0, 1, 0]]


def test_an_image_of_which_only_an_absence_is_known_is_no_wrong_answer() -> None:
    """Of the first image .75 is said and right: off by .25. Of the second its class is not known."""
    scores = torch.tensor([[0.75, 0.25], [0.95, 0.05]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    known = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    assert calibration_error(scores, targets, known, "single-label") == pytest.approx(0.25)


def test_the_temperature_does_not_hang_on_classes_that_are_never_seen() -> None:
    """Twenty images, all right: however many classes stand beside, the scale is the same, and not certain."""
    scales = []
    for classes in (3, 100):
        logits = torch.full((20, classes), -8.0, dtype=torch.float64)
        logits[:, :3] = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
        targets = torch.zeros_like(logits)
        targets[:, 0] = 1
        scales.append(float(deciding._fit_temperature(logits, targets, torch.ones_like(targets))[0][0]))
    assert scales[0] == pytest.approx(scales[1], rel=0.01)
    assert 1 < scales[0] < 3


def test_a_calibration_from_a_dozen_images_needs_a_clear_gain() -> None:
    """Scores that are right already are kept as they are, though chance seems to gain; far too sure ones are not."""
    kept = {1.0: 0, 3.0: 0}
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        true = torch.randn(12, 10, generator=generator, dtype=torch.float64) * 2 - 1.5
        targets = (torch.rand(12, 10, generator=generator) < true.sigmoid()).double()
        for factor in kept:
            names = [str(column) for column in range(10)]
            found = decide(true * factor, targets, torch.ones_like(targets), task="multi-label", class_names=names)
            assert found
            kept[factor] += found[1]["calibration"]["kept"]
    assert kept == {1.0: 0, 3.0: 10}
