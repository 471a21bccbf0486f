"""Checkpoints of a run or a pretraining: what they hold, how they are written, read and chosen.

They are written while training continues, and read without executing anything.
"""

import errno
import os
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import torch
from torch import Tensor

from percentmatch.console.notices import print_to_stderr
from percentmatch.errors import UserError
from percentmatch.files import cannot_write, check_count, check_number, replacing
from percentmatch.models.archive import check_weights
from percentmatch.runs.log import Log

# what loading a state raises that another program, model or method left
BAD_STATE = (LookupError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError)


MOST_VALUES, DEEPEST = 10_000, 5  # of the settings in a checkpoint; a run has about a hundred


class Checkpoint(TypedDict):
    """All that training needs to continue as if it had not stopped: tensors, numbers and text only."""

    step: int  # optimizer steps made
    seconds: float  # of training so far
    log: NotRequired[list[int | str]]  # the log's mark; older versions wrote none
    settings: NotRequired[dict[str, Any]]  # of the run; older versions wrote none
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    meter: dict[str, Any]  # sums since the last log row
    images: NotRequired[Tensor]  # (n,) fingerprints, in the order of the split; older versions wrote none
    shards: NotRequired[Tensor]  # (s,) fingerprints of shards, 0 if unknown
    # of a run only
    split: NotRequired[str]  # digest of the split
    labels: NotRequired[str]  # digest of class names and labels
    ema: NotRequired[dict[str, Tensor]]
    method: NotRequired[dict[str, Tensor]]
    # of a pretraining only
    loss: NotRequired[float]  # of the last log row


class Checkpoints:
    """last.pt of a run, and until the run is finished the one before it, previous.pt.

    They are written while training continues, one at a time.
    """

    def __init__(self, folder: Path, log: Log) -> None:
        self.last, self.previous, self.log = folder / "last.pt", folder / "previous.pt", log
        self.thread, self.pending = ThreadPoolExecutor(1), None

    @property
    def exist(self) -> bool:
        return self.last.exists() or self.previous.exists()

    def save(self, state: Checkpoint) -> None:
        """Copy the state where it is and have the copy written. Waits for the one before, not for a GPU."""
        self.wait()
        copied = _each_tensor(state, lambda tensor: tensor.detach().clone())
        stream = torch.cuda.Stream() if torch.cuda.is_initialized() else None
        if stream:
            stream.wait_stream(torch.cuda.current_stream())
        self.pending = self.thread.submit(_write, self.last, copied, self.previous, stream)

    def check(self) -> None:
        """Raise what went wrong, if that is known by now."""
        if self.pending and self.pending.done():
            self.wait()

    def wait(self) -> None:
        """Until the last checkpoint is written; raises what went wrong."""
        pending, self.pending = self.pending, None
        if pending:
            pending.result()

    def finish(self) -> None:
        """Wait for the last checkpoint, without which a run is not finished, and remove the one before."""
        self.wait()
        self.previous.unlink(missing_ok=True)

    def newest(self, device: torch.device, *, save_every: int) -> tuple[Checkpoint | None, str]:
        """The newest checkpoint that is whole and has its log, and why it is not last.pt; None before the first.

        Nothing is changed.
        """
        reasons = [] if self.last.exists() else [f"'{self.last}' is missing"]
        for path in filter(Path.exists, (self.last, self.previous)):
            try:
                state = load_checkpoint(path, device)
                check_values(state)
                if "log" in state and not self.log.begins_with(state["log"]):
                    raise UserError(f"'{self.log.path}' does not begin as it did when '{path}' was written")
                return state, f"{reasons[0]}; going on from '{path}', step {state['step']}" if reasons else ""
            except UserError as error:
                reasons.append(str(error))
            except BAD_STATE as error:
                reasons.append(f"'{path}' is not the checkpoint of a run ({type(error).__name__})")
        if self.exist:
            raise UserError(f"{' and '.join(reasons)}; put a copy of it back, or start anew in another --out")
        reached = max((row["step"] for row in self.log.rows()), default=0)
        if reached > 2 * save_every:  # the first is written before the second is begun
            raise UserError(f"'{self.last}' is missing though the log reaches step {reached}; put it back")
        return None, f"no checkpoint in '{self.last.parent}' yet: beginning at step 0"

    def go_on_from(self, state: Checkpoint | None, why: str) -> None:
        """Bring the files to the state of this checkpoint of `newest`, or to step 0: later rows are written again."""
        if why:
            print_to_stderr(why)
        if state and why:
            try:
                os.replace(self.previous, self.last)
            except OSError as error:
                raise cannot_write(self.last, error) from error
        self.log.cut(state.get("log"), state["step"]) if state else self.log.cut(None, 0)


def save_checkpoint(path: Path, state: Checkpoint, previous: Path | None = None) -> None:
    """Write a checkpoint whole; the one before it stays as `previous`. Other threads continue meanwhile."""
    with replacing(path, previous) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch's, while it closes the archive that it could not write
            cause = error.__context__
            raise cause if isinstance(cause, OSError) else OSError(errno.EIO, str(error).splitlines()[0]) from error


def load_checkpoint(path: Path, device: torch.device) -> Checkpoint:
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
    return cast(Checkpoint, state)


def check_values(state: Mapping[str, Any]) -> None:
    """Raise one of BAD_STATE unless the numbers and texts, which are looked at before the tensors, can be a run's."""
    check_count(state["step"], "step")
    check_number(state.get("seconds", 0.0))
    if "log" in state:
        size, digest = state["log"]
        check_count(size, "the log's length")
        if not isinstance(digest, str):
            raise TypeError("the log's hash is no text")
    values, found = [(state.get("settings"), 0)], 0
    while values:  # not by calls of itself: a few lists that hold each other twice stand for billions
        value, depth = values.pop()
        inside = (
            [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        )
        found += 1 + len(inside)
        if found > MOST_VALUES or depth > DEEPEST:
            raise ValueError("the settings are no settings")
        if not isinstance(value, dict | list | tuple | str | int | float | None):
            raise TypeError(f"a setting is a {type(value).__name__}")
        values += [(each, depth + 1) for each in inside]


def _write(path: Path, state: Checkpoint, previous: Path, stream: torch.cuda.Stream | None) -> None:
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
