"""A ResNet's max pooling (3 x 3, every second pixel) on channels-last memory, for training on a GPU.

torch's kernels take ten times as long as reading the memory does. Where the maximum was is kept in one byte, and the
backward pass gathers, so nothing is added atomically and the result repeats exactly. Importing it needs triton.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_R, BLOCK_C = 64, 64  # pixels and channels a program handles


@triton.jit
def _pixels(block, total, height, width, block_r: tl.constexpr):
    """Image, row and column of a block of pixels, and which of them there are."""
    pixel = block * block_r + tl.arange(0, block_r)
    return pixel // (height * width), pixel // width % height, pixel % width, pixel < total


@triton.jit
def _pool(
    x, y, where, total, height, width, height_out, width_out, channels,
    block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    n, row, column, there = _pixels(tl.program_id(0), total, height_out, width_out, block_r)
    c = tl.program_id(1) * block_c + tl.arange(0, block_c)
    best = tl.full((block_r, block_c), float("-inf"), tl.float32)
    tap = tl.zeros((block_r, block_c), tl.int32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            h, w = 2 * row - 1 + i, 2 * column - 1 + j
            inside = there & (h >= 0) & (h < height) & (w >= 0) & (w < width)
            at = ((n * height + h) * width + w).to(tl.int64)[:, None] * channels + c[None, :]
            mask = inside[:, None] & (c < channels)[None, :]
            value = tl.load(x + at, mask=mask, other=float("-inf")).to(tl.float32)
            tap = tl.where(value > best, 3 * i + j, tap)
            best = tl.maximum(best, value)
    at = ((n * height_out + row) * width_out + column).to(tl.int64)[:, None] * channels + c[None, :]
    mask = there[:, None] & (c < channels)[None, :]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=mask)
    tl.store(where + at, tap.to(tl.uint8), mask=mask)


@triton.jit
def _unpool(
    dy, where, dx, total, height, width, height_out, width_out, channels,
    block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """A pixel lies in one or two windows a side; it takes the gradient of those whose maximum it was."""
    n, h, w, there = _pixels(tl.program_id(0), total, height, width, block_r)
    c = tl.program_id(1) * block_c + tl.arange(0, block_c)
    grad = tl.zeros((block_r, block_c), tl.float32)
    for i in tl.static_range(2):
        for j in tl.static_range(2):
            row, column = h // 2 + i, w // 2 + j
            tap = 3 * (h + 1 - 2 * row) + w + 1 - 2 * column
            holds = (h + 1 - 2 * row >= 0) & (w + 1 - 2 * column >= 0)
            inside = there & holds & (row < height_out) & (column < width_out)
            at = ((n * height_out + row) * width_out + column).to(tl.int64)[:, None] * channels + c[None, :]
            mask = inside[:, None] & (c < channels)[None, :]
            found = tl.load(where + at, mask=mask, other=255).to(tl.int32)
            mine = mask & (found == tap[:, None])
            grad += tl.load(dy + at, mask=mine, other=0.0).to(tl.float32)
    at = ((n * height + h) * width + w).to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=there[:, None] & (c < channels)[None, :])


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x):
        x = x.contiguous(memory_format=torch.channels_last)
        n, channels, height, width = x.shape
        sizes = height, width, (height + 1) // 2, (width + 1) // 2, channels
        y = torch.empty((n, channels, *sizes[2:4]), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        where = torch.empty_like(y, dtype=torch.uint8)
        total = n * sizes[2] * sizes[3]
        grid = (triton.cdiv(total, BLOCK_R), triton.cdiv(channels, BLOCK_C))
        _pool[grid](x, y, where, total, *sizes, block_r=BLOCK_R, block_c=BLOCK_C)
        ctx.save_for_backward(where)
        ctx.sizes, ctx.shape = sizes, x.shape
        return y

    @staticmethod
    def backward(ctx: Any, dy):
        (where,) = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        total = dx.numel() // ctx.shape[1]
        grid = (triton.cdiv(total, BLOCK_R), triton.cdiv(ctx.shape[1], BLOCK_C))
        _unpool[grid](dy, where, dx, total, *ctx.sizes, block_r=BLOCK_R, block_c=BLOCK_C)
        return dx


def max_pool(x: Tensor) -> Tensor:
    """`F.max_pool2d(x, 3, 2, 1)`."""
    return _MaxPool.apply(x)
