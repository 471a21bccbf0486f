"""Dash on tiny score matrices, by hand."""

import dataclasses
import math

import pytest
import torch

from percentmatch.errors import UserError
from percentmatch.labelers import Dash
from percentmatch.records import Facts, PseudoLabels, Scores


def facts(*positives: int, labeled: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, 200, 100, unlabeled_batch=12)


def warmed(**options: float) -> Dash:
    """Labeled scores .8 and .2 (q = .8) in the first step, .5 and .5 in the second.

    rho_0 = (-ln .8 - ln .5) / 2 = -ln(.4) / 2, so q must exceed exp(-rho_0) = sqrt(.4) = .632.
    """
    labeler = Dash(facts(10), factor=1.0, decay=2.0, warmup_steps=2, decay_steps=10, **options)  # ty: ignore
    for step, labeled in enumerate([[[0.8], [0.2]], [[0.5], [0.5]]]):
        found = labeler(Scores(torch.tensor([[0.99]]), step, labeled=torch.tensor(labeled)))
        assert found.pair_weights.sum() == 0
    return labeler


def at(labeler: Dash, step: int, *weak: float) -> PseudoLabels:
    return labeler(Scores(torch.tensor(weak)[:, None], step, labeled=torch.tensor([[0.99]])))


def test_the_bound_starts_at_the_labeled_loss_and_is_then_left_alone() -> None:
    labeler = warmed(weight=3.0)
    for step in (2, 3):
        found = at(labeler, step, 0.64, 0.63, 0.5, 0.37, 0.36)
        assert found.upper.item() == pytest.approx(math.sqrt(0.4))
        assert found.lower.item() == pytest.approx(1 - math.sqrt(0.4))
        assert found.pair_weights.flatten().tolist() == [3, 0, 0, 0, 3]
        assert found.targets.flatten().tolist() == [1, 0, 0, 0, 0]


def test_the_bound_falls_in_stages_to_its_floor() -> None:
    """Ten steps a stage after two of warm-up: step 11 is still stage 0, step 12 stage 1: exp(-rho_0 / 2) = .4^(1/4).

    Stage 4 would be .458 / 16 = .029 < .05: exp(-.05).
    """
    labeler = warmed()
    assert at(labeler, 11, 0.5).upper.item() == pytest.approx(0.4**0.5)
    assert at(labeler, 12, 0.5).upper.item() == pytest.approx(0.4**0.25)
    assert labeler(Scores(torch.rand(1, 1), torch.tensor(32), labeled=torch.rand(1, 1))).upper.item() == pytest.approx(
        0.4 ** (1 / 16)
    )
    assert at(labeler, 42, 0.5).upper.item() == pytest.approx(math.exp(-0.05))


def test_unknown_labels_do_not_count() -> None:
    """Of .8 and .999 the second is unknown: rho_0 = -ln .8. A step without a known label is not one of the warm-up."""
    labeler = Dash(facts(10), factor=1.0, warmup_steps=1, decay_steps=10)
    labeled = torch.tensor([[0.8], [0.999]])
    labeler(Scores(torch.rand(1, 1), 0, labeled=labeled, known=torch.zeros(2, 1)))
    assert labeler.steps_learnt == 0
    labeler(Scores(torch.rand(1, 1), 1, labeled=labeled, known=torch.tensor([[1.0], [0.0]])))
    assert at(labeler, 2, 0.5).upper.item() == pytest.approx(0.8)
    labeler = Dash(facts(10), factor=1.0, warmup_steps=1, decay_steps=10)
    labeler(Scores(torch.rand(1, 1), 0, labeled=labeled, known=torch.tensor([[0.3], [0.0]])))  # of a mixed image
    assert at(labeler, 1, 0.5).upper.item() == pytest.approx(0.8)


def test_a_loss_above_chance_selects_every_pair_but_one_half() -> None:
    """rho = 2 * ln 2: any q of at least .5 would do, so the thresholds meet at one half."""
    labeler = Dash(facts(0, 100), factor=2.0, warmup_steps=1, decay_steps=10)
    labeler(Scores(torch.rand(1, 2), 0, labeled=torch.full((1, 2), 0.5)))
    found = labeler(Scores(torch.tensor([[0.51, 0.51], [0.5, 0.5], [0.49, 0.49]]), 1, labeled=torch.rand(1, 2)))
    assert found.upper.tolist() == [torch.inf, 0.5]
    assert found.mask.tolist() == [[0, 1], [0, 0], [1, 1]]  # class 0 has no labeled positive
    assert found.targets.tolist() == [[0, 1], [0, 0], [0, 0]]


def test_constant_scores_are_all_selected() -> None:
    """Labeled and unlabeled scores alike: C = 1.0001 is the slack that lets them in."""
    labeler = Dash(facts(10), warmup_steps=3, decay_steps=10)
    for step in range(4):
        found = labeler(Scores(torch.full((1, 1), 0.7), step, labeled=torch.full((5, 1), 0.7)))
    assert found.pair_weights.item() == 1


def test_with_one_label_an_image_the_row_maximum_counts() -> None:
    """Labeled rows with maxima .5 and .4: rho_0 = -ln(.2) / 2, so a row's maximum must exceed sqrt(.2) = .447."""
    labeler = Dash(facts(10, 10, 10), task="single-label", factor=1.0, warmup_steps=1, decay_steps=10)
    labeler(Scores(torch.rand(1, 3), 0, labeled=torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.3, 0.4]])))
    found = labeler(Scores(torch.tensor([[0.45, 0.3, 0.25], [0.28, 0.44, 0.28]]), 1, labeled=torch.rand(1, 3)))
    assert found.upper.tolist() == pytest.approx([math.sqrt(0.2)] * 3)
    assert found.mask[:, 0].tolist() == [1, 0]


def test_stages_last_ten_passes_unless_told() -> None:
    """200 images, 12 a step: 2000 / 12 = 166.7 steps."""
    assert Dash(facts(10)).decay_steps == 167
    for unknown in ({"num_unlabeled": None}, {"unlabeled_batch": 0}):
        with pytest.raises(UserError, match="decay_steps"):
            Dash(dataclasses.replace(facts(10), **unknown))
        Dash(dataclasses.replace(facts(10), **unknown), decay_steps=5)


def test_scores_without_labeled_ones_are_refused() -> None:
    with pytest.raises(UserError, match="labeled"):
        Dash(facts(10))(Scores(torch.rand(2, 1), 0))


@pytest.mark.parametrize("wrong", [{"decay": 0.5}, {"lowest": -1.0}, {"warmup_steps": 0}, {"decay_steps": -1}])
def test_bad_options_are_named(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Dash(facts(10), **wrong)
