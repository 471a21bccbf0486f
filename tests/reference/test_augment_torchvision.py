"""Every operation against torchvision's functional, called as torchvision's RandAugment calls it."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tv

from percentmatch.augment import COLOUR, GEOMETRY, NAMES, apply, draw, normalise_, resize, uniforms
from percentmatch.augment.geometry import crop, flip, product, warp
from percentmatch.settings.views import View

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BILINEAR = InterpolationMode.BILINEAR
PARAMETERS = {
    "shear_x": [-0.3, -0.07, 0.0, 0.21, 0.3],
    "shear_y": [-0.3, -0.07, 0.0, 0.21, 0.3],
    "translate_x": [-150 / 331, -0.1, 0.0, 0.123, 150 / 331],
    "translate_y": [-150 / 331, -0.1, 0.0, 0.123, 150 / 331],
    "rotate": [-30.0, -4.0, 0.0, 17.0, 30.0],
    "brightness": [0.1, 0.7, 1.0, 1.33, 1.9],
    "color": [0.1, 0.7, 1.0, 1.33, 1.9],
    "contrast": [0.1, 0.7, 1.0, 1.33, 1.9],
    "sharpness": [0.1, 0.7, 1.0, 1.33, 1.9],
    "posterize": [8.0, 7.0, 6.0, 5.0, 4.0],
    "solarize": [255.0, 200.5, 128.0, 31.0, 0.0],
    "autocontrast": [0.0] * 5,
    "equalize": [0.0] * 5,
}


def pictures(height: int, width: int, num: int = 5) -> Tensor:
    """(num, 3, height, width) uint8: noise, narrow noise, a ramp, one colour, few levels, and so on."""
    generator = torch.Generator().manual_seed(height * 1000 + width)
    noise = torch.rand(num, 3, height, width, generator=generator)
    images = (noise * 256).floor()
    images[1::5] = 90 + (noise[1::5] * 40).floor()
    ramp = torch.linspace(0, 255, height)[:, None] * torch.linspace(0.3, 1, width)
    images[2::5] = (ramp * torch.tensor([1.0, 0.6, 0.3])[:, None, None]).floor()
    images[3::5] = torch.tensor([17.0, 200.0, 255.0])[:, None, None]
    images[4::5] = (noise[4::5] * 3).floor() * 127
    return images.to(torch.uint8)


def affine(image: Tensor, translate: list, shear: list[float], center: list[int] | None) -> Tensor:
    return tv.affine(image, 0.0, translate, 1.0, shear, interpolation=BILINEAR, center=center)


def torchvision_op(image: Tensor, name: str, value: float) -> Tensor:
    """One operation on one image (3, h, w), as torchvision.transforms.autoaugment._apply_op does it."""
    degrees = math.degrees(math.atan(value))
    side = image.shape[-1]  # square, for the geometric ones
    calls: dict[str, Callable[[], Tensor]] = {
        "identity": lambda: image,
        "shear_x": lambda: affine(image, [0, 0], [degrees, 0.0], [0, 0]),
        "shear_y": lambda: affine(image, [0, 0], [0.0, degrees], [0, 0]),
        "translate_x": lambda: affine(image, [value * side, 0], [0.0, 0.0], None),
        "translate_y": lambda: affine(image, [0, value * side], [0.0, 0.0], None),
        "rotate": lambda: tv.rotate(image, value, interpolation=BILINEAR),
        "brightness": lambda: tv.adjust_brightness(image, value),
        "color": lambda: tv.adjust_saturation(image, value),
        "contrast": lambda: tv.adjust_contrast(image, value),
        "sharpness": lambda: tv.adjust_sharpness(image, value),
        "posterize": lambda: tv.posterize(image, int(value)),
        "solarize": lambda: tv.solarize(image, value),
        "autocontrast": lambda: tv.autocontrast(image),
        "equalize": lambda: tv.equalize(image),
    }
    return calls[name]()


def test_the_tables_cover_the_fourteen():
    assert {*GEOMETRY, *COLOUR, "identity"} == set(NAMES)
    assert len(NAMES) == 14


@pytest.mark.parametrize("side", [32, 37])
@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry(name: str, side: int):
    """In float64 both interpolate the same places: no difference above 1e-9 of 255, the blended border included."""
    images = pictures(side, side).double()
    values = torch.tensor(PARAMETERS[name], dtype=torch.float64)
    ours = warp(images, GEOMETRY[name](values)[:, :2], torch.ones(5, 2, dtype=torch.float64), side)
    theirs = torch.stack([torchvision_op(i, name, v) for i, v in zip(images, values.tolist(), strict=True)])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(64, 64), (37, 21), (5, 4), (2, 9)])
@pytest.mark.parametrize("name", COLOUR)
def test_colour(name: str, shape: tuple[int, int]):
    """Equal to the last grey level, with another parameter for each image, which `rolled` moves on by one."""
    images = pictures(*shape)
    for rolled in range(5):
        values = torch.tensor(PARAMETERS[name], dtype=torch.float64).roll(rolled)
        ours = COLOUR[name](images.float(), values)
        theirs = torch.stack([torchvision_op(i, name, v) for i, v in zip(images, values.tolist(), strict=True)])
        torch.testing.assert_close(ours, theirs.float(), rtol=0, atol=0)


def test_operations_run_in_the_order_drawn():
    """Rotating by 90 degrees and moving by whole pixels interpolate nothing, so the order shows exactly."""
    image = pictures(32, 32, num=1).double()
    right, turn = (
        GEOMETRY["translate_x"](torch.tensor([5 / 32]).double()),
        GEOMETRY["rotate"](torch.tensor([90.0]).double()),
    )
    both = product(right, turn)[:, :2]
    theirs = torchvision_op(torchvision_op(image, "translate_x", 5 / 32), "rotate", 90.0)
    torch.testing.assert_close(warp(image, both, torch.ones(1, 2).double(), 32), theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [19, 40, 64])
def test_crop_and_flip(size: int):
    """Whole-pixel crops of a 48 x 36 image against resized_crop, then hflip.

    torchvision repeats the crop's rim where we read the image beyond it. Pixel j of the result is read at
    (j + 0.5) * w / size - 0.5 in the crop: between two of the crop's own pixels unless it is nearer than
    size / (2 * w) to the rim, so those rows and columns (at most ceil(64 / 24) = 3) are left out.
    """
    images = pictures(48, 36).double()
    boxes = [(0, 0, 24, 24), (24, 12, 24, 24), (3, 5, 40, 30), (10, 1, 25, 31), (7, 7, 30, 24)]  # top left height width
    top, left, height, width = torch.tensor(boxes, dtype=torch.float64).unbind(1)
    flipped = torch.tensor([True, False, True, False, False])
    matrix = product(crop(left / 36, top / 48, width / 36, height / 48), flip(flipped))
    ours = warp(images, matrix[:, :2], torch.stack([width / 36, height / 48], 1), size)
    for image, box, mirror, result in zip(images, boxes, flipped.tolist(), ours, strict=True):
        theirs = tv.resized_crop(image, *box, size=[size, size], interpolation=BILINEAR, antialias=False)
        theirs = tv.hflip(theirs) if mirror else theirs
        torch.testing.assert_close(result[:, 3:-3, 3:-3], theirs[:, 3:-3, 3:-3], rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(48, 36), (20, 31)])
@pytest.mark.parametrize("size", [17, 48, 90])
def test_the_whole_image_squashed(shape: tuple[int, int], size: int):
    """Without a crop the rim agrees too: it must not darken when the image is enlarged."""
    images = pictures(*shape).double()
    eye = torch.eye(3, dtype=torch.float64)[:2].expand(5, 2, 3)
    theirs = tv.resize(images, [size, size], interpolation=BILINEAR, antialias=False)
    torch.testing.assert_close(warp(images, eye, torch.ones(5, 2).double(), size), theirs, rtol=0, atol=1e-9)


def test_resize_is_antialiased():
    """Within one grey level, divided by 255 and the smallest std, of torchvision's rounded answer."""
    images = pictures(50, 33)
    theirs = tv.resize(images, [20, 20], interpolation=BILINEAR, antialias=True)
    ours = resize(images, 20, MEAN, STD)
    torch.testing.assert_close(ours, normalise_(theirs.float(), MEAN, STD), rtol=0, atol=1.01 / 255 / 0.224)


def drawn(sample: Tensor, ops: int, strength: float) -> list[list[tuple[str, float]]]:
    """Each sample's operations and parameters, from the documented ranges and the layout of the draws."""
    spans = {"shear": 0.3, "trans": 150 / 331, "rotat": 30.0, "brigh": 0.9, "color": 0.9, "contr": 0.9, "sharp": 0.9}
    answer = []
    for row in uniforms(1, 2, sample, 8 + 3 * ops, 3)[:, 8:].tolist():
        slots = []
        for which, level, sign in zip(row[0::3], row[1::3], row[2::3], strict=True):
            name, level = NAMES[int(which * 14)], level * strength
            value = spans.get(name[:5], 0.0) * level * (-1 if sign < 0.5 else 1)
            value = {"posterize": 8 - round(4 * level), "solarize": 255 * (1 - level)}.get(name, value)
            slots.append((name, value + 1 if spans.get(name[:5]) == 0.9 else value))
        answer.append(slots)
    return answer


def in_grey_levels(views: Tensor) -> Tensor:
    """Undo the normalisation."""
    return (views * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255


def test_one_drawn_operation_end_to_end():
    """140 samples of one operation each, so about ten of every kind: within one grey level of torchvision."""
    sample = torch.arange(140)
    images = pictures(33, 33, num=140)
    view = View(ops=1, strength=0.8, crop_scale=1.0, flip=False, cutout_ratio=0.0)
    plan = draw(view, size_in=images.shape[-2:], seed=1, step=2, sample=sample, stream=3)
    views = apply(images, plan, 33, MEAN, STD)
    plans = drawn(sample, 1, 0.8)
    assert {name for slots in plans for name, _ in slots} == set(NAMES)
    for image, result, [(name, value)] in zip(images, views, plans, strict=True):
        theirs = torchvision_op(image, name, value).float()
        assert (in_grey_levels(result) - theirs).abs().max() < 1.001, (name, value)


def test_colour_operations_in_sequence_end_to_end():
    """Samples that drew no geometric operation in four slots, (9/14)^4 = 17% of them: exactly torchvision's chain."""
    sample = torch.arange(300)
    plans = drawn(sample, 4, 1.0)
    chosen = [k for k, slots in enumerate(plans) if not {name for name, _ in slots} & set(GEOMETRY)]
    assert len(chosen) > 30
    images = pictures(24, 24, num=len(chosen))
    view = View(ops=4, strength=1.0, crop_scale=1.0, flip=False, cutout_ratio=0.0)
    plan = draw(view, size_in=images.shape[-2:], seed=1, step=2, sample=sample[chosen], stream=3)
    views = apply(images, plan, 24, MEAN, STD)
    for image, result, number in zip(images, views, chosen, strict=True):
        for name, value in plans[number]:
            image = torchvision_op(image, name, value)
        torch.testing.assert_close(result, normalise_(image[None].float(), MEAN, STD)[0], rtol=0, atol=0)
