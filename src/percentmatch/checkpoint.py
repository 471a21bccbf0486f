"""Whole files or none: every file of a run but its log is written beside its place and moved there; the checkpoint."""

import contextlib
import io
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import torch

from percentmatch.errors import UserError


def cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write '{path}': {error.strerror or error}; what was there before is kept, make room and run the "
        "command again (with --resume if the run had begun)"
    )


@contextlib.contextmanager
def replacing(path: Path) -> Generator[IO[str]]:
    """A text file that takes the place of `path` when the block ends without an error."""
    beside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path`; a fault on the way leaves the old file as it was and no new one."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the move itself survives a power cut
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def write_json(path: Path, value: object) -> None:
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"'{path}' is missing or damaged ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise UserError(f"'{path}' is damaged: it must hold names and values")
    return value


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """The whole state of a run: tensors, numbers and text only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomic(path, buffer.getbuffer())


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """What `save_checkpoint` wrote. Nothing in the file is executed."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UserError(f"'{path}' is not a readable checkpoint ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise UserError(f"'{path}' is not a checkpoint of a run")
    return state
