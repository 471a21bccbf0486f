"""A grid of runs from one file: methods x settings x seeds, resumable, with one results file."""

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from percentmatch.checkpoint import read_json, write_json
from percentmatch.config import PRESETS, Config, merge
from percentmatch.errors import UserError, did_you_mean
from percentmatch.methods import checked_options
from percentmatch.run_folder import RunFolder, read_yaml
from percentmatch.show import percent
from percentmatch.train import train

KEYS = ("preset", "settings", "runs", "grid", "seeds")


@dataclass(frozen=True)
class Planned:
    """One run of a grid."""

    name: str  # its folder
    group: str  # the same for all seeds
    config: Config


def read_grid(file: Path, over: Mapping[str, Any] | None = None) -> list[Planned]:
    """The runs a YAML file plans.

    `preset` and `settings` hold for all; `runs` names each variant and what it changes; `grid` lists values of
    settings, all combined; `seeds` set both seed and split_seed. `over` has the last word.
    """
    values = read_yaml(file)
    unknown = next((key for key in values if key not in KEYS), None)
    if unknown is not None:
        raise UserError(f"{file}: unknown entry '{unknown}'{did_you_mean(str(unknown), KEYS)}")
    preset = values.get("preset")
    if preset is not None and preset not in PRESETS:
        raise UserError(f"{file}: unknown preset '{preset}'{did_you_mean(str(preset), PRESETS)}")
    runs, grid, seeds = values.get("runs") or {}, values.get("grid") or {}, values.get("seeds", [0])
    wrong = [
        what
        for what, good in (
            ("settings must hold names and values", isinstance(values.get("settings") or {}, dict)),
            ("runs must hold at least one name, each with its settings", _mapping_of(runs, dict) and runs),
            ("grid must hold lists of values", _mapping_of(grid, list) and all(grid.values())),
            ("seeds must be a list of numbers", isinstance(seeds, list) and seeds and {*map(type, seeds)} == {int}),
        )
        if not good
    ]
    if wrong:
        raise UserError(f"{file}: {wrong[0]}")
    base = merge(PRESETS.get(preset, {}), values.get("settings") or {})
    return [
        _plan(file, base, name, runs[name], point, seed, over or {}) for name, point, seed in _points(runs, grid, seeds)
    ]


def _mapping_of(value: object, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(each, kind) for each in value.values())


def _points(runs: dict, grid: dict, seeds: list[int]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Seeds last, so that an unfinished grid holds whole comparisons."""
    for seed in seeds:
        for point in itertools.product(*grid.values()):
            for name in runs:
                yield name, dict(zip(grid, point, strict=True)), seed


def _plan(file: Path, base: Mapping, name: str, run: Mapping, point: Mapping, seed: int, over: Mapping) -> Planned:
    values = merge(merge(merge(base, point), run), {"seed": seed, "split_seed": seed, **over})
    config = Config.from_dict(values, source=f"{file}, run '{name}'")
    checked_options(config.method, config.options)
    group = "-".join([str(name), *(f"{key}={value}" for key, value in point.items())])
    return Planned(f"{group}-seed{seed}".replace("/", "_"), group, config)


def run_grid(plan: list[Planned], out: Path, *, minutes: float = math.inf) -> dict[str, Any]:
    """Train what is not trained yet, one run after the other, and write results.json after each.

    A new run begins only if the longest so far would end within `minutes`.
    """
    began, longest = time.monotonic(), 0.0
    results: dict[str, Any] = {"runs": []}
    for number, planned in enumerate(plan):
        folder = RunFolder(out / planned.name)
        started = time.monotonic()
        if not folder.metrics.exists() and started - began + longest > 60 * minutes:
            print(f"{len(plan) - number} of {len(plan)} runs are left; the same command goes on with them")
            break
        train(planned.config, folder.path, resume=folder.config.exists())
        longest = max(longest, time.monotonic() - started)
        results["runs"].append(summary(folder, planned.group))
        write_json(out / "results.json", results)
    return results


def summary(folder: RunFolder, group: str) -> dict[str, Any]:
    """What a results file keeps of a finished run: all that a table or a figure needs."""
    curve = [row for _, row in folder.read_log() if row["kind"] == "validation"]
    return {
        "group": group,
        **read_json(folder.metrics),
        "settings": folder.read_config().to_dict(),
        "environment": read_json(folder.environment),
        "curve": [{key: row[key] for key in ("step", "mAP", "AUC")} for row in curve],
    }


def show_grid(results: dict[str, Any]) -> None:
    """Mean and standard deviation over the seeds of each group."""
    runs = results["runs"]
    parts = [part for part in ("validation", "test") if any(part in run for run in runs)]
    table = Table("run", "seeds", box=None)
    for column in (f"{part} {name}" for part in parts for name in ("mAP", "AUC")):
        table.add_column(column, justify="right")
    table.add_column("minutes", justify="right")
    for group in dict.fromkeys(run["group"] for run in runs):
        mine = [run for run in runs if run["group"] == group]
        cells = [
            _spread([run[part]["ema"][name] for run in mine if part in run])
            for part in parts
            for name in ("mAP", "AUC")
        ]
        minutes = statistics.mean(run["minutes"] for run in mine)
        table.add_row(group, ",".join(str(run["seed"]) for run in mine), *cells, f"{minutes:.1f}")
    Console().print(table)


def _spread(values: list[float | None]) -> str:
    there = [value for value in values if value is not None]
    if len(there) < 2:
        return percent(there[0]) if there else "n/a"
    return f"{percent(statistics.mean(there))} ± {percent(statistics.stdev(there))}"


def over_settings(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs, values read as YAML, dots for nested names."""
    import yaml

    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE, such as --set root=/data/coco, not '{pair}'")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"--set {name}: '{text}' is not a value") from None
        for key in reversed(name.strip().split(".")):
            value = {key: value}
        settings = merge(settings, value)
    return settings
