"""UDA on tiny score matrices, by hand."""

import math

import pytest
import torch
from torch import nn

from percentmatch.errors import UserError
from percentmatch.labelers import UDA
from percentmatch.methods import WeakToStrong
from percentmatch.records import Batch, Facts, Scores


def facts(*positives: int, labeled: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, 1000, 100)


def test_confident_pairs_get_sharpened_targets() -> None:
    """T = .5 doubles logits, so odds are squared: .9 has 9 -> 81, target 81/82; .1 has 1/9 -> 1/81, target 1/82.

    .75 and .25 lie between .2 and .8: not selected. The rule knows nothing of a class always present (the second).
    """
    weak = torch.tensor([[0.9, 0.9], [0.75, 0.75], [0.25, 0.25], [0.1, 0.1]])
    found = UDA(facts(10, 100), temperature=0.5)(Scores(weak, 0))
    assert found.mask.tolist() == [[1, 1], [0, 0], [0, 0], [1, 1]]
    torch.testing.assert_close(found.targets[[0, 3]], torch.tensor([[81 / 82, 81 / 82], [1 / 82, 1 / 82]]))
    assert found.upper.tolist() == pytest.approx([0.8, 0.8])
    assert found.gap.tolist() == pytest.approx([0.6, 0.6])


def test_a_class_without_labeled_positives_gets_no_positive() -> None:
    found = UDA(facts(0))(Scores(torch.tensor([[0.99], [0.1]]), 0))
    assert found.mask.tolist() == [[0], [1]]
    assert found.targets.tolist() == [[0], [0]]


def test_certain_and_constant_scores_and_a_batch_of_one() -> None:
    """Scores of 0 and 1 have infinite logits; those of one half are never selected."""
    found = UDA(facts(10, 10, 10))(Scores(torch.tensor([[0.0, 1.0, 0.5]]), 0))
    assert found.targets.tolist() == [[0, 1, 0.5]]
    assert found.mask.tolist() == [[1, 1, 0]]
    assert UDA(facts(10), threshold=0.5)(Scores(torch.full((4, 1), 0.5), 0)).mask.sum() == 0


def test_with_one_label_an_image_the_row_is_sharpened() -> None:
    """T = .5 squares probabilities: (.9, .06, .04) -> (.81, .0036, .0016) / .8152. The best of row 1 is unseen."""
    weak = torch.tensor([[0.9, 0.06, 0.04], [0.05, 0.05, 0.9], [0.5, 0.3, 0.2]])
    found = UDA(facts(10, 10, 0), task="single-label", temperature=0.5)(Scores(weak, 0))
    assert found.mask[:, 0].tolist() == [1, 0, 0]
    assert found.targets[0].tolist() == pytest.approx([0.81 / 0.8152, 0.0036 / 0.8152, 0])


def test_the_unlabeled_loss_is_bce_whatever_the_labeled_one() -> None:
    """The model is the identity, so images are logits: weak ln 9 (.9), so with T .5 the target is 81/82; strong ln 3.

    Of strong scores .75, BCE = -(81/82 ln .75 + 1/82 ln .25).
    """
    logit = lambda odds: torch.full((1, 1), math.log(odds))  # noqa: E731
    batch = Batch(logit(1), torch.ones(1, 1), torch.ones(1, 1), torch.tensor(0), 0, weak=logit(9), strong=logit(3))
    method = WeakToStrong(UDA(facts(10), temperature=0.5), loss="asl")
    found = method(nn.Identity(), batch, nn.Identity())
    assert found.parts["unlabeled"].item() == pytest.approx(-(81 * math.log(0.75) + math.log(0.25)) / 82)
    assert found.parts.keys() == {"supervised", "unlabeled"}


@pytest.mark.parametrize("wrong", [{"threshold": 0.4}, {"temperature": 0.0}, {"weight": -1.0}])
def test_bad_options_are_named(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        UDA(facts(10), **wrong)
