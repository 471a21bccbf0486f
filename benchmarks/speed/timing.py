"""Time and memory. What is compared is measured in turns, so that a machine that slows down slows all of it."""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

Times = dict[str, list[float]]  # ms a call, one number a round


def rounds(
    calls: dict[str, Callable[[], Any]], device: torch.device, *, warmup: int, steps: int, repeats: int
) -> Times:
    """Time `steps` calls in a row of each of `calls`, in `repeats` rounds, every other one backwards."""
    for call in calls.values():
        for _ in range(warmup):
            call()
    times: Times = {name: [] for name in calls}
    for turn in range(repeats):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            wait(device)
            began = time.perf_counter()
            for _ in range(steps):
                calls[name]()
            wait(device)
            times[name].append(1e3 * (time.perf_counter() - began) / steps)
    return times


def ratio(times: Times, name: str, other: str) -> float:
    """How much longer `name` takes than `other`: the median over the rounds."""
    return statistics.median(mine / theirs for mine, theirs in zip(times[name], times[other], strict=True))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """The most memory that tensors held on a GPU since the peak was reset; on a CPU, that the process ever held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
