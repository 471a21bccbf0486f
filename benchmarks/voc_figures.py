"""Figures of VOC2007, made from results/voc2007: `tables.py` writes them into the docs."""

import statistics
from pathlib import Path
from typing import Any

from tables import ROOT, read
from voc_tables import PSEUDO, PUBLISHED, with_pseudo_labels


def pyplot_of_svg() -> Any:
    """matplotlib for SVG files that are the same every time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "percentmatch"
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, file: Path) -> None:
    figure.savefig(file, metadata={"Date": None})
    pyplot_of_svg().close(figure)


def voc_cpu_figure(results: dict[str, Any], file: Path) -> None:
    """Validation mAP over the steps, and what guessing would give: the mean prevalence."""
    pyplot, curve = pyplot_of_svg(), results["run"]["curve"]
    classes = results["run"]["validation"]["ema"]["classes"].values()
    guess = statistics.mean(row["positives"] / (row["positives"] + row["negatives"]) for row in classes)
    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    axes.plot([row["step"] for row in curve], [100 * row["mAP"] for row in curve], marker="o", color="#1f6f8b")
    axes.axhline(100 * guess, color="#888888", linestyle="--", linewidth=1)
    axes.annotate(
        "guessing", (curve[-1]["step"], 100 * guess), (0, 4), textcoords="offset points", ha="right", color="#666666"
    )
    axes.set(xlabel="step", ylabel="validation mAP, %", ylim=(0, None), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, file)


def pseudo_label_figure(results: dict[str, Any], file: Path) -> None:
    """For each class, how many positive pseudo-labels are right and how many positives are found, over the steps."""
    pyplot, labeled = pyplot_of_svg(), with_pseudo_labels(results)
    names = list(results["runs"][0]["test"]["ema"]["classes"])
    figure, grid = pyplot.subplots(4, 5, figsize=(10, 7), layout="constrained", sharex=True, sharey=True)
    for place, (name, axes) in enumerate(zip(names, grid.flat, strict=True)):
        for (count, runs), color in zip(labeled.items(), ("#1f6f8b", "#d1495b"), strict=True):
            rows = list(zip(*(run["training"] for run in runs), strict=True))  # of all runs, step by step
            sums = [[sum(row["classes"][key][place] for row in each) for key in PSEUDO[:3]] for each in rows]
            steps = [each[0]["step"] for each in rows]
            right = [100 * a / b if b else None for a, b, _ in sums]
            found = [100 * a / b if b else None for a, _, b in sums]
            axes.plot(steps, right, color=color, label=f"right, {count:,.0f} labels")
            axes.plot(steps, found, color=color, linestyle="--", label=f"found, {count:,.0f} labels")
        axes.set_title(name, fontsize=9)
        axes.set(ylim=(0, 100))
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.supxlabel("step")
    figure.supylabel("positive pseudo-labels, %")
    save(figure, file)


def overview_figure(tracks: dict[str, dict[str, Any]], file: Path) -> None:
    """Supervised and the track's other method: the means, a small dot for each seed, and what the paper published.

    That is PercentMatch with the paper's recipe, PriorMatch with ours.
    """
    pyplot = pyplot_of_svg()
    figure, grid = pyplot.subplots(1, 2, figsize=(9, 2.6), layout="constrained", sharex=True, sharey=True)
    colors = {"supervised": "#888888", "percentmatch": "#1f6f8b", "priormatch": "#2e8b57"}
    for labeled, axes in zip((500, 1000), grid, strict=True):
        named = set()  # methods that the legend names
        for place, results in enumerate(tracks.values()):
            means = {}
            for method, color in colors.items():
                scores = [
                    100 * run["test"]["ema"]["mAP"]
                    for run in results["runs"]
                    if (run["method"], run["settings"]["labeled"]) == (method, labeled)
                ]
                if not scores:
                    continue
                means[method] = statistics.mean(scores)
                axes.scatter(scores, [place + 0.22] * len(scores), s=7, color=color)
                label = None if method in named else method
                axes.scatter(means[method], place, s=70, color=color, zorder=2, label=label)
                named.add(method)
                side = -1 if method == "supervised" else 1
                axes.annotate(
                    f"{means[method]:.1f}",
                    (means[method], place),
                    (7 * side, 0),
                    textcoords="offset points",
                    ha="right" if side < 0 else "left",
                    va="center",
                    bbox={"boxstyle": "square,pad=0.1", "color": "white"},
                )
            axes.plot(means.values(), [place] * 2, color=colors[list(means)[-1]], linewidth=2, zorder=1)
        published, _ = PUBLISHED["percentmatch"][labeled]
        axes.axvline(published, color="#d1495b", linestyle="--", linewidth=1, label="percentmatch, published")
        axes.set(title=f"{labeled:,} labels", xlim=(15, 90), ylim=(len(tracks) - 0.5, -0.5), xlabel="test mAP, %")
        axes.set_yticks(range(len(tracks)), list(tracks))
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    save(figure, file)


def main() -> None:
    tracks = {
        "the paper's recipe": read("voc2007/paper"),
        "our recipe,\nno other images": read("voc2007/same_data"),
        "ImageNet weights": read("voc2007/pretrained"),
    }
    overview_figure(tracks, ROOT / "docs/voc_overview.svg")
    pseudo_label_figure(read("voc2007/same_data"), ROOT / "docs/voc_pseudo_labels.svg")
    voc_cpu_figure(read("voc_cpu"), ROOT / "docs/voc_cpu.svg")
