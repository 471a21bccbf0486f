"""How often a pool shows the classes, from the scores of a classifier."""

import pytest
import torch
from torch import Tensor

from percentmatch.scoring.prevalence import prevalence_ratio


def scored(positives: int, images: int, classes: int = 1) -> tuple[Tensor, Tensor]:
    """Scores of 0.8 for the first so many images of each class and 0.2 for the others, and the labels: (n, c) each."""
    targets = (torch.arange(images)[:, None] < positives).float().expand(images, classes)
    return 0.2 + 0.6 * targets, targets


@pytest.mark.parametrize(("in_pool", "expected"), [(0, 0.0), (500, 0.25), (1000, 0.5), (2000, 1.0), (4000, 1.0)])
def test_the_mean_score_tells_the_prevalence(in_pool: int, expected: float) -> None:
    """2,000 of 5,000 labels are positive. A pool of 5,000 with 1,000 has the mean 0.2 * 0.8 + 0.8 * 0.2 = 0.32, which
    is 0.12 above the 0.2 of negatives; the labels' own mean is 0.24 above it. The ratio is their half, with the spread
    of the resamples added, about 0.015; and never more than 1.
    """
    held_out, targets = scored(2000, 5000)
    found = prevalence_ratio(held_out, targets, torch.ones_like(targets), scored(in_pool, 5000)[0])
    assert found == pytest.approx(expected, abs=0.03)
    assert found >= expected


def test_few_labels_leave_more_room() -> None:
    """A pool with half of the prevalence, as far as 10 or 1,000 labels can tell."""
    room = [prevalence_ratio(*scored(n * 2 // 5, n), torch.ones(n, 1), scored(100, 500)[0]) for n in (10, 1000)]
    assert 0.5 < room[1] < 0.56
    assert room[0] > room[1] + 0.1


def test_what_is_not_known_does_not_count() -> None:
    """The same labels, and as many unknown ones that would say otherwise; a class that no label shows, too."""
    held_out, targets = scored(40, 100)
    pool = scored(10, 100)[0]
    alone = prevalence_ratio(held_out, targets, torch.ones_like(targets), pool)
    held_out, targets = torch.cat([held_out, held_out], 1), torch.cat([targets, 1 - targets], 1)
    known = torch.tensor([1.0, 0.0]).expand(100, 2)
    assert prevalence_ratio(held_out, targets, known, torch.cat([pool, pool + 0.1], 1)) == pytest.approx(alone)
    unseen = torch.cat([targets[:, :1], torch.zeros(100, 1)], 1)
    assert prevalence_ratio(held_out, unseen, torch.ones(100, 2), torch.cat([pool, pool + 0.1], 1)) == pytest.approx(
        alone
    )


def test_scores_that_tell_nothing_change_nothing() -> None:
    targets = scored(40, 100)[1]
    assert prevalence_ratio(torch.full((100, 1), 0.3), targets, torch.ones(100, 1), torch.full((50, 1), 0.3)) == 1


def test_scores_that_are_higher_for_negatives_change_nothing() -> None:
    held_out, targets = scored(40, 100)
    assert prevalence_ratio(1 - held_out, targets, torch.ones(100, 1), scored(0, 50)[0]) == 1


def test_more_labels_than_are_resampled_at_once() -> None:
    held_out, targets = scored(8400, 21_000)
    assert prevalence_ratio(held_out, targets, torch.ones(21_000, 1), scored(100, 500)[0]) == pytest.approx(
        0.5, abs=0.05
    )
