"""Whole files or none: every file of a run but its log is written beside its place and moved there; the checkpoint."""

import contextlib
import errno
import json
import os
import zipfile
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Self

import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.files import check_weights, read_plain

# what loading a state raises that another program, model or method left
BAD_STATE = (LookupError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError)


def cannot_write(path: Path, error: OSError) -> UserError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "make room" if full else "check the path and its permissions"
    return UserError(
        f"cannot write '{path}': {error.strerror or error}; what was there before is kept, {advice} and run the "
        "command again (a run that had begun goes on with --resume)"
    )


def beside(path: Path) -> Path:
    """A new name for what will take the place of `path`: two programs that write the same file do not mix it."""
    return path.with_name(f".{path.name}.{token_hex(4)}.part")


@contextlib.contextmanager
def replacing(path: Path) -> Generator[IO[str]]:
    """A text file that takes the place of `path` when the block ends without an error.

    A pipe or device is written to as it is, a link stays one.
    """
    new, real = None, Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.is_file():
            new = beside(real)
        with open(new or path, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            if new:
                os.fsync(file.fileno())
        if new:
            os.replace(new, real)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            if new:
                new.unlink(missing_ok=True)


@contextlib.contextmanager
def _moved_into_place(path: Path, previous: Path | None = None) -> Generator[IO[bytes]]:
    """A file that takes the place of `path`, whose old one stays as `previous` if that is named.

    A fault leaves the old file and no new one; between the two moves it may be `previous`.
    """
    new = path.with_name(f".{path.name}.part")  # always this name: a run is written by one program, and often killed
    try:
        with open(new, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous and path.exists():
            os.replace(path, previous)
        os.replace(new, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the move itself survives a power cut
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` to `path`; a fault on the way leaves the old file as it was and no new one."""
    with _moved_into_place(path) as file:
        file.write(content)


def write_json(path: Path, value: object) -> None:
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote."""
    try:
        value = json.loads(read_plain(path), parse_constant=refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"'{path}' is missing or damaged ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise UserError(f"'{path}' is damaged: it must hold names and values")
    return value


def refuse_constant(name: str) -> None:
    """NaN and Infinity, which are no JSON, though Python reads them."""
    raise ValueError(f"{name} is no number")


def save_checkpoint(path: Path, state: dict[str, Any], previous: Path | None = None) -> None:
    """The whole state of a run: tensors, numbers and text only. Other threads go on while it is written.

    The checkpoint before it stays as `previous`.
    """
    with _moved_into_place(path, previous) as file:
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
