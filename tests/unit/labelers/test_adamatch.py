"""AdaMatch on tiny score matrices, by hand."""

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.labelers import AdaMatch
from percentmatch.methods import WeakToStrong
from percentmatch.records import Batch, Facts, Scores


def facts(*positives: int, labeled: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, 1000, 100)


def column(*scores: float) -> Tensor:
    return torch.tensor(scores)[:, None]


def test_scores_are_aligned_and_thresholds_are_relative() -> None:
    """The first batch is met as FixMatch would: nothing is aligned, thresholds .95 and .05.

    Labeled scores .8 and .4: mean p .6, mean q .7; unlabeled .2 and .4: mean .3. So upper = .95 * .7 = .665. Odds are
    multiplied by (.6 / .3) / (.4 / .7) = 3.5: .4 -> .7, positive; .2 -> .4667, neither; .1 -> .28, negative.
    """
    labeler = AdaMatch(facts(10))
    first = labeler(Scores(column(0.2, 0.4), 0, labeled=column(0.8, 0.4)))
    assert first.upper.item() == pytest.approx(0.95)
    assert first.mask.sum() == 0
    found = labeler.eval()(Scores(column(0.4, 0.2, 0.1), 1))
    assert found.upper.item() == pytest.approx(0.665)
    assert found.lower.item() == pytest.approx(0.335)
    assert found.mask.flatten().tolist() == [1, 0, 1]
    assert found.targets.flatten().tolist() == [1, 0, 0]


@pytest.mark.parametrize(("momentum", "fifth"), [(0.999, 0.76), (0.75, 0.775)])
def test_means_are_plain_until_the_moving_ones_are_shorter(momentum: float, fifth: float) -> None:
    """Labeled scores .2, .6, 1, 1, 1. Plain means: .6 after three, .7 after four, .76 after five.

    With momentum .75 a batch weighs a quarter at least, so the fifth: .7 + .25 * .3 = .775.
    """
    labeler = AdaMatch(facts(10), momentum=momentum)
    for step, score in enumerate((0.2, 0.6, 1.0)):
        labeler(Scores(column(0.5), step, labeled=column(score)))
    assert labeler.means[0].item() == pytest.approx(0.6)
    labeler(Scores(column(0.5), 3, labeled=column(1.0)))
    assert labeler.means[0].item() == pytest.approx(0.7)
    labeler(Scores(column(0.5), 4, labeled=column(1.0)))
    assert labeler.means[0].item() == pytest.approx(fifth)


def test_unknown_labels_do_not_count() -> None:
    """Class 0: only .8 is known. Class 1: nothing is, so it keeps its start."""
    labeler = AdaMatch(facts(10, 10))
    known = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    labeler(Scores(torch.full((1, 2), 0.3), 0, labeled=torch.tensor([[0.8, 0.8], [0.1, 0.1]]), known=known))
    torch.testing.assert_close(labeler.means, torch.tensor([[0.8, 0.5], [0.8, 1.0], [0.3, 0.3]]))
    assert labeler.steps_learnt.tolist() == [[1, 0], [1, 0], [1, 1]]


def test_a_class_always_present_and_one_never_labeled() -> None:
    """Means of 0 and 1 leave finite scores; the unseen class gets negatives only."""
    labeler = AdaMatch(facts(100, 0))
    labeler(Scores(torch.tensor([[1.0, 0.3]]), 0, labeled=torch.tensor([[1.0, 0.3]])))
    found = labeler(Scores(torch.tensor([[0.99, 0.99], [0.5, 0.1]]), 1, labeled=torch.tensor([[1.0, 0.3]])))
    assert found.upper.tolist() == pytest.approx([0.95, torch.inf])
    assert found.mask.tolist() == [[1, 0], [0, 1]]
    assert found.targets.tolist() == [[1, 0], [0, 0]]


def test_constant_scores_are_not_moved() -> None:
    """Labeled and unlabeled means agree; q = .6 and .95 * .6 = .57 < .6, so every pair is selected.

    Of scores with q = .51 the threshold would be .4845, kept at .5.
    """
    for score, upper, target in ((0.6, 0.57, 1), (0.49, 0.5, 0)):
        labeler = AdaMatch(facts(10))
        for step in range(3):
            found = labeler(Scores(column(score), step, labeled=column(score, score)))
        assert found.upper.item() == pytest.approx(upper)
        assert found.pair_weights.item() == 1
        assert found.targets.item() == target


def test_with_one_label_an_image_rows_are_rescaled() -> None:
    """Unlabeled mean (.5 .3 .2), labeled mean (.2 .3 .5): the row (.5 .3 .2) becomes (.2 .3 .5), of class 2.

    Labeled q is .5: the maximum must exceed .475.
    """
    labeler = AdaMatch(facts(10, 10, 10), task="single-label")
    row, turned = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.3, 0.5]])
    labeler(Scores(row, 0, labeled=turned))
    found = labeler(Scores(row, 1, labeled=turned))
    assert found.targets.tolist() == [[0, 0, 1]]
    assert found.mask.tolist() == [[1, 1, 1]]
    assert found.upper.tolist() == pytest.approx([0.475] * 3)


def test_a_class_is_not_aligned_before_a_label_of_it_is_known() -> None:
    """Class 1 has no known label yet: .04 is below .05, a negative; moved to a mean of .5 it would be nothing."""
    labeler = AdaMatch(facts(10, 10))
    weak, known = torch.full((4, 2), 0.04), torch.tensor([[1.0, 0.0]])
    for step in range(3):
        found = labeler(Scores(weak, step, labeled=torch.full((1, 2), 0.04), known=known))
    assert found.mask[:, 1].tolist() == [1, 1, 1, 1]
    assert found.targets.sum() == 0


def test_a_rescaled_row_sums_to_one() -> None:
    """(.4 .4 .2) x (.5 .25 .25)/(.25 .25 .5) = (.8 .4 .1), sum 1.3: .8 / 1.3 = .615 is not above .95 * .7 = .665."""
    labeler = AdaMatch(facts(10, 10, 10), task="single-label")
    labeler.means.copy_(torch.tensor([[0.5, 0.25, 0.25], [0.7, 0.7, 0.7], [0.25, 0.25, 0.5]]))
    labeler.steps_learnt.fill_(1)
    assert labeler.eval()(Scores(torch.tensor([[0.4, 0.4, 0.2]]), 1)).mask.sum() == 0


def test_shares_of_known_labels_do_not_lower_the_means() -> None:
    """As of a mixed image, three tenths of which are of an image with a known label."""
    labeler = AdaMatch(facts(10))
    labeler(Scores(column(0.4), 0, labeled=column(0.8), known=column(0.3)))
    torch.testing.assert_close(labeler.means, torch.tensor([[0.8], [0.8], [0.4]]))


@pytest.mark.parametrize(("source", "expected"), [("student", 0.8), ("teacher", 0.2)])
def test_labeled_scores_come_from_whom_the_others_do(source: str, expected: float) -> None:
    """The student is the identity, so images are logits; the teacher turns them over."""

    class Turned(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return -images

    logits = column(0.8).logit()
    batch = Batch(logits, torch.ones(1, 1), torch.ones(1, 1), torch.tensor(0), 0, weak=logits, strong=logits)
    labeler = AdaMatch(facts(10))
    WeakToStrong(labeler, scores=source)(nn.Identity(), batch, Turned())  # ty: ignore
    assert labeler.means[[0, 2], 0].tolist() == pytest.approx([expected, expected])


def test_scores_without_labeled_ones_are_refused() -> None:
    with pytest.raises(UserError, match="labeled"):
        AdaMatch(facts(10))(Scores(torch.rand(2, 1), 0))


@pytest.mark.parametrize("wrong", [{"threshold": 1.1}, {"momentum": -0.1}, {"weight": -1.0}])
def test_bad_options_are_named(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        AdaMatch(facts(10), **wrong)
