"""FlexMatch on tiny score matrices, by hand."""

import dataclasses

import pytest
import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers import FlexMatch
from percentmatch.records import Facts, Scores


def facts(*positives: int, labeled: int = 100, pool: int | None = 20) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, pool, 100)


def see(labeler: FlexMatch, index: list[int], *scores: float, last: bool = True) -> None:
    labeler(Scores(torch.tensor(scores)[:, None], 0, last=last, index=torch.tensor(index)))


def remember(labeler: FlexMatch, column: int, positives: int, negatives: int) -> None:
    labeler.memory[:positives, column] = 1
    labeler.memory[positives : positives + negatives, column] = 2


def read(labeler: FlexMatch, weak: Tensor):
    return labeler.eval()(Scores(weak, 0))


def test_thresholds_follow_the_counts() -> None:
    """A pool of 20. Class 0: a quarter of the labeled images show it, so 5 positives and 15 negatives are expected.

    Sure of 3 and 6: beta .6 and .4, M = .6 / 1.4 = 3/7 and .4 / 1.6 = 1/4: thresholds .5 + .45 * 3/7 and .5 - .45 / 4.
    Class 1: no labeled positive, so none is given. Class 2: always present, so no negative is expected and the lower
    threshold stays at .05; 30 positives would be more than expected, beta is 1 at most.
    """
    labeler = FlexMatch(facts(25, 0, 100))
    remember(labeler, 0, 3, 6)
    remember(labeler, 1, 2, 5)
    remember(labeler, 2, 20, 0)
    found = read(labeler, torch.tensor([[0.7, 0.99, 0.96], [0.69, 0.1, 0.06], [0.38, 0.3, 0.04], [0.39, 0.5, 0.94]]))
    assert found.upper.tolist() == pytest.approx([0.5 + 0.45 * 3 / 7, torch.inf, 0.95])
    assert found.lower.tolist() == pytest.approx([0.5 - 0.45 / 4, 0.5 - 0.45 * 1 / 7, 0.05])
    assert found.targets.tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert found.mask.tolist() == [[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]]


def test_more_than_expected_is_no_stricter() -> None:
    """5 positives are expected, 10 found: beta 1, the full threshold."""
    labeler = FlexMatch(facts(25))
    remember(labeler, 0, 10, 0)
    assert read(labeler, torch.rand(1, 1)).upper.item() == pytest.approx(0.95)


def test_at_the_start_every_pair_counts_but_scores_of_one_half() -> None:
    found = read(FlexMatch(facts(25)), torch.tensor([[0.51], [0.5], [0.49]]))
    assert found.mask.flatten().tolist() == [1, 0, 1]
    assert found.targets.flatten().tolist() == [1, 0, 0]


def test_the_last_sure_answer_is_remembered() -> None:
    """.96 is sure of presence, .04 of absence; .9 is not sure and changes nothing."""
    labeler = FlexMatch(facts(25))
    see(labeler, [0, 7, 2], 0.96, 0.9, 0.04)
    assert labeler.memory.flatten().nonzero().flatten().tolist() == [0, 2]
    assert labeler.memory[[0, 2], 0].tolist() == [1, 2]
    see(labeler, [0, 2], 0.9, 0.97)
    assert labeler.memory[[0, 2], 0].tolist() == [1, 1]


def test_an_image_seen_twice_in_a_step_votes() -> None:
    """Image 3: once sure of presence, once of absence: as before. Image 4: twice against once. In parts or at once."""
    whole, parts = FlexMatch(facts(25)), FlexMatch(facts(25))
    whole.memory[3] = parts.memory[3] = 2
    see(whole, [3, 4, 4, 3, 4], 0.01, 0.99, 0.99, 0.99, 0.01)
    see(parts, [3, 4, 4], 0.01, 0.99, 0.99, last=False)
    assert parts.memory[4].item() == 0
    see(parts, [3, 4], 0.99, 0.01)
    for labeler in (whole, parts):
        assert labeler.memory[[3, 4], 0].tolist() == [2, 1]


def test_the_memory_is_saved() -> None:
    labeler, other = FlexMatch(facts(25)), FlexMatch(facts(25))
    see(labeler, [5], 0.99)
    other.load_state_dict(labeler.state_dict())
    assert read(other, torch.rand(1, 1)).upper.item() == pytest.approx(0.5 + 0.45 * (1 / 5) / (2 - 1 / 5))


def test_with_one_label_an_image_thresholds_start_at_chance() -> None:
    """12 images, 6, 3 and 3 expected, sure of 3, 0 and 3: beta .5, 0, 1, M 1/3, 0, 1, of the way from 1/3 to .95."""
    labeler = FlexMatch(facts(50, 25, 25, pool=12), task="single-label")
    weak = torch.eye(3)[[0, 0, 0, 2, 2, 2, 1]]
    weak[6] = torch.tensor([0.05, 0.9, 0.05])  # not sure
    labeler(Scores(weak, 0, index=torch.arange(7)))
    assert labeler.memory[0].tolist() == [1, 2, 2]
    assert labeler.memory[6].tolist() == [0, 0, 0]
    found = read(labeler, torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3]]))
    assert found.upper.tolist() == pytest.approx([1 / 3 + (0.95 - 1 / 3) / 3, 1 / 3, 0.95])
    assert found.mask[:, 0].tolist() == [0, 1]


def test_streams_and_scores_without_an_index_are_refused() -> None:
    with pytest.raises(UserError, match="stream"):
        FlexMatch(dataclasses.replace(facts(25), num_unlabeled=None))
    with pytest.raises(UserError, match="index"):
        FlexMatch(facts(25))(Scores(torch.rand(2, 1), 0))


@pytest.mark.parametrize("wrong", [{"threshold": 1.4}, {"weight": float("inf")}])
def test_bad_options_are_named(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        FlexMatch(facts(25), **wrong)
