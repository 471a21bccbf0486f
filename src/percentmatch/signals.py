"""Ctrl-C and SIGTERM ask a run to save and stop; a second one ends it at once."""

import signal
import threading
from types import FrameType, TracebackType


class Stopped(BaseException):
    """A run was asked to stop and has saved its state. No `except Exception` around a run takes it for a failure."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class StopRequest:
    """While active, `number` is the signal that came, or None; one around it hears of it, too."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        here = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
        for number in (signal.SIGINT, signal.SIGTERM) if here else ():
            self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()
        around = getattr(self.before.get(number), "__self__", None)
        if isinstance(around, StopRequest):  # of a grid, whose run this is
            around._ask(number, frame)

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # ty: ignore[invalid-argument-type]
