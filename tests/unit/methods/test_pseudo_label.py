"""Pseudo-Label and the ramps of the unlabeled weight, by hand. The model is `Flatten`: an image is its logits."""

import math

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.methods.ramped import PseudoLabel, gaussian_ramp, linear_ramp
from percentmatch.records import Batch, Facts, StepLoss


def facts(*positives: int, total_steps: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, 100), 100, 1000, total_steps)


def images_of(logits: Tensor) -> Tensor:
    return logits[:, :, None, None]


def learn(method: PseudoLabel, logits: Tensor, step: Tensor | int = 50) -> StepLoss:
    """One labeled image of which nothing is known, and unlabeled ones with these logits."""
    c = logits.shape[1]
    nothing = torch.zeros(1, c)
    batch = Batch(images_of(nothing), nothing, nothing, step, 0, weak=images_of(logits))  # ty: ignore
    return method(nn.Flatten(), batch, nn.Flatten())


def test_every_pair_teaches_the_view_it_came_from() -> None:
    """Class 0 is ordinary, class 1 always present, class 2 has no labeled positive; BCE with weight 2.

    Scores .9 .6 .8: positive, positive, and no label (above .5, but class 2 gets no positive).
    Scores .3 .2 .4: three negatives; a class always present has no protection.
    Loss: 2 * (-ln .9 - ln .6 - ln .7 - ln .8 - ln .6) / 2 images. Its gradient by the logits is 2 * (p - target) / 2.
    """
    logits = torch.tensor([[0.9, 0.6, 0.8], [0.3, 0.2, 0.4]]).logit().requires_grad_()
    found = learn(PseudoLabel(facts(10, 100, 0), loss="bce", weight=2.0, ramp_ratio=0.0), logits)
    assert found.pseudo.targets.tolist() == [[1, 1, 0], [0, 0, 0]]
    assert found.pseudo.mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert found.total.item() == pytest.approx(-sum(map(math.log, (0.9, 0.6, 0.7, 0.8, 0.6))), rel=1e-5)
    (gradient,) = torch.autograd.grad(found.total, logits)
    torch.testing.assert_close(gradient, torch.tensor([[-0.1, -0.4, 0.0], [0.3, 0.2, 0.4]]))


def test_thresholds_leave_the_doubtful_out() -> None:
    """upper .8, lower .25: of .9 .7 .3 .2 the outer two are labeled."""
    method = PseudoLabel(facts(10), upper=0.8, lower=0.25)
    found = learn(method, torch.tensor([[0.9], [0.7], [0.3], [0.2]]).logit()).pseudo
    assert found.mask.flatten().tolist() == [1, 0, 0, 1]
    assert found.targets.flatten().tolist() == [1, 0, 0, 0]


def test_one_label_an_image() -> None:
    """Scores .4 .3 .3: class 0, though below .5. Scores .2 .2 .6: the best class has no labeled positive, no label.

    Cross-entropy of the first, mean over two images: -ln .4 / 2. With upper = .45 the first is left out too.
    """
    logits = torch.tensor([[0.4, 0.3, 0.3], [0.2, 0.2, 0.6]]).log()
    found = learn(PseudoLabel(facts(10, 100, 0), task="single-label"), logits)
    assert found.pseudo.mask.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert found.pseudo.targets[0].tolist() == [1, 0, 0]
    assert found.total.item() == pytest.approx(-math.log(0.4) / 2)
    strict = learn(PseudoLabel(facts(10, 100, 0), task="single-label", upper=0.55), logits)
    assert strict.pseudo.mask.sum() == 0


def test_constant_scores_and_a_batch_of_one() -> None:
    """A score of .5 is no answer: nothing is learnt from a model that has no opinion."""
    assert learn(PseudoLabel(facts(10, 20)), torch.zeros(1, 2)).total == 0
    assert learn(PseudoLabel(facts(10, 20)), torch.full((1, 2), 0.1)).pseudo.mask.tolist() == [[1, 1]]


@pytest.mark.parametrize("kind", [int, torch.tensor])
def test_the_weight_grows_over_the_first_steps(kind) -> None:
    """40% of 100 steps: 0 at step 0, 10 / 40 = .25 at step 10, full from step 40 on. The Gaussian: exp(-5 * .75^2)."""
    method = PseudoLabel(facts(10), weight=2.0)
    weights = [learn(method, torch.ones(1, 1), kind(step)).pseudo.weights.item() for step in (0, 10, 40, 99)]
    assert weights == [0, 0.5, 2, 2]
    assert float(linear_ramp(kind(0), 0.0)) == 1
    assert float(gaussian_ramp(kind(10), 40.0)) == pytest.approx(math.exp(-5 * 0.75**2))
    assert float(gaussian_ramp(kind(41), 40.0)) == 1


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"upper": 0.4}, "upper must lie between 0.5 and 1, not 0.4"),
        ({"lower": 0.6}, "lower must lie between 0 and 0.5, not 0.6"),
        ({"weight": -1.0}, "weight must be finite and not negative, not -1"),
        ({"weight": float("nan")}, "weight"),
        ({"ramp_ratio": 1.5}, "ramp_ratio must lie between 0 and 1, not 1.5"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        PseudoLabel(facts(10), **wrong)


def test_a_ramp_needs_the_length_of_the_run() -> None:
    with pytest.raises(UserError, match="give Facts its total_steps, or set ramp_ratio to 0"):
        PseudoLabel(facts(10, total_steps=0))
    assert learn(PseudoLabel(facts(10, total_steps=0), ramp_ratio=0.0), torch.ones(1, 1)).pseudo.weights == 1
