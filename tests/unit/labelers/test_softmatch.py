"""SoftMatch on tiny score matrices, by hand."""

import math

import pytest
import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers import SoftMatch
from percentmatch.records import Facts, Scores


def facts(*positives: int, labeled: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, 1000, 100)


def column(*scores: float) -> Tensor:
    return torch.tensor(scores)[:, None]


def test_weights_are_a_truncated_gaussian() -> None:
    """momentum 0: scores .9 .1 .6 .2 have q .9 .9 .6 .8: mean .8, variance (.01 + .01 + .04 + 0) / 3 = .02.

    .85 is above the mean: 1. .3 has q .7: exp(-.1^2 / (2 * .02 / 4)) = exp(-1). .6: exp(-.2^2 / .01) = exp(-4).
    """
    labeler = SoftMatch(facts(10), momentum=0.0, weight=2.0)
    labeler(Scores(column(0.9, 0.1, 0.6, 0.2), 0))
    torch.testing.assert_close(labeler.mean, torch.tensor([0.8]))
    torch.testing.assert_close(labeler.variance, torch.tensor([0.02]))
    found = labeler.eval()(Scores(column(0.85, 0.3, 0.6), 1))
    assert found.targets.flatten().tolist() == [1, 0, 1]
    assert found.pair_weights.flatten().tolist() == pytest.approx([2, 2 * math.exp(-1), 2 * math.exp(-4)], rel=1e-4)


def test_the_start_is_wide_and_moves_with_the_momentum() -> None:
    """From mean .5 and variance 1 every weight is 1; then .9 and .7 (mean .8, variance .02) move them a quarter."""
    labeler = SoftMatch(facts(10), momentum=0.75)
    assert labeler(Scores(column(0.9, 0.7), 0)).pair_weights.tolist() == [[1], [1]]
    torch.testing.assert_close(labeler.mean, torch.tensor([0.575]))
    torch.testing.assert_close(labeler.variance, torch.tensor([0.755]))
    torch.testing.assert_close(labeler.score_mean, torch.tensor([0.575]))


def test_a_class_without_labeled_positives_gets_no_positive_and_one_always_present_is_like_any_other() -> None:
    found = SoftMatch(facts(0, 100))(Scores(torch.tensor([[0.9, 0.9], [0.5, 0.5], [0.1, 0.1]]), 0))
    assert found.targets.tolist() == [[0, 1], [0, 1], [0, 0]]
    assert found.pair_weights.tolist() == [[0, 1], [0, 1], [1, 1]]
    assert found.upper is None
    assert found.gap is None


def test_constant_scores_and_a_batch_of_one() -> None:
    """One image has no variance, so only the mean learns from it. Constant scores end with variance 0: those at the
    mean keep their weight and those below it have none.
    """
    labeler = SoftMatch(facts(10), momentum=0.0)
    labeler(Scores(column(0.8), 0))
    torch.testing.assert_close(labeler.mean, torch.tensor([0.8]))
    assert labeler.variance.item() == 1
    for step in (1, 2):
        labeler(Scores(column(0.8, 0.8, 0.8), step))
    assert labeler.variance.item() == pytest.approx(0, abs=1e-10)
    found = labeler.eval()(Scores(column(0.8, 0.79), 3))
    assert found.pair_weights.flatten().tolist() == pytest.approx([1, 0], abs=0.05)


def test_uniform_alignment_changes_weights_not_labels() -> None:
    """Mean score .2: odds are multiplied by (.5 / .2) / (.5 / .8) = 4. .3 has 3/7 -> 12/7, so its label, absent, has
    7/19; .6 has 3/2 -> 6, so present has 6/7. Weights from mean .9, variance 1, n_sigma 1: exp(-(q - .9)^2 / 2).
    """
    labeler = SoftMatch(facts(10), momentum=0.0, n_sigma=1.0, alignment="uniform")
    labeler(Scores(column(0.1, 0.3), 0))
    labeler.mean.fill_(0.9)
    labeler.variance.fill_(1.0)
    found = labeler.eval()(Scores(column(0.3, 0.6), 1))
    assert found.targets.flatten().tolist() == [0, 1]
    expected = [math.exp(-((q - 0.9) ** 2) / 2) for q in (7 / 19, 6 / 7)]
    assert found.pair_weights.flatten().tolist() == pytest.approx(expected)


def test_with_one_label_an_image_the_row_maximum_counts() -> None:
    """momentum 0: maxima .6 and .8: mean .7, variance .02. (.2 .5 .3): exp(-.2^2 / .01) in the whole row."""
    labeler = SoftMatch(facts(10, 10, 0), task="single-label", momentum=0.0)
    assert labeler.mean.tolist() == pytest.approx([1 / 3] * 3)
    labeler(Scores(torch.tensor([[0.6, 0.2, 0.2], [0.1, 0.8, 0.1]]), 0))
    found = labeler(Scores(torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]), 1))
    assert found.targets.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert found.pair_weights[0].tolist() == pytest.approx([math.exp(-4)] * 3, rel=1e-4)
    assert found.pair_weights[1].tolist() == [0, 0, 0]  # the best class has no labeled image


@pytest.mark.parametrize("wrong", [{"momentum": 2.0}, {"n_sigma": -1.0}, {"alignment": "labeled"}, {"weight": -1.0}])
def test_bad_options_are_named(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        SoftMatch(facts(10), **wrong)
