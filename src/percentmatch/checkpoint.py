"""Whole files or none: every file of a run is written beside its place and moved there; and the checkpoint."""

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import torch

from percentmatch.errors import UserError


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path`; a fault on the way leaves the old file as it was and no new one."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise UserError(
            f"cannot write '{path}': {error.strerror or error}; what was there before is kept, make room and "
            "continue with --resume"
        ) from error


def write_json(path: Path, value: object) -> None:
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """The whole state of a run: tensors, numbers and text only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomic(path, buffer.getbuffer())


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """What `save_checkpoint` wrote. Nothing in the file is executed."""
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint '{path}'") from None
    except Exception as error:
        raise UserError(
            f"'{path}' is not a readable checkpoint ({type(error).__name__}); remove it to start anew"
        ) from error
