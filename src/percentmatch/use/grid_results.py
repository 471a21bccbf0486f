"""What a grid of runs gives: what its results file keeps of a run, and the table of all."""

import itertools
import json
import statistics
from collections import defaultdict
from typing import Any

from percentmatch.console.tables import cell, figures, show
from percentmatch.files import read_json
from percentmatch.runs.run_folder import PretrainFolder, RunFolder


def summary(folder: RunFolder, group: str, start: PretrainFolder | None = None) -> dict[str, Any]:
    """What a results file keeps of a finished run: all that a table or a figure needs."""
    log = folder.log.rows()
    training, validations = ([row for row in log if row.get("kind") == kind] for kind in ("train", "validation"))
    tenths = [training[row] for row in sorted({len(training) * tenth // 10 - 1 for tenth in range(1, 11)} - {-1})]
    config = folder.read_config()
    return {
        "group": group,
        **folder.read_metrics(),
        "method": config.method,  # by its present name
        **({"pretraining_minutes": start.read_result()["minutes"]} if start else {}),
        "settings": config.to_dict(),
        "environment": read_json(folder.environment),
        "curve": [{key: row.get(key) for key in ("step", "mAP", "AUC")} for row in validations],
        # with the pseudo-labels of each class, four digits after the point in every number
        "training": json.loads(json.dumps(tenths), parse_float=lambda number: round(float(number), 4)),
    }


def show_grid(results: dict[str, Any]) -> None:
    """Mean and standard deviation over the seeds of each group."""
    runs = results["runs"]
    subsets = [subset for subset in ("validation", "test") if any(subset in run for run in runs)]
    columns = list(itertools.product(subsets, ("mAP", "AUC")))
    table = figures("run", "seeds", *map("\n".join, columns), "minutes")
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["group"]].append(run)
    for group, mine in groups.items():
        cells = (_spread([run[subset]["ema"][name] for run in mine if subset in run]) for subset, name in columns)
        minutes = statistics.mean(run["minutes"] for run in mine)
        table.add_row(cell(group), ",".join(str(run["seed"]) for run in mine), *cells, f"{minutes:.1f}")
    show(table)
    if minutes := [run["pretraining_minutes"] for run in runs if "pretraining_minutes" in run]:
        print(f"the minutes are without the pretrainings, which took {statistics.mean(minutes):.1f} each")


def _spread(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if len(known) < 2:
        return f"{known[0]:.2f}" if known else "n/a"
    return f"{statistics.mean(known):.1f} ± {statistics.stdev(known):.1f}"
