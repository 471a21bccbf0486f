"""What a grid file plans: methods x settings x seeds, checked before anything is trained."""

import itertools
import math
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from percentmatch.errors import UserError, did_you_mean
from percentmatch.files import read_yaml
from percentmatch.methods import checked_options
from percentmatch.settings.config import Config, SharedSettings
from percentmatch.settings.declare import flat, merge
from percentmatch.settings.presets import PRESETS, preset_values
from percentmatch.settings.pretraining import PretrainSettings

KEYS = ("preset", "settings", "warm_start", "runs", "grid", "seeds")
MOST_RUNS = 10_000
SEEDS = {"seed", "split_seed"}  # what `seeds` sets
OF_THE_RUN = tuple(each.name for each in fields(SharedSettings))  # a pretraining takes them from it


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
    with named(source):
        config = Config.from_dict(values, source=source)
        config = replace(config, options=checked_options(config.method, config.options))
    return Planned(folder, group, config, source)


@contextmanager
def named(source: str) -> Generator[None]:
    """Let a sentence raised inside begin with the run it belongs to."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(source):
            raise
        raise UserError(f"{source}: {error}") from error
