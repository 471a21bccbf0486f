"""A short ResNet18 run at 64 pixels on real VOC2007, on the CPU: does it learn?

    python benchmarks/voc_cpu.py --root VOCdevkit

Labels of the official train half, validation on the val half, the test half scored once at the end. Writes
results/voc_cpu.json, the table in docs/voc.md and its figure, from that file.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tables import ROOT, fill, write_json
from voc_figures import voc_cpu_figure
from voc_tables import voc_cpu_table

from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config
from percentmatch.training.start import train
from percentmatch.use.grid_results import summary

SETTINGS: dict[str, Any] = {
    "data": "voc",
    "year": 2007,
    "official_validation": True,
    "method": "supervised",
    "backbone": "resnet18",
    "head": "linear",
    "image_size": 64,
    "cache_size": 72,
    "total_steps": 500,
    "optimizer": "adamw",
    "lr": 2e-3,
    "weight_decay": 0.05,
    "ema_decay": 0.99,
    "eval_every": 100,
    "labeled_view": {"ops": 0, "crop_scale": 0.4, "cutout_ratio": 0.0},
    "device": "cpu",
}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--root", required=True)
    root = arguments.parse_args().root
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        train(Config.from_dict({**SETTINGS, "root": root}), out)
        run = summary(RunFolder(out), "supervised")
        parts = {
            part: len(ids) for part, ids in json.loads((out / "split.json").read_text()).items() if part != "digest"
        }
    run["settings"].pop("root")
    results = {"images": parts, "run": run}
    write_json(ROOT / "results" / "voc_cpu.json", results)
    fill(ROOT / "docs" / "voc.md", "voc_cpu", voc_cpu_table(results))
    voc_cpu_figure(results, ROOT / "docs" / "voc_cpu.svg")


if __name__ == "__main__":
    main()
