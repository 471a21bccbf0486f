"""MixMatch by hand. The model is `Flatten`: an image is its logits, and a mixture has the mixed logits."""

import math

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.methods.mixmatch import TABLE, MixMatch, blend, larger_shares
from percentmatch.records import Batch, Facts, StepLoss


def facts(*positives: int) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, 100), 100, None, 100)


def learn(
    method: MixMatch, logits: Tensor, targets: Tensor, known: Tensor, uniforms: Tensor, step: int = 50
) -> StepLoss:
    """Rows of `logits`: the labeled images of `targets`, then the two views of each unlabeled one."""
    images, weak, weak2 = logits[:, :, None, None].split([len(targets), *2 * [(len(logits) - len(targets)) // 2]])
    batch = Batch(images, targets, known, torch.tensor(step), 0, weak=weak, weak2=weak2, uniforms=uniforms)
    return method(nn.Flatten(), batch, nn.Flatten())


UNIFORMS = torch.tensor([[0.5, 0.4], [0.9, 0.8], [0.1, 0.0]])


def bce(logit: float, target: float) -> float:
    return math.log1p(math.exp(logit)) - target * logit


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def test_a_step_by_hand() -> None:
    """One labeled image (row 0), one unlabeled in two views (rows 1 and 2).

    Class 0 is ordinary, class 1 always present but unknown in row 0, class 2 has no labeled positive.
    The order of .5 .9 .1 is rows 2 0 1: the partners of rows 0 1 2. By mixup = 1, the larger share of a uniform split
    is 1 - u / 2: .8, .6 and 1. Guesses, T = .5: class 0 has .6 and .8, mean .7, .49 / (.49 + .09) = g0; class 1 has .3
    and .1, mean .2, .04 / (.04 + .64) = g1; class 2 is not taught by unlabeled images.

    Row 0, labels 1 ? 0, is .8 of itself and .2 of row 2: targets .8 + .2 g0 (all known), g1 (.2 known), 0 (.8 known).
    Row 1 is .6 of itself and .4 of row 0: targets .6 g0 + .4, g1 (.6 known), 0 (.4 known).
    Row 2 is all itself: g0, g1, and class 2 does not count.
    """
    probabilities = [[0.9, 0.9, 0.2], [0.6, 0.3, 0.4], [0.8, 0.1, 0.99]]
    logits = torch.tensor(probabilities).logit().requires_grad_()
    method = MixMatch(facts(10, 100, 0), mixup=1.0, weight=6.0)
    found = learn(method, logits, torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0]]), UNIFORMS)
    g0, g1 = 0.49 / 0.58, 0.04 / 0.68
    assert found.pseudo.targets[0, :2].tolist() == pytest.approx([g0, g1])
    assert not found.pseudo.targets.requires_grad

    rows = logits.tolist()
    mixed = [
        [0.8 * own + 0.2 * other for own, other in zip(rows[0], rows[2], strict=True)],
        [0.6 * own + 0.4 * other for own, other in zip(rows[1], rows[0], strict=True)],
        rows[2],
    ]
    targets = [[0.8 + 0.2 * g0, g1, 0.0], [0.6 * g0 + 0.4, g1, 0.0], [g0, g1, 0.0]]
    shares = [[1.0, 0.2, 0.8], [1.0, 0.6, 0.4], [1.0, 1.0, 0.0]]
    labeled = sum(w * bce(z, t) for w, z, t in zip(shares[0], mixed[0], targets[0], strict=True))
    errors = [
        w * (sigmoid(z) - t) ** 2 for n in (1, 2) for w, z, t in zip(shares[n], mixed[n], targets[n], strict=True)
    ]
    assert found.parts["supervised"].item() == pytest.approx(labeled, rel=1e-5)
    assert found.parts["unlabeled"].item() == pytest.approx(6 * sum(errors) / 6, rel=1e-5)


def test_one_label_an_image() -> None:
    """The views say .2 .3 .5 and .1 .4 .5, class 2 has no labeled positive: .4 .6 0 and .2 .8 0, mean .3 .7 0.

    T = .5 makes it .09 .49 over their sum. Unmixed (shares of 1), the labeled row 1 0 0 has cross-entropy -ln .7, and
    the unlabeled rows the mean of the squares over 6 pairs.
    """
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.3, 0.5], [0.1, 0.4, 0.5]])
    uniforms = torch.tensor([[0.5, 0.0], [0.9, 0.0], [0.1, 0.0]])
    method = MixMatch(facts(10, 100, 0), task="single-label", weight=6.0)
    found = learn(method, rows.log(), torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1, 3), uniforms)
    guess = torch.tensor([0.09 / 0.58, 0.49 / 0.58, 0.0])
    torch.testing.assert_close(found.pseudo.targets[0], guess)
    assert found.parts["supervised"].item() == pytest.approx(-math.log(0.7))
    assert found.parts["unlabeled"].item() == pytest.approx(((rows[1:] - guess) ** 2).sum().item(), rel=1e-5)


def test_constant_scores_and_the_ramp() -> None:
    """Scores of .5 are sharpened to .5; a weight of 75 after 10 of 40 ramp steps is 18.75."""
    labels = torch.ones(1, 2)
    found = learn(MixMatch(facts(10, 20)), torch.zeros(3, 2), labels, torch.zeros(1, 2), UNIFORMS, step=10)
    assert found.pseudo.targets.tolist() == [[0.5, 0.5]]
    assert found.pseudo.weights.tolist() == [18.75, 18.75]


def test_a_mixture_counts_what_is_known() -> None:
    """Shares .75 and .25 of labels 1 and 0. Both known: .75; one: its label, by its share; none: nothing."""
    ones, zeros, share = torch.ones(1, 4), torch.zeros(1, 4), torch.full((1, 1), 0.75)
    known, other_known = torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    targets, weights = blend(ones, known, zeros, other_known, share)
    assert targets.tolist() == [[0.75, 1.0, 0.0, 0.0]]
    assert weights.tolist() == [[1.0, 0.75, 0.25, 0.0]]


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_shares_are_those_of_the_beta_distribution(strength: float) -> None:
    """Beta(.5, .5): P[max(l, 1 - l) > cos^2(pi t / 4)] = t. Beta(1, 1): l = 1 - t / 2. Beta(2, 2): its cumulative
    distribution is 3 l^2 - 2 l^3, so t = 2 (1 - 3 l^2 + 2 l^3).
    """
    shares = larger_shares(strength).double()
    t = torch.linspace(0, 1, TABLE, dtype=torch.float64)
    if strength == 2.0:
        torch.testing.assert_close(2 * (1 - 3 * shares**2 + 2 * shares**3), t, rtol=0, atol=1e-6)
    else:
        expected = (math.pi * t / 4).cos() ** 2 if strength == 0.5 else 1 - t / 2
        torch.testing.assert_close(shares, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("strength", [0.01, 0.1, 10.0])
def test_extreme_shares_have_the_right_variance(strength: float) -> None:
    """The variance of Beta(a, a) is 1 / (4 (2a + 1)), and max(l, 1 - l) is as far from 1/2 as l."""
    spread = (larger_shares(strength).double() - 0.5) ** 2
    mean = ((spread[1:] + spread[:-1]) / 2).mean().item()
    assert mean == pytest.approx(1 / (4 * (2 * strength + 1)), rel=2e-3)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"temperature": 0.0}, "temperature must be above 0 and at most 1, not 0"),
        ({"mixup": 0.0}, "mixup must lie between 0.01 and 10, not 0"),
        ({"weight": float("inf")}, "weight must be finite"),
        ({"ramp_ratio": 3.0}, "ramp_ratio must lie between 0 and 1"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        MixMatch(facts(10), **wrong)
