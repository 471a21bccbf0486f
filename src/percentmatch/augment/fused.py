"""A whole view in one GPU kernel: warp, colour operations in their order, normalisation and cutout.

One program makes one image: it keeps the image's whole numbers in a scratch buffer that stays in the cache and goes
over it once or twice for each operation. The arithmetic is that of `colour` and `geometry`, so the pixels are theirs
but for rounding. Importing this module needs triton, which comes with torch for CUDA.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from percentmatch.augment.views import Plan

BLOCK = 2048  # pixels a program handles at a time
# the numbers of `views.NAMES`
BRIGHTNESS, COLOR, CONTRAST, SHARPNESS, POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE = (
    tl.constexpr(number) for number in range(6, 14)
)


@triton.jit
def _divide(value, by):
    """As the host does it; `/` is a little less exact."""
    return tl.div_rn(value, by)


@triton.jit
def _truncate(value):
    return tl.floor(tl.minimum(tl.maximum(value, 0.0), 255.0))


@triton.jit
def _round(value):
    """To the nearest whole number, halves to the even one."""
    up = tl.floor(value + 0.5)
    return tl.where((up - value == 0.5) & (up - 2 * tl.floor(up * 0.5) == 1), up - 1, up)


@triton.jit
def _grey(red, green, blue):
    return tl.floor(0.2989 * red + 0.587 * green + 0.114 * blue)


@triton.jit
def _read(source, at, mask):
    return tl.load(source + at, mask=mask, other=0).to(tl.float32)


@triton.jit
def _write(target, at, mask, value):
    tl.store(target + at, value.to(tl.uint8), mask=mask)


@triton.jit
def _warp(source, plan, target, height, width, size: tl.constexpr, area: tl.constexpr, block: tl.constexpr):
    """`geometry.warp` and rounding; plan: the matrix, then the shown width and height."""
    m0, m1, m2 = tl.load(plan), tl.load(plan + 1), tl.load(plan + 2)
    m3, m4, m5 = tl.load(plan + 3), tl.load(plan + 4), tl.load(plan + 5)
    half_x, half_y = _divide(size * 0.5, tl.load(plan + 6)), _divide(size * 0.5, tl.load(plan + 7))
    for start in range(0, area, block):
        at = start + tl.arange(0, block)
        mask = at < area
        centre_x = _divide((2 * (at % size) + 1).to(tl.float32), size * 1.0) - 1
        centre_y = _divide((2 * (at // size) + 1).to(tl.float32), size * 1.0) - 1
        x = m0 * centre_x + (m1 * centre_y + m2)
        y = m3 * centre_x + (m4 * centre_y + m5)
        inside_x = tl.minimum(tl.maximum(half_x + 0.5 - tl.abs(x) * half_x, 0.0), 1.0)
        inside_y = tl.minimum(tl.maximum(half_y + 0.5 - tl.abs(y) * half_y, 0.0), 1.0)
        x = tl.minimum(tl.maximum((x + 1) * (width * 0.5) - 0.5, 0.0), width - 1.0)
        y = tl.minimum(tl.maximum((y + 1) * (height * 0.5) - 0.5, 0.0), height - 1.0)
        left, top = tl.floor(x), tl.floor(y)
        right_part, lower_part = x - left, y - top
        left_part, upper_part = 1 - right_part, 1 - lower_part
        x0, y0 = left.to(tl.int32), top.to(tl.int32)
        x1, y1 = tl.minimum(x0 + 1, width - 1), tl.minimum(y0 + 1, height - 1)
        for channel in tl.static_range(3):
            plane = source + channel * height * width
            value = _read(plane, y0 * width + x0, mask) * (left_part * upper_part)
            value += _read(plane, y0 * width + x1, mask) * (right_part * upper_part)
            value += _read(plane, y1 * width + x0, mask) * (left_part * lower_part)
            value += _read(plane, y1 * width + x1, mask) * (right_part * lower_part)
            value *= inside_x * inside_y
            _write(target + channel * area, at, mask, _round(value))


@triton.jit
def _mean_grey(image, area: tl.constexpr, block: tl.constexpr):
    total = 0
    for start in range(0, area, block):
        at = start + tl.arange(0, block)
        mask = at < area
        grey = _grey(_read(image, at, mask), _read(image + area, at, mask), _read(image + 2 * area, at, mask))
        total += tl.sum(grey.to(tl.int32))
    return (total.to(tl.float64) / area).to(tl.float32)


@triton.jit
def _equalize_table(plane, table, area: tl.constexpr, block: tl.constexpr):
    """`colour.equalize`: what becomes of each of the 256 values of a channel."""
    level = tl.arange(0, 256)
    counts = tl.zeros((256,), tl.int32)
    for start in range(0, area, block):
        at = start + tl.arange(0, block)
        counts += tl.histogram(tl.load(plane + at, mask=at < area, other=0).to(tl.int32), 256)
    counts -= tl.where(level == 0, tl.cdiv(area, block) * block - area, 0)  # what lies beyond the image was read as 0
    highest = tl.max(tl.where(counts > 0, level, 0))
    step = (area - tl.sum(tl.where(level == highest, counts, 0))) // 255
    below = tl.cumsum(counts) - counts
    spread = tl.minimum((below + step // 2) // tl.maximum(step, 1), 255)
    tl.store(table + level, tl.where(step == 0, level, spread).to(tl.uint8))


@triton.jit
def _autocontrast_range(plane, area: tl.constexpr, block: tl.constexpr):
    low, high = 255, 0
    for start in range(0, area, block):
        at = start + tl.arange(0, block)
        mask = at < area
        low = tl.minimum(low, tl.min(tl.load(plane + at, mask=mask, other=255).to(tl.int32)))
        high = tl.maximum(high, tl.max(tl.load(plane + at, mask=mask, other=0).to(tl.int32)))
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def _smooth(plane, at, mask, size: tl.constexpr):
    """The 3x3 mean with weight 5 in the middle; the rim is left alone."""
    x, y = at % size, at // size
    inner = mask & (x > 0) & (x < size - 1) & (y > 0) & (y < size - 1)
    here = _read(plane, at, mask)
    total = 4 * here
    for down in tl.static_range(-1, 2):
        for right in tl.static_range(-1, 2):
            total += _read(plane, at + down * size + right, inner)
    return tl.where(inner, _round(_divide(total, 13.0)), here)


@triton.jit
def _make_views(
    pixels, rows, plans, ops, values, rests, out, scratch, tables,
    height, width, mean_r, mean_g, mean_b, std_r, std_g, std_b,
    num_ops, size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    area: tl.constexpr = size * size
    source = pixels + tl.load(rows + number) * (3 * height * width)
    plan = plans + number * 11
    first = scratch + number.to(tl.int64) * (6 * area)
    table = tables + number * 768
    image, other = first, first + 3 * area
    _warp(source, plan, image, height, width, size, area, block)
    tl.debug_barrier()
    swapped = 0
    for slot in range(num_ops):
        op = tl.load(ops + number * num_ops + slot)
        value, rest = tl.load(values + number * num_ops + slot), tl.load(rests + number * num_ops + slot)
        image = first + swapped * (3 * area)
        other = first + (1 - swapped) * (3 * area)
        if op == EQUALIZE:
            for channel in tl.static_range(3):
                _equalize_table(image + channel * area, table + channel * 256, area, block)
            tl.debug_barrier()
        level = 0.0
        if op == CONTRAST:
            level = _mean_grey(image, area, block)
        low_r, high_r, low_g, high_g, low_b, high_b = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        if op == AUTOCONTRAST:
            low_r, high_r = _autocontrast_range(image, area, block)
            low_g, high_g = _autocontrast_range(image + area, area, block)
            low_b, high_b = _autocontrast_range(image + 2 * area, area, block)
        if op >= BRIGHTNESS:
            for start in range(0, area, block):
                at = start + tl.arange(0, block)
                mask = at < area
                red, green = _read(image, at, mask), _read(image + area, at, mask)
                blue = _read(image + 2 * area, at, mask)
                if op == BRIGHTNESS:
                    red, green, blue = _truncate(red * value), _truncate(green * value), _truncate(blue * value)
                elif op == COLOR:
                    grey = _grey(red, green, blue) * rest
                    red = _truncate(red * value + grey)
                    green, blue = _truncate(green * value + grey), _truncate(blue * value + grey)
                elif op == CONTRAST:
                    red = _truncate(red * value + level * rest)
                    green, blue = _truncate(green * value + level * rest), _truncate(blue * value + level * rest)
                elif op == SHARPNESS:
                    red = _truncate(red * value + _smooth(image, at, mask, size) * rest)
                    green = _truncate(green * value + _smooth(image + area, at, mask, size) * rest)
                    blue = _truncate(blue * value + _smooth(image + 2 * area, at, mask, size) * rest)
                elif op == POSTERIZE:
                    red, green = tl.floor(_divide(red, value)) * value, tl.floor(_divide(green, value)) * value
                    blue = tl.floor(_divide(blue, value)) * value
                elif op == SOLARIZE:
                    red = tl.where(red >= value, 255 - red, red)
                    green = tl.where(green >= value, 255 - green, green)
                    blue = tl.where(blue >= value, 255 - blue, blue)
                elif op == AUTOCONTRAST:
                    red = tl.where(low_r == high_r, red, _truncate((red - low_r) * _divide(255.0, high_r - low_r)))
                    green = tl.where(
                        low_g == high_g, green, _truncate((green - low_g) * _divide(255.0, high_g - low_g))
                    )
                    blue = tl.where(low_b == high_b, blue, _truncate((blue - low_b) * _divide(255.0, high_b - low_b)))
                elif op == EQUALIZE:
                    red = _read(table, red.to(tl.int32), mask)
                    green = _read(table + 256, green.to(tl.int32), mask)
                    blue = _read(table + 512, blue.to(tl.int32), mask)
                _write(other, at, mask, red)
                _write(other + area, at, mask, green)
                _write(other + 2 * area, at, mask, blue)
            swapped = 1 - swapped
        tl.debug_barrier()
    image = first + swapped * (3 * area)
    side, hole_x, hole_y = tl.load(plan + 8), tl.load(plan + 9), tl.load(plan + 10)
    target = out + number.to(tl.int64) * (3 * area)  # channels last
    for start in range(0, area, block):
        at = start + tl.arange(0, block)
        mask = at < area
        x = _divide((at % size).to(tl.float32) + 0.5, size * 1.0)
        y = _divide((at // size).to(tl.float32) + 0.5, size * 1.0)
        keep = 1.0 - ((tl.abs(x - hole_x) < side * 0.5) & (tl.abs(y - hole_y) < side * 0.5)).to(tl.float32)
        red = _divide(_divide(_read(image, at, mask), 255.0) - mean_r, std_r) * keep
        green = _divide(_divide(_read(image + area, at, mask), 255.0) - mean_g, std_g) * keep
        blue = _divide(_divide(_read(image + 2 * area, at, mask), 255.0) - mean_b, std_b) * keep
        tl.store(target + 3 * at, red, mask=mask)
        tl.store(target + 3 * at + 1, green, mask=mask)
        tl.store(target + 3 * at + 2, blue, mask=mask)


def make_views(
    pixels: Tensor, rows: Tensor, plan: Plan, *, size: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """Views of the images `rows` (n,) of `pixels` (N, 3, H, W) uint8: float32 (n, 3, size, size), channels last.

    All of `plan` is on the device, too. Nothing waits for it.
    """
    if not pixels.is_contiguous():
        raise ValueError("pixels must be contiguous")
    n, device = len(rows), pixels.device
    plans = torch.cat([plan.matrix.flatten(1), plan.shown, plan.cutout], dim=1)  # (n, 11)
    values = torch.where(plan.op == POSTERIZE.value, 2 ** (8 - plan.value), plan.value)  # a grey level's width
    out = torch.empty(n, 3, size, size, device=device, memory_format=torch.channels_last)
    scratch = torch.empty(n, 6, size, size, dtype=torch.uint8, device=device)
    tables = torch.empty(n, 768, dtype=torch.uint8, device=device)
    _make_views[(n,)](
        pixels, rows, plans, plan.op, values.float(), (1 - plan.value).float(), out, scratch, tables,
        pixels.shape[2], pixels.shape[3], *mean, *std,
        plan.op.shape[1], size=size, block=min(BLOCK, triton.next_power_of_2(size * size)),
        num_warps=16, enable_fp_fusion=False,
    )  # fmt: skip
    return out
