"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from percentmatch.console.notices import Working, quiet, to_stderr


class _Shown(AbstractContextManager):
    """A bar in a terminal, none elsewhere."""

    def __init__(self, *more: ProgressColumn, silent: bool) -> None:
        self.began = self.shown = time.monotonic()
        self.silent, self.console = silent, Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        visible = self.console.is_terminal and not self.console.is_jupyter and not silent  # a notebook gets lines
        self.bar = Progress(*columns, *more, console=self.console) if visible else None

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()


class Report(_Shown):
    """Shows losses, validation mAP, images a second and time left."""

    def __init__(self, name: str, total_steps: int, start: int, images_per_step: int, *, silent: bool = False) -> None:
        self.name, self.total, self.start, self.images = name, total_steps, start, images_per_step
        self.losses, self.map = "", ""
        super().__init__(TextColumn("{task.fields[facts]}"), silent=silent)
        if self.bar:
            self.task = self.bar.add_task(name, total=total_steps, completed=start, facts="")
            self.bar.start()

    def step(self, done: int) -> None:
        """After `done` steps; redrawn a few times a second at most, elsewhere a line where rows are slow to come."""
        now = time.monotonic()
        if self.bar and (now - self.shown > 0.2 or done == self.total):
            self.shown = Working.heard = now
            self.bar.update(self.task, completed=done, facts=self._facts(done))
        elif not self.bar and not self.silent and quiet(0.7):  # before the line that says only how long it has taken
            self._line(done)

    def row(self, done: int, *, losses: Mapping[str, float] | None = None, mean_ap: float | None = None) -> None:
        """Show the losses of a log row, by their names, or the figure of a validation."""
        self.losses = "  ".join(f"{name} {value:.3f}" for name, value in losses.items()) if losses else self.losses
        self.map = f"validation mAP {100 * mean_ap:.1f} at step {done}" if mean_ap is not None else self.map
        if not self.bar and losses and not self.silent:
            self._line(done)

    def _line(self, done: int) -> None:
        left = (time.monotonic() - self.began) / max(done - self.start, 1) * (self.total - done)
        to_stderr(f"{self.name}  step {done}/{self.total}  {self._facts(done)}  {left:.0f} s left")

    def _facts(self, done: int) -> str:
        rate = (done - self.start) * self.images / max(time.monotonic() - self.began, 1e-9)
        return "  ".join(fact for fact in (self.losses, self.map, f"{rate:.0f} images/s") if fact)


class Counting(_Shown):
    """Shows how many of many things are done: a bar in a terminal, a line every ten seconds elsewhere."""

    def __init__(self, what: str, *, silent: bool = False) -> None:
        self.what = what
        super().__init__(silent=silent)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.silent or not (now - self.shown > 0.1 or done == total if self.bar else quiet()):
            return
        self.shown = Working.heard = now
        if not self.bar:
            to_stderr(f"{self.what}  {done}/{total}")
            return
        if not self.bar.tasks:
            self.bar.add_task(self.what, total=total)
        self.bar.update(self.bar.task_ids[0], completed=done, total=total)
        self.bar.stop() if done == total else self.bar.start()  # two bars are never shown at once
