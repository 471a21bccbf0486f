"""Temporal ensembling by hand. The model is `Flatten`: an image is its logits."""

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.methods.ramped import TemporalEnsembling
from percentmatch.records import Batch, Facts, StepLoss


def facts(*positives: int, num_unlabeled: int | None = 4) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, 100), 100, num_unlabeled, 100)


def see(
    method: TemporalEnsembling, scores: list[list[float]] | Tensor, index: list[int], *, last: bool = True
) -> StepLoss:
    """A step, after the ramp, that shows the model these unlabeled images with these scores."""
    scores = torch.as_tensor(scores)
    logits = scores.log() if method.task == "single-label" else scores.logit()
    nothing = torch.zeros(1, logits.shape[1])
    images, weak = nothing[:, :, None, None], logits[:, :, None, None]
    rows = torch.tensor(index)
    batch = Batch(images, nothing, nothing, torch.tensor(50), 0, weak=weak, index=rows, last=last)
    return method(nn.Flatten(), batch, nn.Flatten())


def test_the_memory_and_its_target() -> None:
    """Class 0 is ordinary, class 1 always present, class 2 has no labeled positive and is not taught. alpha = .6.

    First visit, scores .5 1 .5: no target, Z = .4 p = .2 .4 .2. Second, scores .9: the target is Z / .4 = .5 1 .5, the
    squares of classes 0 and 1 are .16 and .01, weight 30, mean over 3 classes: 30 * .17 / 3 = 1.7. Then Z =
    .6 * .2 + .4 * .9 = .48, .6 * .4 + .36 = .6. Third: targets .48 / (1 - .36) = .75 and .6 / .64 = .9375.
    """
    method = TemporalEnsembling(facts(10, 100, 0))
    first = see(method, [[0.5, 1 - 1e-7, 0.5]], [2])
    assert first.total == 0
    torch.testing.assert_close(method.memory, torch.tensor([[0.0] * 3, [0.0] * 3, [0.2, 0.4, 0.2], [0.0] * 3]))
    second = see(method, [[0.9, 0.9, 0.9]], [2])
    assert second.total.item() == pytest.approx(1.7, rel=1e-5)
    torch.testing.assert_close(method.memory[2, :2], torch.tensor([0.48, 0.6]))
    third = see(method, [[0.75, 0.9375, 0.1]], [2])
    torch.testing.assert_close(third.pseudo.targets[0, :2], torch.tensor([0.75, 0.9375]))
    assert third.total.item() == pytest.approx(0, abs=1e-9)
    assert method.visits.flatten().tolist() == [0, 0, 3, 0]


def test_an_image_shown_twice_in_a_step_is_one_visit_with_its_mean_score() -> None:
    """Image 1 with .3 and .7: Z = .4 * .5 = .2 and one visit. Image 3 beside it, .8: Z = .32."""
    method = TemporalEnsembling(facts(10))
    see(method, [[0.3], [0.8], [0.7]], [1, 3, 1])
    torch.testing.assert_close(method.memory.flatten(), torch.tensor([0.0, 0.2, 0.0, 0.32]))
    assert method.visits.flatten().tolist() == [0, 1, 0, 1]


def test_both_parts_of_a_step_meet_the_memory_before_it() -> None:
    """As in one batch: image 1 has no target in the second part either, and Z = .4 * .5 afterwards."""
    method = TemporalEnsembling(facts(10))
    see(method, [[0.3]], [1], last=False)
    assert method.visits.sum() == 0
    assert see(method, [[0.7]], [1]).pseudo.mask.sum() == 0
    torch.testing.assert_close(method.memory.flatten(), torch.tensor([0.0, 0.2, 0.0, 0.0]))
    assert method.visits.flatten().tolist() == [0, 1, 0, 0]


def test_the_gradient_is_that_of_the_students_score() -> None:
    """Target .5, p = .8, weight 30, one class and image: 30 * 2 * (.8 - .5) * .8 * .2 = 2.88."""
    method = TemporalEnsembling(facts(10))
    see(method, [[0.5]], [0])
    scores = torch.tensor([[0.8]])
    logits = scores.logit().requires_grad_()
    batch = Batch(
        images=torch.zeros(1, 1, 1, 1),
        targets=torch.zeros(1, 1),
        known=torch.zeros(1, 1),
        step=torch.tensor(50),
        seed=0,
        weak=logits[:, :, None, None],
        index=torch.tensor([0]),
    )
    method(nn.Flatten(), batch, nn.Flatten()).total.backward()
    assert logits.grad is not None
    assert logits.grad.item() == pytest.approx(2.88)


def test_one_label_an_image_remembers_shares_among_classes_with_positives() -> None:
    """.2 .3 .5 with no labeled positive of class 2 is remembered as .4 .6 0: Z = .16 .24 0, the target .4 .6 0."""
    method = TemporalEnsembling(facts(10, 100, 0), task="single-label")
    see(method, [[0.2, 0.3, 0.5]], [0])
    torch.testing.assert_close(method.memory[0], torch.tensor([0.16, 0.24, 0.0]))
    found = see(method, [[0.2, 0.3, 0.5]], [0])
    torch.testing.assert_close(found.pseudo.targets, torch.tensor([[0.4, 0.6, 0.0]]))


def test_constant_scores_settle_and_no_momentum_is_the_last_score() -> None:
    method, last = TemporalEnsembling(facts(10)), TemporalEnsembling(facts(10), momentum=0.0)
    for _ in range(5):
        found = see(method, [[0.3]], [0])
    assert found.total.item() == pytest.approx(0, abs=1e-10)
    see(last, [[0.3]], [0])
    see(last, [[0.6]], [0])
    assert see(last, [[0.1]], [0]).pseudo.targets.item() == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1"),
        ({"weight": -1.0}, "weight must be finite and not negative"),
        ({"ramp_ratio": -1.0}, "ramp_ratio must lie between 0 and 1"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        TemporalEnsembling(facts(10), **wrong)


def test_a_stream_is_refused() -> None:
    with pytest.raises(UserError, match="needs a pool, not a stream; choose another --method, such as mean_teacher"):
        TemporalEnsembling(facts(10, num_unlabeled=None))
