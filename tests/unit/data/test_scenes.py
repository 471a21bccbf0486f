"""The made-up scenes: pure functions of their number, with the promised labels, told by outline only."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from percentmatch.data import scenes
from percentmatch.data.pixels.images import Images
from percentmatch.data.scenes import CLASSES, PREVALENCE, draw_scenes
from percentmatch.errors import UserError


@pytest.fixture(scope="module")
def many() -> Images:
    return draw_scenes(1600, size=32, seed=7)


def test_shapes_and_types(many: Images) -> None:
    assert many.pixels.shape == (1600, 3, 32, 32)
    assert many.pixels.dtype == many.labels.targets.dense().dtype == many.labels.known.dense().dtype == torch.uint8
    assert many.labels.targets.dense().shape == many.labels.known.dense().shape == (1600, 10)
    assert many.labels.known.dense().all()
    assert many.labels.targets.dense().max() == 1
    assert many.class_names == CLASSES
    assert len(set(CLASSES)) == len(PREVALENCE) == 10
    assert len(set(many.ids)) == len(many) == 1600
    assert many.ids[17] == "scene-000017"
    assert many.pixels.float().std() > 40  # not blank


def test_a_scene_depends_on_its_number_alone(many: Images) -> None:
    again = draw_scenes(5, size=32, seed=7, first=1200)
    assert torch.equal(again.pixels, many.pixels[1200:1205])
    assert torch.equal(again.labels.targets.dense(), many.labels.targets.dense()[1200:1205])
    assert again.ids == many.ids[1200:1205]


@pytest.mark.parametrize("change", [{"seed": 8}, {"first": 3}, {"task": "single-label"}, {"size": 33}])
def test_every_argument_changes_the_scenes(change: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"size": 32, "seed": 7}
    first, other = draw_scenes(3, **usual), draw_scenes(3, **(usual | change))
    assert not any(torch.equal(a, b) for a, b in zip(first.pixels, other.pixels, strict=True))


def test_prevalence_and_cardinality(many: Images) -> None:
    """A share of n images has the standard error sqrt(p (1 - p) / n); the mean number of labels that of their sum."""
    share, n = many.labels.targets.dense().double().mean(0), len(many)
    expected = torch.tensor(PREVALENCE, dtype=torch.float64)
    assert sum(PREVALENCE) == pytest.approx(2)
    variance = expected * (1 - expected)
    assert ((share - expected).abs() < 4 * (variance / n).sqrt()).all()
    assert abs(share.sum() - 2) < 4 * (variance.sum() / n).sqrt()
    assert (many.labels.targets.dense().sum(1) == 0).any()  # scenes without any shape exist


def test_hue_carries_no_label(many: Images) -> None:
    """Welch's z of the mean red - green and green - blue with and without the class; 20 of them stay below 4.

    Shapes are lighter than the ground, so brightness tells how much of a scene is covered, but not by what.
    """
    colour = many.pixels.double().mean((2, 3)).diff(dim=1)  # (n, 2)
    for kind in range(len(CLASSES)):
        present = many.labels.targets.dense()[:, kind] == 1
        a, b = colour[present], colour[~present]
        z = (a.mean(0) - b.mean(0)) / (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        assert (z.abs() < 4).all(), (CLASSES[kind], z)


def test_single_label_shows_exactly_one_kind() -> None:
    """400 draws of 10 equal classes: 40 each, standard deviation 6; 4 of them is 24."""
    images = draw_scenes(400, size=16, task="single-label")
    assert (images.labels.targets.dense().sum(1) == 1).all()
    assert ((images.labels.targets.dense().sum(0).int() - 40).abs() < 24).all()


def test_no_scenes() -> None:
    assert draw_scenes(0).pixels.shape == (0, 3, 64, 64)


def test_bad_arguments() -> None:
    with pytest.raises(UserError, match="did you mean 'multi-label'"):
        draw_scenes(1, task="multilabel")  # ty: ignore[invalid-argument-type]
    wrongs: list[dict[str, Any]] = [{"size": 8}, {"seed": -1}, {"first": -1}]
    for wrong in wrongs:
        with pytest.raises(UserError, match="at least 16 pixels"):
            draw_scenes(1, **wrong)


def test_shapes_stay_mostly_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """With six kinds in one scene, later shapes hide at most a third of an earlier one, all of them together.

    Judged on pixels that a shape covers by more than half, as painted.
    """
    shape, paint = scenes._shape, scenes._paint
    painted: list[np.ndarray] = []
    tried: list[np.ndarray] = []

    def note_shape(*args: Any) -> np.ndarray:
        tried.append(shape(*args))
        return tried[-1]

    def note_paint(rng: Any, canvas: Any, patch: Any, cover: np.ndarray, radius: float) -> None:
        if tried and cover is tried[-1]:  # not clutter
            painted.append(np.zeros((48, 48), bool))
            painted[-1][patch.where] = cover > 0.5
        paint(rng, canvas, patch, cover, radius)

    monkeypatch.setattr(scenes, "_shape", note_shape)
    monkeypatch.setattr(scenes, "_paint", note_paint)
    for seed in range(20):
        painted.clear()
        scenes._draw(np.random.default_rng(seed), list(range(6)), 48)
        assert len(painted) >= 6
        for number, mask in enumerate(painted):
            later = np.any(painted[number + 1 :], axis=0) if painted[number + 1 :] else np.zeros_like(mask)
            assert mask.sum() > 5
            assert (mask & ~later).sum() >= 0.66 * mask.sum()


def test_no_turn_makes_one_kind_into_another() -> None:
    """Scaled to the same area, two kinds share at most 85% of their joint area, at any turn and mirrored or not."""
    cells, extent = scenes._CELLS, scenes._EXTENT
    inside = scenes._outlines() < 0  # (c, cells, cells)
    scale = np.sqrt(inside.mean((1, 2)) * (2 * extent) ** 2 / 1.5)  # to the area 1.5
    axis = np.linspace(-1.4, 1.4, 80)

    def look(kind: int, angle: float, mirror: int) -> np.ndarray:
        x = (math.cos(angle) * axis[None, :] + math.sin(angle) * axis[:, None]) * mirror
        y = math.cos(angle) * axis[:, None] - math.sin(angle) * axis[None, :]
        row, column = ((v * scale[kind] / extent + 1) * cells / 2 for v in (y, x))
        return inside[kind][row.clip(0, cells - 1).astype(int), column.clip(0, cells - 1).astype(int)]

    turns = [(angle, mirror) for angle in np.arange(0, math.tau, math.tau / 48) for mirror in (1, -1)]
    looks = np.stack([[look(kind, *turn) for turn in turns] for kind in range(len(CLASSES))])
    for a, b in combinations(range(len(CLASSES)), 2):
        shared = (looks[a, 0] & looks[b]).sum((1, 2)) / (looks[a, 0] | looks[b]).sum((1, 2))
        assert shared.max() < 0.85, (CLASSES[a], CLASSES[b], shared.max())
