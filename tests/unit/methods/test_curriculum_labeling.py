"""Curriculum labeling on tiny score tables, by hand."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.methods.rounds import CurriculumLabeling
from percentmatch.records import Batch, Facts


class FakePool:
    def __init__(self, scores: Tensor) -> None:
        self.scores, self.asked = scores, []

    def probabilities(
        self, model: Literal["student", "teacher"], *, dropout_passes: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        self.asked.append((model, dropout_passes))
        return self.scores, None


def facts(*positives: int, labeled: int = 10, pool: int | None = 10, steps: int = 600) -> Facts:
    counts = torch.tensor(positives).double()
    return Facts(counts, torch.full_like(counts, labeled), labeled, pool, steps)


def test_rounds_take_ever_more_at_the_labeled_prevalence() -> None:
    """Pool of 10, scores falling by row in every class but the last, where they are constant.

    Class 0, 5 of 10: P = 5 expected positives, 5 negatives: 1 + 1, 2 + 2, ... 5 + 5.
    Class 1, 1 of 10: P = 1, 9 negatives. Round 1: .2 -> 0 and 1.8 -> 2; 2: .4 -> 0, 3.6 -> 4; 3: .6 -> 1, 5.4 -> 5;
    4: .8 -> 1, 7.2 -> 7; 5: 1 and 9.
    Class 2, unseen: only negatives, 2, 4, 6, 8, 10. Class 3, always: only positives, as many.
    Class 4, 5 of 10: as class 0, ties in the pool's order.
    """
    method = CurriculumLabeling(facts(5, 1, 0, 10, 5))
    falling = torch.linspace(0.9, 0.1, 10)[:, None]
    pool = FakePool(torch.cat([falling.expand(-1, 4), torch.full((10, 1), 0.3)], dim=1))
    positives = [(1, 0, 0, 2, 1), (2, 0, 0, 4, 2), (3, 1, 0, 6, 3), (4, 1, 0, 8, 4), (5, 1, 0, 10, 5)]
    negatives = [(1, 2, 2, 0, 1), (2, 4, 4, 0, 2), (3, 5, 6, 0, 3), (4, 7, 8, 0, 4), (5, 9, 10, 0, 5)]
    for top, bottom in zip(positives, negatives, strict=True):
        method.refresh(pool)
        for c in range(5):
            targets, mask = method.targets[:, c].tolist(), method.mask[:, c].tolist()
            assert targets == [1] * top[c] + [0] * (10 - top[c])
            assert mask == [1] * top[c] + [0] * (10 - top[c] - bottom[c]) + [1] * bottom[c]
    method.refresh(pool)  # past the last round everything stays labeled
    assert method.mask.all()
    assert pool.asked == [("teacher", 0)] * 6


def test_the_student_labels_if_asked() -> None:
    pool = FakePool(torch.rand(10, 1))
    CurriculumLabeling(facts(5), scores="student").refresh(pool)
    assert pool.asked == [("student", 0)]


@pytest.mark.parametrize(
    ("share_step", "steps", "length"),
    [
        (0.2, 600, 100),
        (0.2, 601, 101),
        (0.5, 600, 200),
        (1.0, 600, 300),
        (0.3, 600, 120),
        (0.1, 1100, 100),
        (0.2, 0, 1),
    ],
)
def test_the_run_is_divided_into_rounds(share_step: float, steps: int, length: int) -> None:
    """1 / .2 rounds and the supervised one are 6, for .3 (.3, .6, .9, 1) 5, for .1 11."""
    method = CurriculumLabeling(facts(5, steps=steps), share_step=share_step)
    assert method.round_steps == length
    assert method.restarts


def test_one_label_an_image_takes_the_surest_images() -> None:
    """Largest scores by row .5 .9 .6 .9 .8; class 2 is unseen, so row 3 falls to class 1 at .05. .4 of 5 images: 2.

    Rows 1 and 4 (.9 and .8), each for its own class; with all of them, the rest too.
    """
    scores = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.04, 0.05, 0.9], [0.1, 0.8, 0.1]])
    method = CurriculumLabeling(facts(5, 5, 0, pool=5), task="single-label", share_step=0.4)
    method.refresh(FakePool(scores))
    assert method.targets.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert method.mask.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1]]
    method.refresh(FakePool(scores))
    method.refresh(FakePool(scores))
    assert method.targets.argmax(1).tolist() == [0, 0, 1, 1, 1]
    assert method.targets.sum(1).tolist() == [1] * 5
    assert method.mask.all()


def test_labels_teach_the_weak_view_of_a_single_unlabeled_image() -> None:
    """Row 0 of a pool of one, a class always present: the gradient of -log sigmoid(0) is -.5, and only on weak."""
    method = CurriculumLabeling(facts(10, pool=1), share_step=1.0)
    method.refresh(FakePool(torch.tensor([[0.2]])))
    weak = torch.zeros(1, 1, requires_grad=True)
    labeled = torch.zeros(1, 1)
    batch = Batch(labeled, labeled, labeled, torch.tensor(0), 0, weak=weak, index=torch.tensor([0]))
    method(nn.Identity(), batch, nn.Identity()).total.backward()
    assert method.views == {"weak"}
    assert weak.grad.item() == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"share_step": 0.0}, "share_step"),
        ({"share_step": 1.5}, "share_step"),
        ({"share_step": float("nan")}, "share_step"),
        ({"scores": "both"}, "scores must be"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        CurriculumLabeling(facts(5), **wrong)


def test_a_stream_is_refused() -> None:
    with pytest.raises(UserError, match="not a stream"):
        CurriculumLabeling(facts(5, pool=None))
