"""What a grid file plans: methods x settings x seeds, checked before anything is trained."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from percentmatch.errors import UserError, did_you_mean
from percentmatch.files import read_yaml
from percentmatch.methods import checked_options
from percentmatch.settings.config import Config, PretrainSettings, SharedSettings
from percentmatch.settings.declare import flat, merge
from percentmatch.settings.presets import PRESETS, preset_values

KEYS = ("preset", "settings", "warm_start", "runs", "grid", "seeds")
MOST_RUNS = 10_000
SEEDS = {"seed", "split_seed"}  # what `seeds` sets
OF_THE_RUN = tuple(each.name for each in fields(SharedSettings))  # which its pretraining shares


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
    warm: PlannedStart | None = None


def read_grid(file: Path, over: Mapping[str, Any] | None = None) -> list[Planned]:
    """The runs a YAML file plans.

    `preset` and `settings` hold for all; `runs` names each variant and what it changes; `grid` lists values of
    settings, all combined; `seeds` set both seed and split_seed. `over` replaces what holds for all. Each setting that
    varies is named once, so that a run's name says what it was. With `warm_start`, settings of `pretrain`, the runs
    that name no weights begin from a backbone that is pretrained first, once for the same seed, images and backbone.
    """
    values = read_yaml(file)
    for key in values:
        if key not in KEYS:
            raise UserError(f"{file}: unknown entry '{key}'{did_you_mean(str(key), KEYS)}")
    preset = values.get("preset")
    if preset is not None and preset not in list(PRESETS):
        raise UserError(f"{file}: unknown preset '{preset}'{did_you_mean(str(preset), PRESETS)}")
    settings, warm_start = values.get("settings") or {}, values.get("warm_start") or {}
    runs, grid, seeds = values.get("runs") or {}, values.get("grid") or {}, values.get("seeds", [0])
    for good, rule in (
        (isinstance(settings, dict), "settings must hold names and values"),
        (isinstance(warm_start, dict), "warm_start must hold names and values"),
        (_mapping_of(runs, dict) and runs, "runs must hold at least one name, each with its settings"),
        (_mapping_of(grid, list) and all(grid.values()), "grid must hold lists of values"),
        (isinstance(seeds, list) and {*map(type, seeds)} == {int}, "seeds must be a list of numbers"),
    ):
        if not good:
            raise UserError(f"{file}: {rule}")
    count = math.prod(map(len, (*grid.values(), runs, seeds)))
    if count > MOST_RUNS:
        raise UserError(f"{file}: runs, grid and seeds ask for {count:,} runs; plan at most {MOST_RUNS:,} in a file")
    _check_names(file, settings, runs, grid, seeds, over or {})
    plan = list(_plan(file, preset, merge(settings, over or {}), runs, grid, seeds))
    if "warm_start" in values:
        plan = _with_warm_starts(f"{file}, warm_start", warm_start, plan)
    folders = Counter([planned.name for planned in plan] + [*{planned.warm.name for planned in plan if planned.warm}])
    name, times = max(folders.items(), key=itemgetter(1))
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
        for number, choice in enumerate(choices):
            if choice in choices[:number]:
                raise UserError(f"{file}: {name} lists {choice} twice; name each value once")


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


def _with_warm_starts(source: str, values: Mapping, plan: list[Planned]) -> list[Planned]:
    """The runs, each without weights with the pretraining that it begins from.

    Its folder is warm-seedN, and names the run where a seed needs more than one.
    """
    if given := [name for name in OF_THE_RUN if name in values]:
        raise UserError(f"{source}: {given[0]} is that of the runs; take it out")
    pretraining = PretrainSettings.from_dict(values, source=source)
    if all(planned.has_weights for planned in plan):
        raise UserError(f"{source}: every run has weights of its own; take those out, or warm_start")
    starts: dict[PretrainSettings, PlannedStart] = {}
    warmed = []
    for planned in plan:
        if planned.has_weights:
            warmed.append(planned)
            continue
        seed = planned.config.seed
        settings = replace(pretraining, **{name: getattr(planned.config, name) for name in OF_THE_RUN})
        if not (settings.validation or settings.split_file):  # it sees all images, however many of them are labeled
            settings = replace(settings, labeled=0.0)
        if settings not in starts:
            first = all(start.settings.seed != seed for start in starts.values())
            starts[settings] = PlannedStart(f"warm-seed{seed}" if first else f"warm-{planned.name}", settings)
        warmed.append(replace(planned, warm=starts[settings]))
    return warmed


@contextmanager
def named(source: str) -> Generator[None]:
    """Let a sentence raised inside begin with the run it belongs to."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(source):
            raise
        raise UserError(f"{source}: {error}") from error
