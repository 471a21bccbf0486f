"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn


def _bar(console: Console, *more: ProgressColumn) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    return Progress(*columns, *more, console=console)


class Report:
    """Shows loss, validation mAP, images a second and time left."""

    def __init__(self, name: str, total_steps: int, start: int, images_per_step: int, *, silent: bool = False) -> None:
        self.name, self.total, self.start, self.images = name, total_steps, start, images_per_step
        self.loss, self.map = "", ""
        self.began = self.shown = time.monotonic()
        self.bar: Progress | None = None
        console, self.silent = Console(stderr=True), silent
        if console.is_terminal and not self.silent:
            self.bar = _bar(console, TextColumn("{task.fields[facts]}"))
            self.task = self.bar.add_task(name, total=total_steps, completed=start, facts="")

    def __enter__(self) -> "Report":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def step(self, done: int) -> None:
        """After `done` steps; redrawn a few times a second at most."""
        now = time.monotonic()
        if self.bar and (now - self.shown > 0.2 or done == self.total):
            self.shown = now
            self.bar.update(self.task, completed=done, facts=self._facts(done))

    def row(self, done: int, *, loss: float | None = None, mean_ap: float | None = None) -> None:
        """A log row or a validation is there."""
        self.loss = f"loss {loss:.3f}" if loss is not None else self.loss
        self.map = f"mAP {100 * mean_ap:.1f}" if mean_ap is not None else self.map
        if not self.bar and loss is not None and not self.silent:
            left = (time.monotonic() - self.began) / max(done - self.start, 1) * (self.total - done)
            print(
                f"{self.name}  step {done}/{self.total}  {self._facts(done)}  {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def _facts(self, done: int) -> str:
        rate = (done - self.start) * self.images / max(time.monotonic() - self.began, 1e-9)
        return "  ".join(fact for fact in (self.loss, self.map, f"{rate:.0f} images/s") if fact)


class Counting:
    """Shows how many of many things are done: a bar in a terminal, a line every ten seconds elsewhere."""

    def __init__(self, what: str, *, silent: bool = False) -> None:
        self.what, self.shown = what, time.monotonic()
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.silent = silent

    def __enter__(self) -> "Counting":
        return self

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.silent:
            return
        if self.console.is_terminal:
            if self.bar is None:
                self.bar = _bar(self.console)
                self.task = self.bar.add_task(self.what, total=total)
                self.bar.start()
            if now - self.shown > 0.1 or done == total:
                self.shown = now
                self.bar.update(self.task, completed=done, total=total)
        elif now - self.shown > 10:
            self.shown = now
            print(f"{self.what}  {done}/{total}", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()
