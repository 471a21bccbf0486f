"""A grid of runs from one file: methods x settings x seeds, resumable, with one results file."""

import fnmatch
import itertools
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from percentmatch.console.signals import Stopped, StopRequest
from percentmatch.console.tables import cell, figures, percent, show
from percentmatch.errors import Diverged, UserError, did_you_mean, several
from percentmatch.files import read_json, write_json
from percentmatch.methods import checked_options
from percentmatch.runs.run_folder import RunFolder, read_yaml
from percentmatch.runs.warm_folder import WarmFolder
from percentmatch.settings.config import Config, DataSettings, PretrainSettings, flat, merge
from percentmatch.settings.presets import PRESETS, preset_values
from percentmatch.training.loop import train
from percentmatch.training.pretraining import pretrain

KEYS = ("preset", "settings", "warm_start", "runs", "grid", "seeds")
MOST_RUNS = 10_000
SEEDS = {"seed", "split_seed"}  # what `seeds` sets
OF_THE_RUN = (*(each.name for each in fields(DataSettings)), "backbone", "frame", "seed", "device", "deterministic")


@dataclass(frozen=True)
class PlannedStart:
    """A warm start that runs of a grid begin from."""

    name: str  # its folder
    settings: PretrainSettings


@dataclass(frozen=True)
class Planned:
    """One run of a grid."""

    name: str  # its folder
    group: str  # the same for all seeds
    config: Config
    source: str  # where it was planned, for messages
    warm: PlannedStart | None = None


def read_grid(file: Path, over: Mapping[str, Any] | None = None) -> list[Planned]:
    """The runs a YAML file plans.

    `preset` and `settings` hold for all; `runs` names each variant and what it changes; `grid` lists values of
    settings, all combined; `seeds` set both seed and split_seed. `over` replaces what holds for all. Each setting that
    varies is named in one place, so that a run's name says what it was. With `warm_start`, settings of `pretrain`, the
    runs that name no weights begin from a backbone trained first; the same seed, images and backbone share one.
    """
    values = read_yaml(file)
    unknown = next((key for key in values if key not in KEYS), None)
    if unknown is not None:
        raise UserError(f"{file}: unknown entry '{unknown}'{did_you_mean(str(unknown), KEYS)}")
    preset = values.get("preset")
    if preset is not None and preset not in list(PRESETS):
        raise UserError(f"{file}: unknown preset '{preset}'{did_you_mean(str(preset), PRESETS)}")
    runs, grid, seeds = values.get("runs") or {}, values.get("grid") or {}, values.get("seeds", [0])
    wrong = [
        what
        for what, good in (
            ("settings must hold names and values", isinstance(values.get("settings") or {}, dict)),
            ("warm_start must hold names and values", isinstance(values.get("warm_start") or {}, dict)),
            ("runs must hold at least one name, each with its settings", _mapping_of(runs, dict) and runs),
            ("grid must hold lists of values", _mapping_of(grid, list) and all(grid.values())),
            ("seeds must be a list of numbers", isinstance(seeds, list) and seeds and {*map(type, seeds)} == {int}),
        )
        if not good
    ]
    if wrong:
        raise UserError(f"{file}: {wrong[0]}")
    count = math.prod(map(len, grid.values())) * len(runs) * len(seeds)
    if count > MOST_RUNS:
        raise UserError(f"{file}: runs, grid and seeds ask for {count:,} runs; plan at most {MOST_RUNS:,} in a file")
    settings, over = values.get("settings") or {}, over or {}
    _check_names(file, settings, runs, grid, seeds, over)
    points, shared = list(_points(runs, grid, seeds)), merge(settings, over)
    plan = [_plan(file, preset, shared, name, runs[name], point, seed) for name, point, seed in points]
    if "warm_start" in values:
        own = ["weights" in {**PRESETS.get(preset, {}), **shared, **point, **runs[name]} for name, point, _ in points]
        plan = _with_warm_starts(file, values["warm_start"] or {}, plan, own)
    folders = sorted([planned.name for planned in plan] + [*{planned.warm.name for planned in plan if planned.warm}])
    for name, other in itertools.pairwise(folders):
        if name == other:
            raise UserError(f"{file}: two runs would share the folder {name}; rename one of them")
    return plan


def _with_warm_starts(file: Path, values: Mapping, plan: list[Planned], own: list[bool]) -> list[Planned]:
    """The runs, each with the warm start it shares but for those with weights of their `own`.

    Its folder is warm-seedN, and names the run where a seed needs more than one.
    """
    source = f"{file}, warm_start"
    if taken := next((name for name in OF_THE_RUN if name in values), None):
        raise UserError(f"{source}: {taken} is that of the runs; take it out")
    given = PretrainSettings.from_dict(values, source=source)
    if all(own):
        raise UserError(f"{source}: every run has weights of its own; take those out, or warm_start")
    starts: dict[PretrainSettings, PlannedStart] = {}
    warmed = []
    for planned, has_weights in zip(plan, own, strict=True):
        seed = planned.config.seed
        settings = replace(given, **{name: getattr(planned.config, name) for name in OF_THE_RUN})
        if not (settings.validation or settings.split_file):  # it sees all images, however many of them are labeled
            settings = replace(settings, labeled=0.0)
        if settings not in starts and not has_weights:
            first = all(start.settings.seed != seed for start in starts.values())
            starts[settings] = PlannedStart(f"warm-seed{seed}" if first else f"warm-{planned.name}", settings)
        warmed.append(planned if has_weights else replace(planned, warm=starts[settings]))
    return warmed


def _mapping_of(value: object, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(each, kind) for each in value.values())


def _check_names(file: Path, settings: dict, runs: dict, grid: dict, seeds: list[int], over: Mapping) -> None:
    """Refuse a setting or a value that is named twice."""
    in_runs = set().union(*map(flat, runs.values()))
    in_grid = {name for key, choices in grid.items() for choice in choices for name in flat({key: choice})}
    places = {"settings": {*flat(settings)}, "runs": in_runs, "grid": in_grid, "--set": {*flat(over)}}
    for place, names in places.items():
        if names & SEEDS:
            raise UserError(f"{file}: {min(names & SEEDS)} is set by seeds; list it there and take it out of {place}")
    for one, other in (("grid", "runs"), ("--set", "grid"), ("--set", "runs")):
        both = [name for name in sorted(places[one]) if any(_overlap(name, each) for each in places[other])]
        if both:
            raise UserError(f"{file}: {both[0]} is both in {one} and in {other}; name it in one of them")
    for name, choices in {"seeds": seeds, **grid}.items():
        twice = [choice for place, choice in enumerate(choices) if choice in choices[:place]]
        if twice:
            raise UserError(f"{file}: {name} lists {twice[0]} twice; name each value once")


def _overlap(one: str, other: str) -> bool:
    """The same setting, or one inside the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _points(runs: dict, grid: dict, seeds: list[int]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Seeds last, so that an unfinished grid holds whole comparisons."""
    for seed in seeds:
        for point in itertools.product(*grid.values()):
            for name in runs:
                yield name, dict(zip(grid, point, strict=True)), seed


def _plan(
    file: Path, preset: str | None, shared: Mapping, name: str, run: Mapping, point: Mapping, seed: int
) -> Planned:
    group = "-".join([str(name), *(f"{key}={value}" for key, value in point.items())])
    folder = re.sub(r"[/\\\x00-\x1f]", "_", f"{group}-seed{seed}")
    source = f"{file}, run '{folder}'"
    above = merge(merge(shared, point), run)
    values = merge(preset_values(preset, above.get("method")), {**above, "seed": seed, "split_seed": seed})
    with _named(source):
        config = Config.from_dict(values, source=source)
        config = replace(config, options=checked_options(config.method, config.options))
    return Planned(folder, group, config, source)


@contextmanager
def _named(source: str) -> Generator[None]:
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
    finished are collected first. The first run begins at once, a further one only if the longest so far
    would end within `minutes`. A warm start is made before the first run that needs it.
    """
    with StopRequest() as stop:
        return _run_grid(plan, out, minutes, only, stop)


def _run_grid(plan: list[Planned], out: Path, minutes: float, only: Sequence[str], stop: StopRequest) -> dict[str, Any]:
    if not minutes > 0:
        raise UserError(f"--minutes must be above 0, not {minutes:g}")
    for pattern in only:
        if not fnmatch.filter([planned.name for planned in plan], pattern):
            raise UserError(
                f"--only {pattern}: no run has such a name; the first is '{plan[0].name}', and * stands for any"
            )
    began, longest, warmest, left = time.monotonic(), 0.0, 0.0, 0
    diverged: list[str] = []
    plan = [_from_warm_start(planned, out) for planned in plan]
    folders = {planned.name: RunFolder(out / planned.name) for planned in plan}
    warm = {planned.name: WarmFolder(out / planned.warm.name) for planned in plan if planned.warm}
    done: dict[str, Any] = {}

    def collect() -> dict[str, Any]:
        """What is finished by now, here or by another process."""
        for planned in plan:
            if planned.name not in done and folders[planned.name].metrics.exists():
                with _named(planned.source):
                    done[planned.name] = summary(folders[planned.name], planned.group, warm.get(planned.name))
        return done

    for planned in plan:
        with _named(planned.source):
            if planned.warm and warm[planned.name].settings.exists():
                warm[planned.name].check_same(planned.warm.settings)
            if folders[planned.name].config.exists():
                folders[planned.name].check_same(planned.config)
    collect()
    for planned in plan:
        if stop.number:
            raise Stopped("stopped between two runs; the same command goes on", stop.number)
        folder, started = folders[planned.name], time.monotonic()
        if planned.name in done or (only and not any(fnmatch.fnmatch(planned.name, each) for each in only)):
            continue
        cold = planned.warm and not warm[planned.name].result.exists()
        if (longest or warmest) and started - began + longest + (warmest if cold else 0) > 60 * minutes:
            left += 1
            continue
        with _named(planned.source):
            if planned.warm and cold:
                start = warm[planned.name]
                pretrain(planned.warm.settings, start.path, resume=start.settings.exists())
                warmest, started = max(warmest, time.monotonic() - started), time.monotonic()
                if started - began > 60 * minutes:
                    left += 1
                    continue
            try:
                train(planned.config, folder.path, resume=folder.config.exists())
            except Diverged as error:
                diverged.append(planned.name)
                print(f"{planned.name}: {error}", file=sys.stderr)
            longest = max(longest, time.monotonic() - started)
            _write_results(plan, collect(), out)
    if left:
        print(f"{left} of {len(plan)} runs are left; the same command goes on with them")
    results = _write_results(plan, collect(), out)
    if diverged:
        raise UserError(f"{several(diverged)}: training diverged; {len(done)} other runs are in the results")
    return results


def _from_warm_start(planned: Planned, out: Path) -> Planned:
    """The run with the backbone of its warm start as weights, where that was when the run began."""
    if not planned.warm:
        return planned
    folder, file = RunFolder(out / planned.name), Path(os.path.abspath(WarmFolder(out / planned.warm.name).backbone))
    then = Path(folder.read_config().weights) if folder.config.exists() else file
    same = then.exists() and then.parts[-2:] == file.parts[-2:]  # else the grid's folder has been moved since
    return replace(planned, config=replace(planned.config, weights=str(then if same else file)))


def _write_results(plan: list[Planned], done: Mapping[str, Any], out: Path) -> dict[str, Any]:
    results = {"runs": [done[planned.name] for planned in plan if planned.name in done]}
    write_json(out / "results.json", results)
    return results


def summary(folder: RunFolder, group: str, warm: WarmFolder | None = None) -> dict[str, Any]:
    """What a results file keeps of a finished run: all that a table or a figure needs."""
    log = [row for _, row in folder.read_log()]
    curve = [row for row in log if row.get("kind") == "validation"]
    training = [row for row in log if row.get("kind") == "train"]
    places = sorted({len(training) * tenth // 10 - 1 for tenth in range(1, 11)} - {-1})
    config = folder.read_config()
    return {
        "group": group,
        **folder.read_metrics(),
        "method": config.method,  # as it is called today
        **({"warm_start_minutes": warm.read_result()["minutes"]} if warm else {}),
        "settings": config.to_dict(),
        "environment": read_json(folder.environment),
        "curve": [{key: row.get(key) for key in ("step", "mAP", "AUC")} for row in curve],
        "training": [_rounded(training[place]) for place in places],  # with the pseudo-labels of each class
    }


def _rounded(value: Any) -> Any:
    """The same with four digits after the point in every number."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def show_grid(results: dict[str, Any]) -> None:
    """Mean and standard deviation over the seeds of each group."""
    runs = results["runs"]
    parts = [part for part in ("validation", "test") if any(part in run for run in runs)]
    table = figures("run", "seeds", *(f"{part}\n{name}" for part in parts for name in ("mAP", "AUC")), "minutes")
    for group in dict.fromkeys(run["group"] for run in runs):
        mine = [run for run in runs if run["group"] == group]
        cells = [
            _spread([run[part]["ema"][name] for run in mine if part in run])
            for part in parts
            for name in ("mAP", "AUC")
        ]
        minutes = statistics.mean(run["minutes"] for run in mine)
        table.add_row(cell(group), ",".join(str(run["seed"]) for run in mine), *cells, f"{minutes:.1f}")
    show(table)
    if warm := [run["warm_start_minutes"] for run in runs if "warm_start_minutes" in run]:
        print(f"the minutes are without the warm starts, which took {statistics.mean(warm):.1f} each")


def _spread(values: list[float | None]) -> str:
    there = [value for value in values if value is not None]
    if len(there) < 2:
        return percent(there[0]) if there else "n/a"
    return f"{100 * statistics.mean(there):.1f} ± {100 * statistics.stdev(there):.1f}"
