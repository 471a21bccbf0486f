"""The few things ranks say to each other. Without an initialised process group each is the identity."""

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of `values` over all ranks, on every rank; no gradient flows through it."""
    if is_distributed():
        values = values.clone()
        dist.all_reduce(values)
    return values


def gather_rows(rows: Tensor) -> Tensor:
    """The rows (n, ...) of all ranks, on every rank in the order of ranks; each rank must hold equally many."""
    if is_distributed():
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        rows = torch.cat(parts)
    return rows


class StepSums:
    """Sums over a step's whole batch, which may come in parts and on several ranks."""

    def __init__(self) -> None:
        self._waiting: Tensor | None = None  # of a batch whose last part is still to come: never between steps

    def add(self, values: Tensor, *, last: bool = True) -> Tensor | None:
        """Add a part; the sum over all parts and ranks when the last is there, None before."""
        values = values.detach() if self._waiting is None else values.detach() + self._waiting
        self._waiting = None if last else values
        return sum_over_ranks(values) if last else None


class StepRows:
    """Rows of a step's whole batch, which may come in parts and on several ranks."""

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []  # of a batch whose last part is still to come: empty between steps

    def add(self, rows: Tensor, *, last: bool = True) -> Tensor | None:
        """Add a part (n, ...); the rows of all parts and ranks when the last is there, None before."""
        self._waiting.append(rows.detach())
        if not last:
            return None
        rows, self._waiting = torch.cat(self._waiting), []
        return gather_rows(rows)
