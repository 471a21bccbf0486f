"""A made-up data set that needs no download: small scenes of ten kinds of shapes among clutter.

Only the outline tells the kind. Colours, textures, sizes, places and turns are drawn alike for every kind, and colours
and textures so for the clutter too; shapes and clutter are lighter than the ground. An image is a function of (seed,
number, size, task) alone.
"""

import math
from functools import lru_cache
from typing import NamedTuple, get_args

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from percentmatch.data.labels import Labels
from percentmatch.data.pixels.images import Images
from percentmatch.errors import UserError, did_you_mean
from percentmatch.records import Task

CLASSES = ("disc", "triangle", "square", "star", "ring", "cross", "heart", "crescent", "zigzag", "hourglass")
PREVALENCE = (0.50, 0.40, 0.30, 0.24, 0.18, 0.14, 0.10, 0.07, 0.05, 0.02)  # of each class; adds up to 2

Array = NDArray[np.float32]
_EXTENT, _CELLS = 1.6, 256  # outlines are tabulated: cells a side, on [-1.6, 1.6]^2
_TRIES = 40  # places tried for a shape before it is put down even though it hides too much of another
_VISIBLE = 2 / 3  # the share of a shape that later ones leave visible


def draw_scenes(
    num_images: int, *, size: int = 64, seed: int = 0, task: Task = "multi-label", first: int = 0
) -> Images:
    """Scenes number `first` to `first + num_images - 1` of the endless set `seed`, all labels known.

    "multi-label" shows each kind with its own probability (`PREVALENCE`), so sometimes none; "single-label" shows
    exactly one kind, each equally often. A kind that is present is drawn once or twice.
    """
    tasks = get_args(Task)
    if task not in tasks:
        raise UserError(f"unknown task '{task}'{did_you_mean(str(task), tasks)}")
    if size < 16 or min(num_images, seed, first) < 0:
        raise UserError("scenes need a size of at least 16 pixels, and a count, a seed and a first number from 0 on")
    pixels = np.empty((num_images, 3, size, size), np.uint8)
    targets = np.zeros((num_images, len(CLASSES)), np.uint8)
    for row in range(num_images):
        rng = np.random.default_rng((seed, first + row, size, tasks.index(task)))
        if task == "multi-label":
            targets[row] = rng.random(len(CLASSES)) < PREVALENCE
        else:
            targets[row, rng.integers(len(CLASSES))] = 1
        pixels[row] = _draw(rng, targets[row].nonzero()[0].tolist(), size)
    ids = tuple(f"scene-{first + row:06d}" for row in range(num_images))
    return Images(torch.from_numpy(pixels), Labels.of(torch.from_numpy(targets)), ids, CLASSES)


def _draw(rng: Generator, kinds: list[int], size: int) -> NDArray[np.uint8]:
    """One scene that shows the given kinds: (3, size, size)."""
    canvas = _background(rng, size)
    for _ in range(int(4 * rng.random())):
        _paint(rng, canvas, *(_blob if rng.random() < 0.4 else _line)(rng, size))
    shapes = [kind for kind in kinds for _ in range(1 + (rng.random() < 0.3))]
    owner = np.zeros((size, size), np.intp)  # which shape is on top of a pixel, from 1; 0: none
    visible, needed = np.zeros((2, 1 + len(shapes)))  # pixels of each shape that show, and that must
    visible[0] = math.inf  # the background may vanish
    for number, which in enumerate(rng.permutation(len(shapes)), start=1):
        across = math.sqrt(rng.random())  # more are large than small
        for _ in range(_TRIES):
            radius = size / 2 * (0.2 + 0.25 * across)  # a fifth to almost half of the side across
            patch = _patch(*(radius + (size - 2 * radius) * rng.random(2)).tolist(), 1.2 * radius + 1, size)
            cover = _shape(rng, shapes[which], patch, radius)
            inside = cover > 0.5
            hidden = np.bincount(owner[patch.where][inside], minlength=len(needed))
            if (visible - hidden >= needed).all():
                break
            across *= 0.9
        owner[patch.where][inside] = number
        visible -= hidden
        visible[number], needed[number] = inside.sum(), _VISIBLE * inside.sum()
        _paint(rng, canvas, patch, cover, radius)
    canvas += 0.04 * rng.random((size, size), np.float32) - 0.02  # grain
    return (255 * canvas.clip(0, 1) + 0.5).astype(np.uint8)


class _Patch(NamedTuple):
    """A rectangle of pixels: where it lies, and the offsets of its pixels from some point."""

    where: tuple[slice, slice]
    dx: Array  # (1, w)
    dy: Array  # (h, 1)


def _patch(x: float, y: float, reach: float, size: int) -> _Patch:
    """The pixels at most `reach` from (x, y) along each axis."""
    left, right = max(int(x - reach), 0), min(int(x + reach) + 1, size)
    top, bottom = max(int(y - reach), 0), min(int(y + reach) + 1, size)
    dx = np.arange(left, right, dtype=np.float32)[None, :] + (0.5 - x)
    dy = np.arange(top, bottom, dtype=np.float32)[:, None] + (0.5 - y)
    return _Patch((slice(top, bottom), slice(left, right)), dx, dy)


def _background(rng: Generator, size: int) -> Array:
    """A textured colour, soft waves of light, and some dots: (3, size, size)."""
    whole = _patch(size / 2, size / 2, size, size)
    colours = 0.45 * rng.random((2, 3, 1, 1), np.float32)  # dark: shapes and clutter are lighter
    waves, phases = math.tau * rng.random((2, 2, 3, 1, 1), np.float32)
    light = np.sin(4 / size * waves[0] * whole.dx + phases[0]) * np.sin(4 / size * waves[1] * whole.dy + phases[1])
    canvas = colours[0] + 0.6 * (colours[1] - 0.22) * _texture(rng, whole, size / 2) + 0.05 * light
    canvas[:, *rng.integers(size, size=(2, 8))] = rng.random((3, 8), np.float32)
    return canvas


def _paint(rng: Generator, canvas: Array, patch: _Patch, cover: Array, radius: float) -> None:
    """Fill what `cover` (h, w) covers with a textured colour unlike the one beneath."""
    region = canvas[:, *patch.where]
    beneath = np.einsum("chw,hw->c", region, cover) / (cover.sum() + 1e-6)
    choices = 0.45 + 0.55 * rng.random((4, 3), np.float32)
    colour = choices[1 + ((choices[1:] - beneath) ** 2).sum(1).argmax()][:, None, None]
    second = 0.4 * choices[0, :, None, None] - 0.28
    region += cover * (colour + second * _texture(rng, patch, radius) - region)


def _texture(rng: Generator, patch: _Patch, radius: float) -> Array | float:
    """How much of a second colour goes to each pixel, about -0.5 to 0.5: plain, noise, gradient or stripes; (h, w)."""
    kind, angle = int(4 * rng.random()), math.tau * rng.random()
    if kind == 0:
        return 0.0
    if kind == 1:
        return rng.random((len(patch.dy), patch.dx.shape[1]), np.float32) - 0.5
    along = math.cos(angle) * patch.dx + math.sin(angle) * patch.dy
    return along / (2 * radius) if kind == 2 else 0.5 * np.sin(math.tau / (3 + 4 * rng.random()) * along)


def _shape(rng: Generator, kind: int, patch: _Patch, radius: float) -> Array:
    """The share of each pixel a shape covers; turned by up to 20 degrees, mirrored and stretched at random: (h, w)."""
    turn, mirror, wide, high = rng.random(4).tolist()
    cos, sin = math.cos(math.radians(40 * turn - 20)), math.sin(math.radians(40 * turn - 20))
    wide, high = (_CELLS / (2 * _EXTENT * radius) * (0.88 + 0.24 * scale) for scale in (wide, high))  # cells a pixel
    wide = wide if mirror < 0.5 else -wide
    row = (high * cos * patch.dy + _CELLS / 2) - high * sin * patch.dx
    column = (wide * sin * patch.dy + _CELLS / 2) + wide * cos * patch.dx
    at = (row.clip(0, _CELLS - 1).astype(np.intp), column.clip(0, _CELLS - 1).astype(np.intp))
    return (0.5 - radius * _outlines()[kind][at]).clip(0, 1)


def _blob(rng: Generator, size: int) -> tuple[_Patch, Array, float]:
    """Clutter: an irregular blob, its radius a sum of waves around the middle; some are out of focus."""
    radius = size / 2 * (0.12 + 0.2 * rng.random())
    patch = _patch(*(size * rng.random(2)).tolist(), 1.6 * radius, size)
    around = np.arctan2(patch.dy, patch.dx)
    two, three, five = (np.sin(k * around + math.tau * rng.random()) for k in (2, 3, 5))
    edge = radius * (0.9 + 0.25 * two + (0.1 + 0.1 * rng.random()) * three + 0.2 * five)
    sharpness = 1 if rng.random() < 0.6 else 3 / radius
    return patch, (0.5 + sharpness * (edge - np.sqrt(patch.dx**2 + patch.dy**2))).clip(0, 1), radius


def _line(rng: Generator, size: int) -> tuple[_Patch, Array, float]:
    """Clutter: a thin line, straight or wavy."""
    reach = size * (0.1 + 0.25 * rng.random())
    patch = _patch(*(size * rng.random(2)).tolist(), reach, size)
    angle, bend, phase, width = rng.random(4).tolist()
    cos, sin = math.cos(math.tau * angle), math.sin(math.tau * angle)
    along, aside = cos * patch.dx + sin * patch.dy, cos * patch.dy - sin * patch.dx
    if bend > 0.4:
        aside = aside - 0.4 * (bend - 0.4) * reach * np.sin(3 / reach * along + math.tau * phase)
    return patch, (1 + 0.5 * width - np.maximum(abs(aside), abs(along) - (reach - 2))).clip(0, 1), reach


@lru_cache
def _outlines() -> Array:
    """Signed distances to the outline of each kind, negative inside: (c, _CELLS, _CELLS)."""
    x = ((np.arange(_CELLS) + 0.5) / _CELLS * 2 - 1)[None, :] * _EXTENT
    y, away = x.T, np.hypot(x, x.T)  # 1 is about the radius of a shape
    t, tips = np.linspace(0, math.tau, 30, endpoint=False), np.tile([1.12, 0.45], 5)
    heart = (13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t) + 2) / 15
    half = np.array([(-0.85, -1), (0.85, -1), (0.85, -0.55), (0, 0.45), (0.85, 0.45)])
    shapes = {
        "disc": away - 0.9,
        "triangle": _polygon(x, y, np.stack([np.sin(t[::10]), -np.cos(t[::10])], 1)) - 0.1,
        "square": np.maximum(abs(x), abs(y)) - 0.78,
        "star": _polygon(x, y, np.stack([tips * np.sin(t[::3]), -tips * np.cos(t[::3])], 1)),
        "ring": abs(away - 0.75) - 0.25,
        "cross": np.minimum(np.maximum(abs(x) - 1, abs(y) - 0.3), np.maximum(abs(x) - 0.3, abs(y) - 1)),
        "heart": _polygon(x, y, np.stack([np.sin(t) ** 3, -heart], 1)),
        "crescent": np.maximum(away - 1, 0.8 - np.hypot(x - 0.5, y)),
        "zigzag": _polygon(x, y, np.concatenate([half, -half])),
        "hourglass": _polygon(x, y, np.array([(-0.8, -1), (0.8, -1), (0.1, 0), (0.8, 1), (-0.8, 1), (-0.1, 0)])),
    }
    return np.stack([shapes[name] for name in CLASSES]).astype(np.float32)


def _polygon(x: NDArray, y: NDArray, corners: NDArray) -> NDArray:
    """Signed distance of the points (x, y) to a polygon with `corners` (k, 2), negative inside."""
    distance, sign = np.full((y.size, x.size), np.inf), np.ones((y.size, x.size))
    for (px, py), (ex, ey) in zip(corners, np.roll(corners, -1, axis=0) - corners, strict=True):
        share = ((ex * (x - px) + ey * (y - py)) / (ex * ex + ey * ey)).clip(0, 1)  # of the nearest point of the edge
        distance = np.minimum(distance, np.hypot(x - px - ex * share, y - py - ey * share))
        sign = np.where(((py > y) != (py + ey > y)) & ((ex * (y - py) > ey * (x - px)) == (ey > 0)), -sign, sign)
    return sign * distance
