"""The losses against timm's asymmetric loss and torch's cross-entropy."""

import pytest
import torch
from timm.loss import AsymmetricLossMultiLabel

from percentmatch.losses import asymmetric_loss, cross_entropy, mean_over_images


@pytest.mark.parametrize(
    ("gamma_negative", "gamma_positive", "clip"), [(4, 0, 0.05), (4, 1, 0.0), (0, 0, 0.0), (2, 1, 0.1)]
)
def test_values_and_gradients_equal_timm(gamma_negative: float, gamma_positive: float, clip: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.randn(64, 20, generator=generator)).requires_grad_()
    targets = (torch.rand(64, 20, generator=generator) < 0.2).float()
    oracle = AsymmetricLossMultiLabel(gamma_negative, gamma_positive, clip, disable_torch_grad_focal_loss=True)
    expected = sum(oracle(x[None], y[None]) for x, y in zip(logits, targets, strict=True))  # summed or averaged by timm
    (theirs,) = torch.autograd.grad(expected, logits, retain_graph=True)
    ours = asymmetric_loss(logits, targets, gamma_negative=gamma_negative, gamma_positive=gamma_positive, clip=clip)
    (mine,) = torch.autograd.grad(ours.sum(), logits)
    torch.testing.assert_close(ours.sum(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_cross_entropy_equals_torch() -> None:
    logits = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    label = torch.arange(8) % 5
    found = mean_over_images(cross_entropy(logits, torch.nn.functional.one_hot(label, 5)))
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(logits, label))
