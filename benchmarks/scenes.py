"""Every method on the made-up scenes: same labels, same views, same network, same number of steps, three seeds.

    uv run python benchmarks/scenes.py                # about 90 minutes on 2 cores; resumes where it stopped
    OMP_NUM_THREADS=1 uv run python benchmarks/scenes.py --workers 15    # on 16 cores
    uv run python benchmarks/scenes.py --time         # seconds a step, on a quiet machine

Writes results/scenes.json and the tables made from it. Options differ from a method's defaults only where OPTIONS says
so; they were chosen on validation images with other seeds (docs/experiments.md).
"""

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

SEEDS = (0, 1, 2)
RUNS = Path("runs/scenes")
TIMED_STEPS = 40
SHORT = {"upper_percentile": 0.92, "gap_start": 0.3, "gap_full": 0.35, "warmup_steps": 200}  # for a short run
OPTIONS: dict[str, dict[str, Any]] = {
    "pseudo_label": {"loss": "bce", "upper": 0.8, "lower": 0.2, "weight": 0.3},
    "pi_model": {"weight": 3.0},
    "temporal_ensembling": {"weight": 5.0},
    "mean_teacher": {"loss": "bce", "weight": 10.0},
    "mixmatch": {"weight": 10.0},
    "uda": {"loss": "bce", "weight": 0.5},
    "fixmatch": {"variant": "symmetric", "loss": "bce"},
    "dash": {"loss": "bce", "scores": "teacher"},
    "adamatch": {"loss": "bce", "momentum": 0.99, "scores": "teacher"},
    "freematch": {"loss": "bce", "momentum": 0.99},
    "softmatch": {"loss": "bce", "momentum": 0.99, "weight": 0.3},
    "percentmatch": {**SHORT, "selection": "soft", "weight": 2.0},
    "ups": {"loss": "bce", "num_generations": 2},
    "curriculum_labeling": {"share_step": 0.5},
    "cap": {"loss": "bce", "weight": 0.5, "warmup_steps": 200},
}
SETTINGS: dict[str, dict[str, Any]] = {"ups": {"dropout": 0.2}}  # it measures uncertainty by dropout
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # further rows: the method and its options
    "fixmatch (defaults)": ("fixmatch", {}),
    "percentmatch (hard selection)": ("percentmatch", SHORT),
    "percentmatch (defaults)": ("percentmatch", {}),
}


def planned() -> dict[str, dict[str, Any]]:
    """What each row of the table changes in the demo's settings."""
    from percentmatch.methods import METHODS

    rows = {name: {"method": name, "options": OPTIONS.get(name, {}), **SETTINGS.get(name, {})} for name in METHODS}
    return rows | {row: {"method": name, "options": options} for row, (name, options) in VARIANTS.items()}


def config_of(row: str, seed: int, **changed: Any) -> Any:
    from percentmatch.settings.config import Config
    from percentmatch.settings.declare import merge
    from percentmatch.settings.presets import PRESETS

    values = merge(PRESETS["demo"], {**planned()[row], "seed": seed, "split_seed": seed, "device": "cpu", **changed})
    return Config.from_dict(values, source=f"scenes, {row}")


def folder_of(row: str, seed: int) -> Path:
    return RUNS / f"{row.replace(' (', '-').replace(' ', '-').rstrip(')')}-seed{seed}"


def train_one(job: tuple[str, int]) -> None:
    from percentmatch.training.start import train

    train(config_of(*job), folder_of(*job), resume=(folder_of(*job) / "config.yaml").exists())


def seconds_a_step() -> dict[str, float]:
    """The fastest of some steps of each row, taken in turns, so that a slow moment of the machine hits all alike."""
    from percentmatch.data import load_data
    from percentmatch.distributed.device import pick_device
    from percentmatch.runs.run_folder import RunFolder
    from percentmatch.training.loop import train_step
    from percentmatch.training.run import Run

    runs = {}
    for row in planned():
        config = config_of(row, 0)
        runs[row] = Run(config, RunFolder(Path("nowhere")), load_data(config), pick_device("cpu"))
    seconds = dict.fromkeys(runs, float("inf"))
    for step in range(TIMED_STEPS):
        for row, run in runs.items():
            began = time.perf_counter()
            train_step(run, step)
            seconds[row] = min(seconds[row], time.perf_counter() - began)
    return seconds


def collect() -> list[dict[str, Any]]:
    from percentmatch.runs.run_folder import RunFolder
    from percentmatch.use.grid_results import summary

    rows = []
    for row in planned():
        for seed in SEEDS:
            run = summary(RunFolder(folder_of(row, seed)), row)
            scores = run["test"]["ema"]
            kept = {"row": row, "method": run["method"], "seed": seed, "options": run["settings"]["options"]}
            classes = {name: values["AP"] for name, values in scores["classes"].items()}
            numbers = {"mAP": scores["mAP"], "AUC": scores["AUC"], "minutes": run["minutes"], "split": run["split"]}
            rows.append({**kept, **numbers, "AP": classes, "environment": run["environment"]})
    return rows


def main() -> None:
    from tables import ROOT, fill, scenes_table, write_json

    arguments = argparse.ArgumentParser()
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many")
    arguments.add_argument(
        "--time", action="store_true", help="only measure the seconds a step, for the results there are"
    )
    chosen = arguments.parse_args()
    file = ROOT / "results" / "scenes.json"
    if chosen.time:
        results = json.loads(file.read_text())
        results["seconds_a_step"], results["timed_on"] = seconds_a_step(), f"{os.cpu_count()} CPU cores"
    else:
        began = time.monotonic()
        jobs = [
            (row, seed) for seed in SEEDS for row in planned() if not (folder_of(row, seed) / "metrics.json").exists()
        ]
        context = multiprocessing.get_context("spawn")
        with context.Pool(chosen.workers, maxtasksperchild=1) as pool:
            for done, _ in enumerate(pool.imap_unordered(train_one, jobs, chunksize=1), start=1):
                print(f"{done}/{len(jobs)} runs, {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
                if time.monotonic() - began > 60 * chosen.minutes:
                    pool.terminate()
                    return
        config = config_of("supervised", 0)
        facts = {"seeds": SEEDS, "image_size": config.image_size, "total_steps": config.total_steps}
        split = json.loads((folder_of("supervised", 0) / "split.json").read_text())
        facts |= {part: len(split[part]) for part in ("labeled", "unlabeled", "validation", "test")}
        results = {**facts, "runs": collect(), "seconds_a_step": {}, "timed_on": ""}
    write_json(file, results)
    for page in ("README.md", "docs/methods/README.md"):
        fill(ROOT / page, "scenes", scenes_table(results))


if __name__ == "__main__":
    main()
