"""Ctrl-C and SIGTERM ask a run to save and stop; a second one ends it at once."""

import signal
import threading
from types import FrameType
from typing import ClassVar


def ignored(number: int) -> bool:
    """Whether this process was started to ignore a signal, as a shell starts the jobs in its background, or nohup."""
    return signal.getsignal(number) == signal.SIG_IGN


class Stopped(BaseException):
    """A run was asked to stop and has saved its state. No `except Exception` around a run takes it for a failure."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class StopRequest:
    """While active, `number` is the signal that came, or None; where several are active, each gets the signal."""

    active: ClassVar[list["StopRequest"]] = []

    def __init__(self) -> None:
        self.number: int | None = None
        self.before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        self.number = next((request.number for request in self.active if request.number), None)
        self.active.append(self)
        main = threading.current_thread() is threading.main_thread()  # other threads cannot set handlers
        for number in (signal.SIGINT, signal.SIGTERM) if main and not self.number else ():
            if not ignored(number):
                self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        self.active.remove(self)
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        for request in reversed(self.active):  # the innermost first, so that the first handlers come back
            request.number = number
            request._restore()

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # ty: ignore[invalid-argument-type]
        self.before = {}
