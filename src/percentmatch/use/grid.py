"""The runs of a grid, one after the other, resumable, with one results file."""

import fnmatch
import json
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from percentmatch.console.signals import Stopped, StopRequest
from percentmatch.console.tables import cell, figures, show
from percentmatch.errors import Diverged, UserError, several
from percentmatch.files import read_json, write_json
from percentmatch.runs.run_folder import PretrainFolder, RunFolder
from percentmatch.training.start import pretrain, train
from percentmatch.use.grid_plan import Planned, named


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
            first = plan[0].name
            raise UserError(f"--only {pattern}: no run has such a name; the first is '{first}', and * stands for any")
    with StopRequest() as stop:
        return _run_grid([_from_warm_start(planned, out) for planned in plan], out, 60 * minutes, only, stop)


def _run_grid(plan: list[Planned], out: Path, seconds: float, only: Sequence[str], stop: StopRequest) -> dict[str, Any]:
    folders = {planned.name: RunFolder(out / planned.name) for planned in plan}
    starts = {planned.name: PretrainFolder(out / planned.warm.name) for planned in plan if planned.warm}
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

    for planned in plan:
        with named(planned.source):
            if planned.warm and starts[planned.name].settings.exists():
                starts[planned.name].check_same(planned.warm.settings)
            if folders[planned.name].config.exists():
                folders[planned.name].check_same(planned.config)
    results()
    for planned in plan:
        if stop.number:
            raise Stopped("stopped between two runs; the same command goes on", stop.number)
        if planned.name in done or (only and not any(fnmatch.fnmatch(planned.name, pattern) for pattern in only)):
            continue
        folder, start, started = folders[planned.name], starts.get(planned.name), time.monotonic()
        to_pretrain = planned.warm and start and not start.result.exists()
        if longest + longest_start and started - began + longest + bool(to_pretrain) * longest_start > seconds:
            left += 1
            continue
        with named(planned.source):
            try:
                if planned.warm and start and to_pretrain:
                    if start.path in failed:
                        raise failed[start.path]
                    pretrain(planned.warm.settings, start.path, resume=start.settings.exists())
                    longest_start, started = max(longest_start, time.monotonic() - started), time.monotonic()
                    if started - began > seconds:
                        left += 1
                        continue
                train(planned.config, folder.path, resume=folder.config.exists())
            except Diverged as error:
                diverged.append(planned.name)
                print(f"{planned.name}: {error}", file=sys.stderr)
                if start and not start.result.exists():
                    failed[start.path] = error
                    continue
            longest = max(longest, time.monotonic() - started)
            write_json(out / "results.json", results())
    if left:
        print(f"{left} of {len(plan)} runs are left; the same command goes on with them")
    found = results()
    write_json(out / "results.json", found)
    if diverged:
        raise UserError(f"{several(diverged)}: training diverged; {len(done)} other runs are in the results")
    return found


def _from_warm_start(planned: Planned, out: Path) -> Planned:
    """The run with the backbone of its pretraining as weights, at the path that it had when the run began."""
    if not planned.warm:
        return planned
    folder, start = RunFolder(out / planned.name), PretrainFolder(out / planned.warm.name)
    backbone = Path(os.path.abspath(start.backbone))
    then = Path(folder.read_config().weights) if folder.config.exists() else backbone
    moved = not then.exists() or then.parts[-2:] != backbone.parts[-2:]  # the folder of the grid, since then
    return replace(planned, config=replace(planned.config, weights=str(backbone if moved else then)))


def summary(folder: RunFolder, group: str, start: PretrainFolder | None = None) -> dict[str, Any]:
    """What a results file keeps of a finished run: all that a table or a figure needs."""
    log = folder.log.rows()
    training = [row for row in log if row.get("kind") == "train"]
    tenths = [training[row] for row in sorted({len(training) * tenth // 10 - 1 for tenth in range(1, 11)} - {-1})]
    config = folder.read_config()
    return {
        "group": group,
        **folder.read_metrics(),
        "method": config.method,  # by its present name
        **({"warm_start_minutes": start.read_result()["minutes"]} if start else {}),
        "settings": config.to_dict(),
        "environment": read_json(folder.environment),
        "curve": [
            {key: row.get(key) for key in ("step", "mAP", "AUC")} for row in log if row.get("kind") == "validation"
        ],
        # with the pseudo-labels of each class, four digits after the point in every number
        "training": json.loads(json.dumps(tenths), parse_float=lambda number: round(float(number), 4)),
    }


def show_grid(results: dict[str, Any]) -> None:
    """Mean and standard deviation over the seeds of each group."""
    runs = results["runs"]
    columns = [
        (part, name) for part in ("validation", "test") for name in ("mAP", "AUC") if any(part in r for r in runs)
    ]
    table = figures("run", "seeds", *map("\n".join, columns), "minutes")
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["group"]].append(run)
    for group, mine in groups.items():
        cells = (_spread([run[part]["ema"][name] for run in mine if part in run]) for part, name in columns)
        minutes = statistics.mean(run["minutes"] for run in mine)
        table.add_row(cell(group), ",".join(str(run["seed"]) for run in mine), *cells, f"{minutes:.1f}")
    show(table)
    if minutes := [run["warm_start_minutes"] for run in runs if "warm_start_minutes" in run]:
        print(f"the minutes are without the pretrainings, which took {statistics.mean(minutes):.1f} each")


def _spread(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if len(known) < 2:
        return f"{known[0]:.2f}" if known else "n/a"
    return f"{statistics.mean(known):.1f} ± {statistics.stdev(known):.1f}"
