"""Processes of their own that begin as copies of this one, so that none of them waits for imports."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

CONTEXT = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")  # a copy cannot use the GPU


def start_copy(call: Callable[..., object], *values: Any, said: Path) -> BaseProcess:
    """A process that calls this; what it prints and says goes to the file `said`."""
    process = CONTEXT.Process(target=_work, args=(call, values, said), daemon=True)
    process.start()
    return process


def exit_code(process: BaseProcess, seconds: float = 120) -> int | None:
    """Its exit code, below 0 if a signal ended it; None if it was still at work after so many seconds."""
    process.join(seconds)
    code = process.exitcode
    process.kill()
    return code


def print_to(printed: Path, said: Path) -> None:
    """Let the streams of this process go to these files from now on."""
    for number, path in ((1, printed), (2, said)):
        with open(path, "ab") as file:
            os.dup2(file.fileno(), number)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)


def _work(call: Callable[..., object], values: tuple[Any, ...], said: Path) -> None:
    print_to(said, said)
    torch.set_num_threads(1)
    call(*values)
