"""Mixup and CutMix: shares, boxes and the loss of mixed labels, by hand."""

from dataclasses import replace

import pytest
import torch

from percentmatch.augment import Blend
from percentmatch.losses import asymmetric_loss, mean_over_images
from percentmatch.methods.base import labeled_loss
from percentmatch.records import Batch


def test_mixup_is_the_weighted_mean_with_the_next_image() -> None:
    """Constant images 0, 10, 20 with shares .5, .25, 1: .5*0 + .5*10 = 5, .25*10 + .75*20 = 17.5, 1*20 = 20."""
    images = torch.tensor([0.0, 10.0, 20.0]).view(3, 1, 1, 1).expand(3, 3, 2, 2)
    mixed, share = Blend(torch.tensor([[0.5], [0.25], [1.0]]), torch.zeros(3, 4)).apply(images, images.roll(-1, 0))
    assert mixed[:, 0, 0, 0].tolist() == [5.0, 17.5, 20.0]
    assert share.flatten().tolist() == [0.5, 0.25, 1.0]


def test_cutmix_pastes_the_box_and_counts_its_pixels() -> None:
    """A box over columns 1-2 and rows 0-1 of 4 x 4 pixels: 4 of 16 are the neighbour's, so .75 is its own."""
    images = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
    box = torch.tensor([[0.25, 0.0, 0.75, 0.5], [0.0, 0.0, 0.0, 0.0]])
    mixed, share = Blend(torch.tensor([[0.1], [1.0]]), box).apply(images, images.roll(-1, 0))
    expected = torch.zeros(4, 4)
    expected[0:2, 1:3] = 1
    assert torch.equal(mixed[0, 0], expected)
    assert share.flatten().tolist() == [0.75, 1.0]


@pytest.mark.parametrize(("mixup", "cutmix", "boxes"), [(0.5, 0.0, 0.0), (0.0, 1.0, 1.0), (0.5, 1.0, 0.5)])
def test_draws_repeat_and_have_the_shares_of_the_beta_distribution(mixup: float, cutmix: float, boxes: float) -> None:
    """Beta(a, a) has mean .5 and variance 1 / (4 (2a + 1)): .125 for a = .5, .0833 for a = 1."""
    drawn = Blend.draw(7, 20000, mixup=mixup, cutmix=cutmix)
    assert torch.equal(drawn.share, Blend.draw(7, 20000, mixup=mixup, cutmix=cutmix).share)
    pasted = drawn.box[:, 2] > drawn.box[:, 0]
    assert pasted.float().mean().item() == pytest.approx(boxes, abs=0.02)
    for kind, strength in ((~pasted, mixup), (pasted, cutmix)):
        if kind.any() and strength:
            share = drawn.share[kind]
            assert share.mean().item() == pytest.approx(0.5, abs=0.02)
            assert share.var().item() == pytest.approx(1 / (4 * (2 * strength + 1)), abs=0.01)


def test_the_loss_of_mixed_images_is_that_of_both_label_sets_by_share_and_unknown_labels_count_nowhere() -> None:
    logits, own, other = torch.randn(4, 3), torch.randint(2, (4, 3)).float(), torch.randint(2, (4, 3)).float()
    known, partner_known = torch.randint(2, (4, 3)).float(), torch.randint(2, (4, 3)).float()
    share = torch.rand(4, 1)
    batch = Batch(torch.zeros(4, 3, 1, 1), own, known, torch.tensor(0), 0)
    mixed = replace(batch, partner_targets=other, partner_known=partner_known, own_share=share)
    by_hand = sum(
        share[i, 0] * known[i, c] * asymmetric_loss(logits, own)[i, c]
        + (1 - share[i, 0]) * partner_known[i, c] * asymmetric_loss(logits, other)[i, c]
        for i in range(4)
        for c in range(3)
    )
    torch.testing.assert_close(labeled_loss(asymmetric_loss, logits, mixed), by_hand / 4)
    expected = mean_over_images(asymmetric_loss(logits, own), known)
    torch.testing.assert_close(labeled_loss(asymmetric_loss, logits, batch), expected)
