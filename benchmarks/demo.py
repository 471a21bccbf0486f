"""The demo on seeds its settings were not chosen on: results/demo.json.

`uv run python benchmarks/demo.py` (about 12 minutes on 2 cores; resumes where it stopped); then `benchmarks/tables.py`
"""

from pathlib import Path

import torch
from tables import ROOT, demo_table, write_json

from percentmatch.runs.run_folder import RunFolder, environment
from percentmatch.use.demo import DEMO_METHODS, demo_config, run_demo

SEEDS = (0, 1, 2)  # settings were chosen on validation images with seeds 10 to 15
RUNS = Path("runs/benchmark-demo")


def main() -> None:
    rows, splits = [], []
    for seed in SEEDS:
        for method, metrics in run_demo(RUNS, seed=seed, device="cpu").items():
            test = metrics["test"]["ema"]
            classes = {name: values["AP"] for name, values in test["classes"].items()}
            row = {
                "method": method,
                "seed": seed,
                "mAP": test["mAP"],
                "AUC": test["AUC"],
                "minutes": metrics["minutes"],
            }
            rows.append({**row, "split": metrics["split"], "AP": classes})
            splits.append(RunFolder(RUNS / f"{method}-seed{seed}").read_split())
    config = demo_config("percentmatch")
    results = {
        "seeds": SEEDS,
        "labeled": len(splits[0].labeled),
        "unlabeled": len(splits[0].unlabeled),
        "image_size": config.image_size,
        "total_steps": config.total_steps,
        "options": DEMO_METHODS,
        **environment(torch.device("cpu")),
        "runs": rows,
    }
    write_json(ROOT / "results" / "demo.json", results)
    print(demo_table(results))


if __name__ == "__main__":
    main()
