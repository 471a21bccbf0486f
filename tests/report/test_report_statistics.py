"""The report's numbers against scikit-learn, torchmetrics and values derived by hand."""

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error

from percentmatch.scoring import intervals as statistics
from percentmatch.scoring.calibration import decision_thresholds
from percentmatch.scoring.intervals import bootstrap, interval, plain
from percentmatch.scoring.metrics import reliability


def pairs(n: int = 200, c: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores with many ties, labels that follow them, and some pairs unknown."""
    generator = torch.Generator().manual_seed(3)
    scores = (torch.rand(n, c, generator=generator) * 25).round() / 25
    targets = (torch.rand(n, c, generator=generator) < 0.4 * scores).long()
    return scores, targets, (torch.rand(n, c, generator=generator) < 0.9).long()


def test_plain_scores_are_those_of_scikit_learn() -> None:
    scores, targets, known = pairs()
    found = plain(scores, targets, known)
    for c in range(3):
        rows = known[:, c] > 0
        ap = average_precision_score(targets[rows, c], scores[rows, c])
        auc = roc_auc_score(targets[rows, c], scores[rows, c])
        assert (float(found.classes["AP"][0, c]), float(found.classes["AUC"][0, c])) == pytest.approx(
            (ap, auc), abs=1e-12
        )


def test_a_resample_is_the_score_of_the_images_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of each resample are drawn again here and scored one by one, in chunks of two resamples."""
    scores, targets, known = pairs(n=50)
    monkeypatch.setattr(statistics, "AT_ONCE", 100)
    found = bootstrap(scores, targets, known, resamples=5, seed=7)
    assert found.classes["AP"].shape == found.classes["AUC"].shape == (5, 3)
    generator = torch.Generator().manual_seed(7)
    drawn = torch.cat([torch.randint(50, (size, 50), generator=generator) for size in (2, 2, 1)])
    for r, rows in enumerate(drawn):
        for c in range(3):
            mine = rows[known[rows, c] > 0]
            ap = average_precision_score(targets[mine, c], scores[mine, c])
            auc = roc_auc_score(targets[mine, c], scores[mine, c])
            assert (float(found.classes["AP"][r, c]), float(found.classes["AUC"][r, c])) == pytest.approx(
                (ap, auc), abs=1e-12
            )
    assert torch.equal(found.mean("AP"), found.classes["AP"].mean(dim=1))


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    first, again, other = (bootstrap(*pairs(), resamples=20, seed=seed).mean("AP") for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_class_without_positives_has_no_value_and_does_not_touch_the_mean() -> None:
    scores, targets, known = pairs()
    targets[:, 1] = 0
    found = bootstrap(scores, targets, known, resamples=10)
    assert found.classes["AP"][:, 1].isnan().all()
    assert torch.allclose(found.mean("AP"), found.classes["AP"][:, [0, 2]].mean(dim=1))
    assert interval(found.classes["AP"])[1] is None


def test_an_interval_holds_the_middle_of_the_values() -> None:
    """0, 1, ..., 100: 2.5% lie below 2.5 and above 97.5. Of 0 and 1 alone, ends interpolate: 0.025 and 0.975."""
    values = torch.arange(101, dtype=torch.float64)
    few = torch.full((101,), torch.nan, dtype=torch.float64)
    few[:2] = torch.tensor([0.0, 1.0])
    assert interval(torch.stack([values, few], dim=1)) == [pytest.approx((2.5, 97.5)), pytest.approx((0.025, 0.975))]


def test_calibration_by_hand() -> None:
    """Two bins of ten: scores .1 and .3 miss by .1 and .7 the truth 0 and 1, together .4 against 1, so .6;
    .9 against 0 is .9 away. ECE = (.6 + .9) / 3 = .5. The unknown pair does not count."""
    scores = torch.tensor([[0.1], [0.3], [0.9], [0.95]])
    targets, known = torch.tensor([[0], [1], [0], [1]]), torch.tensor([[1], [1], [1], [0]])
    found = reliability(scores, targets, known, bins=2)
    assert found.counts.tolist() == [[2, 1]]
    assert found.observed.tolist() == [[1, 0]]
    assert found.errors.tolist() == pytest.approx([0.5])


def test_calibration_error_is_that_of_torchmetrics() -> None:
    scores, targets, _ = pairs()
    scores = scores * 0.98 + 0.003  # off the edges of the bins, where the two disagree
    found = reliability(scores, targets, torch.ones_like(targets))
    columns = zip(scores.T.contiguous(), targets.T.contiguous(), strict=True)
    for error, column in zip(found.errors.tolist(), columns, strict=True):
        assert error == pytest.approx(float(binary_calibration_error(*column, n_bins=10)), abs=1e-6)
    pooled = float(binary_calibration_error(scores.flatten(), targets.flatten(), n_bins=10))
    assert float(reliability(scores, targets, torch.ones_like(targets), pooled=True).errors) == pytest.approx(
        pooled, abs=1e-6
    )


def test_no_other_threshold_has_a_better_f1() -> None:
    scores, targets, known = pairs()
    found = decision_thresholds(scores, targets, known)
    for c in range(3):
        rows = known[:, c] > 0
        truth, mine = targets[rows, c], scores[rows, c]
        all_of_them = {float(t): f1_score(truth, mine >= t) for t in mine.unique()}
        assert all_of_them[float(found[c])] == pytest.approx(max(all_of_them.values()))


def test_without_a_positive_the_threshold_is_a_half() -> None:
    assert decision_thresholds(torch.rand(5, 1), torch.zeros(5, 1), torch.ones(5, 1)).tolist() == [0.5]


def test_the_interval_of_a_map_with_few_positives_holds_it() -> None:
    """80 classes with 4 positives in 200 images: a resample's mAP is so much higher that plain intervals miss it."""
    missed = {"plain": 0, "moved": 0}
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        targets = (torch.rand(200, 80, generator=draw).argsort(0) < 4).to(torch.uint8)
        scores = (torch.randn(200, 80, generator=draw) + targets).double()
        known = torch.ones_like(targets)
        drawn, (exact,) = (
            bootstrap(scores, targets, known, resamples=100).mean("AP")[:, None],
            plain(scores, targets, known).mean("AP")[None],
        )
        for name, around in (("plain", None), ("moved", exact)):
            ((low, high),) = interval(drawn, around=around)
            missed[name] += not low <= float(exact) <= high
    assert missed["moved"] == 0 < missed["plain"]
    assert interval(torch.tensor([[0.9], [1.0]]), around=torch.tensor([1.0])) == [pytest.approx((0.9525, 1.0))]
