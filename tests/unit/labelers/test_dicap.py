"""DiCaP on tiny score tables, by hand."""

import pytest
import torch

from percentmatch.errors import UserError
from percentmatch.labelers import DiCaP
from percentmatch.records import Facts, LabeledScores, Scores


def facts(*positives: int) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, 10), 10, 200, 100, unlabeled_batch=12)


def labeled(scores: list, targets: list, held_out: list[int], known: list | None = None) -> LabeledScores:
    table, truth = torch.tensor(scores), torch.tensor(targets).float()
    there = torch.ones_like(truth) if known is None else torch.tensor(known).float()
    return LabeledScores(table, truth, there, torch.tensor(held_out).bool())


def test_thresholds_are_half_way_between_the_extremes_of_the_labels_that_are_kept() -> None:
    """Kept positives .9, .7, .5: (.9 + .5) / 2 = .7. Kept negatives .4, .0, .1: .2. Those held out, .05 and .99, do not
    count, nor does the positive .1 whose label is unknown. Class 1 has no kept positive: no score is above 1.
    """
    labeler = DiCaP(facts(3, 1), refresh_steps=1)
    scores = [
        [0.9, 0.3],
        [0.7, 0.3],
        [0.5, 0.5],
        [0.4, 0.1],
        [0.0, 0.2],
        [0.1, 0.3],
        [0.05, 0.9],
        [0.99, 0.2],
        [0.1, 0.2],
    ]
    targets = [[1, 0], [1, 0], [1, 0], [0, 0], [0, 0], [0, 0], [1, 1], [0, 0], [1, 0]]
    known = [[1, 1]] * 8 + [[0, 1]]
    labeler.fit(labeled(scores, targets, [0] * 6 + [1, 1, 0], known))
    assert labeler.upper.tolist() == pytest.approx([0.7, 1.0])
    assert labeler.lower.tolist() == pytest.approx([0.2, 0.3])


def test_the_precision_is_counted_in_bins_over_all_classes_of_the_labels_held_out() -> None:
    """Four bins. Held-out scores .1 (negative), .2 (positive) and .15 (negative): 1/3. .6 and .7, one positive: 1/2.
    .9, .8 and .99, all positive, 1 of them unknown: 1. The second bin is empty: half way between 1/3 and 1/2, 5/12.
    """
    labeler = DiCaP(facts(3, 3), num_bins=4, refresh_steps=1)
    scores = [[0.1, 0.2], [0.15, 0.6], [0.7, 0.9], [0.8, 0.99], [0.45, 0.45]]
    targets = [[0, 1], [0, 1], [0, 1], [1, 0], [1, 1]]
    labeler.fit(labeled(scores, targets, [1, 1, 1, 1, 0], [[1, 1]] * 3 + [[1, 0], [1, 1]]))
    assert labeler.precision.tolist() == pytest.approx([1 / 3, 5 / 12, 1 / 2, 1])


def test_between_the_middles_of_bins_it_is_linear() -> None:
    """Bins of a half, with precision .2 and .8 in their middles .25 and .75; flat beyond. .4 is .15 / .5 on the way:
    .2 + .3 * .6 = .38.
    """
    labeler = DiCaP(facts(3), num_bins=2, refresh_steps=1)
    labeler.precision.copy_(torch.tensor([0.2, 0.8]))
    found = labeler.probability(torch.tensor([[0.0], [0.25], [0.4], [0.5], [0.75], [1.0]]))
    assert found.flatten().tolist() == pytest.approx([0.2, 0.2, 0.38, 0.5, 0.8, 0.8])


def test_a_pair_weighs_as_it_is_likely_to_be_right() -> None:
    """Above .6 positive, weight P; below .3 negative, weight 1 - P; between them nothing. P as in the test above:
    .75 -> .8, .625 -> .65, .25 -> .2, .28 -> .236. Twice that, from the end of the warm-up on.
    """
    labeler = DiCaP(facts(3, 0), num_bins=2, refresh_steps=1, warmup_steps=3, weight=2.0)
    for name, values in (("precision", [0.2, 0.8]), ("upper", [0.6, 0.6]), ("lower", [0.3, 0.3])):
        getattr(labeler, name).copy_(torch.tensor(values))
    weak = torch.tensor([0.75, 0.625, 0.5, 0.3, 0.28, 0.25])[:, None].repeat(1, 2)
    assert labeler(Scores(weak, 2)).pair_weights.sum() == 0
    found = labeler(Scores(weak, 3))
    assert found.targets[:, 0].tolist() == [1, 1, 0, 0, 0, 0]
    assert found.pair_weights[:, 0].tolist() == pytest.approx([1.6, 1.3, 0, 0, 2 * 0.764, 1.6])
    assert found.pair_weights[:, 1].tolist() == pytest.approx([0, 0, 0, 0, 2 * 0.764, 1.6])  # never labeled positive


def test_thresholds_that_cross_select_nothing() -> None:
    """Negatives whose middle lies above that of the positives."""
    labeler = DiCaP(facts(2), refresh_steps=1, warmup_steps=0)
    labeler.fit(labeled([[0.1], [0.3], [0.6], [0.8]], [[1], [1], [0], [0]], [0] * 4))
    assert (labeler.upper.item(), labeler.lower.item()) == pytest.approx((0.2, 0.7))
    assert labeler(Scores(torch.rand(20, 1), 5)).mask.sum() == 0


def test_with_one_label_an_image_its_row_has_the_weight_of_the_best_class() -> None:
    labeler = DiCaP(facts(3, 3), task="single-label", num_bins=2, refresh_steps=1, warmup_steps=0)
    labeler.precision.copy_(torch.tensor([0.2, 0.8]))
    labeler.upper.copy_(torch.tensor([0.7, 0.7]))
    found = labeler(Scores(torch.tensor([[0.75, 0.25], [0.4, 0.6]]), 1))
    assert found.targets[0].tolist() == [1, 0]
    assert found.pair_weights.flatten().tolist() == pytest.approx([0.8, 0.8, 0, 0])


def test_without_known_labels_held_out_the_precision_stays() -> None:
    labeler = DiCaP(facts(2), refresh_steps=1)
    before = labeler.precision.clone()
    assert before[:2].tolist() == pytest.approx([0.025, 0.075])  # the score itself
    labeler.fit(labeled([[0.9], [0.2]], [[1], [1]], [0, 1], [[1], [0]]))
    assert torch.equal(labeler.precision, before)
    assert labeler.upper.item() == pytest.approx(0.9)


def test_what_it_asks_of_a_run() -> None:
    labeler = DiCaP(facts(2), held_out=4, head_epochs=3, warmup_steps=40)
    assert (labeler.holds_out, labeler.head_epochs, labeler.fit_steps, labeler.first_step) == (4, 3, 17, 40)


@pytest.mark.parametrize("wrong", [{"num_bins": 1}, {"held_out": 1}, {"head_epochs": -1}, {"warmup_steps": -1}])
def test_bad_options_are_named(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        DiCaP(facts(1), **wrong)
