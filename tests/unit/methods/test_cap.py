"""CAP on tiny score tables, by hand, and what all methods that label the pool in rounds share."""

import copy
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.methods.rounds import CAP, expected_positives, top_and_bottom
from percentmatch.records import Batch, Facts


class FakePool:
    """Scores given by hand; it remembers who was asked for them."""

    def __init__(self, scores: list[list[float]] | Tensor) -> None:
        self.scores, self.asked = torch.as_tensor(scores), []

    def probabilities(
        self, model: Literal["student", "teacher"], *, dropout_passes: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        self.asked.append((model, dropout_passes))
        return self.scores, None


def facts(positives: list[int], known: list[int] | int = 4, pool: int | None = 4, batch: int = 2) -> Facts:
    counts = torch.tensor(positives).double()
    known_counts = torch.full_like(counts, known) if isinstance(known, int) else torch.tensor(known).double()
    return Facts(counts, known_counts, 4, pool, 100, batch)


def test_each_class_gets_its_labeled_share_of_the_pool() -> None:
    """Pool of 4. Class 0, 2 of 4 labels: the two largest, rows 0 and 2. Class 1 was never seen: no positive, though its
    scores are high. Class 2 always: all. Class 3, 1 of 4, constant scores: the first of the pool. Class 4 was never
    labeled: nothing is known of it, so it is left out.
    """
    method = CAP(facts([2, 0, 4, 1, 0], [4, 4, 4, 4, 0]), warmup_steps=0)
    scores = [
        [0.9, 0.99, 0.1, 0.4, 0.9],
        [0.1, 0.99, 0.2, 0.4, 0.1],
        [0.8, 0.9, 0.0, 0.4, 0.5],
        [0.3, 0.9, 0.9, 0.4, 0],
    ]
    pool = FakePool(scores)
    assert method.mask.sum() == 0
    method.refresh(pool)
    assert pool.asked == [("teacher", 0)]
    assert method.targets.tolist() == [[1, 0, 1, 1, 0], [0, 0, 1, 0, 0], [1, 0, 1, 0, 0], [0, 0, 1, 0, 0]]
    assert method.mask.tolist() == [[1, 1, 1, 1, 0]] * 4


@pytest.mark.parametrize(
    ("pool", "positives", "known", "count"),
    [
        (10, 1, 4, 3),  # 2.5
        (10, 1, 20, 1),  # 0.5
        (10, 1, 21, 0),  # 0.476
        (10, 3, 20, 2),  # 1.5
        (10, 29, 100, 3),  # 2.9
        (50, 29, 100, 15),  # 14.5; 50 * 0.29 is 14.499999999999998
        (1, 1, 2, 1),  # 0.5
        (1, 1, 3, 0),  # 0.333
        (7, 5, 5, 7),
        (7, 0, 5, 0),
        (7, 0, 0, 0),
    ],
)
def test_counts_are_rounded_to_the_nearest_halves_upwards(pool: int, positives: int, known: int, count: int) -> None:
    found = expected_positives(facts([positives], known, pool))
    assert found.tolist() == [count]


def test_top_and_bottom_break_ties_by_the_order_of_the_pool() -> None:
    """Scores .5 .9 .5 .5: the ranking is 1, 0, 2, 3. Top two: 1 and 0. Bottom one: 3."""
    scores = torch.tensor([[0.5], [0.9], [0.5], [0.5]])
    top, bottom = top_and_bottom(scores, torch.tensor([2]), torch.tensor([1]))
    assert top.flatten().tolist() == [True, True, False, False]
    assert bottom.flatten().tolist() == [False, False, False, True]
    none, every = top_and_bottom(scores, torch.tensor([0]), torch.tensor([4]))
    assert not none.any()
    assert every.all()


def test_the_pool_is_labeled_after_each_pass_and_after_the_warm_up() -> None:
    """10 images, 4 a step: a pass is 3 steps. Rounds begin at steps 3, 6, 9; a warm-up of 6 ends where the second does,
    one of 7 waits for the third. Without warm-up the first labels.
    """
    assert CAP(facts([1], pool=10, batch=4)).round_steps == 3
    assert CAP(facts([1], pool=10, batch=4), refresh_steps=5).round_steps == 5
    assert CAP(facts([1], pool=10_000, batch=4)).round_steps == 20  # a pass is 2,500 steps and the run 100
    assert CAP(facts([1], pool=10_000, batch=4), refresh_steps=30).round_steps == 30
    for warmup, first in ((0, 1), (3, 1), (6, 2), (7, 3)):
        method = CAP(facts([1], pool=10, batch=4), warmup_steps=warmup)
        assert method.first_step == 3 * first
        pool = FakePool(torch.rand(10, 1))
        labeled = []
        for _ in range(4):
            method.refresh(pool)
            labeled.append(bool(method.mask.any()))
        assert labeled == [n >= first for n in range(1, 5)]
        assert len(pool.asked) == 5 - first


def test_a_new_round_forgets_the_labels_of_the_last() -> None:
    method = CAP(facts([1], pool=4), warmup_steps=0)
    method.refresh(FakePool([[0.9], [0.1], [0.1], [0.1]]))
    method.refresh(FakePool([[0.1], [0.1], [0.1], [0.9]]))
    assert method.targets.flatten().tolist() == [0, 0, 0, 1]


def test_one_label_an_image() -> None:
    """Each of three classes has a third of the labels: 1 of 3 images. Class 0 ranks row 0 first, class 1 row 0 as well,
    class 2 row 2. Row 0 scores higher for class 1 and gets that alone; no class wants row 1, which counts not at all.
    """
    method = CAP(facts([1, 1, 1], 3, pool=3), task="single-label", warmup_steps=0)
    method.refresh(FakePool([[0.4, 0.5, 0.1], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6]]))
    assert method.targets.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert method.mask.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]


def test_one_label_an_image_goes_to_a_class_that_ranks_it() -> None:
    """One image for each of two classes. Row 1 scores .6 for class 0, whose one is row 0; class 1 ranks it first."""
    method = CAP(facts([1, 1], 2, pool=2), task="single-label", warmup_steps=0)
    method.refresh(FakePool([[0.9, 0.1], [0.6, 0.4]]))
    assert method.targets.tolist() == [[1, 0], [0, 1]]


def one_image(index: int, *, strong: float) -> Batch:
    """A labeled image of two unknown labels, and one unlabeled image, row `index` of the pool."""
    images = [torch.full((1, 2), value) for value in (0.0, 9.0, strong)]
    zeros, step = torch.zeros(1, 2), torch.tensor(3)
    return Batch(images[0], zeros, zeros, step, 0, weak=images[1], strong=images[2], index=torch.tensor([index]))


def test_the_loss_by_hand_with_one_unlabeled_image() -> None:
    """The identity as model, logits 0 on the strong view, weight 2. Row 1 is positive for class 0; class 1 is unseen.

    Positive: -log .5 = .693147. Negative: 1 - p + .05 = .55, focus .45^4 = .0410063, -log .55 = .597837, together
    .0245151. Twice their sum: 1.435325. Row 0, negative for both: 4 * .0245151 = .0980604.
    """
    method = CAP(facts([1, 0], 2, pool=2), warmup_steps=0, weight=2.0)
    method.refresh(FakePool([[0.1, 0.6], [0.9, 0.4]]))
    for row, value in ((1, 1.435325), (0, 0.0980604)):
        loss = method(nn.Identity(), one_image(row, strong=0.0), nn.Identity())
        assert loss.total.item() == pytest.approx(value, rel=1e-5)
        assert loss.pseudo.weights.tolist() == [2, 2]


def test_gradients_flow_through_the_strong_view_and_labels_only_change_between_rounds() -> None:
    method = CAP(facts([1, 1], 2, pool=2), warmup_steps=0)
    before = one_image(0, strong=0.5)
    assert method(nn.Identity(), before, nn.Identity()).total == 0
    method.refresh(FakePool([[0.1, 0.6], [0.9, 0.4]]))
    state = copy.deepcopy(method.state_dict())
    before.strong.requires_grad_()
    method(nn.Identity(), before, nn.Identity()).total.backward()
    assert before.strong.grad.abs().sum() > 0
    assert set(state) == {"targets", "mask", "round"}
    assert all(torch.equal(value, state[name]) for name, value in method.state_dict().items())
    other = CAP(facts([1, 1], 2, pool=2), warmup_steps=0)
    other.load_state_dict(state)
    assert other.round == 1
    assert torch.equal(other.targets, method.targets)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"refresh_steps": -1}, "refresh_steps"),
        ({"weight": -1.0}, "weight must be finite"),
        ({"weight": float("inf")}, "weight must be finite"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        CAP(facts([1]), **wrong)


def test_a_stream_and_an_unknown_batch_are_refused() -> None:
    with pytest.raises(UserError, match="not a stream"):
        CAP(facts([1], pool=None))
    with pytest.raises(UserError, match="refresh_steps must be given"):
        CAP(facts([1], batch=0))
