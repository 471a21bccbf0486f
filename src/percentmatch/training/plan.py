"""A plan that fits into so many minutes: a few steps and a scoring are timed before a run begins."""

import contextlib
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from percentmatch.data import Data
from percentmatch.distributed.group import least_over_ranks
from percentmatch.errors import UserError
from percentmatch.methods import method_row, num_students
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.predictions import BATCH
from percentmatch.training.loop import EAGER_STEPS, train_step
from percentmatch.training.resolve import Resolved, Seen, resolve
from percentmatch.training.results import score
from percentmatch.training.run import Run

TIMED = {"cpu": 4, "cuda": 20}  # steps; every rank takes as many
FEWEST, MOST = 10, 10_000  # steps of a student that are worth planning
SPARE = 0.1  # of the time, for what is not foreseen
VIEWS = ("labeled_view", "weak_view", "strong_view", "mixup")
VALIDATIONS = 5  # of a run, where --eval-every is not given


@dataclass(frozen=True)
class Pace:
    """What a run takes, in seconds."""

    start: float  # until its first step
    step: float  # the refreshing of labels between steps included
    scores: float  # all scorings that do not depend on the number of steps

    def steps(self, seconds: float) -> int:
        """How many fit into so many seconds."""
        return int((seconds * (1 - SPARE) - self.start - self.scores) / self.step)


def plan(
    given: Mapping[str, Any],
    seen: Seen,
    data: Data,
    folder: RunFolder,
    device: torch.device,
    *,
    minutes: float,
    began: float,
) -> tuple[Resolved, str]:
    """All settings with a number of steps that ends `minutes` after `began`, and a line about it."""
    resolved, fit = resolve(given, seen), []
    if not method_row(resolved.config.method).method.trains:
        raise UserError(
            f"--minutes plans steps, and --method {resolved.config.method} takes none; leave one of them out"
        )
    students = num_students(resolved.config.method, resolved.config.options)
    for _ in range(2):  # the number of steps may change how views are made, and so what a step takes
        pace = measure(resolved.config, given, data, folder, device)
        fit.append(min(pace.steps(60 * minutes - (time.monotonic() - began)), MOST * students))
        steps = int(least_over_ranks(torch.tensor(float(min(fit)))))
        if steps < (least := FEWEST * students):
            needed = (time.monotonic() - began + pace.start + pace.scores + least * pace.step) / (1 - SPARE) / 60
            how = "give more, a smaller --image-size or another --backbone"
            raise UserError(f"--minutes {minutes:g}: {least} steps would take about {needed:.1f} minutes; {how}")
        planned = resolve({**given, "total_steps": steps}, seen)
        same = all(getattr(planned.config, name) == getattr(resolved.config, name) for name in VIEWS)
        resolved = replace(planned, given=dict(given))
        if same:
            break
    takes = (time.monotonic() - began + pace.start + pace.scores + steps * pace.step) / 60
    most = ", the most that is planned" if steps == MOST * students else ""
    return (
        resolved,
        f"plan: {steps:,} steps of {pace.step:.2g} s{most}, about {takes:.1f} of {minutes:g} minutes in all",
    )


def measure(config: Any, given: Mapping[str, Any], data: Data, folder: RunFolder, device: torch.device) -> Pace:
    """What a run with these settings takes, from one that is thrown away; nothing is written."""
    began = time.monotonic()
    with contextlib.redirect_stderr(io.StringIO()):  # the run itself says it again
        run = Run(config, folder, data, device)
    ahead = 1 if device.type == "cpu" else EAGER_STEPS + 2  # a GPU captures its step after some
    start = step = 0.0
    for number in range(ahead + TIMED[device.type]):
        if number == ahead:
            start = _now(device) - began
        train_step(run, number % config.total_steps)
    step = (_now(device) - began - start) / TIMED[device.type]
    scored = [images for images in (run.validation, run.test) if len(images)]
    image, students = 0.0, num_students(config.method, config.options)
    for images in scored[:1]:
        some = images.part(images.ids[:BATCH])
        score(run, run.ema.model, some)
        first = _now(device)
        score(run, run.ema.model, some)
        image = (_now(device) - first) / len(some)
    every, pool = given.get("eval_every"), len(run.loader.unlabeled)
    if every:
        step += image * len(run.validation) / every
    if run.method.round_steps and not run.method.restarts:
        step += image * pool / run.method.round_steps
    times = 3 + (0 if every is not None else VALIDATIONS)  # at the end: averaged and raw weights, and thresholds
    scores = image * (times * len(run.validation) + 2 * len(run.test) + (students - 1) * pool)
    return Pace(start, step, scores)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
