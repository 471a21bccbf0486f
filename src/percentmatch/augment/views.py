"""Random views of a batch of images: crop, flip, RandAugment, cutout, each image with its own draws.

`draw` decides everything on the host and `apply` carries it out on the images' device, which therefore never has to
answer. Geometric operations run before colour ones, whatever order they were drawn in: all of them, with the crop and
the flip, are then one matrix and the image is interpolated once, so it is neither blurred by each operation nor read
and written by each. Colour operations keep the order in which they were drawn.

A `Blend` mixes finished views, each image with the next one: Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.augment.colour import COLOUR
from percentmatch.augment.draws import uniforms
from percentmatch.augment.geometry import GEOMETRY, crop, flip, product, warp
from percentmatch.distributed.device import send
from percentmatch.settings.views import View

# torchvision's RandAugment: the parameter of an operation at level 0 to 1 is start + slope * level; the last column
# says whether the slope gets a random sign
_OPERATIONS = {
    "identity": (0.0, 0.0, False),
    "shear_x": (0.0, 0.3, True),
    "shear_y": (0.0, 0.3, True),
    "translate_x": (0.0, 150 / 331, True),  # fraction of the side
    "translate_y": (0.0, 150 / 331, True),
    "rotate": (0.0, 30.0, True),  # degrees
    **dict.fromkeys(("brightness", "color", "contrast", "sharpness"), (1.0, 0.9, True)),
    "posterize": (8.0, -4.0, False),  # bits, rounded
    "solarize": (255.0, -255.0, False),
    "autocontrast": (0.0, 0.0, False),
    "equalize": (0.0, 0.0, False),
}
NAMES = tuple(_OPERATIONS)
_START, _SLOPE, _SIGNED = torch.tensor(list(_OPERATIONS.values()), dtype=torch.float64).unbind(1)  # (14,) each
_ASPECT = 4 / 3  # a crop's width / height is between 1 / _ASPECT and _ASPECT


@dataclass(frozen=True)
class Plan:
    """What happens to each of n images. All tensors are on the host; lengths are fractions of the image's side."""

    matrix: Tensor  # (n, 2, 3) float32, see geometry
    shown: Tensor  # (n, 2) float32 width and height of the crop
    op: Tensor  # (n, ops) int64 numbers of NAMES, in order; geometric ones are in the matrix already
    value: Tensor  # (n, ops) float64 the parameter of each
    cutout: Tensor  # (n, 3) float32 side, centre x, centre y; the side is 0 where nothing is cut out


def draw(view: View, *, size_in: tuple[int, int], seed: int, step: int, sample: Tensor, stream: int) -> Plan:
    """Draw a plan for the images (h, w) = `size_in` whose numbers are `sample` (n,) int64, on the host.

    Strength 0 leaves images alone: it also turns off the operations that have no strength.
    """
    if sample.device.type != "cpu":
        raise ValueError("`sample` must be on the CPU: plans are drawn on the host")
    ops = view.ops if view.strength > 0 else 0
    u = uniforms(seed, step, sample, 8 + 3 * ops, stream).double()  # (n, 8 + 3 * ops)
    matrix, shown = _draw_crop(view, size_in, u[:, :4])
    if view.flip:
        matrix = product(matrix, flip(u[:, 4] < 0.5))
    cutout = u[:, 5:8] * torch.tensor([view.cutout_ratio, 1, 1])

    slots = u[:, 8:].reshape(len(u), ops, 3)  # (n, ops, 3)
    op = (slots[..., 0] * len(NAMES)).long()  # (n, ops)
    sign = torch.where((_SIGNED[op] > 0) & (slots[..., 2] < 0.5), -1.0, 1.0)
    value = _START[op] + _SLOPE[op] * view.strength * slots[..., 1] * sign  # (n, ops)
    value = torch.where(op == NAMES.index("posterize"), value.round(), value)
    turns = torch.eye(3, dtype=torch.float64).expand(*op.shape, 3, 3)  # (n, ops, 3, 3)
    for name, function in GEOMETRY.items():
        turns = torch.where((op == NAMES.index(name))[..., None, None], function(value), turns)
    for slot in range(ops):
        matrix = product(matrix, turns[:, slot])
    return Plan(matrix[:, :2].float(), shown.float(), op, value, cutout.float())


def apply(images: Tensor, plan: Plan, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Carry out `plan` on `images` (n, 3, H, W) uint8: normalised float32 (n, 3, size, size) on the same device."""
    _check(images)
    if len(images) != len(plan.matrix):
        raise ValueError(f"the plan is for {len(plan.matrix)} images, not for {len(images)}")
    warped = warp(images, send(plan.matrix, images.device), send(plan.shown, images.device), size).round_()
    rows = list(warped.unbind())  # n times (3, size, size)
    groups, values = _schedule(plan.op, plan.value)
    parameters = send(values, images.device).split([len(chosen) for _, chosen in groups])
    for (name, chosen), value in zip(groups, parameters, strict=True):
        changed = COLOUR[name](torch.stack([rows[row] for row in chosen]), value)
        for row, image in zip(chosen, changed, strict=True):
            rows[row] = image
    views = normalise_(torch.stack(rows), mean, std)  # (n, 3, size, size)
    if plan.cutout[:, 0].any():
        side, centre_x, centre_y = send(plan.cutout, images.device)[:, :, None].unbind(1)  # (n, 1) each
        centre = (torch.arange(size, device=images.device) + 0.5) / size  # (size,) of the pixels
        hit_x, hit_y = (centre - centre_x).abs() < side / 2, (centre - centre_y).abs() < side / 2  # (n, size)
        views.mul_(~(hit_y[:, None, :, None] & hit_x[:, None, None, :]))  # 0 is the mean colour
    return views


def fused_views(device: torch.device) -> Callable[..., Tensor] | None:
    """`fused.make_views` where one kernel can make a view, else None: `apply` then makes it in plain torch."""
    if device.type == "cuda":
        with suppress(ImportError):  # torch for CUDA without triton
            from percentmatch.augment.fused import make_views

            return make_views
    return None


def resize(images: Tensor, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The view for evaluation: squash `images` (n, 3, H, W) uint8 to a square, antialiased, rounded, normalised."""
    _check(images)
    views = images.float()
    if images.shape[-2:] != (size, size):
        views = F.interpolate(views, (size, size), mode="bilinear", antialias=True).round_()
    return normalise_(views, mean, std)


def frame(images: Tensor, kind: Literal["squash", "center"]) -> Tensor:
    """All of `images` (n, 3, h, w), to be squashed later, or their central square (n, 3, s, s)."""
    if kind == "squash":
        return images
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return images[..., top : top + side, left : left + side]


def shrink(images: Tensor, side: int) -> Tensor:
    """`images` (n, 3, h, w) uint8, made smaller once, antialiased, to squares of `side` if they are larger.

    Views read single pixels, so a view much smaller than its source would pick some and miss the rest.
    """
    if min(images.shape[-2:]) <= side:
        return images
    small = (F.interpolate(chunk.float(), (side, side), mode="bilinear", antialias=True) for chunk in images.split(256))
    return torch.cat([chunk.round_().to(torch.uint8) for chunk in small])


def normalise_(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(value / 255 - mean) / std for each channel of float images (n, 3, h, w) from 0 to 255, in place."""
    shift, scale = send(torch.tensor([mean, std], dtype=torch.float32), images.device)[..., None, None]  # (3, 1, 1)
    return images.div_(255).sub_(shift).div_(scale)


@dataclass(frozen=True)
class Blend:
    """How n images are mixed. A row of `box` whose sides are 0 means mixup, else CutMix."""

    share: Tensor  # (n, 1) weight of the image itself, as drawn; CutMix corrects it by the pixels it pastes
    box: Tensor  # (n, 4) float32: left, top, right, bottom of the pasted box, as fractions of the sides

    @classmethod
    def draw(cls, seed: int, n: int, *, mixup: float, cutmix: float) -> "Blend":
        """Weights from Beta(a, a); with both kinds on, each image gets either with even odds."""
        random = np.random.Generator(np.random.Philox(seed))
        pasted = random.random(n) < (cutmix > 0) / ((cutmix > 0) + (mixup > 0))  # (n,)
        strength = np.where(pasted, cutmix, mixup)
        share = random.beta(strength, strength)
        centre, side = random.random((n, 2)), np.sqrt(1 - share)[:, None] * pasted[:, None]
        box = np.concatenate([centre - side / 2, centre + side / 2], axis=1).clip(0, 1)
        return cls(torch.from_numpy(share).float()[:, None], torch.from_numpy(box).float())

    def apply(self, images: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
        """The images (n, 3, h, w), each mixed with its partner, and the weight of the image itself: (n, 1)."""
        n, (height, width) = len(images), images.shape[-2:]
        sides = torch.stack([self.box.new_full((), side) for side in (width, height, width, height)])
        left, top, right, bottom = (self.box * sides).round().T[..., None]  # (n, 1) each
        x, y = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
        inside = ((y >= top) & (y < bottom))[:, None, :, None] & ((x >= left) & (x < right))[:, None, None]
        pasted = (right > left) & (bottom > top)  # (n, 1)
        area = ((right - left) * (bottom - top)) / (height * width)  # (n, 1)
        share = torch.where(pasted, 1 - area, self.share)
        weight = torch.where(pasted.view(n, 1, 1, 1), 1.0 - inside.float(), share.view(n, 1, 1, 1))  # (n, 1, h, w)
        return torch.lerp(partners, images, weight.to(images.dtype)), share


def _draw_crop(view: View, size_in: tuple[int, int], u: Tensor) -> tuple[Tensor, Tensor]:
    """The crop's matrix (n, 3, 3) and its width and height (n, 2) from `u` (n, 4)."""
    if view.crop_scale >= 1:
        return torch.eye(3, dtype=u.dtype).repeat(len(u), 1, 1), torch.ones(len(u), 2)
    image_h, image_w = size_in
    area = (view.crop_scale + (1 - view.crop_scale) * u[:, 0]) * image_h * image_w
    aspect = _ASPECT ** (2 * u[:, 1] - 1)  # log-uniform
    width = ((area * aspect).sqrt() / image_w).clamp(max=1)
    height = ((area / aspect).sqrt() / image_h).clamp(max=1)
    return crop((1 - width) * u[:, 2], (1 - height) * u[:, 3], width, height), torch.stack([width, height], 1)


def _schedule(op: Tensor, value: Tensor) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], Tensor]:
    """Gather the colour operations of `op` (n, ops) into few groups without changing any image's own order.

    Again and again the operation that comes next for the most images is done for all of those. A group is an operation
    and the images it changes; the values (g,) are its parameters for each of them, group after group.
    """
    queues = [
        [(NAMES[o], v) for o, v in zip(ops, values, strict=True) if NAMES[o] in COLOUR]
        for ops, values in zip(op.tolist(), value.tolist(), strict=True)
    ]
    groups, values = [], []
    while votes := Counter(queue[0][0] for queue in queues if queue):
        name = max(COLOUR, key=votes.__getitem__)
        chosen = tuple(row for row, queue in enumerate(queues) if queue and queue[0][0] == name)
        groups.append((name, chosen))
        values += [queues[row].pop(0)[1] for row in chosen]
    return tuple(groups), torch.tensor(values, dtype=torch.float64)


def _check(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be uint8 (n, 3, h, w), not {images.dtype} {tuple(images.shape)}")
