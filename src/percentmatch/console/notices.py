"""What a command says beside its results: notices, each once, and a line after ten silent seconds."""

import sys
import threading
import time
from contextlib import AbstractContextManager
from typing import ClassVar

from percentmatch.errors import visible

SILENCE = 10  # seconds


class Working(AbstractContextManager):
    """A command at work. One within another is a part of it."""

    outermost: ClassVar["Working | None"] = None
    heard: ClassVar[float] = 0.0  # when a line was last printed or a bar drawn

    def __init__(self, what: str, *, silent: bool = False) -> None:
        self.what, self.count, self.silent = what, "", silent
        self.said: set[str] = set()
        self.ended = threading.Event()
        self.watch = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Working":
        if Working.outermost is None:
            Working.outermost, Working.heard, self.began = self, time.monotonic(), time.monotonic()
            self.watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        if Working.outermost is self:
            Working.outermost = None
            self.ended.set()
            self.watch.join()

    def _watch(self) -> None:
        while not self.ended.wait(SILENCE / 10):
            if quiet() and not self.silent:
                to_stderr(f"{self.what}{self.count}  {time.monotonic() - self.began:.0f} s")


def quiet(ratio: float = 1.0) -> bool:
    """Whether nothing was shown for SILENCE seconds, or a part of them."""
    return time.monotonic() - Working.heard >= ratio * SILENCE


def doing(what: str) -> None:
    """Say what the command does from here on, should it take long."""
    if Working.outermost:
        Working.outermost.what, Working.outermost.began = what, time.monotonic()


def counted(done: int, total: int, how: str) -> None:
    """Say how many images are scored or read, should it take long."""
    if Working.outermost:
        Working.outermost.count = f"  {done:,}/{total:,} images {how}" if done < total else ""


def print_to_stderr(sentence: str) -> None:
    """A notice: within a command it is printed once, however often it is given."""
    if now := Working.outermost:
        if sentence in now.said:
            return
        now.said.add(sentence)
    to_stderr(sentence)


def to_stderr(line: str) -> None:
    """A line in which no name steers the terminal."""
    Working.heard = time.monotonic()
    print(visible(line), file=sys.stderr, flush=True)
