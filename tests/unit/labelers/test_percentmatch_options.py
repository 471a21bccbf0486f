"""PercentMatch's options beyond the paper, by hand: schedules, gates, soft selection."""

import copy
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
from sklearn.metrics import roc_auc_score

from forked import exit_code, start_copy
from percentmatch.errors import UserError
from percentmatch.labelers import PercentMatch
from percentmatch.labelers.histogram import AUC_BINS, LabeledAuc, ScoreHistogram, bins_of
from percentmatch.records import Facts, Scores


def facts(*positives: int, labeled: int = 100, total_steps: int = 100) -> Facts:
    counts = torch.tensor(positives, dtype=torch.float64)
    return Facts(counts, torch.full_like(counts, labeled), labeled, 1000, total_steps)


def frozen(*positives: int, **options) -> PercentMatch:
    """momentum 1: the histogram stays uniform, so a threshold is its percentile and a score is its own rank."""
    return PercentMatch(facts(*positives), momentum=1.0, warmup_steps=0, gap_start=-1.0, gap_full=-1.0, **options)


def percentiles(labeler: PercentMatch, step: torch.Tensor | int) -> tuple[list[float], list[float]]:
    found = labeler(Scores(torch.rand(4, len(labeler.unseen)), step))
    return found.upper.tolist(), found.lower.tolist()


# ranks


@pytest.mark.parametrize("bins", ["uniform", "logit"])
@pytest.mark.parametrize("corrected", [False, True])
def test_ranks_invert_quantiles(bins: str, corrected: bool) -> None:
    histogram = ScoreHistogram(3, num_bins=32, momentum=0.5, bins=bins, bias_correction=corrected)  # ty: ignore
    histogram.update(torch.rand(4000, 3, generator=torch.Generator().manual_seed(0)) ** torch.tensor([1.0, 2.0, 0.5]))
    asked = torch.tensor([0.02, 0.1, 0.5, 0.9, 0.98]).expand(3, 5)
    torch.testing.assert_close(histogram.ranks(histogram.quantiles(asked).T).T, asked, rtol=0, atol=1e-4)


@pytest.mark.parametrize("bins", ["uniform", "logit"])
def test_ranks_are_the_empirical_shares_but_for_one_bin(bins: str) -> None:
    draw = torch.rand(500, 2, generator=torch.Generator().manual_seed(1)) ** torch.tensor([1.0, 3.0])
    histogram = ScoreHistogram(2, num_bins=200, momentum=0.0, bins=bins)  # ty: ignore
    histogram.update(draw)
    asked = torch.rand(60, 2, generator=torch.Generator().manual_seed(2))
    exact = (draw[None] < asked[:, None]).float().mean(dim=1)  # (60, 2)
    heaviest = histogram.distribution().amax(dim=1)  # (2,)
    assert ((histogram.ranks(asked) - exact).abs() <= heaviest + 1e-5).all()


def test_ranks_in_two_bins_by_hand() -> None:
    """Scores .1 .2 .3 .9 in bins [0, .5) and [.5, 1]: .25 is half of the first, .75 / 2; .75 is .75 + .25 / 2."""
    histogram = ScoreHistogram(1, num_bins=2, momentum=0.0)
    histogram.update(torch.tensor([[0.1], [0.2], [0.3], [0.9]]))
    found = histogram.ranks(torch.tensor([[0.0], [0.25], [0.5], [0.75], [1.0]]).bfloat16())
    torch.testing.assert_close(found[:, 0], torch.tensor([0.0, 0.375, 0.75, 0.875, 1.0]))


# schedules


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_curriculum_relaxes_and_its_reverse_tightens(as_tensor: bool) -> None:
    """Percentiles .9 and .2 over half of 100 steps, a quarter of the usual shares at the strict end.

    Class 0 (40 of 100 positive, ratio .6). Strict: upper 1 - .1 / 4 = .975, lower .2 / 4 = .05. Half way the share is
    (.25 + 1) / 2 = .625: upper 1 - .0625 = .9375, lower .125. At the end .9 and .2. Class 1 (4 of 100, ratio .96): the
    usual upper percentile is clamped to .96, so .99, .975, .96. Class 2 (95 of 100, ratio .05): lower .0125 to .05.
    """
    uppers = {0: [0.975, 0.99, 0.975], 25: [0.9375, 0.975, 0.9375], 50: [0.9, 0.96, 0.9]}
    lowers = {0: [0.05, 0.05, 0.0125], 25: [0.125, 0.125, 0.03125], 50: [0.2, 0.2, 0.05]}
    options = {"upper_percentile": 0.9, "lower_percentile": 0.2, "schedule_ratio": 0.5, "strict_ratio": 0.25}
    forward, back = (frozen(40, 4, 95, schedule=s, **options) for s in ("curriculum", "anti-curriculum"))
    for step, mirrored in ((0, 50), (25, 25), (50, 0)):
        at = torch.tensor(step) if as_tensor else step
        for labeler, place in ((forward, step), (back, mirrored)):
            upper, lower = percentiles(labeler, at)
            assert upper == pytest.approx(uppers[place], abs=1e-5)
            assert lower == pytest.approx(lowers[place], abs=1e-5)
    assert percentiles(forward, 99) == percentiles(forward, 50)  # it stays where it ended


def test_prevalence_ends_with_every_pair_labeled_at_the_labeled_prevalence() -> None:
    """Uniform scores. Class 0, 30 of 100 positive: .98 and .1 go to .7 and .7; half way .84 and .4.

    At the end 3 of 10 scores spread evenly are positives, 7 negatives. Class 1 always present: all positive. Class 2
    without labeled positives: all negative. Before the end nothing is labeled twice and something is left out.
    """
    labeler = frozen(30, 100, 0, schedule="prevalence", schedule_ratio=0.5)
    upper, lower = percentiles(labeler, 25)
    assert upper[0] == pytest.approx(0.84, abs=1e-5)
    assert lower[0] == pytest.approx(0.4, abs=1e-5)
    weak = ((torch.arange(10) + 0.5) / 10)[:, None].expand(10, 3)
    middle, end = labeler(Scores(weak, 25)), labeler(Scores(weak, torch.tensor(50)))
    assert middle.mask[:, 0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert end.mask.all()
    assert end.targets.sum(dim=0).tolist() == [3, 10, 0]
    assert end.targets[:, 0].tolist() == [0] * 7 + [1] * 3


def test_the_gate_measures_the_model_not_the_schedule() -> None:
    """When thresholds meet their gap is 0, yet the gate still sees .98 - .1 = .88 and stays open."""
    labeler = PercentMatch(facts(30), momentum=1.0, warmup_steps=0, schedule="prevalence")
    found = labeler(Scores(torch.rand(4, 1), 90))
    assert found.gap.item() == pytest.approx(0.88, abs=1e-4)
    assert found.weights.item() == 1


@pytest.mark.parametrize("schedule", ["curriculum", "anti-curriculum", "prevalence"])
def test_schedules_with_one_label_an_image_constant_scores_and_one_image(schedule: str) -> None:
    options = {"task": "single-label", "warmup_steps": 0, "momentum": 0.0, "schedule": schedule}
    labeler = PercentMatch(facts(30, 0, 100), **options)  # ty: ignore
    for step in range(0, 100, 5):
        found = labeler(Scores(torch.tensor([[0.2, 0.5, 0.3]]).bfloat16(), step))
        assert found.mask.sum() == 0  # the best class has no labeled positive
        assert found.pair_weights.isfinite().all()
    assert found.weights.tolist() == [0, 0, 0]  # constant scores: no gap


# gates


def test_the_logit_gap_by_hand() -> None:
    """The frozen uniform histogram has its thresholds at .9 and .1, logits +-log 9: gap 2 log 9 = 4.394.

    Between 4 and 5 that is a weight of .394; in probability the gap .8 is open all the same. A class always present
    has lower threshold 0, whose logit counts as -12: gap 2.197 + 12, between 14 and 15 a weight of .197.
    """
    options = {"momentum": 1.0, "warmup_steps": 0, "upper_percentile": 0.9, "gate": "logit-gap"}
    labeler = PercentMatch(facts(30, 100), logit_gap_start=4.0, logit_gap_full=5.0, **options)  # ty: ignore
    found = labeler(Scores(torch.rand(4, 2), 0))
    assert found.weights.tolist() == pytest.approx([0.3944, 1.0], abs=1e-3)
    assert found.gap.tolist() == pytest.approx([0.8, 0.9], abs=1e-4)
    labeler = PercentMatch(facts(30, 100), logit_gap_start=14.0, logit_gap_full=15.0, **options)  # ty: ignore
    assert labeler(Scores(torch.rand(4, 2), 0)).weights.tolist() == pytest.approx([0.0, 0.1972], abs=1e-3)


def test_gate_none_waits_for_the_warm_up_only() -> None:
    labeler = PercentMatch(facts(30, 0), gate="none", weight=2.0, unseen_classes="off")
    for step, weight in ((298, 0), (299, 2)):
        assert labeler(Scores(torch.full((4, 2), 0.3), step)).weights.tolist() == [weight, 0]


def test_the_auc_by_hand() -> None:
    """Class 0: positives .9 .6, negatives .1 .6 .7: of 6 pairs .9 wins 3, .6 wins 1 and ties 1: 4.5 / 6 = .75.

    Class 1: the same scores with .9 and .7 unknown: .6 against .1 and .6 (a tie): 1.5 / 2 = .75. Class 2 has no
    positive, class 3 no negative: closed.
    """
    memory = LabeledAuc(4, momentum=0.98)
    labeled = torch.tensor([0.9, 0.6, 0.1, 0.6, 0.7])[:, None].expand(5, 4)
    targets = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]])
    known = torch.ones(5, 4)
    known[0, 1] = known[4, 1] = 0
    memory.update(Scores(torch.rand(2, 4), 0, labeled=labeled.bfloat16(), targets=targets, known=known))
    torch.testing.assert_close(memory.auc(), torch.tensor([0.75, 0.75, 0.0, 0.0]))


def test_the_auc_of_mixed_images_is_nearly_that_of_the_images() -> None:
    """A network that sees the shares of a mixture, with noise. By the images' own labels it would be .8, not .98."""
    generator, beta = torch.Generator().manual_seed(0), numpy.random.default_rng(0)
    own = (torch.rand(8000, 2, generator=generator) < torch.tensor([0.05, 0.4])).float()
    share = torch.from_numpy(beta.beta(0.5, 0.5, size=(8000, 1))).float()
    mixed = share * own + (1 - share) * own.roll(-1, 0)
    noise = 2 * torch.randn(8000, 2, generator=generator)
    found = []
    for targets in (own, mixed):
        memory, labeled = LabeledAuc(2, momentum=0.9), (6 * targets - 3 + noise).sigmoid()
        memory.update(Scores(labeled, 0, labeled=labeled, targets=targets))
        found.append(memory.auc())
    torch.testing.assert_close(found[1], found[0], atol=0.02, rtol=0)


def test_a_mixed_image_counts_as_far_as_it_leans() -> None:
    """Positives .8 (1) and .6 (.6), negatives .3 (.4) and .7 (1): .8 beats both, .6 the .4: 1.4 + .24 of 1.6 x 1.4."""
    memory = LabeledAuc(1, momentum=0.9)
    scores, targets = torch.tensor([[0.8], [0.6], [0.3], [0.7], [0.9]]), torch.tensor([[1], [0.8], [0.3], [0], [0.5]])
    memory.update(Scores(scores, 0, labeled=scores, targets=targets))
    assert memory.auc().item() == pytest.approx(1.64 / 2.24)


def test_the_auc_against_scikit_learn() -> None:
    """After one batch it is that of the binned scores; after several, that of all, each batch weighted by its age."""
    generator = torch.Generator().manual_seed(0)
    memory, batches = LabeledAuc(3, momentum=0.9), []
    for _ in range(4):
        targets = (torch.rand(50, 3, generator=generator) < torch.tensor([0.5, 0.2, 0.1])).float()
        labeled = (torch.randn(50, 3, generator=generator) + targets - 3).sigmoid()
        batches.append((targets, bins_of(labeled, AUC_BINS, "logit")[0]))
        memory.update(Scores(labeled, 0, labeled=labeled, targets=targets))
        ages = torch.cat([torch.full((50,), 0.9**age) for age in reversed(range(len(batches)))])
        truth, binned = (torch.cat(parts) for parts in zip(*batches, strict=True))
        for c, found in enumerate(memory.auc().tolist()):
            assert found == pytest.approx(roc_auc_score(truth[:, c], binned[:, c], sample_weight=ages), abs=1e-5)


def test_the_auc_does_not_depend_on_the_scale_of_the_scores() -> None:
    """Scores crowded below .01, as BCE gives for rare classes, keep their order in logit bins."""
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(400, 1, generator=generator) < 0.3).float()
    logits = torch.randn(400, 1, generator=generator) + 2 * targets
    found = []
    for shift in (0.0, -6.0):
        memory = LabeledAuc(1, momentum=0.9)
        labeled = (logits + shift).sigmoid()
        memory.update(Scores(labeled, 0, labeled=labeled, targets=targets))
        found.append(memory.auc().item())
    assert found[0] == pytest.approx(found[1], abs=0.01)
    assert found[0] == pytest.approx(roc_auc_score(targets[:, 0], logits[:, 0]), abs=0.01)


def auc_scores(step: int, part: slice = slice(None), last: bool = True) -> Scores:
    generator = torch.Generator().manual_seed(step)
    targets = (torch.rand(12, 3, generator=generator) < torch.tensor([0.5, 0.3, 0.0])).float()
    labeled = (torch.randn(12, 3, generator=generator) + 2 * targets).sigmoid()
    weak, known = torch.rand(12, 3, generator=generator), (torch.rand(12, 3, generator=generator) < 0.8).float()
    return Scores(weak[part], step, last, labeled=labeled[part], targets=targets[part], known=known[part])


def auc_labeler() -> PercentMatch:
    return PercentMatch(facts(50, 30, 0), gate="auc", warmup_steps=0, auc_start=0.5, auc_full=1.0, momentum=0.9)


def test_the_auc_gate_reads_the_state_before_the_batch_and_closes_what_it_cannot_judge() -> None:
    labeler = auc_labeler()
    assert labeler(auc_scores(0)).weights.tolist() == [0, 0, 0]  # nothing known yet
    auc = labeler.labeled_auc.auc()
    weights = labeler(auc_scores(1)).weights
    torch.testing.assert_close(weights, ((auc - 0.5) / 0.5).clamp(0, 1))
    assert (weights[:2] > 0).all()
    assert weights[2] == 0
    labeler.eval()
    before = copy.deepcopy(labeler.state_dict())
    labeler(Scores(torch.rand(4, 3), 2))  # eval mode needs no labels
    assert all(torch.equal(value, before[key]) for key, value in labeler.state_dict().items())
    labeler.train()
    with pytest.raises(UserError, match="labeled and targets"):
        labeler(Scores(torch.rand(4, 3), 2))


def test_constant_labeled_scores_and_a_batch_of_one_keep_the_auc_gate_closed() -> None:
    """All tied: the AUC is .5, below auc_start."""
    labeler = PercentMatch(facts(50), gate="auc", warmup_steps=0, auc_start=0.6)
    for step in range(5):
        labeled, targets = torch.full((2, 1), 0.3), torch.tensor([[1], [0]])
        found = labeler(Scores(torch.full((1, 1), 0.3), step, labeled=labeled, targets=targets))
    assert labeler.labeled_auc.auc().item() == pytest.approx(0.5)
    assert found.weights.item() == 0


def test_what_was_seen_long_ago_is_forgotten() -> None:
    """momentum .5: a positive seen once weighs .5, and below 1e-6 after 19 more batches (.5^20 = 9.5e-7)."""
    memory = LabeledAuc(1, momentum=0.5)
    score = torch.tensor([[0.9], [0.1]])
    memory.update(Scores(score, 0, labeled=score, targets=torch.tensor([[1], [0]])))
    for _ in range(18):
        memory.update(Scores(score, 0, labeled=score, targets=torch.zeros(2, 1)))
    assert memory.auc().item() > 0
    memory.update(Scores(score, 0, labeled=score, targets=torch.zeros(2, 1)))
    assert memory.auc().item() == 0


def test_the_auc_of_a_batch_in_parts_and_its_state_round_trip() -> None:
    whole, parts = auc_labeler(), auc_labeler()
    for step in range(4):
        one = whole(auc_scores(step))
        first = parts(auc_scores(step, slice(0, 5), last=False))
        second = parts(auc_scores(step, slice(5, None)))
        assert torch.equal(first.weights, one.weights)
        assert torch.equal(second.weights, one.weights)
    other = auc_labeler()
    other.load_state_dict(copy.deepcopy(parts.state_dict()))
    assert torch.equal(other(auc_scores(5)).weights, whole(auc_scores(5)).weights)


def _rank(rank: int, port: str, file: Path) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    labeler = auc_labeler()
    for step in range(4):
        labeler(auc_scores(step, slice(6 * rank, 6 * rank + 6)))
    torch.save(labeler.state_dict(), file)
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_learn_the_auc_of_one(free_port: str, tmp_path: Path) -> None:
    alone = auc_labeler()
    for step in range(4):
        alone(auc_scores(step))
    files = [tmp_path / f"{rank}.pt" for rank in range(2)]
    ranks = [start_copy(_rank, n, free_port, file, said=file.with_suffix("")) for n, file in enumerate(files)]
    assert [exit_code(process) for process in ranks] == [0, 0], files[0].with_suffix("").read_text()
    for file in files:
        state = torch.load(file, weights_only=True)
        assert state.keys() == alone.state_dict().keys()
        for key, value in alone.state_dict().items():
            assert torch.equal(state[key], value)


def test_teacher_scores_include_the_labeled_images_where_the_gate_reads_them() -> None:
    assert auc_labeler().reads_labeled
    assert not PercentMatch(facts(10)).reads_labeled


def test_the_default_state_is_that_of_the_paper() -> None:
    assert set(PercentMatch(facts(10)).state_dict()) == {"histogram.mass", "histogram.prior_weight"}


# soft selection


def test_soft_weights_by_hand() -> None:
    """Uniform scores, so a score is its rank; percentiles .9 and .1.

    Class 0, 30 of 100 positive, ratio .7: positives fall from 1 at .9 to 0 at .7, so .95 -> 1, .8 -> .5, .7 -> 0;
    negatives from 1 at .1 to 0 at .7, so .4 -> .5, .55 -> .25, .05 -> 1. Class 1, 5 of 100, ratio .95: both percentile
    and ratio are .95, no soft positives: .9 is a negative with (.95 - .9) / .85. Class 2 always present: positives
    from 1 at .9 to 0 at 0, never a negative. Class 3 without labeled positives: negatives from 1 at .1 to 0 at 1.
    """
    labeler = frozen(30, 5, 100, 0, upper_percentile=0.9, selection="soft")
    weak = torch.tensor([0.95, 0.9, 0.8, 0.7, 0.55, 0.4, 0.05])[:, None].expand(7, 4)
    found = labeler(Scores(weak, 0))
    hand = {
        0: [1, 1, 0.5, 0, 0.25, 0.5, 1],
        2: [1, 1, 0.8 / 0.9, 0.7 / 0.9, 0.55 / 0.9, 0.4 / 0.9, 0.05 / 0.9],
        3: [0.05 / 0.9, 0.1 / 0.9, 0.2 / 0.9, 0.3 / 0.9, 0.5, 0.6 / 0.9, 1],
    }
    for c, mask in hand.items():
        torch.testing.assert_close(found.mask[:, c], torch.tensor(mask, dtype=torch.float32), rtol=0, atol=1e-4)
    assert found.mask[1:, 1].tolist() == pytest.approx(
        [0.05 / 0.85, 0.15 / 0.85, 0.25 / 0.85, 0.4 / 0.85, 0.55 / 0.85, 1], abs=1e-4
    )
    assert found.targets[:, [0, 2, 3]].T.tolist() == [[1, 1, 1, 0, 0, 0, 0], [1] * 7, [0] * 7]
    assert found.targets[1:, 1].sum() == 0


def test_soft_keeps_what_hard_selects_and_never_more_positives_than_the_labeled_share() -> None:
    """Skewed scores learnt from 200 batches. Of all images, positives weigh (1 - U) + (U - n) / 2 <= 1 - n."""
    positives = (40, 15, 3, 0)
    hard, soft = (PercentMatch(facts(*positives), gate="none", warmup_steps=0, selection=s) for s in ("hard", "soft"))  # ty: ignore
    generator = torch.Generator().manual_seed(0)
    for step in range(200):
        weak = torch.rand(64, 4, generator=generator) ** 2
        one, other = hard(Scores(weak, step)), soft(Scores(weak, step))
    weak = torch.rand(20_000, 4, generator=generator) ** 2
    one, other = hard.eval()(Scores(weak, 200)), soft.eval()(Scores(weak, 200))
    chosen = one.mask > 0
    torch.testing.assert_close(other.mask[chosen], torch.ones_like(other.mask[chosen]), rtol=0, atol=1e-3)
    assert torch.equal(other.targets[chosen], one.targets[chosen])
    share = (other.mask * other.targets).mean(dim=0)  # (c,)
    ratio = 1 - torch.tensor(positives) / 100
    expected = (1 - hard.upper_percentile) + (hard.upper_percentile - ratio) / 2
    expected[3] = 0
    torch.testing.assert_close(share, expected, rtol=0, atol=0.02)
    assert (share <= 1 - ratio + 0.02).all()


def test_soft_rows_with_one_label_an_image() -> None:
    """A score is its rank; ratios .7 .9 1, percentile .9. Row 0: class 0 at .8 is half way from .7 to .9.

    Row 1: class 1 at .92, past .9: 1. Row 2: class 2 has no labeled positive: 0. Row 3: class 0 at .6, below .7: 0.
    """
    labeler = PercentMatch(
        facts(30, 10, 0), task="single-label", momentum=1.0, gate="none", warmup_steps=0, upper_percentile=0.9,
        selection="soft",
    )  # fmt: skip
    weak = torch.tensor([[0.8, 0.1, 0.1], [0.04, 0.92, 0.04], [0.01, 0.01, 0.98], [0.6, 0.3, 0.1]])
    found = labeler(Scores(weak, 0))
    assert found.targets.argmax(dim=1).tolist() == [0, 1, 2, 0]
    torch.testing.assert_close(found.mask, torch.tensor([[0.5], [1.0], [0.0], [0.0]]).expand(4, 3), rtol=0, atol=1e-4)


def test_soft_at_the_end_of_prevalence_is_hard() -> None:
    labeler = frozen(30, schedule="prevalence", selection="soft")
    found = labeler(Scores(((torch.arange(10) + 0.5) / 10)[:, None], 99))
    assert found.mask.all()
    assert found.targets[:, 0].tolist() == [0] * 7 + [1] * 3


# all


ALL_OPTIONS = [
    {"gate": "auc", "schedule": "curriculum", "selection": "soft"},
    {"gate": "logit-gap", "schedule": "prevalence", "bins": "logit", "bias_correction": True},
    {"gate": "none", "schedule": "anti-curriculum", "selection": "soft"},
]


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_no_option_waits_for_the_gpu(options: dict, task: str) -> None:
    labeler = PercentMatch(facts(50, 30, 0), task=task, warmup_steps=0, **options).cuda()  # ty: ignore
    given = auc_scores(0)
    tensors = {name: getattr(given, name).cuda() for name in ("weak", "labeled", "targets", "known")}
    steps = (3, torch.full((), 4, device="cuda"))
    labeler(Scores(step=0, **tensors))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in steps:
            labeler(Scores(step=step, **tensors))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_combinations_are_finite_and_give_no_positive_to_an_unseen_class(options: dict, task: str) -> None:
    labeler = PercentMatch(facts(50, 30, 0), task=task, warmup_steps=0, **options)  # ty: ignore
    for step in range(4):
        found = labeler(auc_scores(step))
        positive = found.mask * found.targets
        assert found.pair_weights.isfinite().all()
        assert ((found.mask >= 0) & (found.mask <= 1)).all()
        assert positive[:, 2].sum() == 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"schedule": "linear"}, "schedule must be"),
        ({"schedule_ratio": 0.0}, "schedule_ratio"),
        ({"schedule_ratio": 1.5}, "schedule_ratio"),
        ({"strict_ratio": -0.1}, "strict_ratio"),
        ({"selection": "smooth"}, "selection must be"),
        ({"gate": "AUC"}, "gate must be"),
        ({"auc_start": 0.95}, "auc_start"),
        ({"auc_full": 1.1}, "auc_full"),
        ({"logit_gap_start": 3.0}, "logit_gap_start"),
        ({"logit_gap_full": float("inf")}, "logit_gap_full"),
    ],
)
def test_bad_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        PercentMatch(facts(10), **wrong)


def test_a_schedule_needs_the_length_of_the_run() -> None:
    with pytest.raises(UserError, match="total_steps"):
        PercentMatch(facts(10, total_steps=0), schedule="curriculum")
    PercentMatch(facts(10, total_steps=0))


def test_soft_weights_follow_the_schedule() -> None:
    """n = .5, U = .9, at the strict end .95: a score of .9 counts .4 / .45, later in full."""
    labeler = frozen(
        50, selection="soft", upper_percentile=0.9, schedule="curriculum", strict_ratio=0.5, schedule_ratio=0.5
    )
    assert labeler(Scores(torch.tensor([[0.9]]), 0)).mask.item() == pytest.approx(0.4 / 0.45, abs=1e-4)
    assert labeler(Scores(torch.tensor([[0.9]]), 50)).mask.item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("word", ["half", "all"])
def test_unknown_words_are_refused(word: str) -> None:
    with pytest.raises(UserError, match="selection must be 'hard' or 'soft', not"):
        PercentMatch(facts(1), selection=word)  # ty: ignore
