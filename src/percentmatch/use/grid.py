"""The runs of a grid, one after the other, resumable, with one results file."""

import fnmatch
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from percentmatch.console.signals import Stopped, StopRequest
from percentmatch.console.tables import cell, figures, percent, show
from percentmatch.errors import Diverged, UserError, several
from percentmatch.files import read_json, write_json
from percentmatch.runs.pretrain_folder import PretrainFolder
from percentmatch.runs.run_folder import RunFolder
from percentmatch.training.start import pretrain, train
from percentmatch.use.grid_plan import Planned, named


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
    failed: dict[Path, Diverged] = {}  # pretrainings
    plan = [_from_warm_start(planned, out) for planned in plan]
    folders = {planned.name: RunFolder(out / planned.name) for planned in plan}
    warm = {planned.name: PretrainFolder(out / planned.warm.name) for planned in plan if planned.warm}
    done: dict[str, Any] = {}

    def collect() -> dict[str, Any]:
        """What is finished by now, here or by another process."""
        for planned in plan:
            if planned.name not in done and folders[planned.name].metrics.exists():
                with named(planned.source):
                    done[planned.name] = summary(folders[planned.name], planned.group, warm.get(planned.name))
        return done

    for planned in plan:
        with named(planned.source):
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
        with named(planned.source):
            try:
                if planned.warm and cold:
                    start = warm[planned.name]
                    if start.path in failed:
                        raise failed[start.path]
                    pretrain(planned.warm.settings, start.path, resume=start.settings.exists())
                    warmest, started = max(warmest, time.monotonic() - started), time.monotonic()
                    if started - began > 60 * minutes:
                        left += 1
                        continue
                train(planned.config, folder.path, resume=folder.config.exists())
            except Diverged as error:
                diverged.append(planned.name)
                print(f"{planned.name}: {error}", file=sys.stderr)
                if cold and not warm[planned.name].result.exists():
                    failed[warm[planned.name].path] = error
                    continue
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
    folder, start = RunFolder(out / planned.name), PretrainFolder(out / planned.warm.name)
    file = Path(os.path.abspath(start.backbone))
    then = Path(folder.read_config().weights) if folder.config.exists() else file
    same = then.exists() and then.parts[-2:] == file.parts[-2:]  # else the grid's folder has been moved since
    return replace(planned, config=replace(planned.config, weights=str(then if same else file)))


def _write_results(plan: list[Planned], done: Mapping[str, Any], out: Path) -> dict[str, Any]:
    results = {"runs": [done[planned.name] for planned in plan if planned.name in done]}
    write_json(out / "results.json", results)
    return results


def summary(folder: RunFolder, group: str, warm: PretrainFolder | None = None) -> dict[str, Any]:
    """What a results file keeps of a finished run: all that a table or a figure needs."""
    log = folder.log.rows()
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
