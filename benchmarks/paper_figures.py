"""Figures 2 (b, c) and 3 (a to c) of the PercentMatch paper, from one run of coco2014_table2.yaml.

    python benchmarks/paper_figures.py "runs/coco-table2/percentmatch-labeled=8200-seed0" "the copy of the photographs"

writes results/coco2014/classes.json out of the run's log; `tables.py` draws the figures from it.
"""

import sys
from pathlib import Path
from typing import Any

from tables import ROOT, read, write_json
from voc_figures import pyplot_of_svg, save

from percentmatch.files import read_json
from percentmatch.runs.run_folder import RunFolder

CLASSES = ("person", "chair", "cat", "hair drier")  # the paper's, the most frequent first
COLORS = ("#1f6f8b", "#d1495b", "#2e8b57", "#8a6fb0")


def traces(folder: RunFolder) -> dict[str, Any]:
    """Of the four classes thresholds, weights and AUC over the steps; of every class its gap and AUC at the end."""
    rows = folder.log.rows()
    training, validations = ([row for row in rows if row.get("kind") == kind] for kind in ("train", "validation"))
    scored = validations[-1]["classes"]
    places = {name: list(scored).index(name) for name in CLASSES}
    ended = training[-1]["classes"]
    return {
        "steps": [row["step"] for row in training],
        **{
            key: {name: [round(row["classes"][key][place], 4) for row in training] for name, place in places.items()}
            for key in ("upper", "lower", "weights")
        },
        "AUC": {
            "steps": [row["step"] for row in validations],
            **{name: [row["classes"][name]["AUC"] for row in validations] for name in CLASSES},
        },
        "at the end": {
            name: {"gap": ended["gap"][place], "AUC": row["AUC"], "positives": row["positives"]}
            for place, (name, row) in enumerate(scored.items())
        },
    }


def figure(results: dict[str, Any], file: Path) -> None:
    """The five pictures in one row each of the paper's figures."""
    pyplot = pyplot_of_svg()
    drawn, grid = pyplot.subplots(2, 3, figsize=(10, 5.6), layout="constrained")
    (thresholds, aucs, spread), (gaps, weights, nothing) = grid
    steps, auc = results["steps"], results["AUC"]
    for name, color in zip(CLASSES, COLORS, strict=True):
        upper, lower = results["upper"][name], results["lower"][name]
        thresholds.plot(steps, upper, color=color, label=name)
        thresholds.plot(steps, lower, color=color, linestyle="--")
        aucs.plot(auc["steps"], auc[name], color=color, marker=".")
        gaps.plot(steps, [high - low for high, low in zip(upper, lower, strict=True)], color=color)
        weights.plot(steps, results["weights"][name], color=color)
    ends = [end for end in results["at the end"].values() if end["AUC"] is not None]
    sizes = [12 * end["positives"] ** 0.25 for end in ends]
    spread.scatter([end["gap"] for end in ends], [end["AUC"] for end in ends], s=sizes, color="#1f6f8b", alpha=0.6)
    nothing.axis("off")
    for axes, title, label in (
        (thresholds, "2b: thresholds", "step"),
        (aucs, "2c: AUC on validation images", "step"),
        (spread, "3a: AUC and gap of all 80 classes", "gap at the end"),
        (gaps, "3b: gap between the thresholds", "step"),
        (weights, "3c: weight of the unlabeled loss", "step"),
    ):
        axes.set(title=title, xlabel=label)
        axes.spines[["top", "right"]].set_visible(False)
    nothing.legend(*thresholds.get_legend_handles_labels(), loc="center", frameon=False)
    save(drawn, file)


def main() -> None:
    figure(read("coco2014/classes"), ROOT / "docs/paper_figures.svg")


if __name__ == "__main__":
    run, photographs = RunFolder(Path(sys.argv[1])), sys.argv[2]
    about = {"settings": run.read_config().to_dict(), "environment": read_json(run.environment)}
    about["settings"]["root"] = Path(about["settings"]["root"]).name
    write_json(ROOT / "results/coco2014/classes.json", {"photographs": photographs, **about, **traces(run)})
