"""Batch normalisation with residual addition and ReLU or ReLU6 in few passes over channels-last memory, for a GPU.

torch's own kernels for bfloat16 read a ResNet's activations at an eighth of the memory's speed and leave addition and
ReLU to further passes. Here the forward pass reads them twice and writes once, the backward pass reads input and
gradient twice and writes once. Statistics are float32, shifted by the running mean so that nothing cancels, and summed
in a fixed order. Importing this module needs triton, which comes with torch for CUDA.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

TILE = 4096  # numbers a program handles at a time
PROGRAMS = 1056  # of those that sum: about eight for each multiprocessor of a large GPU
FEW = 16  # channels a program finishes
NONE, RELU, RELU6 = 0, 1, 2  # what follows, if anything


@triton.jit
def _open(value, act: tl.constexpr):
    """Where the activation lets a gradient through."""
    found = value > 0
    if act == 2:
        found = found & (value < 6)
    return found


@triton.jit
def _add_up(sums, c, there, channels, chunks, block_c: tl.constexpr):
    """The two sums of each channel over the chunks: (block_c,) each."""
    first = tl.zeros((64, block_c), tl.float32)
    second = tl.zeros((64, block_c), tl.float32)
    for start in range(0, chunks, 64):
        chunk = start + tl.arange(0, 64)
        mask = (chunk < chunks)[:, None] & there[None, :]
        at = sums + chunk[:, None] * 2 * channels + c[None, :]
        first += tl.load(at, mask=mask, other=0.0)
        second += tl.load(at + channels, mask=mask, other=0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
def _stats(x, shift, sums, rows, channels, per_chunk, block_r: tl.constexpr, block_c: tl.constexpr):
    """Sum and sum of squares of x - shift over a chunk of rows: sums (chunks, 2, c)."""
    chunk = tl.program_id(1)
    c = tl.program_id(0) * block_c + tl.arange(0, block_c)
    there = c < channels
    base = tl.load(shift + c, mask=there, other=0.0)
    total = tl.zeros((block_r, block_c), tl.float32)
    square = tl.zeros((block_r, block_c), tl.float32)
    end = tl.minimum((chunk + 1) * per_chunk, rows)
    for start in range(chunk * per_chunk, end, block_r):
        r = start + tl.arange(0, block_r)
        mask = (r < end)[:, None] & there[None, :]
        value = tl.load(x + r[:, None].to(tl.int64) * channels + c[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - base[None, :], 0.0)
        total += value
        square += value * value
    tl.store(sums + (chunk * 2) * channels + c, tl.sum(total, axis=0), mask=there)
    tl.store(sums + (chunk * 2 + 1) * channels + c, tl.sum(square, axis=0), mask=there)


@triton.jit
def _finish(sums, moments, running_mean, running_var, rows, channels, chunks, momentum, eps, block_c: tl.constexpr):
    """Mean and 1 / deviation of each channel, moments (2, c), and the running statistics in place."""
    c = tl.program_id(0) * block_c + tl.arange(0, block_c)
    there = c < channels
    total, square = _add_up(sums, c, there, channels, chunks, block_c)
    old = tl.load(running_mean + c, mask=there, other=0.0)  # what `_stats` subtracted
    off = total / rows
    var = tl.maximum(square / rows - off * off, 0.0)
    tl.store(moments + c, old + off, mask=there)
    tl.store(moments + channels + c, 1 / tl.sqrt(var + eps), mask=there)
    tl.store(running_mean + c, old + momentum * off, mask=there)
    old_var = tl.load(running_var + c, mask=there, other=0.0)
    unbiased = var * (rows / tl.maximum(rows - 1.0, 1.0))
    tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=there)


@triton.jit
def _affine(moments, weight, bias, c, there, channels):
    """Normalisation and affine map as one scale and one shift a channel."""
    scale = tl.load(weight + c, mask=there, other=0.0) * tl.load(moments + channels + c, mask=there, other=0.0)
    return scale, tl.load(bias + c, mask=there, other=0.0) - tl.load(moments + c, mask=there, other=0.0) * scale


@triton.jit
def _normalise(
    x, residual, y, moments, weight, bias, rows, channels,
    added: tl.constexpr, act: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * block_r + tl.arange(0, block_r)
    c = tl.program_id(1) * block_c + tl.arange(0, block_c)
    there = c < channels
    mask = (r < rows)[:, None] & there[None, :]
    at = r[:, None].to(tl.int64) * channels + c[None, :]
    scale, shift = _affine(moments, weight, bias, c, there, channels)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if added:
        value += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if act:
        value = tl.maximum(value, 0.0)
    if act == 2:
        value = tl.minimum(value, 6.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _backward_sums(
    dy, more, y, x, before, moments, weight, bias, sums, rows, channels, per_chunk,
    added: tl.constexpr, act: tl.constexpr, forked: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient and of gradient x normalised input over a chunk of rows: sums (chunks, 2, c).

    After an addition the gradient before the ReLU is also the residual's: it is written to `before`, and read there
    by `_backward`.
    """
    chunk = tl.program_id(1)
    c = tl.program_id(0) * block_c + tl.arange(0, block_c)
    there = c < channels
    mean, rstd = tl.load(moments + c, mask=there, other=0.0), tl.load(moments + channels + c, mask=there, other=0.0)
    scale, shift = _affine(moments, weight, bias, c, there, channels)
    total = tl.zeros((block_r, block_c), tl.float32)
    product = tl.zeros((block_r, block_c), tl.float32)
    end = tl.minimum((chunk + 1) * per_chunk, rows)
    for start in range(chunk * per_chunk, end, block_r):
        r = start + tl.arange(0, block_r)
        mask = (r < end)[:, None] & there[None, :]
        at = r[:, None].to(tl.int64) * channels + c[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        if forked:
            grad += tl.load(more + at, mask=mask, other=0.0).to(tl.float32)
        if added:
            if act:
                grad = tl.where(_open(tl.load(y + at, mask=mask, other=0.0), act), grad, 0.0)
            tl.store(before + at, grad.to(before.dtype.element_ty), mask=mask)
        elif act:
            grad = tl.where(_open(value * scale[None, :] + shift[None, :], act), grad, 0.0)
        total += grad
        product += grad * ((value - mean[None, :]) * rstd[None, :])
    tl.store(sums + (chunk * 2) * channels + c, tl.sum(total, axis=0), mask=there)
    tl.store(sums + (chunk * 2 + 1) * channels + c, tl.sum(product, axis=0), mask=there)


@triton.jit
def _sum_chunks(sums, grads, channels, chunks, block_c: tl.constexpr):
    """The gradients of bias and weight: grads (2, c)."""
    c = tl.program_id(0) * block_c + tl.arange(0, block_c)
    there = c < channels
    total, product = _add_up(sums, c, there, channels, chunks, block_c)
    tl.store(grads + c, total, mask=there)
    tl.store(grads + channels + c, product, mask=there)


@triton.jit
def _backward(
    dy, x, dx, moments, weight, bias, grads, rows, channels,
    act: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """The input's gradient. An activation is worked out again from the input; without one `dy` is from before it."""
    r = tl.program_id(0) * block_r + tl.arange(0, block_r)
    c = tl.program_id(1) * block_c + tl.arange(0, block_c)
    there = c < channels
    mask = (r < rows)[:, None] & there[None, :]
    at = r[:, None].to(tl.int64) * channels + c[None, :]
    mean, rstd = tl.load(moments + c, mask=there, other=0.0), tl.load(moments + channels + c, mask=there, other=0.0)
    scale, shift = _affine(moments, weight, bias, c, there, channels)
    mean_grad = tl.load(grads + c, mask=there, other=0.0) / rows
    mean_product = tl.load(grads + channels + c, mask=there, other=0.0) / rows
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    if act:
        grad = tl.where(_open(value * scale[None, :] + shift[None, :], act), grad, 0.0)
    value = (value - mean[None, :]) * rstd[None, :]
    found = scale[None, :] * (grad - mean_grad[None, :] - value * mean_product[None, :])
    tl.store(dx + at, found.to(dx.dtype.element_ty), mask=mask)


def _shape(x: Tensor) -> tuple[int, int, int, int, int, tuple[int, int], dict[str, int]]:
    """Rows, channels, rows a chunk, chunks, groups of FEW channels, the grid of blocks, the sides of a block."""
    channels = x.shape[1]
    rows = x.numel() // channels
    block_c = min(64, triton.next_power_of_2(channels))
    block_r = TILE // block_c
    grid = (triton.cdiv(rows, block_r), triton.cdiv(channels, block_c))  # only the first axis may be long
    chunks = max(1, min(grid[0], triton.cdiv(PROGRAMS, grid[1])))
    per_chunk = triton.cdiv(triton.cdiv(rows, chunks), block_r) * block_r
    few, blocks = triton.cdiv(channels, FEW), {"block_r": block_r, "block_c": block_c}
    return rows, channels, per_chunk, triton.cdiv(rows, per_chunk), few, grid, blocks


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, residual, weight, bias, running_mean, running_var, momentum, eps, act, forks):
        x = x.contiguous(memory_format=torch.channels_last)
        rows, channels, per_chunk, chunks, few, grid, blocks = _shape(x)
        moments = x.new_empty(2, channels, dtype=torch.float32)
        sums = x.new_empty(chunks, 2, channels, dtype=torch.float32)
        _stats[(grid[1], chunks)](x, running_mean, sums, rows, channels, per_chunk, **blocks)
        _finish[(few,)](sums, moments, running_mean, running_var, rows, channels, chunks, momentum, eps, block_c=FEW)
        y = torch.empty_like(x)
        added = residual is not None
        if added:
            residual = residual.contiguous(memory_format=torch.channels_last)
        _normalise[grid](x, residual, y, moments, weight, bias, rows, channels, added=added, act=act, **blocks)
        ctx.save_for_backward(x, y if act and added else None, moments, weight, bias)
        ctx.added, ctx.act = added, act
        ctx.set_materialize_grads(False)
        return (y, y.view_as(y)) if forks else y

    @staticmethod
    def backward(ctx: Any, dy, more=None):
        x, y, *affine = ctx.saved_tensors  # affine: moments, weight, bias
        given = [grad.contiguous(memory_format=torch.channels_last) for grad in (dy, more) if grad is not None]
        if not given:
            return (None,) * 10
        dy, more = given[0], given[1] if len(given) == 2 else None
        if more is not None and not ctx.added:
            dy, more = dy + more, None
        rows, channels, per_chunk, chunks, few, grid, blocks = _shape(x)
        sums = x.new_empty(chunks, 2, channels, dtype=torch.float32)
        grads = x.new_empty(2, channels, dtype=torch.float32)
        before = torch.empty_like(x) if ctx.added else None
        flags = {"added": ctx.added, "act": ctx.act, "forked": more is not None, **blocks}
        _backward_sums[(grid[1], chunks)](dy, more, y, x, before, *affine, sums, rows, channels, per_chunk, **flags)
        _sum_chunks[(few,)](sums, grads, channels, chunks, block_c=FEW)
        dx = torch.empty_like(x)
        dy, act = (before, NONE) if ctx.added else (dy, ctx.act)
        _backward[grid](dy, x, dx, *affine, grads, rows, channels, act=act, **blocks)
        return dx, before, grads[1], grads[0], *(None,) * 6


def norm_act(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, *, act: int = NONE, forks: bool = False
) -> Any:
    """act(norm(x) + residual) in training, with the running statistics moved in place."""
    norm.num_batches_tracked.add_(1)
    moving = norm.running_mean, norm.running_var, norm.momentum, norm.eps
    return _NormAct.apply(x, residual, norm.weight, norm.bias, *moving, act, forks)


def forked_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same with a ReLU, twice: two readers that take one each have their gradients added in its backward pass."""
    return norm_act(norm, x, residual, act=RELU, forks=True)
