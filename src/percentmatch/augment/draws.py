"""Random numbers as a pure function of (seed, step, stream, sample): no generator, no history.

A counter is hashed with the splitmix64 finaliser. Integer arithmetic wraps alike on every device, so CPU and CUDA draw
the same bits, and what a sample draws does not depend on the batch it travels in.
"""

import torch
from torch import Tensor

_BITS_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the step of the splitmix64 counter
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(*numbers: int) -> int:
    """One well-mixed seed in [0, 2**63) from several integers; their order matters."""
    state = len(numbers)
    for number in numbers:
        state = _finalise((state + _GOLDEN + number) & _BITS_64)
    return state >> 1


def uniforms(seed: int, step: int, sample: Tensor, count: int, stream: int) -> Tensor:
    """`count` numbers in [0, 1) for each entry of `sample` (n,) int64, on its device.

    `stream` keeps apart what is drawn for the same sample in the same step (its weak and its strong view, say).
    """
    first = _finalise_tensor(sample + mix(seed, step, stream))  # (n,)
    column = torch.arange(1, count + 1, device=sample.device) * _signed(_GOLDEN)  # (count,)
    bits = _finalise_tensor(first[:, None] + column)  # (n, count)
    return _shift(bits, 40).float() * 2**-24  # the upper 24 bits, exact in float32


def _finalise(state: int) -> int:
    state = ((state ^ (state >> 30)) * _FIRST) & _BITS_64
    state = ((state ^ (state >> 27)) * _SECOND) & _BITS_64
    return state ^ (state >> 31)


def _finalise_tensor(state: Tensor) -> Tensor:
    """`_finalise` on int64 tensors: the same bits, read as signed numbers."""
    state = (state ^ _shift(state, 30)) * _signed(_FIRST)
    state = (state ^ _shift(state, 27)) * _signed(_SECOND)
    return state ^ _shift(state, 31)


def _shift(state: Tensor, places: int) -> Tensor:
    """Logical shift to the right: int64 shifts copy the sign, so it is masked off."""
    return (state >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    """The int64 with the same 64 bits."""
    return number - (1 << 64) if number >> 63 else number
