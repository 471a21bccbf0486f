"""PercentMatch and FixMatch on tiny score matrices, by hand."""

import pytest
import torch

from percentmatch.errors import UserError
from percentmatch.labelers import FixedThreshold, PercentMatch, select
from percentmatch.methods import METHODS, build_method
from percentmatch.records import Facts, Scores


def facts(*positives: int, labeled: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, 1000, 100)


def test_selection_is_strict_and_crossed_thresholds_select_nothing() -> None:
    """Class 0: upper .8, lower .2; scores at a threshold are not selected. Class 1: upper .3 <= lower .6: nothing."""
    weak = torch.tensor([[0.81, 0.9], [0.8, 0.1], [0.2, 0.5], [0.19, 0.0]])
    found = select(weak, torch.tensor([0.8, 0.3]), torch.tensor([0.2, 0.6]), torch.ones(2), "multi-label")
    assert found.mask.tolist() == [[1, 0], [0, 0], [0, 0], [1, 0]]
    assert found.targets[:, 0].tolist() == [1, 0, 0, 0]


def test_a_single_label_row_is_kept_whole_if_its_best_score_passes_that_class() -> None:
    """Row 0: class 1 at .7 > .6, kept. Row 1: class 0 at .8 is not above .9. Row 2: class 2 at .4 > .3, kept."""
    weak = torch.tensor([[0.2, 0.7, 0.1], [0.8, 0.1, 0.1], [0.3, 0.3, 0.4]])
    upper = torch.tensor([0.9, 0.6, 0.3])
    found = select(weak, upper, torch.zeros(3), torch.ones(3), "single-label")
    assert found.mask.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert found.targets.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_percentiles_follow_the_labeled_counts() -> None:
    """Of 100 labeled, 1 / 30 / 95 / 100 positives: negative ratios .99 .7 .05 0.

    upper = max(.98, ratio) = .99 .98 .98 .98; lower = min(.1, ratio) = .1 .1 .05 0.
    """
    labeler = PercentMatch(facts(1, 30, 95, 100))
    torch.testing.assert_close(labeler.upper_percentile, torch.tensor([0.99, 0.98, 0.98, 0.98]))
    torch.testing.assert_close(labeler.lower_percentile, torch.tensor([0.1, 0.1, 0.05, 0.0]))


def test_unknown_labels_do_not_count_as_negatives() -> None:
    """Class 0: labels 1 0 0 and one unknown: one positive of three known."""
    targets, known = torch.tensor([[1], [0], [0], [1]]), torch.tensor([[1], [1], [1], [0]])
    assert Facts.from_targets(targets, known).negative_ratio.tolist() == pytest.approx([2 / 3])


def test_thresholds_come_from_the_state_before_the_batch() -> None:
    """momentum 0: the first batch meets the uniform start (.98, .1), the second the quantiles of the first."""
    labeler = PercentMatch(facts(10), momentum=0.0, warmup_steps=0)
    first = labeler(Scores(torch.full((50, 1), 0.305), 0))
    assert first.upper.item() == pytest.approx(0.98)
    assert first.lower.item() == pytest.approx(0.1)
    second = labeler(Scores(torch.full((50, 1), 0.9), 1))
    assert 0.30 <= second.lower.item() <= second.upper.item() <= 0.31
    assert second.targets.all()
    assert second.mask.all()


def test_the_gate_by_hand() -> None:
    """The frozen uniform histogram gives gap = upper - lower percentile.

    .88 is above .55: weight 2. With percentiles .62 and .1 the gap is .52: 2 * (.52 - .5) / .05 = .8. With .55: .45,
    below .5: 0. Before the warm-up's end, all 0: steps count from t = 1, so step 298 is t = 299 < 300.
    """
    for upper, weight in ((0.98, 2.0), (0.62, 0.8), (0.55, 0.0)):
        labeler = PercentMatch(facts(90), momentum=1.0, upper_percentile=upper, weight=2.0)
        assert labeler(Scores(torch.rand(4, 1), 299)).weights.item() == pytest.approx(weight, abs=1e-4)
        assert labeler(Scores(torch.rand(4, 1), torch.tensor(298))).weights.item() == 0


@pytest.mark.parametrize("unseen_classes", ["negatives", "off"])
def test_a_class_without_labeled_positives_gets_no_positive(unseen_classes: str) -> None:
    labeler = PercentMatch(facts(0, 10), momentum=1.0, warmup_steps=0, unseen_classes=unseen_classes)  # ty: ignore
    found = labeler(Scores(torch.tensor([[0.999, 0.999], [0.01, 0.01]]), 0))
    assert found.upper[0] == torch.inf
    assert found.targets.tolist() == [[0, 1], [0, 0]]
    assert found.mask.tolist() == [[0, 1], [1, 1]]
    assert found.weights.tolist() == ([1, 1] if unseen_classes == "negatives" else [0, 1])
    fixed = FixedThreshold(facts(0, 10), variant="symmetric")(Scores(torch.tensor([[0.999, 0.999]]), 0))
    assert fixed.targets.tolist() == [[0, 1]]


def test_a_class_without_labeled_positives_is_gated_like_the_others() -> None:
    """All scores alike, at the warm-up's end: the uniform start must not hold the gate of the unseen class open."""
    labeler = PercentMatch(facts(0, 10))
    for step in range(300):
        found = labeler(Scores(torch.full((36, 2), 0.18), step))
    assert found.gap[0] == pytest.approx(found.gap[1].item(), abs=1e-6)
    assert found.weights.tolist() == [0, 0]


def test_a_batch_in_parts_is_learnt_as_one() -> None:
    """Both parts meet the thresholds before the batch, and the state afterwards is that of the whole batch."""
    weak = torch.rand(12, 2, generator=torch.Generator().manual_seed(0))
    whole, parts = PercentMatch(facts(10, 20)), PercentMatch(facts(10, 20))
    for step in range(3):
        one = whole(Scores(weak, step))
        first, second = (
            parts(Scores(half, step, last=last)) for half, last in zip(weak.chunk(2), (False, True), strict=True)
        )
        assert torch.equal(first.upper, one.upper)
        assert torch.equal(second.upper, one.upper)
    for key, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[key])


def test_a_class_always_present_gets_no_negative() -> None:
    labeler = PercentMatch(facts(100), momentum=1.0, warmup_steps=0)
    assert labeler(Scores(torch.tensor([[0.0], [1e-9], [0.5]]), 0)).mask.sum() == 0


def test_constant_scores_and_a_batch_of_one() -> None:
    """All scores alike: both quantiles fall into one bin, the gap is below one bin and the gate stays shut."""
    labeler = PercentMatch(facts(10), momentum=0.0, warmup_steps=0)
    for step in range(3):
        found = labeler(Scores(torch.full((1, 1), 0.4), step))
    assert found.weights.item() == 0
    assert found.mask.isfinite().all()


def test_fixmatch_variants() -> None:
    """paper: positives above .95 only. symmetric: also negatives below .05."""
    weak = torch.tensor([[0.96], [0.5], [0.04]])
    paper = FixedThreshold(facts(10))(Scores(weak, 0))
    symmetric = FixedThreshold(facts(10), variant="symmetric")(Scores(weak, 0))
    assert paper.mask.flatten().tolist() == [1, 0, 0]
    assert symmetric.mask.flatten().tolist() == [1, 0, 1]
    assert symmetric.targets.flatten().tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"upper_percentile": 0.1, "lower_percentile": 0.5}, "lower_percentile=0.5 and upper_percentile=0.1"),
        ({"momentum": 1.5}, "momentum must lie between 0 and 1, not 1.5"),
        ({"gap_start": 0.9}, "gap_start"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": -1.0}, "weight"),
        ({"unseen_classes": "none"}, "unseen_classes"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        PercentMatch(facts(10), **wrong)


def test_the_papers_fixmatch_says_nothing_of_what_is_absent() -> None:
    found = FixedThreshold(facts(10))(Scores(torch.tensor([[1e-6], [0.0], [0.97]]), 0))
    assert found.mask.flatten().tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "name", ["percentmatch", "priormatch", "freematch", "softmatch", "adamatch", "dash", "flexmatch"]
)
def test_an_empty_batch_does_no_harm(name: str) -> None:
    more = {"decay_steps": 5} if name == "dash" else {}
    labeler = METHODS[name].labeler(facts(10, 20, 30), **more)
    draw = torch.Generator().manual_seed(0)
    some = {"labeled": torch.rand(2, 3, generator=draw), "targets": torch.eye(3)[:2], "known": torch.ones(2, 3)}
    for step, images in enumerate((8, 0, 8)):
        weak = torch.rand(images, 3, generator=draw)
        found = labeler(Scores(weak, step, index=torch.arange(images), **some))
        assert found.targets.shape == (images, 3)
    assert all(state.isfinite().all() for state in labeler.state_dict().values())
    assert found.pair_weights.isfinite().all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("priormatch", {}),
        ("percentmatch", {"selection": "soft"}),
        *((name, {}) for name in ("uda", "softmatch", "freematch", "adamatch")),
    ],
)
def test_nothing_is_learnt_through_pseudo_labels(name: str, options: dict) -> None:
    weak = torch.rand(6, 3, requires_grad=True)
    labeler = METHODS[name].labeler(facts(10, 20, 30), **options)
    found = labeler(Scores(weak, 1000, labeled=torch.rand(2, 3), targets=torch.eye(3)[:2], known=torch.ones(2, 3)))
    assert not found.targets.requires_grad
    assert not found.pair_weights.requires_grad


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.labeler and name != "dash"])
def test_a_task_that_does_not_exist_is_refused(name: str) -> None:
    for make in (
        lambda: METHODS[name].labeler(facts(10), task="single_label"),
        lambda: build_method(name, facts(10), "x"),
    ):
        with pytest.raises(UserError, match="task must be one of multi-label, single-label, not"):
            make()


def test_facts_are_counts_of_labels() -> None:
    assert Facts.from_targets(torch.ones(70_000, 1, dtype=torch.float16)).positive_counts.item() == 70_000
    unknown = torch.tensor([[1.0, -1.0], [0.0, 1.0]])
    assert Facts.from_targets(unknown, known=(unknown >= 0).float()).positive_counts.tolist() == [1, 1]
    for targets in (unknown, torch.tensor([[torch.nan]])):
        with pytest.raises(UserError, match="targets must be 0 or 1 where they are known"):
            Facts.from_targets(targets)
    with pytest.raises(UserError, match=r"must be tables \(images, classes\), not of shapes \(3,\)"):
        Facts.from_targets(torch.ones(3))
