"""The device that computes, and how data gets there without waiting."""

import os

import torch
from torch import Tensor

from percentmatch.distributed.ranks import launched
from percentmatch.errors import UserError

ALIGNED = 256  # bytes; where a tensor begins in the buffer that is sent
AHEAD = 4  # steps that may be on their way


def pick_device(name: str = "auto", *, deterministic: bool | None = None) -> torch.device:
    """The device called `name`; "auto" is a GPU if there is one. On a GPU, `deterministic` is set for the program."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device '{name}' is unknown; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        index = launched().local_rank if device.index is None else device.index  # a GPU for each rank
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            which = f"{name}:{index}" if index and device.index is None else name
            fewer = "start fewer processes, or " if launched().size > 1 else ""
            raise UserError(f"device '{which}' is not there; {fewer}use --device cpu")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)  # kernels and events then go there
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if deterministic is not None:
            torch.backends.cudnn.benchmark = not deterministic
            torch.use_deterministic_algorithms(deterministic)
    return device


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Sender:
    """Sends named host tensors to the device in one copy, into the same place every time, and does not wait.

    The copy from the host is made on a stream of its own while earlier steps are still at work. Names, shapes and types
    must stay the same. On a CPU nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: list[tuple[Tensor, Tensor, torch.cuda.Event]] = []  # pinned; on the device; when it was used
        self.sent = 0

    def send(self, drawn: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.device.type != "cuda":
            return drawn
        if not self.buffers:
            self._prepare(drawn)
        pinned, staged, used = self.buffers[self.sent % AHEAD]
        self.sent += 1
        used.synchronize()  # of some steps ago: this only keeps the host from running too far ahead
        for name, (start, end) in self.spans.items():
            pinned[start:end].copy_(drawn[name].contiguous().flatten().view(torch.uint8))
        here = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            staged.copy_(pinned, non_blocking=True)
        here.wait_stream(self.stream)
        self.target.copy_(staged)
        used.record(here)
        return self.views

    def _prepare(self, drawn: dict[str, Tensor]) -> None:
        self.spans, end = {}, 0
        for name, value in drawn.items():
            start = -(-end // ALIGNED) * ALIGNED
            end = start + value.numel() * value.element_size()
            self.spans[name] = start, end
        self.stream = torch.cuda.Stream(self.device)
        end = -(-end // ALIGNED) * ALIGNED
        self.target, *staged = torch.empty(1 + AHEAD, end, dtype=torch.uint8, device=self.device)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))  # what used that memory before may be at work
        pinned = torch.empty(AHEAD, end, dtype=torch.uint8).pin_memory()
        self.buffers = [(*pair, torch.cuda.Event()) for pair in zip(pinned, staged, strict=True)]
        self.views = {
            name: self.target[start:end].view(drawn[name].dtype).view(drawn[name].shape)
            for name, (start, end) in self.spans.items()
        }
