"""The moving histogram: both ends of momentum, interpolation, bias correction, edges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from percentmatch.errors import UserError
from percentmatch.labelers.histogram import ScoreHistogram

UPPER_LOWER = torch.tensor([[0.98, 0.1]])


def test_momentum_one_freezes_the_thresholds_at_the_percentiles() -> None:
    """P stays uniform, so the score below which 98% (10%) of it lies is .98 (.1)."""
    histogram = ScoreHistogram(1, momentum=1.0)
    for _ in range(5):
        histogram.update(torch.rand(36, 1) ** 4)
    torch.testing.assert_close(histogram.quantiles(UPPER_LOWER), UPPER_LOWER, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bins", ["uniform", "logit"])
def test_momentum_zero_is_the_last_batch_alone(bins: str) -> None:
    """Within one bin of torch.quantile of the last batch; the first batch has left no trace."""
    histogram = ScoreHistogram(3, momentum=0.0, bins=bins)  # ty: ignore
    histogram.update(torch.rand(500, 3))
    batch = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0)) ** torch.tensor([1.0, 3.0, 0.3])
    histogram.update(batch)
    found = histogram.quantiles(UPPER_LOWER.expand(3, 2))
    exact = torch.quantile(batch, UPPER_LOWER[0], dim=0).T
    if bins == "logit":
        assert ((found.logit() - exact.logit()).abs() <= 24 / 100 + 1e-3).all()
    else:
        assert ((found - exact).abs() <= 1 / 100 + 1e-6).all()


def test_two_bins_by_hand() -> None:
    """Scores .1 .2 .3 .9 in bins [0, .5) and [.5, 1]: masses .75 and .25.

    Half of the mass lies below .5 / .75 of the first bin, .5 * 2/3 = 1/3; 80% below .5 + .5 * (.05 / .25) = .6.
    """
    histogram = ScoreHistogram(1, num_bins=2, momentum=0.0)
    histogram.update(torch.tensor([[0.1], [0.2], [0.3], [0.9]]))
    torch.testing.assert_close(histogram.distribution(), torch.tensor([[0.75, 0.25]]))
    torch.testing.assert_close(histogram.quantiles(torch.tensor([[0.5, 0.8]])), torch.tensor([[1 / 3, 0.6]]))


def test_the_average_by_hand() -> None:
    """momentum .5, two bins, P(0) = [.5, .5]; a batch all low, then one all high.

    P(1) = .5 [.5, .5] + .5 [1, 0] = [.75, .25]; P(2) = .5 P(1) + .5 [0, 1] = [.375, .625]. With the uniform start taken
    out: after one batch [1, 0]; after two (.25 [1, 0] + .5 [0, 1]) / .75 = [1/3, 2/3].
    """
    for corrected, first, second in ((False, [0.75, 0.25], [0.375, 0.625]), (True, [1.0, 0.0], [1 / 3, 2 / 3])):
        histogram = ScoreHistogram(1, num_bins=2, momentum=0.5, bias_correction=corrected)
        torch.testing.assert_close(histogram.distribution()[0], torch.tensor([0.5, 0.5]))
        histogram.update(torch.full((7, 1), 0.1))
        torch.testing.assert_close(histogram.distribution()[0], torch.tensor(first))
        histogram.update(torch.full((3, 1), 0.9))
        torch.testing.assert_close(histogram.distribution()[0], torch.tensor(second))


def test_logit_bins_select_the_share_asked_for_where_uniform_bins_cannot() -> None:
    """BCE-like scores crowd at 0: their logits are normal around -6, so most lie in the first of 20 uniform bins."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: (torch.randn(n, 4, generator=generator) * 2 - 6).sigmoid()  # noqa: E731
    shares = {}
    for bins, num_bins in (("logit", 256), ("uniform", 20)):
        histogram = ScoreHistogram(4, num_bins=num_bins, momentum=0.98, bins=bins, bias_correction=True)  # ty: ignore
        for _ in range(300):
            histogram.update(draw(36))
        lower = histogram.quantiles(torch.full((4, 1), 0.1))[:, 0]
        shares[bins] = (draw(100_000) < lower).float().mean().item()
    assert abs(shares["logit"] - 0.1) < 0.01
    assert abs(shares["uniform"] - 0.1) > 0.1


@pytest.mark.parametrize("bins", ["uniform", "logit"])
def test_extreme_scores_are_counted(bins: str) -> None:
    histogram = ScoreHistogram(1, momentum=0.0, bins=bins)  # ty: ignore
    histogram.update(torch.tensor([[0.0], [1.0], [1e-30], [1 - 1e-7]]))
    found = histogram.distribution()[0]
    assert found[0] == 0.5
    assert found[-1] == 0.5


@pytest.mark.parametrize("bins", ["uniform", "logit"])
def test_nothing_lies_below_the_zeroth_percentile(bins: str) -> None:
    histogram = ScoreHistogram(1, momentum=0.5, bins=bins)  # ty: ignore
    histogram.update(torch.full((4, 1), 1e-9))
    assert histogram.quantiles(torch.zeros(1, 1)).item() == 0.0


scores = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(scores, min_size=1, max_size=4),
    momentum=st.floats(0, 1),
    bins=st.sampled_from(["uniform", "logit"]),
    corrected=st.booleans(),
    percentiles=st.lists(st.floats(0, 1), min_size=2, max_size=6),
)
def test_a_distribution_stays_one_and_its_quantiles_stay_ordered(
    batches, momentum, bins, corrected, percentiles
) -> None:
    histogram = ScoreHistogram(1, num_bins=16, momentum=momentum, bins=bins, bias_correction=corrected)
    for batch in batches:
        histogram.update(torch.tensor(batch)[:, None])
    distribution = histogram.distribution()
    assert (distribution >= 0).all()
    torch.testing.assert_close(distribution.sum(), torch.tensor(1.0), rtol=0, atol=1e-4)
    found = histogram.quantiles(torch.tensor([sorted(percentiles)]))
    assert ((found >= 0) & (found <= 1)).all()
    assert (found.diff(dim=1) >= 0).all()


def test_the_state_is_one_number_a_class_and_bin() -> None:
    """20 classes x 100 bins x 4 bytes, and the weight of the start."""
    state = ScoreHistogram(20, num_bins=100).state_dict()
    assert sum(value.nbytes for value in state.values()) == 20 * 100 * 4 + 4


@pytest.mark.parametrize(
    ("wrong", "named"), [({"momentum": 1.5}, "momentum"), ({"num_bins": 1}, "num_bins"), ({"bins": "log"}, "bins")]
)
def test_bad_settings_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        ScoreHistogram(1, **wrong)


def test_the_start_is_uniform_in_probability_for_logit_bins_too() -> None:
    found = ScoreHistogram(1, num_bins=256, bins="logit").quantiles(torch.tensor([[0.1, 0.5, 0.98]]))
    assert found[0].tolist() == pytest.approx([0.1, 0.5, 0.98], abs=2e-3)
