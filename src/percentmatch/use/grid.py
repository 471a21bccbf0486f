"""A grid of runs: planned and checked before anything is trained, then run one after the other, resumable."""

import fnmatch
import itertools
import math
import os
import re
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from percentmatch.console.notices import print_to_stderr
from percentmatch.console.signals import Stopped, StopRequest
from percentmatch.errors import Diverged, UserError, did_you_mean, several
from percentmatch.files import own_folder, read_yaml, write_json
from percentmatch.methods import checked_options
from percentmatch.runs.lock import locked
from percentmatch.runs.run_folder import PretrainFolder, RunFolder
from percentmatch.settings.config import Config, PretrainSettings, SharedSettings
from percentmatch.settings.declare import flat, merge
from percentmatch.settings.presets import PRESETS, preset_values
from percentmatch.training.start import pretrain, train
from percentmatch.use.grid_results import summary

KEYS = ("preset", "settings", "pretraining", "runs", "grid", "seeds")
MOST_RUNS = 10_000
SEEDS = {"seed", "split_seed"}  # what `seeds` sets
# settings that a pretraining takes from the runs that begin with it
OF_THE_RUN = tuple(each.name for each in fields(SharedSettings) if each.name not in ("log_every", "save_every"))


@dataclass(frozen=True)
class PlannedStart:
    """A pretraining that runs of a grid begin from."""

    name: str  # its folder
    settings: PretrainSettings


@dataclass(frozen=True)
class Planned:
    """One run of a grid."""

    name: str  # its folder
    group: str  # the same for all seeds
    config: Config
    source: str  # where it was planned, for messages
    has_weights: bool  # they are among its settings
    start: PlannedStart | None = None


def read_grid(file: Path, over: Mapping[str, Any] | None = None) -> list[Planned]:
    """The runs a YAML file plans.

    `preset` and `settings` hold for all; `runs` names each variant and what it changes; `grid` lists values of
    settings, all combined; `seeds` set both seed and split_seed. `over` replaces what holds for all. Each setting that
    varies is named once, so that a run's name says what it was. With `pretraining`, settings of `pretrain`, the runs
    that name no weights begin from a backbone that is pretrained first, once for the same seed, images and backbone.
    """
    values = read_yaml(file)
    if unknown := [key for key in values if key not in KEYS]:
        raise UserError(f"{file}: unknown entry '{unknown[0]}'{did_you_mean(str(unknown[0]), KEYS)}")
    preset = values.get("preset")
    if preset is not None and preset not in list(PRESETS):
        raise UserError(f"{file}: unknown preset '{preset}'{did_you_mean(str(preset), PRESETS)}")
    settings, pretraining = values.get("settings") or {}, values.get("pretraining") or {}
    runs, grid, seeds = values.get("runs") or {}, values.get("grid") or {}, values.get("seeds", [0])
    for good, rule in (
        (isinstance(settings, dict), "settings must hold names and values"),
        (isinstance(pretraining, dict), "pretraining must hold names and values"),
        (_mapping_of(runs, dict) and runs, "runs must hold at least one name, each with its settings"),
        (_mapping_of(grid, list) and all(grid.values()), "grid must hold lists of values"),
        (isinstance(seeds, list) and {*map(type, seeds)} == {int}, "seeds must be a list of numbers"),
    ):
        if not good:
            raise UserError(f"{file}: {rule}")
    if (count := math.prod(map(len, (*grid.values(), runs, seeds)))) > MOST_RUNS:
        raise UserError(f"{file}: runs, grid and seeds ask for {count:,} runs; plan at most {MOST_RUNS:,} in a file")
    _check_names(file, settings, runs, grid, seeds, over or {})
    plan = list(_plan(file, preset, merge(settings, over or {}), runs, grid, seeds))
    if "pretraining" in values:
        plan = _with_pretrainings(f"{file}, pretraining", pretraining, plan)
    folders = Counter([planned.name for planned in plan] + [*{planned.start.name for planned in plan if planned.start}])
    name, times = folders.most_common(1)[0]
    if times > 1:
        raise UserError(f"{file}: two runs would share the folder {name}; rename one of them")
    return plan


def _mapping_of(value: object, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(each, kind) for each in value.values())


def _check_names(file: Path, settings: dict, runs: dict, grid: dict, seeds: list[int], over: Mapping) -> None:
    """Refuse a setting or a value that is named twice."""
    in_runs = set().union(*map(flat, runs.values()))
    in_grid = {name for key, choices in grid.items() for choice in choices for name in flat({key: choice})}
    names_of = {"settings": {*flat(settings)}, "runs": in_runs, "grid": in_grid, "--set": {*flat(over)}}
    for entry, names in names_of.items():
        if names & SEEDS:
            raise UserError(f"{file}: {min(names & SEEDS)} is set by seeds; list it there and take it out of {entry}")
    for one, other in (("grid", "runs"), ("--set", "grid"), ("--set", "runs")):
        for name, its in itertools.product(sorted(names_of[one]), names_of[other]):
            if f"{name}.".startswith(f"{its}.") or f"{its}.".startswith(f"{name}."):  # the same, or one in the other
                raise UserError(f"{file}: {name} is both in {one} and in {other}; name it in one of them")
    for name, choices in {"seeds": seeds, **grid}.items():
        if twice := [choice for number, choice in enumerate(choices) if choice in choices[:number]]:
            raise UserError(f"{file}: {name} lists {twice[0]} twice; name each value once")


def _plan(
    file: Path, preset: str | None, shared: Mapping, runs: dict, grid: dict, seeds: list[int]
) -> Iterator[Planned]:
    """The runs; seeds change last, so that an unfinished grid holds whole comparisons."""
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for seed, point, name in itertools.product(seeds, points, runs):
        group = "-".join([str(name), *(f"{key}={value}" for key, value in point.items())])
        folder = re.sub(r"[/\\\x00-\x1f]", "_", f"{group}-seed{seed}")
        source = f"{file}, run '{folder}'"
        above = merge(merge(shared, point), runs[name])
        values = merge(preset_values(preset, above.get("method")), {**above, "seed": seed, "split_seed": seed})
        with named(source):
            config = Config.from_dict(values, source=source)
            config = replace(config, options=checked_options(config.method, config.options))
        yield Planned(folder, group, config, source, has_weights="weights" in values)


def _with_pretrainings(source: str, values: Mapping, plan: list[Planned]) -> list[Planned]:
    """The runs, each without weights with the pretraining that it begins from.

    Its folder is pretraining-seedN, and names the run where a seed needs more than one.
    """
    if given := [name for name in OF_THE_RUN if name in values]:
        raise UserError(f"{source}: {given[0]} is that of the runs; take it out")
    pretraining = PretrainSettings.from_dict(values, source=source)
    if all(planned.has_weights for planned in plan):
        raise UserError(f"{source}: every run has weights of its own; take those out, or pretraining")
    starts: dict[PretrainSettings, PlannedStart] = {}
    started = list(plan)
    for row, planned in enumerate(plan):
        if planned.has_weights:
            continue
        settings = replace(pretraining, **{name: getattr(planned.config, name) for name in OF_THE_RUN})
        if not (settings.validation or settings.split_file):  # it sees all images, however many of them are labeled
            settings = replace(settings, labeled=0.0)
        if settings not in starts:
            first = all(start.settings.seed != settings.seed for start in starts.values())
            starts[settings] = PlannedStart(
                f"pretraining-seed{settings.seed}" if first else f"pretraining-{planned.name}", settings
            )
        started[row] = replace(planned, start=starts[settings])
    return started


@contextmanager
def named(source: str) -> Generator[None]:
    """Let a sentence raised inside begin with the run it belongs to."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(source):
            raise
        raise UserError(f"{source}: {error}") from error


def run_grid(plan: list[Planned], out: Path, *, minutes: float = math.inf, only: Sequence[str] = ()) -> dict[str, Any]:
    """Train what is not trained yet, one run after the other, and write results.json after each.

    With `only`, patterns such as "*-seed1", others than the runs whose names match one are not begun. Runs that are
    finished are collected first. The first run begins at once, a further one only if the longest so far would end
    within `minutes`. A pretraining is made before the first run that needs it.
    """
    if not minutes > 0:
        raise UserError(f"--minutes must be above 0, not {minutes:g}")
    for pattern in only:
        if not fnmatch.filter([planned.name for planned in plan], pattern):
            raise UserError(f"--only {pattern}: no run has such a name; the first is '{plan[0].name}'; * is any text")
    with StopRequest() as stop:
        return _run_grid([_from_pretraining(planned, out) for planned in plan], out, 60 * minutes, only, stop)


def _run_grid(plan: list[Planned], out: Path, seconds: float, only: Sequence[str], stop: StopRequest) -> dict[str, Any]:
    folders = {planned.name: RunFolder(own_folder(out / planned.name)) for planned in plan}
    starts = {planned.name: PretrainFolder(own_folder(out / planned.start.name)) for planned in plan if planned.start}
    done: dict[str, Any] = {}
    failed: dict[Path, Diverged] = {}  # pretrainings
    diverged, left = [], 0
    began, longest, longest_start = time.monotonic(), 0.0, 0.0

    def results() -> dict[str, Any]:
        """What is finished by now, here or by another process."""
        for planned in plan:
            if planned.name not in done and folders[planned.name].metrics.exists():
                with named(planned.source):
                    done[planned.name] = summary(folders[planned.name], planned.group, starts.get(planned.name))
        return {"runs": [done[planned.name] for planned in plan if planned.name in done]}

    def write() -> dict[str, Any]:
        """Collected and written in one turn, so that the last of several processes leaves the results of all."""
        with locked(out):
            write_json(out / "results.json", found := results())
        return found

    for planned in plan:
        with named(planned.source):
            if planned.start and starts[planned.name].settings.exists():
                starts[planned.name].check_same(planned.start.settings)
            if folders[planned.name].config.exists():
                folders[planned.name].check_same(planned.config)
    results()
    for planned in plan:
        if stop.number:
            raise Stopped("stopped between two runs; the same command goes on", stop.number)
        if planned.name in done or (only and not any(fnmatch.fnmatch(planned.name, pattern) for pattern in only)):
            continue
        folder, start, started = folders[planned.name], starts.get(planned.name), time.monotonic()
        to_pretrain = planned.start and start and not start.result.exists()
        if longest + longest_start and started - began + longest + bool(to_pretrain) * longest_start > seconds:
            left += 1
            continue
        with named(planned.source):
            try:
                if planned.start and start and to_pretrain:
                    if start.path in failed:
                        raise failed[start.path]
                    pretrain(planned.start.settings, start.path, resume=start.settings.exists())
                    longest_start, started = max(longest_start, time.monotonic() - started), time.monotonic()
                    if started - began > seconds:
                        left += 1
                        continue
                train(planned.config, folder.path, resume=folder.config.exists())
            except Diverged as error:
                diverged.append(planned.name)
                print_to_stderr(f"{planned.name}: {error}")
                if start and not start.result.exists():
                    failed[start.path] = error
                    continue
            longest = max(longest, time.monotonic() - started)
            write()
    if left:
        print(f"{left} of {len(plan)} runs are left; the same command goes on with them")
    found = write()
    if diverged:
        raise UserError(f"{several(diverged)}: training diverged; {len(done)} other runs are in the results")
    return found


def _from_pretraining(planned: Planned, out: Path) -> Planned:
    """The run with the backbone of its pretraining as weights, at the path that it had when the run began."""
    if not planned.start:
        return planned
    folder, start = RunFolder(out / planned.name), PretrainFolder(out / planned.start.name)
    backbone = Path(os.path.abspath(start.backbone))
    then = Path(folder.read_config().weights) if folder.config.exists() else backbone
    moved = not then.exists() or then.parts[-2:] != backbone.parts[-2:]  # the folder of the grid, since then
    return replace(planned, config=replace(planned.config, weights=str(backbone if moved else then)))
