"""Colour jitter as one map: torchvision's operations where they are linear, and what must not change."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

import percentmatch.augment.colour as module
from percentmatch.augment import draw_jitter, recolour

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
NORMAL = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CHANGED, COLOURED, MIDDLE = 0.0, 0.9, 0.5  # draws: jittered, not grey, factor 1 or no turn


def maps(strength: float = 1.0, n: int = 8, **normal: tuple[float, ...]) -> Tensor:
    return draw_jitter(strength, seed=3, step=5, sample=torch.arange(n), stream=2, **(normal or PLAIN))


def photographs(n: int) -> Tensor:
    """Colours (n, 3, 6, 5) around the middle, so that nothing is clipped by the oracle."""
    return 0.4 + 0.2 * torch.rand(n, 3, 6, 5, generator=torch.Generator().manual_seed(0))


def given(monkeypatch: pytest.MonkeyPatch, *u: float) -> Tensor:
    monkeypatch.setattr(module, "uniforms", lambda *_: torch.tensor([u]))
    return maps(n=1)


def test_strength_0_changes_nothing() -> None:
    images = photographs(8)
    torch.testing.assert_close(recolour(images, maps(0.0, **NORMAL)), images, rtol=0, atol=1e-6)


@pytest.mark.parametrize("factor", [0.2, 0.7, 1.5])
def test_each_change_is_torchvisions(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    images, drawn = photographs(1), (factor - 1) / 1.6 + 0.5
    bright = given(monkeypatch, CHANGED, drawn, MIDDLE, MIDDLE, COLOURED, MIDDLE)
    torch.testing.assert_close(recolour(images, bright), tv.adjust_brightness(images, factor), rtol=0, atol=1e-5)
    faded = given(monkeypatch, CHANGED, MIDDLE, MIDDLE, drawn, COLOURED, MIDDLE)
    torch.testing.assert_close(recolour(images, faded), tv.adjust_saturation(images, factor), rtol=0, atol=2e-3)
    grey = tv.rgb_to_grayscale(images)
    flat = images + 0.5 - grey.mean()  # an image whose mean grey is the one that contrast leaves alone
    contrast = given(monkeypatch, CHANGED, MIDDLE, drawn, MIDDLE, COLOURED, MIDDLE)
    torch.testing.assert_close(recolour(flat, contrast), tv.adjust_contrast(flat, factor), rtol=0, atol=1e-3)


def test_a_turn_of_the_hue_keeps_greys_and_brightness(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = given(monkeypatch, CHANGED, MIDDLE, MIDDLE, MIDDLE, COLOURED, 1.0)
    grey = photographs(1)[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(recolour(grey, turn), grey, rtol=0, atol=2e-3)
    red = torch.tensor([0.8, 0.3, 0.3]).view(1, 3, 1, 1)
    turned = recolour(red, turn)
    luma = torch.tensor(module._LUMA).view(1, 3, 1, 1)
    assert float((turned * luma).sum()) == pytest.approx(float((red * luma).sum()), abs=1e-5)
    assert float((turned - red).abs().max()) > 0.1
    assert float(turned.amax() - turned.amin()) > 0.3  # still a colour


def test_shares_of_the_views_and_range() -> None:
    many = maps(0.5, n=4000)
    same = (many - torch.eye(3, 4)).abs().amax((1, 2)) < 1e-5
    grey = (many[:, 0] - many[:, 1]).abs().amax(1) < 1e-5
    assert float(same.float().mean()) == pytest.approx(0.2 * 0.8, abs=0.02)
    assert float(grey.float().mean()) == pytest.approx(0.2, abs=0.02)
    white = recolour(torch.ones(4000, 3, 1, 1), many)
    assert 0.3 < float(white.amin()) < float(white.amax()) < 1.4 * 1.2 + 1e-3


def test_normalised_colours_are_changed_as_colours() -> None:
    images = photographs(8)
    mean, std = (torch.tensor(NORMAL[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    changed = recolour((images - mean) / std, maps(**NORMAL))
    torch.testing.assert_close(changed * std + mean, recolour(images, maps()), rtol=0, atol=1e-5)


def test_draws_follow_the_sample_not_the_batch() -> None:
    alone = draw_jitter(1.0, seed=3, step=5, sample=torch.tensor([6]), stream=2, **PLAIN)
    torch.testing.assert_close(alone[0], maps()[6], rtol=0, atol=0)
    assert not torch.equal(maps()[6], maps()[7])


def test_channels_last_stays_so() -> None:
    images = photographs(8).to(memory_format=torch.channels_last)
    assert recolour(images, maps()).is_contiguous(memory_format=torch.channels_last)
