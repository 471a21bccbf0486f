"""PriorMatch: every pair a label, each class at its labeled prevalence."""

import numpy
import pytest
import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.labelers import PriorMatch
from percentmatch.labelers.histogram import ScoreHistogram
from percentmatch.losses import LOSSES
from percentmatch.methods import build_method, options_of
from percentmatch.records import Facts, Scores


def facts(*positives: int, labeled: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, 1000, 100)


def made_up(step: int, images: int = 6, classes: int = 3) -> Tensor:
    """Scores (6, 3) that are the same everywhere: squares of (7 place + 5 step) mod 23, from 0 to 1."""
    place = torch.arange(images * classes).view(images, classes)
    return (((7 * place + 5 * step) % 23 + 0.5) / 23) ** 2


def test_it_is_the_rule_that_was_once_written_as_options_of_percentmatch() -> None:
    """The numbers are those of percentmatch with selection=all, targets=soft, gate=none, bins=logit, num_bins=256 and
    bias_correction=True at the commit before PriorMatch had a name: 30, 5 and 0 of 100 labeled positives.
    """
    labeler = PriorMatch(facts(30, 5, 0), momentum=0.9, warmup_steps=3, weight=2.0)
    weights = []
    for step in range(6):
        found = labeler(Scores(made_up(step), step))
        weights.append(found.weights.tolist())
    assert weights == [[0.0] * 3] * 2 + [[2.0] * 3] * 4
    assert found.mask.tolist() == [[1.0] * 3] * 6
    expected = [
        [0.009078223258256912, 0.005715391598641872, 0.0],
        [0.0003621661744546145, 0.003314016154035926, 0.0],
        [0.8414313793182373, 0.0016920462949201465, 0.0],
        [0.6620238423347473, 0.0006620229105465114, 0.0],
        [0.5130261778831482, 0.00011935249494854361, 0.0],
        [0.3893330693244934, 0.38342201709747314, 0.0],
    ]
    torch.testing.assert_close(found.targets, torch.tensor(expected), rtol=1e-6, atol=1e-9)
    thresholds = [0.4733363091945648, 0.9574456214904785, 0.9603611826896667]
    torch.testing.assert_close(found.lower, torch.tensor(thresholds), rtol=1e-6, atol=1e-9)
    assert found.upper.tolist()[:2] == found.lower.tolist()[:2]
    assert found.upper[2] == torch.inf
    assert found.gap is None
    assert set(labeler.state_dict()) == {"histogram.mass", "histogram.prior_weight"}


def test_the_targets_are_those_of_a_plain_implementation() -> None:
    """In float64: a histogram of the logits, its mean after a shift by bisection, and the shifted scores."""
    prevalence, momentum, edges = (0.3, 0.05), 0.8, numpy.linspace(-12, 12, 257)
    middle, mass = (edges[:-1] + edges[1:]) / 2, numpy.zeros((2, 256))
    labeler = PriorMatch(facts(30, 5), momentum=momentum, warmup_steps=0)
    draw = torch.Generator().manual_seed(0)
    for step in range(5):
        weak = torch.rand(40, 2, generator=draw, dtype=torch.float64) ** 2
        found = labeler(Scores(weak.float(), step)).targets
        logits = torch.logit(weak).numpy()
        if step:
            for c, wanted in enumerate(prevalence):
                share = mass[c] / mass[c].sum()
                low, high = -24.0, 24.0
                for _ in range(50):
                    shift = (low + high) / 2
                    less = (share / (1 + numpy.exp(-middle - shift))).sum() < wanted
                    low, high = (shift, high) if less else (low, shift)
                expected = 1 / (1 + numpy.exp(-logits[:, c] - shift))
                numpy.testing.assert_allclose(found[:, c].numpy(), expected, rtol=1e-3, atol=1e-6)
        counts = numpy.stack([numpy.histogram(logits[:, c], edges)[0] for c in range(2)])
        mass = momentum * mass + (1 - momentum) * counts / 40


def test_a_temperature_divides_the_logits_of_the_targets() -> None:
    """One half squares the odds: 0.2, odds 1/4, becomes 1/17. With one label an image, rows sum to one again."""
    labelers = [PriorMatch(facts(30, 5, 0), warmup_steps=0, temperature=each) for each in (1.0, 0.5)]
    plain, sharp = (labeler(Scores(made_up(0), 0)).targets for labeler in labelers)
    odds = plain / (1 - plain)
    torch.testing.assert_close(sharp, odds**2 / (1 + odds**2), rtol=1e-4, atol=1e-7)
    one = [PriorMatch(facts(10, 40, 50), task="single-label", warmup_steps=0, temperature=each) for each in (1.0, 0.5)]
    plain, sharp = (labeler(Scores(made_up(1).softmax(1), 0)).targets for labeler in one)
    torch.testing.assert_close(sharp, plain**2 / (plain**2).sum(1, keepdim=True))


def test_a_pool_may_show_the_classes_less_often() -> None:
    """Half as often as 10 and 40 of 100 labels do: the means become 0.05 and 0.2."""
    labeler = PriorMatch(facts(10, 40), momentum=0.0, num_bins=400, warmup_steps=0, prevalence_ratio=0.5)
    weak = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0))
    labeler(Scores(weak, 0))
    assert labeler.eval()(Scores(weak, 1)).targets.mean(dim=0).tolist() == pytest.approx([0.05, 0.2], abs=3e-3)


@pytest.mark.parametrize("bins", ["uniform", "logit"])
def test_targets_have_the_labeled_prevalence_as_mean(bins: str) -> None:
    """The order of the scores stays, the mean of each class becomes its labeled share, an unseen class gets 0."""
    labeler = PriorMatch(facts(10, 40, 0), momentum=0.0, num_bins=400, bins=bins, warmup_steps=0)  # ty: ignore
    weak = torch.rand(4000, 3, generator=torch.Generator().manual_seed(0)) ** torch.tensor([1.0, 4.0, 1.0])
    labeler(Scores(weak, 0))
    pseudo = labeler.eval()(Scores(weak, 1))
    assert pseudo.targets.mean(dim=0).tolist() == pytest.approx([0.1, 0.4, 0.0], abs=3e-3)
    assert bool((pseudo.targets.gather(0, weak.argsort(dim=0)).diff(dim=0) >= -1e-7).all())
    assert bool((pseudo.mask == 1).all())
    assert labeler.soft_targets


def test_the_shift_gives_the_wanted_mean() -> None:
    """Scores .25 and .75, half each and in the middle of their bins, have the odds 1/3 and 3; a shift d multiplies them
    by o = e^d. For a mean of .2: o/(3 + o) + 3o/(1 + 3o) = .4, so 4.8 o^2 + 6 o - 1.2 = 0, o = (sqrt(59.04) - 6) / 9.6.
    """
    histogram = ScoreHistogram(1, num_bins=10, momentum=0.0)
    histogram.update(torch.tensor([[0.25], [0.75]]))
    expected = (59.04**0.5 - 6) / 9.6
    assert float(histogram.logit_shift(torch.tensor([0.2])).exp()) == pytest.approx(expected, rel=1e-3)


def test_hard_targets_are_divided_at_the_prevalence() -> None:
    """A uniform histogram and 30 of 100 positives: scores above 0.7 are positive, all others negative."""
    labeler = PriorMatch(facts(30), targets="hard", momentum=1.0, bins="uniform", bias_correction=False)
    pseudo = labeler(Scores(torch.tensor([[0.69], [0.71], [0.1], [0.99]]), 5))
    assert pseudo.mask.flatten().tolist() == [1, 1, 1, 1]
    assert pseudo.targets.flatten().tolist() == [0, 1, 0, 1]
    assert not labeler.soft_targets


def test_targets_of_one_label_an_image_sum_to_one() -> None:
    labeler = PriorMatch(facts(10, 40, 50), task="single-label", warmup_steps=0)
    weak = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    labeler(Scores(weak, 0))
    torch.testing.assert_close(labeler(Scores(weak, 1)).targets.sum(dim=1), torch.ones(60))


def test_labeling_every_image_leaves_out_rows_of_an_unseen_class() -> None:
    weak = torch.tensor([[0.05, 0.05, 0.9], [0.8, 0.1, 0.1]])
    for targets, rows in (("hard", [0, 1]), ("soft", [1, 1])):  # a soft row has nothing for the unseen class
        labeler = PriorMatch(facts(50, 50, 0), task="single-label", targets=targets, warmup_steps=0)  # ty: ignore
        found = labeler(Scores(weak, 5))
        assert found.pair_weights.tolist() == [[row] * 3 for row in rows]
        assert ((found.targets * found.pair_weights)[:, 2] == 0).all()


def test_a_class_without_labeled_positives_may_be_left_out_and_the_warm_up_counts_from_one() -> None:
    labeler = PriorMatch(facts(30, 0), weight=2.0, unseen_classes="off")
    for step, weight in ((298, 0), (299, 2)):
        assert labeler(Scores(torch.full((4, 2), 0.3), step)).weights.tolist() == [weight, 0]


def test_as_a_method_it_learns_from_the_average_with_cross_entropy() -> None:
    method = build_method("priormatch", facts(10))
    assert method.scores_from == "teacher"
    assert method.pair_loss is method.unlabeled_loss is LOSSES["bce"]
    assert {name: options_of("priormatch")[name].default for name in ("loss", "scores")} == {
        "loss": "bce",
        "scores": "teacher",
    }


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"targets": "half"}, "targets must be 'soft' or 'hard', not 'half'"),
        ({"unseen_classes": "all"}, "unseen_classes must be"),
        ({"bins": "even"}, "bins must be"),
        ({"num_bins": 1}, "num_bins must lie between"),
        ({"momentum": 1.1}, "momentum must lie between"),
        ({"weight": -1.0}, "weight must be finite"),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, not 0.0"),
        ({"prevalence_ratio": 1.5}, "prevalence_ratio must lie between 0 and 1, not 1.5"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        PriorMatch(facts(10), **wrong)
