"""Elementwise losses by hand; against timm in tests/reference."""

import math

import torch

from percentmatch.losses import asymmetric_loss, binary_cross_entropy, cross_entropy, mean_over_images


def test_asymmetric_loss_by_hand() -> None:
    """p = .5 (logit 0). Positive: -log .5. Negative: shifted p = .45, focused: .45^4 * -log(1 - .45)."""
    found = asymmetric_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[math.log(2), 0.45**4 * -math.log(0.55)]]))


def test_an_easy_negative_has_no_gradient() -> None:
    """Below the clip of .05 the shifted probability is 0: logit -3 is p = .047."""
    logits = torch.tensor([[-3.0]], requires_grad=True)
    asymmetric_loss(logits, torch.zeros(1, 1)).sum().backward()
    assert logits.grad.item() == 0


def test_the_score_that_asymmetric_loss_settles_at() -> None:
    """A posterior of .5 settles where the positive's and the negative's gradients in the logit cancel.

    Positive: 1 - p. Negative: p_m^4 * p (1 - p) / (1 - p_m) with p_m = p - .05, the focusing weight carrying no
    gradient. At p = .8: .2 against .75^4 * .8 * .2 / .25 = .2025, so it settles just below .8.
    """
    logit = torch.tensor([[math.log(0.8 / 0.2)]], requires_grad=True)
    losses = [asymmetric_loss(logit, torch.full((1, 1), y)).sum() for y in (1.0, 0.0)]
    (0.5 * losses[0] + 0.5 * losses[1]).backward()
    torch.testing.assert_close(logit.grad, torch.tensor([[0.5 * (0.2025 - 0.2)]]), rtol=1e-3, atol=1e-6)


def test_losses_are_float32_and_finite_for_extreme_bfloat16_logits() -> None:
    logits = torch.tensor([[-200.0, 200.0]], dtype=torch.bfloat16)
    for loss in (asymmetric_loss, binary_cross_entropy, cross_entropy):
        found = loss(logits, torch.tensor([[1.0, 0.0]]))
        assert found.dtype == torch.float32
        assert found.isfinite().all()


def test_the_mean_is_over_images_of_sums_over_classes() -> None:
    """Image sums 1*1 + 2*0 = 1 and 3*1 + 4*.5 = 5; mean 3."""
    loss, weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.5]])
    assert mean_over_images(loss, weights) == 3
    assert mean_over_images(loss) == 5
    assert mean_over_images(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])) == 10.5
