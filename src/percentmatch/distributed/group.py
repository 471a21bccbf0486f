"""Communication between ranks. Without an initialised process group every function returns its input."""

import contextlib
import hashlib
import os
import warnings
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta
from functools import reduce
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from percentmatch.distributed.ranks import launched, restarts
from percentmatch.errors import UserError

_joins = count()
PATIENCE = timedelta(hours=2)  # others wait while the first rank of a machine decodes its images


@contextlib.contextmanager
def joined() -> Generator[None]:
    """The ranks that torchrun or srun started, as one group; nothing for a process alone or in a group already."""
    if launched().size == 1 or is_distributed():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, number, size = next(dist.rendezvous("env://", timeout=PATIENCE))
        store = dist.PrefixStore(f"{restarts()}.{next(_joins)}", store)  # where no address of an earlier group is left
        dist.init_process_group(backend, timeout=PATIENCE, store=store, rank=number, world_size=size)
    except dist.DistError as error:
        address = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"the processes cannot meet at {address} ({reason}); choose another MASTER_PORT") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if is_distributed() else 0


def num_ranks() -> int:
    return dist.get_world_size() if is_distributed() else 1


def is_main() -> bool:
    """Whether this rank is the one that writes."""
    return rank() == 0


def check_same_on_all(facts: Mapping[str, object]) -> None:
    """Refuse, on every rank, what the ranks do not have alike."""
    if not is_distributed():
        return
    digests = [hashlib.blake2b(repr(value).encode(), digest_size=7).digest() for value in facts.values()]
    found = gather_rows(torch.tensor([[int.from_bytes(digest) for digest in digests]]))  # (ranks, facts)
    differ = ", ".join(name for name, column in zip(facts, found.T, strict=True) if (column != column[0]).any())
    if differ:
        raise UserError(f"the processes of this run differ in {differ}; give all the same command, data and code")


def wait_for_all() -> None:
    """Return when every rank has called this."""
    sum_over_ranks(torch.zeros(()))


def any_rank(number: int | None) -> int:
    """The largest number that any rank has, on every rank; 0 if none has one. Ranks wait for each other here."""
    return int(_reduce(torch.tensor(number or 0), "MAX"))


@contextlib.contextmanager
def first_on_each_machine() -> Generator[None]:
    """The first rank of each machine runs the block before the others on that machine do."""
    waits = launched().local_rank > 0
    if waits:
        wait_for_all()
    yield
    if not waits:
        wait_for_all()


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of `values` over all ranks, on every rank; no gradient flows through it."""
    return _reduce(values, "SUM")


def _reduce(values: Tensor, operation: str) -> Tensor:
    if is_distributed():
        values = values.clone()
        dist.all_reduce(values, op=getattr(dist.ReduceOp, operation))
    return values


def mean_over_ranks(values: Tensor) -> Tensor:
    """The mean of `values` over all ranks, on every rank; no gradient flows through it."""
    return sum_over_ranks(values) / num_ranks() if is_distributed() else values


def sum_with_gradient(values: Tensor) -> Tensor:
    """The same where the gradient is asked for, of a loss that every rank computes alike from the sum."""
    return _Sum.apply(values)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return sum_over_ranks(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return sum_over_ranks(gradients[0])  # each rank's copy of the loss hangs on the values of all


def least_over_ranks(values: Tensor) -> Tensor:
    """The elementwise minimum over all ranks, on every rank."""
    return _reduce(values, "MIN")


def gather_rows(rows: Tensor) -> Tensor:
    """The rows (n, ...) of all ranks, on every rank in the order of ranks; each rank must hold equally many."""
    if is_distributed():
        received = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(received, rows.contiguous())
        rows = torch.cat(received)
    return rows


def gather_with_gradient(rows: Tensor) -> Tensor:
    """The same of rows (n, d) where the gradient is asked for, of losses whose mean over ranks is the whole loss."""
    return sum_with_gradient(F.pad(rows, (0, 0, rank() * len(rows), (num_ranks() - 1 - rank()) * len(rows))))


def averaging(model: nn.Module) -> nn.Module:
    """The model as a step calls it: with several ranks, gradients are averaged over them and buffers are not."""
    if not is_distributed():
        return model
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of a name that torch 2.11 lacks
        return DistributedDataParallel(model, broadcast_buffers=False)  # see `average_buffers`


def own_numbers(*numbers: int) -> tuple[int, ...]:
    """Numbers to seed what each rank draws by itself: those of one process, and the rank where there are several."""
    return (*numbers, rank()) if is_distributed() else numbers


def own_rows(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Where this rank's rows stand after parts of these sizes, one after another, were each gathered."""
    starts = [sum(sizes[:part]) * num_ranks() + rank() * size for part, size in enumerate(sizes)]
    return torch.cat([torch.arange(s, s + n, device=device) for s, n in zip(starts, sizes, strict=True)])


def own_share(total: int) -> slice:
    """Which of `total` rows are this rank's to work on: as many for each rank, the last ones fewer."""
    size = -(-total // num_ranks())
    return slice(min(rank() * size, total), min((rank() + 1) * size, total))


def gather_shares(rows: Tensor, total: int) -> Tensor:
    """From the rows (m, ...) of each rank's `own_share` all (total, ...), on every rank."""
    if not is_distributed():
        return rows
    size = -(-total // num_ranks())
    padded = torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])
    return gather_rows(padded)[:total]  # only the last shares are short, so padding stands at the end


def average_buffers(model: nn.Module) -> None:
    """Give all ranks the mean of their moving statistics, which each learns from its own images."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if is_distributed() and buffers:
        vector_to_parameters(mean_over_ranks(parameters_to_vector(buffers)), buffers)


def forget_parts(module: nn.Module) -> None:
    """Drop what an interrupted step collected from its batch, here and in the modules below."""
    for part in (value for below in module.modules() for value in vars(below).values()):
        if isinstance(part, _StepParts):
            part.waiting.clear()


class _StepParts:
    """A step's whole batch, which may come in parts and on several ranks."""

    def __init__(self) -> None:
        self.waiting: list[Tensor] = []  # parts of a batch whose last one is still to come: empty between steps

    def add(self, values: Tensor, *, last: bool = True) -> Tensor | None:
        """Add a part; the result over all parts and ranks when the last is there, None before."""
        self.waiting.append(values.detach())
        if not last:
            return None
        parts, self.waiting = self.waiting, []
        return self._join(parts)

    def _join(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError


class StepSums(_StepParts):
    """Sums over a step's whole batch, which may come in parts and on several ranks."""

    def _join(self, parts: list[Tensor]) -> Tensor:
        return sum_over_ranks(reduce(torch.add, parts))


class StepRows(_StepParts):
    """Rows (n, ...) of a step's whole batch, which may come in parts and on several ranks."""

    def _join(self, parts: list[Tensor]) -> Tensor:
        return gather_rows(torch.cat(parts))
