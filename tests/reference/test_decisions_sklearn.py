"""Precision, recall, F1 and exact match against scikit-learn, Wilson's intervals against SciPy."""

import warnings

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, precision_recall_fscore_support
from torch import Tensor

from percentmatch.scoring.decisions import DECISION_METRICS, score_decisions
from percentmatch.scoring.intervals import wilson
from percentmatch.use.evaluate import show_scored_decisions


def drawn(seed: int, *, n: int = 60, c: int = 6) -> tuple[Tensor, Tensor, list[str]]:
    """Decisions and targets: one class is never there, one never decided for, and of one both are true."""
    generator = torch.Generator().manual_seed(seed)
    decided, targets = ((torch.rand(n, c, generator=generator) < 0.3).long() for _ in range(2))
    decided = torch.where(torch.rand(n, c, generator=generator) < 0.6, targets, decided)
    targets[:, 0] = decided[:, 1] = decided[:, 2] = targets[:, 2] = 0
    return decided, targets, [f"class {k}" for k in range(c)]


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_scikit_learn_s(seed: int) -> None:
    decided, targets, names = drawn(seed)
    found = score_decisions(decided, targets, torch.ones_like(targets), names)
    with warnings.catch_warnings(action="ignore"):
        for average, mine in (("micro", found.micro), ("macro", found.macro)):
            theirs = precision_recall_fscore_support(targets, decided, average=average, zero_division=np.nan)
            assert [mine.values[name] for name in DECISION_METRICS] == pytest.approx(theirs[:3])
        theirs = precision_recall_fscore_support(targets, decided, zero_division=np.nan)
    rows = found.classes.values()
    for name, values in zip(DECISION_METRICS, theirs, strict=False):
        mine = [row.scores.values[name] for row in rows]
        assert [np.nan if value is None else value for value in mine] == pytest.approx(values, nan_ok=True)
    assert [row.right + row.missed for row in rows] == theirs[3].tolist()
    assert found.exact_match == pytest.approx(accuracy_score(targets, decided))


@pytest.mark.parametrize("seed", range(3))
def test_pairs_that_are_not_known_do_not_count(seed: int) -> None:
    decided, targets, names = drawn(seed)
    known = torch.rand(targets.shape, generator=torch.Generator().manual_seed(seed)) < 0.8
    known[:5] = False
    found = score_decisions(decided, targets, known, names)
    for c, name in enumerate(names):
        with warnings.catch_warnings(action="ignore"):
            rows = targets[known[:, c], c], decided[known[:, c], c]
            theirs = precision_recall_fscore_support(*rows, labels=[1], zero_division=np.nan)
        mine = [found.classes[name].scores.values[key] for key in DECISION_METRICS]
        assert [np.nan if v is None else v for v in mine] == pytest.approx([v[0] for v in theirs[:3]], nan_ok=True)
    right = [bool((decided[n] == targets[n])[known[n]].all()) for n in range(len(targets)) if known[n].any()]
    assert found.exact_match == pytest.approx(np.mean(right))


def test_an_interval_is_scipy_s_and_that_of_f1_grows_out_of_one() -> None:
    """F1 is 2 s / (1 + s), where s is the share of the right among right, wrong and missed."""
    decided, targets, names = drawn(0)
    found = score_decisions(decided, targets, torch.ones_like(targets), names)
    for row in found.classes.values():
        for name, trials in (("precision", row.right + row.wrong), ("recall", row.right + row.missed)):
            if not trials:
                assert row.scores.intervals[name] is None
                continue
            theirs = binomtest(row.right, trials).proportion_ci(method="wilson")
            assert row.scores.intervals[name] == pytest.approx((theirs.low, theirs.high))
        if trials := row.right + row.wrong + row.missed:
            theirs = binomtest(row.right, trials).proportion_ci(method="wilson")
            assert row.scores.intervals["F1"] == pytest.approx([2 * s / (1 + s) for s in theirs])
    low, high = wilson(torch.tensor([16.0, 0.0]), torch.tensor([16, 16]))
    assert high.tolist() == pytest.approx([1, 0.1936], abs=1e-4)  # all of 16 right: not certain
    assert low.tolist() == pytest.approx([0.8064, 0], abs=1e-4)


def test_intervals_of_means_hold_the_truth_about_as_often_as_they_say() -> None:
    """100 draws of 80 images, half of whose labels come in pairs, so that pairs of an image are not independent."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(20_000, 3, generator=generator) < 0.4
    truth[:, 1] = truth[:, 0]
    decided = truth ^ (torch.rand(20_000, 1, generator=generator) < 0.2)
    whole = score_decisions(decided, truth, torch.ones_like(truth), ["a", "b", "c"])
    held = {"micro": 0, "macro": 0}
    for rows in torch.randperm(20_000, generator=generator)[:8000].split(80):
        found = score_decisions(decided[rows], truth[rows], torch.ones_like(truth[rows]), ["a", "b", "c"])
        for kind in held:
            low, high = getattr(found, kind).intervals["F1"]
            held[kind] += low <= getattr(whole, kind).values["F1"] <= high
    assert all(88 <= count <= 99 for count in held.values()), held


def test_what_is_predicted_in_the_place_of_a_missed_class(capsys: pytest.CaptureFixture[str]) -> None:
    """Of ten cats eight are missed. A fox is predicted on all 41 images, so it does not stand for a cat.

    A dog is predicted on six of the seven missed ones on which it is judged, and on two others. So its rate is 8 of 40,
    0.2 * 7 = 1.4 are expected, 6 / 1.4 = 4.286 times as many are there, and 6 ln(6 / 1.4) - 6 + 1.4 = 4.1317. A cow is
    predicted on all missed ones and nowhere judged, an owl on two, which are too few.
    """
    names = ["cat", "dog", "fox", "cow", "owl"]
    targets, decided, known = torch.zeros(3, 41, 5, dtype=torch.long)
    targets[:10, 0] = decided[8:10, 0] = 1
    decided[:6, 1] = decided[10:12, 1] = decided[:, 2] = decided[:8, 3] = decided[:2, 4] = 1
    known[:] = torch.tensor([1, 1, 1, 0, 1])
    known[7, 1] = 0
    found = score_decisions(decided, targets, known, names)
    assert found.classes["cat"].instead == {"dog": pytest.approx((6, 6 / 1.4, 4.1317), abs=1e-4)}
    assert [(*pair, each.images) for *pair, each in found.confusions(9)] == [("cat", "dog", 6)]
    written = found.to_dict()["classes"]
    assert written["cat"]["predicted_instead"]["dog"].keys() == {"images", "lift", "surprise"}
    assert (written["dog"]["wrong"], written["cat"]["missed"]) == (8, 8)
    show_scored_decisions(found)
    assert "  dog in the place of cat: 6 of 8 missed, 4.3 times as often as by chance\n" in capsys.readouterr().out


def test_of_no_image_nothing_is_said() -> None:
    none = torch.zeros(0, 2)
    found = score_decisions(none, none, none, ["a", "b"])
    assert (found.exact_match, found.exact_match_interval) == (None, None)
    assert set(found.micro.values.values()) == set(found.micro.intervals.values()) == {None}
