"""FreeMatch on tiny score matrices, by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.labelers import FreeMatch
from percentmatch.methods import WeakToStrong
from percentmatch.records import Batch, Facts, PseudoLabels, Scores


def facts(*positives: int, labeled: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, 1000, 100)


def column(*scores: float) -> Tensor:
    return torch.tensor(scores)[:, None]


def learnt(**options: float) -> FreeMatch:
    """From t = m = h = .5, momentum .5 and the scores .8 .2 .1 .1: mean p .3, mean q .85, one of four present.

    t = .675, m = (.4, .6), h = (.375, .625).
    """
    labeler = FreeMatch(facts(10), momentum=0.5, **options)  # ty: ignore
    first = labeler(Scores(column(0.8, 0.2, 0.1, 0.1), 0))
    assert first.mask.tolist() == [[1], [1], [1], [1]]  # thresholds meet at .5
    return labeler.eval()


def selected(strong: Tensor, mask: Tensor | None = None) -> PseudoLabels:
    return PseudoLabels(torch.zeros_like(strong), torch.ones_like(strong) if mask is None else mask, torch.ones(1))


def test_thresholds_follow_confidence_and_mean_score() -> None:
    """Present: .675 * .4 / .6 = .45, kept at .5, as the likelier answer has no less; absent: .675, so below .325."""
    labeler = learnt()
    torch.testing.assert_close(labeler.certainty, torch.tensor([[0.675]]))
    torch.testing.assert_close(labeler.mean, torch.tensor([[0.4, 0.6]]))
    torch.testing.assert_close(labeler.histogram, torch.tensor([[0.375, 0.625]]))
    found = labeler(Scores(column(0.55, 0.45, 0.33, 0.32), 1))
    assert found.upper.item() == pytest.approx(0.5)
    assert found.lower.item() == pytest.approx(0.325)
    assert found.mask.flatten().tolist() == [1, 0, 0, 1]
    assert found.targets.flatten().tolist() == [1, 0, 0, 0]


def test_a_class_always_present_and_one_never_labeled() -> None:
    """momentum 0, a batch of one at .9: t = m = .9, so present above .9; absent .9 * .1 / .9 = .1, kept at .5."""
    labeler = FreeMatch(facts(100, 0), momentum=0.0)
    labeler(Scores(torch.tensor([[0.9, 0.9]]), 0))
    found = labeler(Scores(torch.tensor([[0.91, 0.91], [0.89, 0.89], [0.49, 0.49]]), 1))
    assert found.upper.tolist() == pytest.approx([0.9, torch.inf])
    assert found.lower.tolist() == pytest.approx([0.5, 0.5])
    assert found.mask.tolist() == [[1, 0], [0, 0], [1, 1]]
    assert found.targets.tolist() == [[1, 0], [0, 0], [0, 0]]


def test_fairness_and_its_gradient() -> None:
    """State: m / h = (.4 / .375, .6 / .625) = (1.0667, .96), made to sum to one: wanted .5263, .4737 (= 10/19, 9/19).

    Strong scores .8 and .1: mean .45, one of two present: (.45 / .5, .55 / .5), so found .45, .55. The term is
    -(10 ln .45 + 9 ln .55) / 19. In the logit of the found share its slope is found - wanted; that logit is the
    mean's plus a constant, and each score is half of the mean: (.45 - 10/19) / (.45 * .55) / 2. It pulls upwards.
    """
    labeler, strong = learnt(fairness=2.0), column(0.8, 0.1).requires_grad_()
    term = labeler.penalty(strong, selected(strong))
    assert term.item() == pytest.approx(-2 * (10 * math.log(0.45) + 9 * math.log(0.55)) / 19)
    (slope,) = torch.autograd.grad(term, strong)
    assert slope.flatten().tolist() == pytest.approx([(0.45 - 10 / 19) / (0.45 * 0.55)] * 2, rel=1e-4)


def test_fairness_reads_selected_pairs_only() -> None:
    labeler = learnt(fairness=1.0)
    whole = column(0.8, 0.1, 0.6)
    term = labeler.penalty(whole, selected(whole, column(1.0, 1.0, 0.0)))
    assert term.item() == pytest.approx(labeler.penalty(whole[:2], selected(whole[:2])).item())


@pytest.mark.parametrize("case", ["one answer", "nothing selected", "unseen class", "one image"])
def test_fairness_is_zero_where_nothing_can_be_said(case: str) -> None:
    labeler = FreeMatch(facts(0 if case == "unseen class" else 10))
    strong = column(0.8, 0.7 if case == "one answer" else 0.1)[: 1 if case == "one image" else 2].requires_grad_()
    mask = torch.zeros_like(strong) if case == "nothing selected" else None
    term = labeler.penalty(strong, selected(strong, mask))
    assert term == 0
    (slope,) = torch.autograd.grad(term, strong)
    assert slope.abs().max() < 1e-8


def test_with_one_label_an_image() -> None:
    """momentum 0, rows (.6 .3 .1) (.2 .7 .1): m = (.4 .5 .1), t = .65: thresholds .65 * m / .5 = .52 .65 .13.

    h = (.5 .5 0). Fairness from a fresh state (all 1/3) and these rows as strong ones: class 2 does not occur, so
    wanted (.5 .5), found (.4 / .5, .5 / .5) / 1.8 = (4/9, 5/9): -.5 ln(20/81).
    """
    rows = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    labeler = FreeMatch(facts(10, 10, 10), task="single-label", momentum=0.0, fairness=1.0)
    assert labeler.penalty(rows, selected(rows)).item() == pytest.approx(-0.5 * math.log(20 / 81))
    assert labeler(Scores(rows, 0)).mask.all()  # every maximum exceeds 1/3
    found = labeler(Scores(torch.tensor([[0.53, 0.4, 0.07], [0.3, 0.6, 0.1], [0.4, 0.1, 0.5]]), 1))
    assert found.upper.tolist() == pytest.approx([0.52, 0.65, 0.13])
    assert found.mask[:, 0].tolist() == [1, 0, 1]


def test_fairness_is_a_part_of_the_loss() -> None:
    """The model is the identity, so images are logits: strong scores .8 and .1, both selected, state as at the start.

    wanted .5, .5; found .45, .55.
    """
    strong = column(0.8, 0.1).logit().requires_grad_()
    weak = column(0.9, 0.2).logit()
    batch = Batch(weak, torch.ones(2, 1), torch.ones(2, 1), torch.tensor(0), 0, weak=weak, strong=strong)
    found = WeakToStrong(FreeMatch(facts(10), momentum=1.0))(nn.Identity(), batch, nn.Identity())
    assert found.parts["fairness"].item() == pytest.approx(-0.01 * 0.5 * math.log(0.45 * 0.55))
    assert found.total.item() == pytest.approx(sum(part.item() for part in found.parts.values()))


@pytest.mark.parametrize("wrong", [{"momentum": 1.1}, {"fairness": -0.1}, {"weight": float("nan")}])
def test_bad_options_are_named(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        FreeMatch(facts(10), **wrong)
