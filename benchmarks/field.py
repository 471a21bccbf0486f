"""Train a grid of the field's protocol and tell the last epoch from the best one.

    uv run python benchmarks/field.py GRID --set root=FOLDER weights=FILE --out runs/field --results FILE.json \
        --photographs "which copy they are"

Papers on VOC2012 train -> val count difficult objects as absent, and report the best epoch on the test images. Both are
measured here alone: each table of scores gets a mean under LITERATURE, and each run of the results file `literature`,
with that mean after the last epoch and after the best one. Nothing is chosen by them. The same command goes on.
"""

import argparse
import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tables import write_json
from torch import Tensor

from percentmatch.data import Images
from percentmatch.records import Task
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.predictions import evaluate
from percentmatch.scoring.table import ScoreTable, score
from percentmatch.training import results
from percentmatch.use.grid import read_grid, run_grid

LITERATURE = "mAP, difficult as absent"


def with_difficult_absent(scores: Tensor, images: Images, task: Task) -> ScoreTable:
    """The usual table, with the mean of the literature beside the others."""
    table, labels = evaluate(scores, images, task), images.labels
    absent = score(scores, labels.targets.dense(), labels.known.dense(), images.class_names)
    table.means[LITERATURE] = absent.means["mAP"]
    return table


def last_and_best(folder: RunFolder) -> dict[str, Any]:
    """The literature's mean of the averaged weights: of the model that was saved, and of the best epoch."""
    rows = [row for row in folder.log.rows() if row["kind"] == "validation"]
    last = folder.read_metrics()["validation"]["ema"][LITERATURE]
    step = folder.read_metrics()["step"]
    best = max([(row[LITERATURE], row["step"]) for row in rows] + [(last, step)])
    return {"last": last, "best": best[0], "best_step": best[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="root and weights on this machine")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--photographs", required=True, help="which copy they are, for the tables")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no run is begun that would end later")
    parser.add_argument("--only", nargs="+", default=[], help="names, or patterns of names")
    asked = parser.parse_args()
    plan = read_grid(asked.grid, dict(pair.split("=", 1) for pair in asked.set))
    with patch.object(results, "evaluate", with_difficult_absent):
        runs = run_grid(plan, asked.out, minutes=asked.minutes, only=asked.only)["runs"]
    folders = {(planned.group, planned.config.seed): RunFolder(asked.out / planned.name) for planned in plan}
    for run in runs:
        run["literature"] = found = last_and_best(folders[run["group"], run["seed"]])
        for name in ("root", "weights"):
            run["settings"][name] = Path(run["settings"][name]).name
        last, best = (f"{100 * found[name]:.1f}" for name in ("last", "best"))
        print(f"{run['group']}, seed {run['seed']}: {last} ({best} at step {found['best_step']:,})")
    write_json(asked.results, {"photographs": asked.photographs, "runs": runs})


if __name__ == "__main__":
    main()
