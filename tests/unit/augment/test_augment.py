"""The draws, and views as a whole; each operation by itself is checked in tests/reference."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from percentmatch.augment import COLOUR, NAMES, apply, draw, mix, normalise_, resize, uniforms
from percentmatch.augment.draws import _finalise
from percentmatch.augment.views import _schedule
from percentmatch.settings.views import View

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STILL = View(ops=0, crop_scale=1.0, flip=False, cutout_ratio=0.0)
BUSY = View(ops=8, crop_scale=0.3, flip=True, cutout_ratio=0.5)
SEEDS = {"seed": 5, "step": 7, "stream": 1}


def noise(num: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (num, 3, height, width), dtype=torch.uint8, generator=generator)


def view_of(images: Tensor, view: View, size: int, sample: Tensor, **changed: int) -> Tensor:
    plan = draw(view, size_in=images.shape[-2:], sample=sample, **{**SEEDS, **changed})
    return apply(images, plan, size, MEAN, STD)


def test_draws_are_splitmix64():
    """splitmix64 seeded 1234567 is published to begin 6457827717110365317, 3203168211198807973. Ours is seeded by the
    hash of (seed, step, stream) plus the sample, hashed; its upper 24 bits count. Done again in Python's integers. The
    last lines were written down once: a run resumed by a later version must draw the same."""
    golden, bits = 0x9E3779B97F4A7C15, (1 << 64) - 1
    assert [_finalise((1234567 + k * golden) & bits) for k in (1, 2)] == [6457827717110365317, 3203168211198807973]
    samples = [0, 1, 5010, 2**40]
    for row, sample in zip(uniforms(3, 11, torch.tensor(samples), 5, 2).tolist(), samples, strict=True):
        first = _finalise((mix(3, 11, 2) + sample) & bits)
        assert row == [(_finalise((first + k * golden) & bits) >> 40) / 2**24 for k in range(1, 6)]
    assert (uniforms(0, 0, torch.tensor([1]), 3, 0) * 2**24).tolist() == [[3331969, 12619047, 12847265]]
    assert [mix(0), mix(1, 2), mix(2, 1)] == [5225608189600411232, 1277021547479123805, 6691485021662334227]
    assert all(0 <= mix(number) < 2**63 for number in (-1, 2**63, 2**70))


def test_uniforms_are_uniform():
    """65536 numbers: the mean's deviation is sqrt(1/12/65536) = .00113, the variance's sqrt((1/80 - 1/144)/65536) =
    .00029; chi-square over 64 bins has mean 63 and deviation sqrt(2 * 63) = 11.2. Five deviations each."""
    u = uniforms(1, 2, torch.arange(4096), 16, 3).double()
    assert (u.min() >= 0) & (u.max() < 1)
    assert abs(u.mean() - 1 / 2) < 5 * 0.00113
    assert abs(u.var() - 1 / 12) < 5 * 0.00029
    assert abs(((torch.histc(u, 64, 0, 1) - 1024) ** 2 / 1024).sum() - 63) < 5 * 11.2


def test_neighbours_are_not_correlated():
    """The correlation of two independent columns of 65536 numbers has deviation 1/256; five of them."""
    sample = torch.arange(4096)
    here = uniforms(1, 2, sample, 16, 3)
    changed = [(2, 2, 0, 3), (1, 3, 0, 3), (1, 2, 1, 3), (1, 2, 0, 4), (2, 1, 0, 3)]  # seed, step, sample, stream
    others = [uniforms(seed, step, sample + more, 16, stream) for seed, step, more, stream in changed]
    for other in [*others, here.roll(1, 1)]:
        assert abs(torch.corrcoef(torch.stack([here.flatten(), other.flatten()]))[0, 1]) < 5 / 256


def test_operations_are_drawn_evenly_and_within_strength():
    """1000 images and 3 slots: each of 14 comes 214 times, deviation sqrt(3000 * 13) / 14 = 14.1; five of them. Half
    strength: factors 1 +- .45, 8 to 6 bits, thresholds 255 to 127.5."""
    plan = draw(View(ops=3, strength=0.5), size_in=(8, 8), sample=torch.arange(1000), **SEEDS)
    groups, values = _schedule(plan.op, plan.value)
    assert len(groups) < 3 * len(COLOUR)  # images with the same operation share a call
    parts = values.split([len(rows) for _, rows in groups])
    for name in COLOUR:
        values = torch.cat([part for (group, _), part in zip(groups, parts, strict=True) if group == name])
        assert abs(len(values) - 3000 / 14) < 5 * 14.1, name
        low, high = {"posterize": (6, 8), "solarize": (127.5, 255)}.get(name, (0.55, 1.45))
        if name not in ("autocontrast", "equalize"):
            assert low <= values.min() < low + (high - low) / 20, name
            assert high - (high - low) / 20 < values.max() <= high, name


def test_geometry_is_composed_in_the_order_drawn():
    """A point of the result goes back through the last operation first, by the formulas in geometry's docstrings, and
    then, in half of the images, the flip."""
    sample = torch.arange(200)
    plan = draw(View(ops=3, crop_scale=1.0, flip=True), size_in=(8, 8), sample=sample, **SEEDS)
    drawn = uniforms(SEEDS["seed"], SEEDS["step"], sample, 17, SEEDS["stream"]).tolist()
    for row, matrix in zip(drawn, plan.matrix, strict=True):
        x, y = 0.3, -0.6
        for slot in (14, 11, 8):
            name, level = NAMES[int(row[slot] * 14)], row[slot + 1] * (-1 if row[slot + 2] < 0.5 else 1)
            shear, move, angle = 0.3 * level, 150 / 331 * level, math.radians(30 * level)
            x, y = {
                "shear_x": (x + shear * (y + 1), y),
                "shear_y": (x, y + shear * (x + 1)),
                "translate_x": (x - 2 * move, y),
                "translate_y": (x, y - 2 * move),
                "rotate": (x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)),
            }.get(name, (x, y))
        x = -x if row[4] < 0.5 else x
        assert (matrix @ torch.tensor([0.3, -0.6, 1.0])).tolist() == pytest.approx([x, y], abs=1e-5)


def test_crops():
    """Of areas uniform in [.25, 1] a third are below .5, and those a square image never clips: a side is at most
    sqrt(.5 * 4/3) < 1. Deviation sqrt(1/3 * 2/3 / 2000) = .0106. Aspects and places are uniform as well, deviation
    1 / sqrt(3 * 667) = .0224 on a scale of -1 to 1. Corners stay inside the image."""
    view = replace(STILL, crop_scale=0.25)
    plan = draw(view, size_in=(40, 40), sample=torch.arange(2000), **SEEDS)
    small = (plan.shown.prod(1) > 0.2499) & (plan.shown.prod(1) < 0.5)
    assert abs(small.float().mean() - 1 / 3) < 5 * 0.0106
    aspect = (plan.shown[small, 0] / plan.shown[small, 1]).log() / math.log(4 / 3)
    place = plan.matrix[small, :, 2] / (1 - plan.shown[small])
    for scaled in (aspect, *place.unbind(1)):
        assert abs(scaled.mean()) < 5 * 0.0224
        assert 0.97 < -scaled.min() < 1.0001
        assert 0.97 < scaled.max() < 1.0001
    assert (plan.matrix @ torch.tensor([[-1.0, 1, 1], [-1, 1, -1], [1, 1, 1]])).abs().max() < 1.000001
    wide = draw(view, size_in=(20, 60), sample=torch.arange(500), **SEEDS).shown * torch.tensor([60, 20])
    assert (wide[:, 0] / wide[:, 1]).min() > 0.7499  # in pixels


def test_refusals():
    plan = draw(BUSY, size_in=(8, 8), sample=torch.arange(3), **SEEDS)
    with pytest.raises(ValueError, match="for 3 images, not for 2"):
        apply(noise(2, 8, 8), plan, 8, MEAN, STD)
    with pytest.raises(ValueError, match="must be uint8"):
        apply(noise(3, 8, 8).float(), plan, 8, MEAN, STD)
    with pytest.raises(ValueError, match="must be on the CPU"):
        draw(BUSY, size_in=(8, 8), sample=torch.arange(3, device="meta"), **SEEDS)


@pytest.mark.parametrize("side", [7, 32, 224])
def test_nothing_asked_nothing_done(side: int):
    """(value / 255 - mean) / std to the last bit; strength 0 also leaves images alone."""
    images = noise(2, side, side)
    plain = (images.float() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    assert torch.equal(view_of(images, STILL, side, torch.arange(2)), plain)
    assert torch.equal(view_of(images, replace(STILL, ops=8, strength=0.0), side, torch.arange(2)), plain)
    assert torch.equal(resize(images, side, MEAN, STD), plain)


def test_cutout():
    """Size 20. Side .5 at x .5, y .5: columns and rows 5..14, 100 pixels. Side .4 at x 1, y .25 is 8 long: columns 16
    to 19, the rest clipped, and rows 1 to 8: 32 pixels. Side 0: none. Drawn: means .25, .5, .5, five deviations."""
    plan = draw(STILL, size_in=(20, 20), sample=torch.arange(3), **SEEDS)
    box = torch.tensor([[0.5, 0.5, 0.5], [0.4, 1.0, 0.25], [0.0, 0.5, 0.5]])
    white = torch.full((3, 3, 20, 20), 255, dtype=torch.uint8)
    hit = (apply(white, replace(plan, cutout=box), 20, MEAN, STD) == 0).all(1)  # (3, 20, 20)
    assert hit.sum((1, 2)).tolist() == [100, 32, 0]
    assert hit[0, 5:15, 5:15].all() & hit[1, 1:9, 16:].all()
    drawn = draw(View(cutout_ratio=0.5), size_in=(8, 8), sample=torch.arange(2000), **SEEDS).cutout
    assert drawn is not None
    assert ((drawn.mean(0) - torch.tensor([0.25, 0.5, 0.5])).abs() < 5 * 0.289 / math.sqrt(2000)).all()


def test_each_image_has_its_own_draws():
    """One image 16 times: 16 different views; another seed, step or stream changes each of them."""
    images = noise(1, 32, 32).expand(16, 3, 32, 32)
    views = view_of(images, BUSY, 32, torch.arange(16))
    assert len({view.numpy().tobytes() for view in views}) == 16
    for changed in ({"seed": 6}, {"step": 8}, {"stream": 2}):
        assert (view_of(images, BUSY, 32, torch.arange(16), **changed) != views).flatten(1).any(1).all(), changed


@pytest.mark.parametrize(("shape", "size"), [((40, 31), 16), ((17, 17), 33), ((16, 40), 1), ((1, 5), 13)])
def test_a_view_does_not_depend_on_its_batch(shape: tuple[int, int], size: int):
    """Bit for bit: alone, in the batch, and in the batch turned round; and the global generator is left alone."""
    state = torch.get_rng_state()
    images, sample = noise(24, *shape), torch.arange(100, 124)
    views = view_of(images, BUSY, size, sample)
    assert views.isfinite().sum() == 24 * 3 * size * size
    assert torch.equal(view_of(images.flip(0), BUSY, size, sample.flip(0)).flip(0), views)
    for alone in (slice(row, row + 1) for row in range(24)):
        assert torch.equal(view_of(images[alone], BUSY, size, sample[alone]), views[alone])
    assert torch.equal(state, torch.get_rng_state())


def test_enlarging_keeps_the_rim():
    """A flat image stays flat from 8 x 6 to 21 x 21, whole or cropped: nothing of the 0 outside mixes in."""
    images = torch.full((20, 3, 8, 6), 200, dtype=torch.uint8)
    flat = normalise_(torch.full((20, 3, 21, 21), 200.0), MEAN, STD)
    for view in (STILL, replace(STILL, crop_scale=0.3, flip=True)):
        assert torch.equal(view_of(images, view, 21, torch.arange(20)), flat)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_never_answers():
    """The same draws to the bit, the same views but for values on a rounding edge, and no synchronisation."""
    images, sample = noise(50, 40, 31), torch.arange(50)
    assert torch.equal(uniforms(1, 2, sample.cuda(), 9, 3).cpu(), uniforms(1, 2, sample, 9, 3))
    on_device = images.cuda()
    for view in (BUSY, STILL):
        view_of(on_device, view, 32, sample)  # warm-up: pinned memory is allocated
        torch.cuda.set_sync_debug_mode("error")
        try:
            views = view_of(on_device, view, 32, sample)
            resize(on_device, 32, MEAN, STD)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert ((views.cpu() - view_of(images, view, 32, sample)).abs() > 0.02).float().mean() < 0.01


def test_crops_of_wide_images_have_the_aspect_of_others() -> None:
    view = View(ops=0, flip=False, crop_scale=0.25, cutout_ratio=0)
    shown = draw(view, size_in=(20, 60), sample=torch.arange(500), seed=1, step=2, stream=3).shown
    free = shown[:, 1] < 1
    assert free.any()
    assert (shown[free, 0] * 60 / (shown[free, 1] * 20)).max() < 4 / 3 + 1e-4
