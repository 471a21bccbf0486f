"""UPS on tiny tables of scores and uncertainties, by hand."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.methods.rounds import UPS, negative_learning
from percentmatch.models import LinearHead, MLDecoder
from percentmatch.records import Batch, Facts


class FakePool:
    def __init__(self, scores: list[list[float]], deviations: list[list[float]]) -> None:
        self.answer, self.asked = (torch.tensor(scores), torch.tensor(deviations)), []

    def probabilities(
        self, model: Literal["student", "teacher"], *, dropout_passes: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        self.asked.append((model, dropout_passes))
        return self.answer


def facts(*positives: int, labeled: int = 10, pool: int | None = 4, steps: int = 500) -> Facts:
    counts = torch.tensor(positives).double()
    return Facts(counts, torch.full_like(counts, labeled), labeled, pool, steps)


def test_selection_needs_confidence_and_certainty() -> None:
    """Class 0, at the limits: p = .5 with u just below .05 is positive, u = .05 is not; p = .049 with u = .004 is
    negative, p = .05 is not. Class 1, always present among the labeled: .9 certain, .9 uncertain, .04 with u at .005
    and below: positive, none, none, negative. Class 2 is unseen: never positive, its negative stands. Class 3:
    constant scores of .3 select nothing.
    """
    p = [[0.5, 0.9, 0.9, 0.3], [0.5, 0.9, 0.01, 0.3], [0.049, 0.04, 0.5, 0.3], [0.05, 0.04, 0.04, 0.3]]
    u = [[0.049, 0.0, 0.0, 0.0], [0.05, 0.06, 0.0, 0.0], [0.004, 0.005, 0.0, 0.0], [0.004, 0.0049, 0.01, 0.0]]
    method, pool = UPS(facts(5, 10, 0, 5)), FakePool(p, u)
    assert method.mask.sum() == 0
    method.refresh(pool)
    assert pool.asked == [("teacher", 10)]
    assert method.targets.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert method.mask.tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]]


def test_every_limit_is_an_option() -> None:
    """p = .6 .6 .2 .2 with u = .1 .3 .1 .3: with limits .55/.2 and .25/.2 the first is positive, the third negative."""
    pool = FakePool([[0.6], [0.6], [0.2], [0.2]], [[0.1], [0.3], [0.1], [0.3]])
    method = UPS(
        facts(5),
        scores="student",
        passes=3,
        positive_threshold=0.55,
        positive_uncertainty=0.2,
        negative_threshold=0.25,
        negative_uncertainty=0.2,
    )
    method.refresh(pool)
    assert pool.asked == [("student", 3)]
    assert method.targets.flatten().tolist() == [1, 0, 0, 0]
    assert method.mask.flatten().tolist() == [1, 0, 1, 0]


def test_a_class_that_was_never_labeled_is_left_out() -> None:
    method = UPS(facts(0, labeled=0, pool=2))
    method.refresh(FakePool([[0.9], [0.01]], [[0.0], [0.0]]))
    assert method.mask.sum() == 0


@pytest.mark.parametrize(("steps", "generations", "length"), [(500, 5, 100), (501, 5, 101), (7, 2, 4), (3, 5, 1)])
def test_the_run_is_divided_into_generations(steps: int, generations: int, length: int) -> None:
    method = UPS(facts(5, steps=steps), num_generations=generations)
    assert method.round_steps == length
    assert method.restarts


@pytest.mark.parametrize(("options", "down"), [({}, 0.5), ({"loss": "asl"}, 0.0186392)])
def test_negative_pairs_push_down_and_the_rest_is_silent(options: dict, down: float) -> None:
    """A single unlabeled image, logits 0 on the weak view: positive, negative, not selected.

    The gradient is -.5 for the positive and 0 for the last; for the negative .5 with binary cross-entropy and,
    the focus held, .45^4 * p (1 - p) / .55 = .0186392 with ASL.
    """
    method = UPS(facts(5, 5, 5, pool=1), **options)
    method.refresh(FakePool([[0.9, 0.01, 0.3]], [[0.0, 0.0, 0.0]]))
    weak, zeros = torch.zeros(1, 3, requires_grad=True), torch.zeros(1, 3)
    batch = Batch(zeros, zeros, zeros, torch.tensor(0), 0, weak=weak, index=torch.tensor([0]))
    loss = method(nn.Identity(), batch, nn.Identity())
    loss.total.backward()
    assert method.views == {"weak"}
    assert weak.grad.flatten().tolist() == pytest.approx([-0.5, down, 0.0], rel=1e-4)


def test_one_label_an_image() -> None:
    """Only a row's largest score can be positive: with a threshold of .4, the .4 beside the .5 is not."""
    method = UPS(facts(5, 5, 5, pool=2), task="single-label", positive_threshold=0.4)
    method.refresh(FakePool([[0.5, 0.4, 0.1], [0.35, 0.63, 0.02]], [[0.0] * 3] * 2))
    assert method.targets.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert method.mask.tolist() == [[1, 0, 0], [0, 1, 1]]


def test_negative_learning_by_hand() -> None:
    """Logits log 1, log 3 give p = 1/4, 3/4: -log p of a positive, -log(1 - p) of a negative; finite at 1."""
    found = negative_learning(torch.tensor([[1.0, 3.0], [1.0, 3.0]]).log(), torch.tensor([[1, 0], [0, 1]]))
    wanted = -torch.tensor([[0.25, 0.25], [0.75, 0.75]]).log()
    torch.testing.assert_close(found, wanted)
    sure = torch.tensor([[100.0, -100.0]], requires_grad=True)
    loss = negative_learning(sure, torch.zeros(1, 2))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert sure.grad.isfinite().all()


def test_labeled_images_have_the_usual_loss_with_one_label() -> None:
    """Logits 0 of two classes: cross-entropy is log 2 = .693147, without a term for the absent class."""
    method = UPS(facts(5, 5, pool=1), task="single-label")
    images, known = torch.zeros(1, 2), torch.ones(1, 2)
    batch = Batch(images, torch.tensor([[1.0, 0.0]]), known, torch.tensor(0), 0, weak=images, index=torch.tensor([0]))
    assert method(nn.Identity(), batch, nn.Identity()).total.item() == pytest.approx(0.693147, rel=1e-5)


def test_a_model_without_dropout_is_refused() -> None:
    method = UPS(facts(5))
    for bare in (nn.Linear(3, 2), LinearHead(3, 2, dropout=0.0)):
        with pytest.raises(UserError, match=r"--dropout 0\.2 with --head linear, or use --head ml-decoder"):
            method.check_model(bare)
    method.check_model(LinearHead(3, 2, dropout=0.2))
    method.check_model(MLDecoder(3, 2, embed_dim=8))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"num_generations": 1}, "num_generations"),
        ({"passes": 1}, "passes"),
        ({"positive_threshold": 0.01}, "negative_threshold=0.05 and positive_threshold=0.01"),
        ({"negative_threshold": -0.1}, "negative_threshold"),
        ({"positive_uncertainty": 0.0}, "positive_uncertainty"),
        ({"negative_uncertainty": float("nan")}, "negative_uncertainty"),
        ({"scores": "both"}, "scores must be"),
        ({"weight": float("nan")}, "weight must be finite"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        UPS(facts(5), **wrong)


def test_a_stream_is_refused() -> None:
    with pytest.raises(UserError, match="UPS needs a pool, not a stream; choose another --method"):
        UPS(facts(5, pool=None))
