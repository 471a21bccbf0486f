"""The demo: three methods, the same few labels, one table."""

from pathlib import Path
from typing import Any

from percentmatch.console.tables import figures, percent, show
from percentmatch.files import own_folder
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.table import final_scores
from percentmatch.settings.config import Config
from percentmatch.settings.presets import PRESETS
from percentmatch.training.start import train

DEMO_METHODS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "fixmatch": {"variant": "symmetric"},
    # a short run on few classes: more positives than the paper's 2%, hence a smaller gap between the thresholds
    "percentmatch": {"upper_percentile": 0.92, "gap_start": 0.3, "gap_full": 0.35, "warmup_steps": 200},
}


def demo_config(method: str, *, seed: int = 0, device: str = "auto") -> Config:
    given = {"method": method, "options": DEMO_METHODS[method], "seed": seed, "split_seed": seed, "device": device}
    return Config.from_dict(PRESETS["demo"] | given, source="preset demo")


def run_demo(out: Path, *, seed: int = 0, device: str = "auto") -> dict[str, dict[str, Any]]:
    """Train what is not trained yet, print the table and return the metrics by method."""
    results = {}
    table = figures("method", "mAP", "AUC", "minutes")
    for method in DEMO_METHODS:
        folder = RunFolder(own_folder(out / f"{method}-seed{seed}"))
        config = demo_config(method, seed=seed, device=device)
        metrics = results[method] = train(config, folder.path, resume=folder.config.exists())
        means = final_scores(metrics)["test"].means
        table.add_row(method, percent(means["mAP"]), percent(means["AUC"]), f"{metrics['minutes']:.1f}")
    print(f"\nMade-up scenes, {config.labeled:.0f} labeled images, scores on test images:\n")
    show(table)
    print(f"\nRun folders: {out}/<method>-seed{seed}")
    return results
