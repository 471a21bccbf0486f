"""Are the images that `percentmatch suggest` names worth more than random ones? results/suggest.json.

    uv run python benchmarks/suggest.py      # about 20 minutes on 2 cores; resumes where it stopped

A small run on made-up scenes, whose pool's labels are known, suggests 100 images to label. A run with these 100 labels
more is compared with two that have 100 random ones more: same network, steps, validation and test images. Once the
network starts from random weights, and once from a backbone that has learnt from 3,000 other scenes with one shape
each, as a pretrained one has from other photographs.
"""

import argparse
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tables import ROOT, fill, write_json

from percentmatch.data import Data, Split, load_data
from percentmatch.data.scenes import draw_scenes
from percentmatch.data.source import SCENES_SEED
from percentmatch.models import load_classifier
from percentmatch.runs.run_folder import RunFolder, environment
from percentmatch.settings.config import Config
from percentmatch.settings.declare import merge
from percentmatch.settings.presets import PRESETS
from percentmatch.training.start import train
from percentmatch.use.suggest import suggest

SEEDS = (0, 1, 2)  # the rule and the settings of the second start were looked at with seeds 10 to 12
LABELED, NUMBER, DRAWS = 100, 100, 2
RUNS = Path("runs/suggest")
BACKBONE = RUNS / "backbone.safetensors"
FIRST_OTHER, NUM_OTHERS = 3_000_000, 3000  # scenes that are neither in the pool nor in the test
STARTS: dict[str, dict[str, Any]] = {
    "random weights": {"total_steps": 400},
    "trained backbone": {"total_steps": 200, "lr": 0.003, "weights": str(BACKBONE)},
}


def config_of(seed: int, **changed: Any) -> Config:
    own = {"labeled": LABELED, "eval_every": 0, "method": "supervised", "device": "cpu"}
    values = merge(PRESETS["demo"], {**own, "seed": seed, "split_seed": seed, **changed})
    return Config.from_dict(values, source="suggest")


def trained(config: Config, folder: RunFolder, data: Data | None = None) -> dict[str, Any]:
    return train(config, folder.path, resume=folder.config.exists(), data=data)


def train_backbone() -> None:
    folder = RunFolder(RUNS / "backbone")
    config = config_of(0, labeled=0, validation=0, total_steps=600, task="single-label")
    others = draw_scenes(NUM_OTHERS, size=config.image_size, seed=SCENES_SEED, task=config.task, first=FIRST_OTHER)
    trained(config, folder, Data(others, others.part(())))
    model, _ = load_classifier(folder.model, torch.device("cpu"))
    save_file({name: each.contiguous() for name, each in model.backbone.state_dict().items()}, BACKBONE)


def with_more(split: Split, more: list[str]) -> Split:
    rest = tuple(name for name in split.unlabeled if name not in set(more))
    return replace(split, labeled=tuple(sorted((*split.labeled, *more))), unlabeled=rest)


def one_seed(start: str, seed: int) -> list[dict[str, Any]]:
    config = config_of(seed, **STARTS[start])

    def folder_of(name: str) -> RunFolder:
        return RunFolder(RUNS / f"{start}-{name}-seed{seed}".replace(" ", "-"))

    base = folder_of("base")
    results = {"base": trained(config, base)}
    split, file = base.read_split(), RUNS / "to_label.csv"
    file.unlink(missing_ok=True)
    chosen = {"suggested": suggest(base.path, NUMBER, file, device="cpu")["images"]}
    for draw in range(DRAWS):
        chosen[f"random{draw}"] = random.Random(seed + 1000 * draw).sample(split.unlabeled, NUMBER)
    for name, ids in chosen.items():
        plan = RUNS / f"{folder_of(name).path.name}.json"
        plan.write_text(with_more(split, ids).to_json())
        results[name] = trained(replace(config, split_file=str(plan)), folder_of(name))
    pool, rows = load_data(config).pool, []
    for name, metrics in results.items():
        labeled = pool.part(folder_of(name).read_split().labeled)
        positives = dict(zip(pool.class_names, labeled.labels.targets.in_columns().tolist(), strict=True))
        parts = {part: {key: metrics[part]["ema"][key] for key in ("mAP", "AUC")} for part in ("validation", "test")}
        classes = {key: row["AP"] for key, row in metrics["test"]["ema"]["classes"].items()}
        rows.append({"start": start, "run": name, "seed": seed, **parts, "AP": classes, "labeled": positives})
    return rows


def suggest_table(results: dict[str, Any]) -> str:
    """Test scores with 100 labels more; random lists are averaged before the seeds are."""
    lines = ["| start | labels | test mAP | test AUC | mAP over random, seed by seed | rare positives |"]
    lines.append("|---|---|---|---|---|---|")
    words = {"base": f"{results['labeled']}", "random": "and random ones", "suggested": "and suggested ones"}
    for start in results["starts"]:
        mine = {name: _by_seed(results, start, name) for name in words}
        for name, rows in mine.items():
            spread = [f"{statistics.mean(each):.1f} ± {statistics.stdev(each):.1f}" for each in zip(*rows, strict=True)]
            gains = ", ".join(f"{row[0] - other[0]:+.1f}" for row, other in zip(rows, mine["random"], strict=True))
            rare = spread[2].partition(" ")[0]
            over = "" if name == "random" else gains
            lines.append(f"| {start} | {words[name]} | {spread[0]} | {spread[1]} | {over} | {rare} |")
    seeds, draws = ", ".join(map(str, results["seeds"])), results["draws"]
    about = f"{results['labeled']} labeled scenes, {results['number']} more suggested or drawn ({draws} draws a seed); "
    about += f"{results['method']}; rare positives: labels of the five rarest classes; seeds {seeds}; mean ± standard "
    about += f"deviation; {results['device']}, torch {results['torch']}, commit {results['commit']}."
    return "\n".join([*lines, "", about, ""])


def _by_seed(results: dict[str, Any], start: str, name: str) -> list[tuple[float, float, float]]:
    """mAP and AUC in percent and rare positives of each seed, means over the runs whose name begins so."""
    seeds = []
    for seed in results["seeds"]:
        runs = [run for run in results["runs"] if run["start"] == start and run["seed"] == seed]
        runs = [run for run in runs if run["run"].startswith(name)]
        scores = (100 * statistics.mean(run["test"][key] for run in runs) for key in ("mAP", "AUC"))
        seeds.append((*scores, statistics.mean(sum([*run["labeled"].values()][-5:]) for run in runs)))
    return seeds


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="others are tried, not written down")
    seeds = tuple(arguments.parse_args().seeds)
    train_backbone()
    rows = [row for start in STARTS for seed in seeds for row in one_seed(start, seed)]
    facts = {"seeds": seeds, "starts": [*STARTS], "labeled": LABELED, "number": NUMBER, "draws": DRAWS}
    results = {**facts, "method": "supervised", **environment(torch.device("cpu")), "runs": rows}
    if seeds == SEEDS:
        write_json(ROOT / "results" / "suggest.json", results)
        fill(ROOT / "docs/compare-and-suggest.md", "suggest", suggest_table(results))
    print(suggest_table(results))


if __name__ == "__main__":
    main()
