"""The side of a child: one attempt of a command, disturbed at a point that has a name.

A child is a copy of the process of the tests, or on a GPU of a server that has imported this module, so that none of
them waits for imports.
"""

import io
import math
import os
import platform
import re
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm  # noqa: F401  imported late by the commands
import torch
from torch import nn

from forked import print_to
from percentmatch import (
    files,
    report,  # noqa: F401
)
from percentmatch.cli import main as cli
from percentmatch.console import tables as show  # noqa: F401
from percentmatch.data.checks import check  # noqa: F401
from percentmatch.data.shards import write as sharding  # noqa: F401
from percentmatch.runs.log import Log
from percentmatch.runs.run_folder import RunFolder
from percentmatch.training import loop, results, start
from percentmatch.training.run import RunPool
from percentmatch.use import compare, evaluate, export, grid, predict, suggest  # noqa: F401

torch.set_num_threads(1)

KILLS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OTHER_PARTS = re.compile(r"^\.?[0-9a-f]{32}\.(?:npy|manifest|index|copies)(?:\.\d+\.[0-9a-f]{8,12}\.part)?$")


@dataclass(frozen=True)
class Fault:
    """What is done when a point is passed for the `number`-th time."""

    act: str  # of KILLS; "nan", "inf" in the weights; a "full" disk, a "limit" of file sizes; "remove", "cut" `file`
    point: str
    number: int = 1
    file: str = ""  # with "clock", by how many seconds it jumps


@dataclass(frozen=True)
class Machine:
    """What a process takes for its machine: a name, and a clock that is ahead by so many seconds, or behind."""

    host: str = ""
    ahead: float = 0.0


class Watch:
    """Counts the points that the process passes; does what the fault says at its own."""

    def __init__(self, fault: Fault | None, reached: Path) -> None:
        self.fault, self.reached, self.passed, self.order = fault, reached, Counter(), []
        self.full = False  # whether the next file that is opened is on a full disk
        self.place = str(reached.parents[1]) + os.sep

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
        elif fault.act == "SIGTERM twice":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        elif fault.act in ("nan", "inf"):
            with torch.no_grad():
                next(subject.model.parameters()).fill_(getattr(math, fault.act))
        elif fault.act == "remove":
            os.rename(fault.file, f"{fault.file}.away")
        elif fault.act == "clock":
            set_clock(float(fault.file))
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
        sys.addaudithook(self._hear)

    def _hear(self, event: str, values: tuple[Any, ...]) -> None:
        """Pass a point before any file of the test is opened for writing or image is read, whoever does it."""
        if event != "open" or not isinstance(values[0], str) or not values[0].startswith(self.place):
            return
        if values[0].endswith(".png"):
            self.at("reading an image")
        elif isinstance(values[2], int) and values[2] & WRITES and self.reached.parent != Path(values[0]).parent:
            self.at(f"creating {_name(values[0])}")

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
    return re.sub(r"shard-\d+", "shard", re.sub(r"^\.(.*)\.\d+\.[0-9a-f]{8,12}\.part$", r"\1", name))


def set_clock(ahead: float) -> None:
    """Let Python's clock, and the times of files that are moved into place from now on, differ from the system's."""
    now, now_ns, move = time.time, time.time_ns, os.replace

    def move_then(source: Any, target: Any) -> None:
        move(source, target)
        os.utime(target, (time.time(), time.time()))

    time.time, time.time_ns = lambda: now() + ahead, lambda: now_ns() + int(ahead * 1e9)
    os.replace = move_then


def set_host(name: str) -> None:
    about = os.uname()
    told = os.uname_result((about.sysname, name, *about[2:]))
    os.uname, socket.gethostname, platform.node = lambda: told, lambda: name, lambda: name


def attempt(
    tokens: list[str],
    place: str,
    environment: dict[str, str],
    fault: Fault | None = None,
    machine: Machine | None = None,
    *,
    points: bool = False,
) -> None:
    """Carry out a command. What it prints and says goes to files in the folder `place`, so do points it passes."""
    print_to(Path(place, "printed"), Path(place, "said"))
    os.environ.update(environment)
    if machine and machine.host:
        set_host(machine.host)
    if machine and machine.ahead:
        set_clock(machine.ahead)
    watch = Watch(fault, Path(place, "reached"))
    watch.install()
    sys.argv = ["percentmatch", *tokens]
    try:
        cli.main()
    finally:
        if points:
            order = list(watch.order)
            Path(place, "points").write_text("\n".join(order))
