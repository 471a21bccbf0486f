"""Random numbers as a pure function of (seed, step, stream, sample): no generator, no history.

A counter is hashed with the splitmix64 finaliser. Integer arithmetic wraps alike on every device, so CPU and CUDA draw
the same bits, and what a sample draws does not depend on the batch it travels in.
"""

from typing import Any

import torch
from torch import Tensor

_BITS_64 = (1 << 64) - 1
# constants of splitmix64 as int64, the signed numbers of the same 64 bits
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2**64 / golden ratio, the step of the counter
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))  # shifts and factors


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
    first = _finalise(sample + mix(seed, step, stream))  # (n,)
    column = torch.arange(1, count + 1, device=sample.device) * _GOLDEN  # (count,)
    bits = _finalise(first[:, None] + column)  # (n, count)
    return _shift(bits, 40).float() * 2**-24  # the upper 24 bits, exact in float32


def _finalise(state: Any) -> Any:
    """splitmix64's finaliser of a number of 64 bits; in int64 tensors the same bits are read as signed numbers."""
    for places, factor in _ROUNDS:
        state = (state ^ _shift(state, places)) * factor
        if isinstance(state, int):
            state &= _BITS_64
    return state ^ _shift(state, 31)


def _shift(state: Any, places: int) -> Any:
    """Logical shift to the right: int64 shifts copy the sign, so it is masked off."""
    return (state >> places) & ((1 << (64 - places)) - 1)
