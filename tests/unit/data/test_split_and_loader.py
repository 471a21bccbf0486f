"""Which images a step sees: splits, samplers and batches."""

import itertools
import json
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from percentmatch.augment import shrink
from percentmatch.data import Data, Images, Split, make_split
from percentmatch.data.labels import Flags, Labels
from percentmatch.data.split import PARTS, _one_of_each, split_data
from percentmatch.errors import UserError
from percentmatch.records import Batch
from percentmatch.settings.config import Config
from percentmatch.settings.views import View
from percentmatch.training.loader import Loader, Pixels, rows_at

IDS = [f"i{n}" for n in range(100)]


def test_a_split_is_disjoint_complete_and_repeatable() -> None:
    split = make_split(IDS, ["t"], labeled=0.1, validation=20, seed=3)
    assert [len(part) for part in (split.labeled, split.unlabeled, split.validation, split.test)] == [10, 70, 20, 1]
    assert sorted(split.labeled + split.unlabeled + split.validation) == sorted(IDS)
    assert make_split(IDS, ["t"], labeled=0.1, validation=20, seed=3) == split
    assert make_split(IDS, ["t"], labeled=0.1, validation=20, seed=4).digest != split.digest
    values = json.loads(split.to_json())
    assert Split.from_values(values, "split.json") == split
    for damage in ({"test": ["other"]}, {"labeled": None}, {"unlabeled": [1]}):
        with pytest.raises(UserError, match=r"split\.json"):
            Split.from_values(values | damage, "split.json")


def test_images_without_labels_are_never_drawn_as_labeled() -> None:
    bare = IDS[:60]
    split = make_split(IDS, [], labeled=0.5, validation=5, without_labels=bare)
    assert (len(split.labeled), len(split.validation), len(split.unlabeled)) == (20, 5, 75)
    assert set(bare) <= set(split.unlabeled)
    everything = make_split(IDS, [], labeled=0, validation=5, without_labels=bare)
    assert (len(everything.labeled), sorted(everything.unlabeled)) == (35, sorted(bare))


@pytest.mark.parametrize(("labeled", "validation"), [(101, 0), (90, 20), (0.001, 0)])
def test_an_impossible_split_is_refused(labeled: float, validation: float) -> None:
    with pytest.raises(UserError, match="100 images"):
        make_split(IDS, [], labeled=labeled, validation=validation)


@pytest.mark.parametrize("validation", [100, 140])
def test_validation_that_leaves_nothing_is_refused_in_plain_numbers(validation: int) -> None:
    with pytest.raises(UserError, match=rf"^validation={validation} leaves none of the 100 images with labels; ask"):
        make_split(IDS, [], labeled=0, validation=validation)
    with pytest.raises(UserError, match="every image with labels is set apart for validation"):
        make_split(IDS, [], labeled=0, fixed_validation=IDS[:40], without_labels=IDS[40:])


@pytest.mark.parametrize(("batch", "total"), [(7, 10), (10, 10), (25, 10)])
def test_every_pass_sees_every_row_once(batch: int, total: int) -> None:
    rows = torch.cat([rows_at(0, 0, step * batch, batch, total) for step in range(20)])
    passes = rows[: len(rows) // total * total].view(-1, total)
    assert all(sorted(one.tolist()) == list(range(total)) for one in passes)
    assert passes[0].tolist() != passes[1].tolist()
    assert torch.equal(rows_at(0, 0, 3 * batch, batch, total), rows[3 * batch : 4 * batch])
    assert not torch.equal(rows_at(0, 1, 0, 2 * total, total), rows_at(0, 0, 0, 2 * total, total))


def make_loader(views: frozenset[str] = frozenset({"weak", "strong"}), **changed) -> Loader:
    still = View(ops=0, flip=False, cutout_ratio=0.0)
    config = replace(
        Config(image_size=4, labeled_batch=4, unlabeled_ratio=2, labeled_view=still, weak_view=still), **changed
    )
    pixels = torch.arange(12, dtype=torch.uint8)[:, None, None, None].expand(12, 3, 4, 4)
    targets = torch.arange(12, dtype=torch.uint8)[:, None] % 2
    pool = Images(pixels, Labels.of(targets), tuple(f"i{n}" for n in range(12)), ("odd",))
    split = Split(("i0", "i1", "i2"), tuple(f"i{n}" for n in range(3, 12)), (), ())
    pixels = Pixels(config, pool.pixels, None, (0.0,) * 3, (1 / 255,) * 3, torch.device("cpu"))
    return Loader(config, pixels, pool, split, views)


def batch_of(loader: Loader, step: int, micro: int = 0) -> Batch:
    drawn = loader.draw(step)
    return loader.make(drawn, drawn, micro)


def test_large_images_are_made_smaller_once_without_aliasing() -> None:
    """Stripes one pixel wide, 0 and 200: at a quarter of the size every pixel is their mean, not one or the other."""
    stripes = (torch.arange(64) % 2 * 200).to(torch.uint8).expand(2, 3, 64, 64)
    small = shrink(stripes, 16)
    assert small.shape == (2, 3, 16, 16)
    assert ((small.float() - 100).abs() <= 10).all()  # at the rim half a stripe is missing
    assert shrink(stripes, 64) is stripes


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"labels": Labels.none(2, 2)}, "labels are of shape"),
        ({"pixels": torch.zeros(2, 3, 4, 4)}, "pixels"),
        ({"ids": ("a", "a")}, "differ"),
    ],
)
def test_images_that_do_not_fit_together_are_refused(wrong: dict, named: str) -> None:
    ones = torch.ones(2, 1, dtype=torch.uint8)
    right = {"pixels": torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "labels": Labels.of(ones), "ids": ("a", "b")}
    good = Images(**right, class_names=("c",))
    with pytest.raises(UserError, match=named):
        Images(**(right | wrong), class_names=("c",))
    with pytest.raises(UserError, match="both in the pool and in the test"):
        Data(good, good)


def test_images_targets_and_truth_belong_together() -> None:
    """Image n is grey level n, its label n mod 2; with std 1/255 the still view shows the level itself."""
    loader = make_loader()
    for step in range(5):
        batch, drawn = batch_of(loader, step), loader.draw(step)
        level = batch.images[:, 0, 0, 0].round().long()
        assert set(level.tolist()) <= {0, 1, 2}
        assert torch.equal(batch.targets[:, 0].long(), level % 2)
        unlabeled = batch.weak[:, 0, 0, 0].round().long()
        assert set(unlabeled.tolist()) <= set(range(3, 12))
        assert torch.equal(drawn["0.truth"][:, 0].long(), unlabeled % 2)
        assert torch.equal(batch.index, unlabeled - 3)
        assert (len(batch.images), len(batch.weak), len(batch.strong)) == (4, 8, 8)


def test_parts_of_a_batch_make_the_whole() -> None:
    whole, halves = batch_of(make_loader(), 3), [batch_of(make_loader(accumulate=2), 3, micro) for micro in (0, 1)]
    for view in ("images", "weak", "strong", "index", "targets"):
        assert torch.equal(getattr(whole, view), torch.cat([getattr(half, view) for half in halves])), view


def test_an_image_drawn_twice_in_a_step_gets_two_views() -> None:
    batch = batch_of(make_loader(labeled_batch=12, unlabeled_ratio=1, labeled_view=View(ops=3)), 0)
    assert max(Counter(batch.targets[:, 0].tolist()).values()) > 1
    assert len({tuple(image.flatten().tolist()) for image in batch.images}) > 3


def test_every_class_is_labeled_then_validated_where_possible() -> None:
    """Class 0 is on one of 100 images, class 1 on two, class 2 on fifty: three labels show all, validation the rest."""
    positives = torch.zeros(100, 3, dtype=torch.uint8)
    positives[41, 0] = positives[7, 1] = positives[93, 1] = 1
    positives[::2, 2] = 1
    for seed, labeled in itertools.product(range(5), (3, 0)):  # 0: every other label is learnt from
        split = make_split(IDS, [], labeled=labeled, validation=2, seed=seed, keep_classes=positives)
        shown = {part: positives[[IDS.index(name) for name in getattr(split, part)]] for part in PARTS[:3]}
        assert [len(getattr(split, part)) for part in PARTS[:3]] == ([3, 95, 2] if labeled else [98, 0, 2])
        assert shown["labeled"].any(0).tolist() == [True, True, True]
        assert shown["validation"].any(0).tolist() == [False, True, True]
    one = make_split(IDS, [], labeled=1, seed=0, keep_classes=positives)
    assert one.labeled == ("i41",)  # the rarest class comes first
    assert len(make_split(IDS, [], labeled=0, seed=0, keep_classes=positives).labeled) == 100
    assert (
        make_split(IDS, [], labeled=3, validation=2, seed=0).labeled
        != make_split(IDS, [], labeled=3, validation=2, seed=0, keep_classes=positives).labeled
    )


def test_a_common_class_is_not_shown_by_an_image_of_a_rarer_one_if_it_need_not_be() -> None:
    """Rows 0 and 1 show the rarer class, rows 1 to 3 the other: 0 for the first, then 2; without 2 and 3 it is 1."""
    positives = Flags.of(torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]], dtype=torch.uint8))
    assert _one_of_each([0, 1, 2, 3], 9, positives) == [0, 2]
    assert _one_of_each([0, 1, 2, 3], 1, positives) == [0]
    assert _one_of_each([0, 1], 9, positives) == [1]
    assert _one_of_each([3, 1, 0], 9, positives) == [1]


def test_a_fixed_validation_part_replaces_the_drawn_one() -> None:
    """Ten fixed ones: shares are of the other ninety, and `validation` asks in vain."""
    split = make_split(IDS, ["t"], labeled=0.1, validation=0.5, fixed_validation=IDS[:10])
    assert sorted(split.validation) == sorted(IDS[:10])
    assert (len(split.labeled), len(split.unlabeled)) == (9, 81)


FIELD = ("e", "c", "f", "a", "d", "b")  # as they come; f shows no class
SHOWS = torch.tensor([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0], [1, 0]], dtype=torch.uint8)


def test_the_fields_split_is_a_prefix_of_numpys_permutation_of_the_sorted_ids() -> None:
    """RandomState(1).permutation(5) is 2 1 4 0 3, and a b c d e show a class: c, b, e, a, d. Of 5, 0.59 is 2.95: 2."""
    for labeled, ids in ((0.2, "c"), (0.59, "bc"), (3, "bce"), (0, "abcde")):
        split = make_split(FIELD, ("t",), labeled=labeled, seed=1, as_field=SHOWS)
        assert "".join(split.labeled) == ids
        assert sorted(split.labeled + split.unlabeled) == sorted(FIELD)
    fixed = make_split(FIELD, (), labeled=2, seed=1, as_field=SHOWS, fixed_validation=("a",), validation=0.1)
    assert (fixed.validation, fixed.labeled) == (("a",), ("d", "e"))  # permutation(4): 3 2 0 1, of b c d e
    with pytest.raises(UserError, match="sets no images apart"):
        make_split(FIELD, (), labeled=2, validation=1, as_field=SHOWS)


def test_the_fields_split_by_name() -> None:
    labels = Labels.of(SHOWS)
    images = Images(torch.zeros(6, 3, 4, 4, dtype=torch.uint8), labels, FIELD, ("x", "y"))
    settings = Config(data="custom", labeled=0.59, validation=0, split_kind="field", split_seed=1)
    assert split_data(settings, Data(images, images.part(()))).labeled == ("b", "c")


def test_the_published_lists_of_the_fields_split() -> None:
    """5, 10, 15 and 20% of 5,717, rounded down; with one seed each list holds the shorter ones."""
    folder = Path(__file__).parents[3] / "results/voc2012/splits"
    lists = {file.stem: file.read_text().splitlines() for file in folder.iterdir()}
    assert lists.keys() == {f"{n}-seed{s}" for n in (285, 571) for s in (1, 2, 3)} | {"857-seed1", "1143-seed1"}
    for name, (about, *ids) in lists.items():
        number, _, seed = name.partition("-seed")
        assert about.startswith(f"# {number} labeled images of VOC2012 train, seed {seed}, digest ")
        assert len(set(ids)) == int(number)
        assert ids == sorted(ids)
    for fewer, more in itertools.pairwise(("285", "571", "857", "1143")):
        assert {*lists[f"{fewer}-seed1"][1:]} < {*lists[f"{more}-seed1"][1:]}
    assert len({*lists["285-seed1"]} & {*lists["285-seed2"]}) < 50


def test_a_second_view_uniforms_and_mixed_labeled_images() -> None:
    busy = View(ops=2, cutout_ratio=0.0)
    views = frozenset({"weak", "weak2", "uniforms"})
    loader = make_loader(views, weak_view=busy, mixup=0.5, image_size=8)
    batch, again = batch_of(loader, 3), batch_of(loader, 3)
    assert batch.strong is None
    assert batch.weak2.shape == batch.weak.shape
    assert not torch.equal(batch.weak2, batch.weak)
    assert batch.uniforms.shape == (4 + 2 * 8, 2)
    assert (batch.uniforms >= 0).all()
    assert batch.uniforms.max() < 1
    assert len(batch.uniforms.unique()) == batch.uniforms.numel()
    for name in ("weak2", "uniforms", "images", "own_share", "partner_targets"):
        assert torch.equal(getattr(batch, name), getattr(again, name)), name
    assert not torch.equal(batch.own_share, batch_of(loader, 4).own_share)
    assert torch.equal(batch.partner_targets, batch.targets.roll(-1, 0))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_is_drawn_keeps_its_form_and_images_on_the_host_give_the_same_batch(accumulate: int) -> None:
    views = frozenset({"weak", "strong", "weak2", "uniforms"})
    loader = make_loader(views, mixup=0.5, accumulate=accumulate)
    away = make_loader(views, mixup=0.5, accumulate=accumulate, images_on="host")
    form = lambda drawn: {name: (value.shape, value.dtype) for name, value in drawn.items()}  # noqa: E731
    assert form(loader.draw(0)) == form(loader.draw(5))
    assert form(away.draw(0)) == form(away.draw(5))
    assert not away.pixels.resident
    for micro in range(accumulate):
        first, second = batch_of(loader, 3, micro), batch_of(away, 3, micro)
        for field in fields(first):
            mine, other = getattr(first, field.name), getattr(second, field.name)
            assert torch.equal(mine, other) if isinstance(mine, torch.Tensor) else mine == other, field.name


def test_only_the_last_part_of_a_step_is_the_last() -> None:
    loader = make_loader(accumulate=2)
    assert [batch_of(loader, 0, micro).last for micro in (0, 1)] == [False, True]
