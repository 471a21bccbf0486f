"""Mean Teacher by hand. Models are pointwise: an image is its logits, which the teacher doubles."""

import pytest
import torch
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.methods.ramped import MeanTeacher
from percentmatch.records import Batch, Facts, StepLoss


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) * self.factor


def facts(*positives: int) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, 100), 100, None, 100)


def learn(method: MeanTeacher, weak: Tensor, weak2: Tensor, teacher: nn.Module, step: int = 50) -> StepLoss:
    nothing = torch.zeros(1, weak.shape[1])
    images, weak, weak2 = (logits[:, :, None, None] for logits in (nothing, weak, weak2))
    batch = Batch(images, nothing, nothing, torch.tensor(step), 0, weak=weak, weak2=weak2)
    return method(Scale(1.0), batch, teacher)


def test_the_student_learns_the_teachers_answer_on_the_other_view() -> None:
    """Class 0 is ordinary, class 1 always present, class 2 has no labeled positive and is not taught.

    The teacher doubles the logits of the weak view: odds 2 1 3 become 4 1 9, so .8 .5 .9. The student says .6 .9 .1 on
    the other view: squares .04 .16 and none, weight 6, mean over 3 classes of 1 image: 6 * .2 / 3 = .4. By the
    student's logits: 6 / 3 * 2 (p - q) p (1 - p) = 4 * -.2 * .24 = -.192 and 4 * .4 * .09 = .144.
    """
    weak = torch.tensor([[2.0, 1.0, 3.0]]).log().requires_grad_()
    weak2 = torch.tensor([[0.6, 0.9, 0.1]]).logit().requires_grad_()
    teacher = Scale(2.0)
    found = learn(MeanTeacher(facts(10, 100, 0), weight=6.0), weak, weak2, teacher)
    torch.testing.assert_close(found.pseudo.targets, torch.tensor([[0.8, 0.5, 0.9]]))
    assert found.total.item() == pytest.approx(0.4)
    found.total.backward()
    torch.testing.assert_close(weak2.grad, torch.tensor([[-0.192, 0.144, 0.0]]))
    assert weak.grad is None
    assert teacher.factor.grad is None


def test_one_label_an_image_shares_the_target_among_classes_with_positives() -> None:
    """The teacher squares .1 .2 .7 before the softmax: .01 .04 .49; class 2 has no labeled positive: .2 .8 0.

    The student says .3 .5 .2: squares .01 .09 .04, weight 3, mean over 3 classes: .14.
    """
    weak, weak2 = torch.tensor([[0.1, 0.2, 0.7]]).log(), torch.tensor([[0.3, 0.5, 0.2]]).log()
    found = learn(MeanTeacher(facts(10, 100, 0), task="single-label", weight=3.0), weak, weak2, Scale(2.0))
    torch.testing.assert_close(found.pseudo.targets, torch.tensor([[0.2, 0.8, 0.0]]))
    assert found.total.item() == pytest.approx(0.14)


def test_agreement_and_the_first_step_teach_nothing() -> None:
    """Constant scores of .5 stay so when doubled; a weight of 50 after 10 of 40 ramp steps is 12.5."""
    method, zeros, ones = MeanTeacher(facts(10, 20)), torch.zeros(1, 2), torch.ones(1, 2)
    assert learn(method, zeros, zeros, Scale(2.0)).total == 0
    assert learn(method, ones, zeros, Scale(2.0), step=0).total == 0
    assert learn(method, ones, zeros, Scale(2.0), step=10).pseudo.weights.tolist() == [12.5, 12.5]


def test_bad_options_are_named() -> None:
    with pytest.raises(UserError, match="weight must be finite and not negative, not -1"):
        MeanTeacher(facts(10), weight=-1)
