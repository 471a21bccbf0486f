"""Where the work is done, and how data gets there without waiting."""

import os

import torch
from torch import Tensor

from percentmatch.errors import UserError


def pick_device(name: str = "auto", *, deterministic: bool = False) -> torch.device:
    """The device called `name`; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device '{name}' is unknown; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            raise UserError(f"device '{name}' is not there; use --device cpu")
        torch.backends.cudnn.benchmark = not deterministic
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
    return device


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
