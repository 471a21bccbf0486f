"""The side of a child: one attempt of a command, disturbed at a point that has a name.

The server of `multiprocessing` imports this module once and forks a child for each attempt, so that none of them waits
for imports.
"""

import io
import math
import os
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm  # noqa: F401  imported late by the commands
import torch
from torch import nn

from percentmatch import files
from percentmatch.cli import main as cli
from percentmatch.console import tables as show  # noqa: F401
from percentmatch.data.shards import write as sharding  # noqa: F401
from percentmatch.runs.log import Log
from percentmatch.runs.run_folder import RunFolder
from percentmatch.training import loop, results, start
from percentmatch.training.run import RunPool
from percentmatch.use import grid as benchmark  # noqa: F401

torch.set_num_threads(1)

KILLS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
OTHER_PARTS = re.compile(r"^\.?[0-9a-f]{32}\.(?:npy|manifest|index|copies)(?:\.\d+\.[0-9a-f]{8}\.part)?$")


@dataclass(frozen=True)
class Fault:
    """What is done when a point is passed for the `number`-th time."""

    act: str  # of KILLS; "nan", "inf" in the weights; a "full" disk, a "limit" of file sizes; "remove", "cut" `file`
    point: str
    number: int = 1
    file: str = ""


class Watch:
    """Counts the points that the process passes; does what the fault says at its own."""

    def __init__(self, fault: Fault | None, reached: Path) -> None:
        self.fault, self.reached, self.passed, self.order = fault, reached, Counter(), []
        self.full = False  # whether the next file that is opened is on a full disk

    def due(self, point: str) -> bool:
        """Whether the fault comes when this point is passed next."""
        return bool(self.fault) and (point, self.passed[point] + 1) == (self.fault.point, self.fault.number)

    def at(self, point: str, subject: Any = None) -> None:
        due = self.due(point)
        self.passed[point] += 1
        self.order.append(point)
        if due:
            self.reached.touch()
            self._act(self.fault, subject)

    def _act(self, fault: Fault, subject: Any) -> None:
        if fault.act in KILLS:
            os.kill(os.getpid(), KILLS[fault.act])
        elif fault.act in ("nan", "inf"):
            with torch.no_grad():
                next(subject.model.parameters()).fill_(getattr(math, fault.act))
        elif fault.act == "remove":
            os.rename(fault.file, f"{fault.file}.away")
        elif fault.act == "cut":
            os.truncate(fault.file, os.path.getsize(fault.file) // 3)
        elif fault.act == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        elif isinstance(subject, Log):  # a full disk, in the middle of a row
            room = subject.path.stat().st_size + 20 if subject.path.exists() else 20
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        else:
            self.full = True

    def around(self, owner: Any, name: str, called: str | Callable[..., str]) -> None:
        """Pass a point before and one after each call of `owner.name`."""
        real = getattr(owner, name)

        def wrapped(*values: Any, **named: Any) -> Any:
            point = called if isinstance(called, str) else called(*values)
            self.at(f"before {point}", values[0])
            result = real(*values, **named)
            self.at(f"after {point}", values[0])
            return result

        setattr(owner, name, wrapped)

    def install(self) -> None:
        self.around(loop, "train_step", "a step")
        self.around(nn.utils, "get_total_norm", "the gradient's norm")
        self.around(results, "score", "scoring")
        self.around(RunPool, "probabilities", "scoring the pool")
        self.around(start, "take_up", "restoring")
        self.around(start, "finish_run", "finishing")
        self.around(RunFolder, "create", "making the folder")
        self.around(Log, "append", "a row")
        self.around(os, "fsync", lambda descriptor: f"fsync of {_name(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        self.around(os, "replace", lambda _, place: f"the move to {_name(place)}")
        self._halves()
        files.open = self._open  # ty: ignore[unresolved-attribute]

    def _halves(self) -> None:
        save, append = torch.save, Log.append

        def save_half(state: dict, file: Any) -> None:
            if self.due("half a checkpoint"):
                whole = io.BytesIO()
                save(state, whole)
                file.write(whole.getvalue()[: whole.tell() // 2])
                file.flush()
            self.at("half a checkpoint")
            file.seek(0)
            file.truncate()
            save(state, file)
            self.at("after writing a checkpoint")

        def append_half(log: Log, row: dict) -> None:
            if self.due("half a row"):
                before = log.path.stat().st_size if log.path.exists() else 0
                with open(log.path, "a") as file:
                    file.write('{"step": ' + str(row["step"]))
                self.at("half a row")
                os.truncate(log.path, before)
            else:
                self.at("half a row")
            try:
                append(log, row)
            finally:  # there is room for what is said of it
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        torch.save, Log.append = save_half, append_half

    def _open(self, path: Path, mode: str, **options: Any) -> Any:
        self.at(f"opening {_name(path)}", path)
        full, self.full = self.full, False
        return open("/dev/full", mode.replace("x", "w"), **options) if full else open(path, mode, **options)


def _name(path: str | Path) -> str:
    name = Path(path).name
    if os.path.isdir(path):
        return "the folder"
    if OTHER_PARTS.match(name):
        return "the cache"
    return re.sub(r"shard-\d+", "shard", re.sub(r"^\.(.*)\.\d+\.[0-9a-f]{8}\.part$", r"\1", name))


def attempt(
    tokens: list[str], said: str, environment: dict[str, str], fault: Fault | None, reached: str, points: str | None
) -> None:
    """Carry out a command. What it says goes to the file `said`, the points it passes to `points`."""
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    watch = Watch(fault, Path(reached))
    watch.install()
    sys.argv = ["percentmatch", *tokens]
    try:
        cli.main()
    finally:
        if points:
            Path(points).write_text("\n".join(watch.order))
