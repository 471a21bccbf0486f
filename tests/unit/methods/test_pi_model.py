"""The Pi-model by hand. The model is `Flatten`: an image is its logits."""

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.methods.ramped import PiModel
from percentmatch.records import Batch, Facts, StepLoss


def facts(*positives: int) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, 100), 100, None, 100)


def learn(method: PiModel, first: Tensor, second: Tensor, step: int = 50) -> StepLoss:
    """One labeled image of which nothing is known, and two views of unlabeled ones with these logits."""
    nothing = torch.zeros(1, first.shape[1])
    images, weak, weak2 = (logits[:, :, None, None] for logits in (nothing, first, second))
    batch = Batch(images, nothing, nothing, torch.tensor(step), 0, weak=weak, weak2=weak2)
    return method(nn.Flatten(), batch, nn.Flatten())


def test_the_first_view_learns_from_the_second() -> None:
    """Class 0 is ordinary, class 1 always present, class 2 has no labeled positive and is not taught.

    p = .8 .5 .1 against .6 .9 .9: squares .04 .16 and none, weight 12, mean over 3 classes of 1 image: 12 * .2 / 3 =
    .8. By the first logits: 12 / 3 * 2 (p - q) p (1 - p) = 8 * .2 * .16 = .256 and 8 * -.4 * .25 = -.8.
    """
    first = torch.tensor([[0.8, 0.5, 0.1]]).logit().requires_grad_()
    second = torch.tensor([[0.6, 0.9, 0.9]]).logit().requires_grad_()
    found = learn(PiModel(facts(10, 100, 0), weight=12.0), first, second)
    assert found.total.item() == pytest.approx(0.8)
    assert found.parts["supervised"] == 0
    mine, other = torch.autograd.grad(found.total, [first, second], allow_unused=True)
    torch.testing.assert_close(mine, torch.tensor([[0.256, -0.8, 0.0]]))
    assert other is None or other.abs().sum() == 0


def test_one_label_an_image_shares_the_target_among_classes_with_positives() -> None:
    """The second view says .2 .3 .5, class 2 has no labeled positive: the target is .4 .6 0.

    The first says .4 .4 .2: squares 0 .04 .04, weight 3, mean over 3 classes: 3 * .08 / 3 = .08.
    """
    first, second = torch.tensor([[0.4, 0.4, 0.2]]).log(), torch.tensor([[0.2, 0.3, 0.5]]).log()
    found = learn(PiModel(facts(10, 100, 0), task="single-label", weight=3.0), first, second)
    torch.testing.assert_close(found.pseudo.targets, torch.tensor([[0.4, 0.6, 0.0]]))
    assert found.total.item() == pytest.approx(0.08)


def test_views_that_agree_and_the_first_step_teach_nothing() -> None:
    """Constant scores leave no difference; a weight of 10 after 10 of 40 ramp steps is 2.5."""
    method = PiModel(facts(10, 20))
    assert learn(method, torch.zeros(1, 2), torch.zeros(1, 2)).total == 0
    assert learn(method, torch.zeros(1, 2), torch.ones(1, 2), step=0).total == 0
    assert learn(method, torch.zeros(1, 2), torch.ones(1, 2), step=10).pseudo.weights.tolist() == [2.5, 2.5]


def test_bad_options_are_named() -> None:
    with pytest.raises(UserError, match="weight must be finite and not negative, not -1"):
        PiModel(facts(10), weight=-1)
    with pytest.raises(UserError, match="ramp_ratio must lie between 0 and 1, not 2"):
        PiModel(facts(10), ramp_ratio=2)
