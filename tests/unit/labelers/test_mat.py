"""MAT on tiny score tables, by hand."""

import pytest
import torch
from sklearn.metrics import f1_score

from percentmatch.errors import UserError
from percentmatch.labelers import MAT
from percentmatch.labelers.mat import best_f1
from percentmatch.records import Facts, LabeledScores, Scores


def facts(*positives: int, pool: int | None = 10, batch: int = 4) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, 5), 5, pool, 100, unlabeled_batch=batch)


def threshold(scores: list[float], targets: list[int], known: list[int] | None = None) -> float:
    table, truth = torch.tensor(scores)[:, None], torch.tensor(targets)[:, None].float()
    there = torch.ones_like(truth) if known is None else torch.tensor(known)[:, None].float()
    return best_f1(table, truth, there).item()


def test_the_threshold_has_the_largest_f1() -> None:
    """Scores .9 .8 .6 .4 .1, positives .9, .6 and .4. F1 of the first 1, 2, 3, 4, 5: 2/4, 2/5, 4/6, 6/7, 6/8. So the
    fourth, .4, is the last positive, and the threshold is half way to .1.
    """
    assert threshold([0.4, 0.9, 0.1, 0.8, 0.6], [1, 1, 0, 0, 1]) == pytest.approx(0.25)


def test_of_equal_ones_the_highest() -> None:
    """Scores .9 .6 .3, positives .9 and .3: F1 of the first 1, 2, 3: 2/3, 2/4, 4/5. With one more negative, .8 .5 .4
    .3: 2/3, 2/4, 2/5, 4/6: the first and the last are equal.
    """
    assert threshold([0.9, 0.6, 0.3], [1, 0, 1]) == pytest.approx(0.15)  # half way to 0, below the last
    assert threshold([0.8, 0.5, 0.4, 0.3], [1, 0, 0, 1]) == pytest.approx(0.65)


def test_equal_scores_are_not_divided() -> None:
    """.7 three times, one of them positive, and .2: F1 of the first 3 and 4: 2/4 and 2/5."""
    assert threshold([0.7, 0.7, 0.2, 0.7], [0, 1, 0, 0]) == pytest.approx(0.45)


def test_unknown_labels_do_not_count() -> None:
    """The negative .8 and the positive .2 are unknown: of .9, .6 and .4 the first two are positive, F1 is 1 at .5."""
    assert threshold([0.9, 0.8, 0.6, 0.4, 0.2], [1, 0, 1, 0, 1], [1, 0, 1, 1, 0]) == pytest.approx(0.5)


def test_no_other_threshold_does_better() -> None:
    """Against scikit-learn's F1 at every score."""
    generator = torch.Generator().manual_seed(3)
    scores = (torch.rand(40, 6, generator=generator) * 20).round() / 20  # with ties
    targets = (torch.rand(40, 6, generator=generator) < scores.clamp(0.1, 0.6)).float()
    found = best_f1(scores, targets, torch.ones(40, 6))
    for c in range(6):
        best = max(f1_score(targets[:, c], scores[:, c] > cut, zero_division=0) for cut in torch.arange(-1, 41) / 40)
        assert f1_score(targets[:, c], scores[:, c] > found[c]) == pytest.approx(best)


def test_every_pair_is_labeled_by_it_but_not_a_class_without_positives() -> None:
    labeler = MAT(facts(3, 0), warmup_steps=5, refresh_steps=2, weight=2.0)
    assert labeler.first_step == 5
    scores = torch.tensor([[0.4, 0.4], [0.9, 0.9], [0.1, 0.1], [0.8, 0.8], [0.6, 0.6]])
    targets = torch.tensor([[1.0, 0], [1, 0], [0, 0], [0, 0], [1, 0]])
    labeler.fit(LabeledScores(scores, targets, torch.ones_like(targets), torch.zeros(5, dtype=torch.bool)))
    weak = torch.tensor([[0.26, 0.99], [0.24, 0.0]])
    assert labeler(Scores(weak, 4)).pair_weights.sum() == 0
    found = labeler(Scores(weak, torch.tensor(5)))
    assert found.targets.tolist() == [[1, 0], [0, 0]]
    assert found.pair_weights[:, 0].tolist() == [2, 2]
    assert found.upper.tolist() == pytest.approx([0.25, torch.inf])


def test_nothing_is_selected_before_the_first_thresholds() -> None:
    """A pass over 10 images, 4 a step, takes 3 steps; a fifth of 100 steps is 20. So the first are there at step 3."""
    labeler = MAT(facts(3), warmup_steps=0)
    assert (labeler.fit_steps, labeler.first_step) == (3, 3)
    assert labeler(Scores(torch.rand(4, 1), 2)).pair_weights.sum() == 0
    assert MAT(facts(3, pool=10_000), warmup_steps=300).fit_steps == 20
    with pytest.raises(UserError, match="refresh_steps must be given for a stream"):
        MAT(facts(3, pool=None))
    assert MAT(facts(3, pool=None), refresh_steps=50, warmup_steps=0).first_step == 50


def test_with_one_label_an_image_the_best_class_must_exceed_its_threshold() -> None:
    labeler = MAT(facts(2, 3), task="single-label", warmup_steps=0, refresh_steps=1)
    labeler.upper.copy_(torch.tensor([0.7, 0.2]))
    found = labeler(Scores(torch.tensor([[0.6, 0.4], [0.8, 0.2], [0.3, 0.7]]), 1))
    assert found.targets.argmax(1).tolist() == [0, 0, 1]
    assert found.mask.tolist() == [[0, 0], [1, 1], [1, 1]]


@pytest.mark.parametrize("wrong", [{"warmup_steps": -1}, {"refresh_steps": -1}, {"weight": -1.0}])
def test_bad_options_are_named(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        MAT(facts(1), **wrong)
