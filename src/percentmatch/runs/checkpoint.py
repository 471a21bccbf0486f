"""The checkpoint of a run: written while training goes on, read without executing anything."""

import errno
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.files import check_weights, replacing

# what loading a state raises that another program, model or method left
BAD_STATE = (LookupError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError)


def save_checkpoint(path: Path, state: dict[str, Any], previous: Path | None = None) -> None:
    """The whole state of a run: tensors, numbers and text only. Other threads go on while it is written.

    The checkpoint before it stays as `previous`.
    """
    with replacing(path, previous) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch's, while it closes the archive that it could not write
            said = error.__context__
            raise said if isinstance(said, OSError) else OSError(errno.EIO, str(error).splitlines()[0]) from error


class Saver:
    """Writes checkpoints while training goes on; at most one is on its way, and none when the block ends."""

    def __init__(self) -> None:
        self.thread, self.pending = ThreadPoolExecutor(1), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def save(self, path: Path, state: dict[str, Any], previous: Path) -> None:
        """Copy the state where it is and have the copy written. Waits for the one before, not for a GPU."""
        self.wait()
        copied, stream = _each_tensor(state, lambda tensor: tensor.detach().clone()), None
        if torch.cuda.is_initialized():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
        self.pending = self.thread.submit(_write, path, copied, previous, stream)

    def check(self) -> None:
        """Raise what went wrong, if that is known by now."""
        if self.pending and self.pending.done():
            self.wait()

    def wait(self) -> None:
        """Until the last checkpoint is in its place; raises what went wrong."""
        pending, self.pending = self.pending, None
        if pending:
            pending.result()


def _write(path: Path, state: dict[str, Any], previous: Path, stream: torch.cuda.Stream | None) -> None:
    with torch.cuda.stream(stream):  # training does not wait for the copy to the host
        state = _each_tensor(state, Tensor.cpu)
    save_checkpoint(path, state, previous)


def _each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each_tensor(each, change) for key, each in value.items()}
    return [_each_tensor(each, change) for each in value] if isinstance(value, list) else value


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """What `save_checkpoint` wrote, not a bit of it changed. Nothing in the file is executed."""
    try:
        check_weights(path)
        with zipfile.ZipFile(path) as archive:  # torch writes checksums, but does not look at them
            if archive.testzip():
                raise ValueError("a checksum is wrong")
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UserError(f"'{path}' is not a readable checkpoint ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise UserError(f"'{path}' is not a checkpoint of a run")
    return state
