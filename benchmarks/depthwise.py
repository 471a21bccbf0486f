"""Are the depthwise convolutions of an EfficientNet worth a kernel of their own on a GPU? results/depthwise.json.

    python benchmarks/depthwise.py             # on a GPU, half a minute
    TRITON_INTERPRET=1 python benchmarks/depthwise.py --check      # anywhere: the kernels against torch, in float64

Times each depthwise layer of tf_efficientnet_lite0 at 224 pixels, forward pass and both gradients, for 72 images in
bfloat16 and channels-last memory: by cuDNN with and without its search for the best algorithm, by torch's own kernels,
and by the ones below, which also need no padded copy of the input where a layer pads as TensorFlow does.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
import triton
import triton.language as tl
from tables import ROOT, write_json
from torch import Tensor
from torch.nn import functional as F

from percentmatch.run_folder import environment

IMAGES, SIZE, ROUNDS = 72, 224, 20
BLOCK_R, BLOCK_C, PROGRAMS = 64, 64, 1056


@triton.jit
def _tile(total, channels, height, width, first, block_r: tl.constexpr, block_c: tl.constexpr):
    """Image, row and column of a block of pixels from `first` on, its channels, and which of them there are."""
    pixel = first + tl.arange(0, block_r)
    c = tl.program_id(1) * block_c + tl.arange(0, block_c)
    mask = (pixel < total)[:, None] & (c < channels)[None, :]
    return pixel // (height * width), pixel // width % height, pixel % width, c, mask


@triton.jit
def _forward(
    x, weight, y, total, channels, height, width, height_out, width_out, top, left,
    size: tl.constexpr, stride: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * block_r
    n, row, column, c, there = _tile(total, channels, height_out, width_out, first, block_r, block_c)
    found = tl.zeros((block_r, block_c), tl.float32)
    for i in tl.static_range(size):
        for j in tl.static_range(size):
            h, w = row * stride - top + i, column * stride - left + j
            mask = there & ((h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
            at = ((n * height + h) * width + w).to(tl.int64)[:, None] * channels + c[None, :]
            tap = tl.load(weight + (i * size + j) * channels + c, mask=c < channels, other=0.0).to(tl.float32)
            found += tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * tap[None, :]
    at = (first + tl.arange(0, block_r)).to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(y + at, found.to(y.dtype.element_ty), mask=there)


@triton.jit
def _to_input(
    dy, weight, dx, total, channels, height, width, height_out, width_out, top, left,
    size: tl.constexpr, stride: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * block_r
    n, h, w, c, there = _tile(total, channels, height, width, first, block_r, block_c)
    found = tl.zeros((block_r, block_c), tl.float32)
    for i in tl.static_range(size):
        for j in tl.static_range(size):
            row, column = h + top - i, w + left - j  # times the stride
            fits = (row >= 0) & (column >= 0) & (row % stride == 0) & (column % stride == 0)
            row, column = row // stride, column // stride
            mask = there & (fits & (row < height_out) & (column < width_out))[:, None]
            at = ((n * height_out + row) * width_out + column).to(tl.int64)[:, None] * channels + c[None, :]
            tap = tl.load(weight + (i * size + j) * channels + c, mask=c < channels, other=0.0).to(tl.float32)
            found += tl.load(dy + at, mask=mask, other=0.0).to(tl.float32) * tap[None, :]
    at = (first + tl.arange(0, block_r)).to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(dx + at, found.to(dx.dtype.element_ty), mask=there)


@triton.jit
def _to_weight(
    dy, x, sums, total, per_chunk, channels, height, width, height_out, width_out, top, left,
    size: tl.constexpr, stride: tl.constexpr, taps: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """The sum of each tap over a chunk of pixels: sums (chunks, taps, c), where taps is a power of 2."""
    chunk = tl.program_id(0)
    tap = tl.arange(0, taps)
    found = tl.zeros((taps, block_c), tl.float32)
    end = tl.minimum((chunk + 1) * per_chunk, total)
    c = tl.program_id(1) * block_c + tl.arange(0, block_c)
    for first in range(chunk * per_chunk, end, block_r):
        n, row, column, _, there = _tile(end, channels, height_out, width_out, first, block_r, block_c)
        at = (first + tl.arange(0, block_r)).to(tl.int64)[:, None] * channels + c[None, :]
        grad = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        for i in tl.static_range(size):
            for j in tl.static_range(size):
                h, w = row * stride - top + i, column * stride - left + j
                mask = there & ((h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
                at = ((n * height + h) * width + w).to(tl.int64)[:, None] * channels + c[None, :]
                one = tl.sum(tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * grad, axis=0)  # (block_c,)
                found += tl.where((tap == i * size + j)[:, None], one[None, :], 0.0)
    at = (chunk * taps + tap)[:, None] * channels + c[None, :]
    tl.store(sums + at, found, mask=(c < channels)[None, :] & (tap >= 0)[:, None])


class Layer:
    """One depthwise convolution, channels last: x (n, c, h, w), weight (c, 1, k, k); top and left are what it pads."""

    def __init__(self, shape: tuple[int, ...], size: int, stride: int, *, same: bool) -> None:
        self.shape, self.size, self.stride = shape, size, stride
        height, width = shape[2:]
        self.out = tuple(-(-side // stride) for side in (height, width))
        over = [max((o - 1) * stride + size - s, 0) for o, s in zip(self.out, (height, width), strict=True)]
        self.top, self.left = (each // 2 if same else size // 2 for each in over)
        self.bottom, self.right = (each - each // 2 for each in over)
        self.padded = same and stride > 1

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.shape[1], *self.shape[2:], *self.out, self.top, self.left)

    def forward(self, x: Tensor, taps: Tensor) -> Tensor:
        y = x.new_empty(len(x), x.shape[1], *self.out).contiguous(memory_format=torch.channels_last)
        total = len(x) * self.out[0] * self.out[1]
        grid = (triton.cdiv(total, BLOCK_R), triton.cdiv(x.shape[1], BLOCK_C))
        _forward[grid](x, taps, y, total, *self.numbers, **self.constants)
        return y

    def to_input(self, dy: Tensor, taps: Tensor) -> Tensor:
        dx = dy.new_empty(self.shape).contiguous(memory_format=torch.channels_last)
        total = len(dx) * self.shape[2] * self.shape[3]
        grid = (triton.cdiv(total, BLOCK_R), triton.cdiv(dx.shape[1], BLOCK_C))
        _to_input[grid](dy, taps, dx, total, *self.numbers, **self.constants)
        return dx

    def to_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        total, columns = len(x) * self.out[0] * self.out[1], triton.cdiv(x.shape[1], BLOCK_C)
        chunks = max(1, min(triton.cdiv(total, BLOCK_R), triton.cdiv(PROGRAMS, columns)))
        per_chunk = triton.cdiv(triton.cdiv(total, chunks), BLOCK_R) * BLOCK_R
        chunks, count = triton.cdiv(total, per_chunk), triton.next_power_of_2(self.size**2)
        sums = torch.empty(chunks, count, x.shape[1], device=x.device)
        _to_weight[(chunks, columns)](dy, x, sums, total, per_chunk, *self.numbers, taps=count, **self.constants)
        return sums.sum(0)[: self.size**2].T.reshape(-1, 1, self.size, self.size)

    @property
    def constants(self) -> dict[str, int]:
        return {"size": self.size, "stride": self.stride, "block_r": BLOCK_R, "block_c": BLOCK_C}

    def by_torch(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.padded:
            return F.conv2d(
                F.pad(x, (self.left, self.right, self.top, self.bottom)), weight, None, self.stride, 0, 1, len(weight)
            )
        return F.conv2d(x, weight, None, self.stride, self.size // 2, 1, len(weight))


def in_taps(weight: Tensor) -> Tensor:
    """(c, 1, k, k) -> (k * k, c)."""
    return weight.flatten(1).T.contiguous()


def check(device: torch.device) -> None:
    """Every kernel against torch in float64, for odd and even sizes, both strides and both ways to pad."""
    for shape, size, stride, same in (
        ((2, 5, 8, 6), 3, 2, True),
        ((2, 5, 7, 9), 5, 2, True),
        ((1, 70, 6, 7), 3, 1, False),
        ((3, 4, 5, 5), 5, 1, False),
        ((2, 3, 8, 8), 3, 2, False),
    ):
        torch.manual_seed(0)
        layer = Layer(shape, size, stride, same=same)
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last).to(device)
        weight = torch.randn(shape[1], 1, size, size).to(device)
        dy = torch.randn(len(x), shape[1], *layer.out).contiguous(memory_format=torch.channels_last).to(device)
        leaf, kernel = x.double().requires_grad_(), weight.double().requires_grad_()
        y = layer.by_torch(leaf, kernel)
        y.backward(dy.double())
        taps = in_taps(weight)
        mine = layer.forward(x, taps), layer.to_input(dy, taps), layer.to_weight(dy, x)
        for one, other in zip(mine, (y, leaf.grad, kernel.grad), strict=True):
            assert other is not None
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    print("the kernels agree with torch")


def layers() -> dict[tuple[Any, ...], int]:
    """Shape of the input, size, stride and way to pad of each depthwise layer, and how often it occurs."""
    found: dict[tuple[Any, ...], int] = {}
    model = timm.create_model("tf_efficientnet_lite0").eval()

    def note(module: Any, inputs: tuple[Tensor], _: Tensor) -> None:
        shape = (IMAGES, *inputs[0].shape[1:])
        key = shape, module.kernel_size[0], module.stride[0], type(module).__name__ == "Conv2dSame"
        found[key] = found.get(key, 0) + 1

    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d) and module.groups == module.in_channels > 1:
            module.register_forward_hook(note)
    model(torch.zeros(1, 3, SIZE, SIZE))
    return found


def milliseconds(work: Callable[[], object]) -> float:
    """The median time of a call on the GPU, after three that do not count."""
    for _ in range(3):
        work()
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def measure(shape: tuple[int, ...], size: int, stride: int, same: bool) -> dict[str, dict[str, float]]:
    """Milliseconds of the forward pass and of both gradients, and the seconds until the first result."""
    layer, device = Layer(shape, size, stride, same=same), torch.device("cuda")
    x = torch.randn(shape, device=device).bfloat16().contiguous(memory_format=torch.channels_last)
    weight = torch.randn(shape[1], 1, size, size, device=device).bfloat16()
    dy = layer.by_torch(x, weight)
    taps = in_taps(weight)
    found = {}
    for name, enabled, search in (("cudnn, searched", True, True), ("cudnn", True, False), ("torch", False, False)):
        with torch.backends.cudnn.flags(enabled=enabled, benchmark=search):
            began = time.perf_counter()
            leaf, kernel = x.clone().requires_grad_(), weight.clone().requires_grad_()
            layer.by_torch(leaf, kernel).backward(dy)
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            y = layer.by_torch(leaf, kernel)
            found[name] = {
                "first_s": first,
                "forward": milliseconds(lambda: layer.by_torch(x, weight)),
                "to_input": milliseconds(lambda y=y, a=leaf: torch.autograd.grad(y, a, dy, retain_graph=True)),
                "to_weight": milliseconds(lambda y=y, a=kernel: torch.autograd.grad(y, a, dy, retain_graph=True)),
            }
    began = time.perf_counter()
    layer.forward(x, taps), layer.to_input(dy, taps), layer.to_weight(dy, x)
    torch.cuda.synchronize()
    found["triton"] = {
        "first_s": time.perf_counter() - began,
        "forward": milliseconds(lambda: layer.forward(x, taps)),
        "to_input": milliseconds(lambda: layer.to_input(dy, taps)),
        "to_weight": milliseconds(lambda: layer.to_weight(dy, x)),
    }
    return found


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--out", default=str(ROOT / "results" / "depthwise.json"))
    given = arguments.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check(device)
    if given.check:
        return
    rows = []
    for (shape, size, stride, same), count in layers().items():
        times = measure(shape, size, stride, same)
        rows.append({"shape": shape, "size": size, "stride": stride, "same": same, "count": count, "times": times})
        shown = "  ".join(
            f"{name} {sum(v for k, v in each.items() if k != 'first_s'):.3f}" for name, each in times.items()
        )
        print(f"{shape} {size}x{size} /{stride} x{count}: {shown} ms")
    write_json(ROOT / given.out, {"images": IMAGES, **environment(device), "layers": rows})


if __name__ == "__main__":
    main()
