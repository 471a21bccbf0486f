"""Tables in the docs, made from results files. A table stands between `<!-- name -->` and `<!-- /name -->`."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def write_json(path: Path, value: object) -> None:
    """With lists of numbers and names on one line."""
    text = json.dumps(value, indent=1)
    short = re.sub(r"\[\n[^\[\]{}]*\]", lambda found: re.sub(r"\n\s*", "", found[0]).replace(",", ", "), text)
    path.parent.mkdir(exist_ok=True)
    path.write_text((short if json.loads(short) == json.loads(text) else text) + "\n")


def fill(file: Path, name: str, table: str) -> None:
    """Replace the table `name` in a file."""
    text = file.read_text()
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    if not re.search(pattern, text, re.DOTALL):
        raise ValueError(f"{file} has no block '{name}'")
    file.write_text(re.sub(pattern, lambda found: f"{found[1]}{table}{found[2]}", text, flags=re.DOTALL))


def read_block(file: Path, name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", file.read_text(), re.DOTALL)
    return found[1] if found else ""


def demo_table(results: dict[str, Any]) -> str:
    """Mean +- standard deviation over the seeds, and each seed's gain over supervised."""
    lines = [
        "| method | test mAP | test AUC | gain in mAP over supervised, seed by seed | minutes, fastest run |",
        "|---|---|---|---|---|",
    ]
    baseline = {run["seed"]: run["mAP"] for run in results["runs"] if run["method"] == "supervised"}
    for method in dict.fromkeys(run["method"] for run in results["runs"]):
        runs = [run for run in results["runs"] if run["method"] == method]
        gains = ", ".join(f"{100 * (run['mAP'] - baseline[run['seed']]):+.1f}" for run in runs)
        minutes = min(run["minutes"] for run in runs)
        gains = "" if method == "supervised" else gains
        lines.append(f"| {method} | {_spread(runs, 'mAP')} | {_spread(runs, 'AUC')} | {gains} | {minutes:.1f} |")
    seeds = ", ".join(str(seed) for seed in results["seeds"])
    lines += [
        "",
        f"{results['labeled']} labeled and {results['unlabeled']} unlabeled scenes of {results['image_size']} pixels, "
        f"{results['total_steps']} steps; seeds {seeds}; mean ± standard deviation; {_where(results)}.",
        "",
    ]
    return "\n".join(lines)


def demo_threads_line(results: dict[str, Any], other: dict[str, Any]) -> str:
    """The same seed with another number of threads, method by method."""
    usual = {run["method"]: run["mAP"] for run in results["runs"] if run["seed"] == other["runs"][0]["seed"]}
    rows = (f"{run['method']} {100 * run['mAP']:.1f} ({100 * usual[run['method']]:.1f})" for run in other["runs"])
    seed = other["runs"][0]["seed"]
    return f"Seed {seed} on one thread (in brackets on two), test mAP: {', '.join(rows)}; {_where(other)}.\n"


def tuning_table(results: dict[str, Any], batches: tuple[str, ...]) -> str:
    """Validation mAP of each setting, and its gain over the supervised runs of the same batch, labels and seeds."""
    lines = ["| batch | labels | run | seeds | validation mAP | AUC | gain in mAP |", "|---|---|---|---|---|---|---|"]
    for batch in (batch for batch in results["batches"] if batch["batch"] in batches):
        groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
        for run in batch["runs"]:
            groups.setdefault((run["labeled"], run["run"]), []).append(run)
        for (labeled, name), runs in sorted(groups.items()):
            sup = {r["seed"]: r["mAP"] for r in batch["runs"] if (r["method"], r["labeled"]) == ("supervised", labeled)}
            gain = statistics.mean(100 * (run["mAP"] - sup[run["seed"]]) for run in runs)
            shown = "" if runs[0]["method"] == "supervised" else f"{gain:+.1f}"
            mean_ap, auc = (100 * statistics.mean(run[key] for run in runs) for key in ("mAP", "AUC"))
            seeds = f"{runs[0]['seed']}-{runs[-1]['seed']}" if len(runs) > 1 else str(runs[0]["seed"])
            lines.append(f"| {batch['batch']} | {labeled} | {name} | {seeds} | {mean_ap:.1f} | {auc:.1f} | {shown} |")
    return "\n".join([*lines, "", f"Conditions: {results['conditions']}.", ""])


def _where(results: dict[str, Any]) -> str:
    return f"{results['device']}, torch {results['torch']}, commit {results['commit']}"


def _where_all(runs: list[dict[str, Any]]) -> str:
    """Where runs of one kind of machine were made, with all their commits."""
    where = [run["environment"] for run in runs]
    commits = ", ".join(sorted({each["commit"] for each in where}))
    return "; ".join(sorted({_where({**each, "commit": commits}) for each in where}))


def _spread(runs: list[dict[str, Any]], key: str) -> str:
    values = [100 * run[key] for run in runs]
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def labeler_table(results: dict[str, Any]) -> str:
    lines = ["| classes | bins | ms a step | ns a cell | state, bytes |", "|---|---|---|---|---|"]
    for row in results["rows"]:
        cell = 1e6 * row["ms"] / row["classes"] / row["bins"]
        lines.append(f"| {row['classes']:,} | {row['bins']} | {row['ms']:.3f} | {cell:.2f} | {row['state_bytes']:,} |")
    lines += [
        "",
        f"Thresholds, selection and update for {results['images']} images, one thread, fastest of "
        f"{results['repeats']} steps; {_where(results)}.",
        "",
    ]
    return "\n".join(lines)


def scenes_table(results: dict[str, Any]) -> str:
    """All methods by mean test mAP, and whether each beats supervised on every seed, on the mean, or not."""
    runs, seconds = results["runs"], results["seconds_a_step"]
    baseline = {run["seed"]: run["mAP"] for run in runs if run["row"] == "supervised"}
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        rows.setdefault(run["row"], []).append(run)
    order = sorted(rows, key=lambda row: -statistics.mean(run["mAP"] for run in rows[row]))
    lines = [
        "| method | test mAP | test AUC | gain over supervised, seed by seed | time a step |",
        "|---|---|---|---|---|",
    ]
    for row in order:
        gains = [100 * (run["mAP"] - baseline[run["seed"]]) for run in rows[row]]
        shown = "" if row == "supervised" else ", ".join(f"{gain:+.1f}" for gain in gains)
        ratio = f"{seconds[row] / seconds['supervised']:.2f}" if seconds else ""
        lines.append(f"| {row} | {_spread(rows[row], 'mAP')} | {_spread(rows[row], 'AUC')} | {shown} | {ratio} |")
    mean_gain = {
        row: statistics.mean(run["mAP"] - baseline[run["seed"]] for run in rows[row])
        for row in order
        if row != "supervised"
    }
    always = [row for row in mean_gain if all(run["mAP"] > baseline[run["seed"]] for run in rows[row])]
    mean = [row for row, gain in mean_gain.items() if gain > 0 and row not in always]
    never = [row for row, gain in mean_gain.items() if gain <= 0]
    verdicts = (("Above supervised on every seed", always), ("on the mean only", mean), ("not above it", never))
    names = "; ".join(f"{what}: {', '.join(rows_) or 'none'}" for what, rows_ in verdicts)
    where = runs[0]["environment"]
    lines += [
        "",
        f"{names}.",
        "",
        f"{results['labeled']} labeled and {results['unlabeled']} unlabeled scenes of {results['image_size']} pixels, "
        f"{results['total_steps']} steps; seeds {', '.join(map(str, results['seeds']))}; mean ± standard deviation; "
        f"time relative to supervised ({results['timed_on']}); trained on {_where(where)}.",
        "",
    ]
    return "\n".join(lines)


def scenes_tuning_table(results: dict[str, Any]) -> str:
    """Validation mAP of each setting, and its mean gain over supervised with the defaults on the same seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in results["runs"]:
        options = ", ".join(f"{name}={value}" for name, value in run["options"].items())
        groups.setdefault((run["method"], options), []).append(run)
    baseline = {run["seed"]: run["mAP"] for run in groups["supervised", ""]}
    lines = ["| method | options | batch | validation mAP, seed by seed | gain in mAP |", "|---|---|---|---|---|"]
    for (method, options), runs in sorted(groups.items(), key=lambda item: (item[0][0], item[1][0]["batch"])):
        runs.sort(key=lambda run: run["seed"])
        gain = statistics.mean(100 * (run["mAP"] - baseline[run["seed"]]) for run in runs)
        values = ", ".join(f"{100 * run['mAP']:.1f}" for run in runs)
        lines.append(f"| {method} | {options or 'defaults'} | {runs[0]['batch']} | {values} | {gain:+.1f} |")
    return "\n".join([*lines, "", f"Conditions: {results['conditions']}.", ""])


def voc_tuning_table(results: dict[str, Any]) -> str:
    """Each run in its order; of pseudo-labels, how many of the positive ones were right near the end."""
    lines = ["| batch | run | validation mAP | AUC | positive pseudo-labels right |", "|---|---|---|---|---|"]
    for run in results["runs"]:
        if "probe500" in run:
            values = f"linear on frozen features: {100 * run['probe500']:.1f} | |"
        else:
            values = f"{100 * run['mAP']:.1f} | {100 * run['AUC']:.1f} |"
        last = run.get("audit") or [{}]
        picked = last[-1].get("positives_selected")
        right = f"{last[-1]['positives_right'] / picked:.0%}" if picked else ""
        lines.append(f"| {run['batch']} | {run['name']} | {values} {right} |")
    where = f"one {results['hardware']}, torch {results['torch']}, commit {results['commit']}, seed {results['seed']}"
    return "\n".join([*lines, "", f"Conditions: {results['about']}; {where}.", ""])


def voc_paper_table(run: dict[str, Any]) -> str:
    """The test score of one run, and its pseudo-labels over time."""
    score, counted = run["test"]["ema"], run["test"]["ema"]["difficult_as_positive"]
    lines = [
        "| step | mean class weight | positives a step | of them right | negatives right |",
        "|---|---|---|---|---|",
    ]
    for row in run["pseudo_labels"][1::4]:
        picked, refused = row["positives_selected"], row["negatives_selected"]
        right = f"{row['positives_right'] / picked:.0%}" if picked else ""
        absent = f"{row['negatives_right'] / refused:.1%}" if refused else ""
        lines.append(f"| {row['step']:,} | {row['mean_weight']:.2f} | {picked:.1f} | {right} | {absent} |")
    lines += [
        "",
        f"{run['method']}, {run['labeled']} labels, seed {run['seed']}, split {run['split']}: test mAP "
        f"{100 * score['mAP']:.1f}, AUC {100 * score['AUC']:.1f} (mAP {100 * counted['mAP']:.1f} "
        f"with difficult pairs as positives), scored once, last moving average; {run['wall_seconds']:.0f} seconds from "
        f"start to end; {_where(run['environment'])}.",
        "",
    ]
    return "\n".join(lines)


def track_table(results: dict[str, Any]) -> str:
    """Mean +- standard deviation over the seeds of each run and number of labels, and the gain over supervised."""
    runs = results["runs"]
    lines = [
        "| labels | method | test mAP | AUC | mAP, difficult as positives | gain in mAP, seed by seed | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for labeled in sorted({run["settings"]["labeled"] for run in runs}):
        here = [run for run in runs if run["settings"]["labeled"] == labeled]
        plain = {run["seed"]: run["test"]["ema"]["mAP"] for run in here if run["method"] == "supervised"}
        for method in sorted({run["method"] for run in here}, key=lambda name: (name != "supervised", name)):
            mine = sorted((run for run in here if run["method"] == method), key=lambda run: run["seed"])
            scores = [run["test"]["ema"] for run in mine]
            hard = [score["difficult_as_positive"] for score in scores]
            gains = [score["mAP"] - plain[run["seed"]] for score, run in zip(scores, mine, strict=True)]
            gain = "" if method == "supervised" else ", ".join(f"{100 * each:+.1f}" for each in gains)
            minutes = statistics.mean(run["minutes"] + run.get("warm_start_minutes", 0) for run in mine)
            values = " | ".join((_spread(scores, "mAP"), _spread(scores, "AUC"), _spread(hard, "mAP"), gain))
            lines.append(f"| {labeled:,.0f} | {method} | {values} | {minutes:.1f} |")
    seeds = sorted({run["seed"] for run in runs})
    named = f"seeds {', '.join(map(str, seeds))}; mean ± standard deviation" if len(seeds) > 1 else f"seed {seeds[0]}"
    where = _where_all(runs)
    warm = ", the warm start included" if "warm_start_minutes" in runs[0] else ""
    lines += [
        "",
        f"{runs[0]['settings']['backbone']} at {runs[0]['settings']['image_size']} pixels, "
        f"{runs[0]['settings']['total_steps']:,} steps; {named}; test images scored once, last moving average; minutes "
        f"of one GPU{warm}; {where}.",
        "",
    ]
    return "\n".join(lines)


def pseudo_label_table(results: dict[str, Any]) -> str:
    """How many pseudo-labels of all pairs were right and how many true ones were found, over the steps of a run."""
    lines = [
        "| labels | step | positives right | positives found | negatives right | negatives found |",
        "|---|---|---|---|---|---|",
    ]
    for labeled, runs in _with_pseudo_labels(results).items():
        for rows in list(zip(*(run["training"] for run in runs), strict=True))[::3]:
            counts = {key: sum(sum(row["classes"][key]) for row in rows) for key in PSEUDO}
            right, found = (counts["positives_right"] / counts[key] for key in ("positives_selected", "positives_true"))
            pairs = counts["positives_selected"] + counts["negatives_selected"]
            absent = counts["negatives_right"] / counts["negatives_selected"]
            kept = counts["negatives_right"] / (pairs - counts["positives_true"])
            values = f"{right:.0%} | {found:.0%} | {absent:.1%} | {kept:.1%}"
            lines.append(f"| {labeled:,.0f} | {rows[0]['step']:,} | {values} |")
    about = f"Positive: a soft target above 0.5. The steps before the one named; {_pseudo_where(results)}."
    return "\n".join([*lines, "", about, ""])


def class_gain_table(results: dict[str, Any]) -> str:
    """For each class and number of labels, its pseudo-labels in the second half of a run and its gain in AP."""
    runs, labeled = results["runs"], _with_pseudo_labels(results)
    head = [f"{count:,.0f} labels: {what}" for count in labeled for what in ("right", "found", "AP", "gain")]
    lines = [f"| class | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for place, name in enumerate(runs[0]["test"]["ema"]["classes"]):
        cells = []
        for count, mine in labeled.items():
            rows = [row["classes"] for run in mine for row in run["training"][5:]]
            right, picked, true = (sum(row[key][place] for row in rows) for key in PSEUDO[:3])
            score = {
                method: statistics.mean(
                    100 * run["test"]["ema"]["classes"][name]["AP"]
                    for run in runs
                    if (run["method"], run["settings"]["labeled"]) == (method, count)
                )
                for method in ("supervised", "percentmatch")
            }
            gain = score["percentmatch"] - score["supervised"]
            cells += [f"{right / picked:.0%}", f"{right / true:.0%}", f"{score['supervised']:.1f}", f"{gain:+.1f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    about = (
        f"Supervised test AP and the gain, means of seeds {seeds}. Positive pseudo-labels: {_pseudo_where(results)}."
    )
    return "\n".join([*lines, "", about, ""])


PSEUDO = ("positives_right", "positives_selected", "positives_true", "negatives_right", "negatives_selected")


def _with_pseudo_labels(results: dict[str, Any]) -> dict[float, list[dict[str, Any]]]:
    """The runs that kept the pseudo-labels of each class, by their number of labels."""
    there = [run for run in results["runs"] if run["method"] == "percentmatch" and run.get("training")]
    counts = sorted({run["settings"]["labeled"] for run in there})
    return {count: [run for run in there if run["settings"]["labeled"] == count] for count in counts}


def _pseudo_where(results: dict[str, Any]) -> str:
    runs = [run for each in _with_pseudo_labels(results).values() for run in each]
    return f"seed {', '.join(map(str, sorted({run['seed'] for run in runs})))}; {_where_all(runs)}"


def grid_tuning_table(results: dict[str, Any]) -> str:
    """Validation scores of a grid's runs, and how many of their positive pseudo-labels were right near the end."""
    lines = ["| run | validation mAP | AUC | positive pseudo-labels right | minutes |", "|---|---|---|---|---|"]
    for group in dict.fromkeys(run["group"] for run in results["runs"]):
        runs = [run for run in results["runs"] if run["group"] == group]
        scores, last = [run["validation"]["ema"] for run in runs], runs[-1]["training"][-1].get("classes", {})
        picked = sum(last.get("positives_selected", []))
        right = f"{sum(last['positives_right']) / picked:.0%}" if picked else ""
        minutes = statistics.mean(run["minutes"] for run in runs)
        lines.append(f"| {group} | {_spread(scores, 'mAP')} | {_spread(scores, 'AUC')} | {right} | {minutes:.1f} |")
    seeds = ", ".join(map(str, sorted({run["seed"] for run in results["runs"]})))
    images, where = results["runs"][0]["validation"]["ema"]["num_images"], _where_all(results["runs"])
    about = f"Last moving average, scored on {images:,} images of the official val half; seed {seeds}; {where}."
    return "\n".join([*lines, "", about, ""])


def voc_run_line(run: dict[str, Any]) -> str:
    steps, seconds = run["step"], run["wall_seconds"]
    return f"{seconds:.1f} seconds for {steps:,} steps ({1000 * seconds / steps:.1f} ms each, all included); " + (
        f"{_where(run['environment'])}.\n"
    )


def voc_cpu_table(results: dict[str, Any]) -> str:
    run, images = results["run"], results["images"]
    lines = ["| images | mAP | AUC | 11-point mAP | mAP, difficult pairs as positives |", "|---|---|---|---|---|"]
    for part in ("validation", "test"):
        score = run[part]["ema"]
        values = (score["mAP"], score["AUC"], score["mAP_11point"], score["difficult_as_positive"]["mAP"])
        lines.append(f"| {part}, {images[part]:,} | {' | '.join(f'{100 * value:.1f}' for value in values)} |")
    settings, where = run["settings"], run["environment"]
    lines += [
        "",
        f"{settings['backbone']} at {settings['image_size']} pixels from random weights, {images['labeled']:,} labeled "
        f"images, {settings['total_steps']} steps of {settings['labeled_batch']} in {run['minutes']:.1f} minutes; "
        f"one run, seed {run['seed']}, split {run['split']}; {_where(where)}.",
        "",
    ]
    return "\n".join(lines)


def _pyplot() -> Any:
    """matplotlib for SVG files that are the same every time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "percentmatch"
    from matplotlib import pyplot

    return pyplot


def voc_cpu_figure(results: dict[str, Any], file: Path) -> None:
    """Validation mAP over the steps, and what guessing would give: the mean prevalence."""
    pyplot, curve = _pyplot(), results["run"]["curve"]
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
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def pseudo_label_figure(results: dict[str, Any], file: Path) -> None:
    """For each class, how many positive pseudo-labels are right and how many positives are found, over the steps."""
    pyplot, labeled = _pyplot(), _with_pseudo_labels(results)
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
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def speed_table(part: str, measured: list[dict[str, Any]]) -> str:
    """The tables of one part of `percentmatch speed` on every machine that has measured it."""
    from percentmatch.speed import sheets

    lines = []
    for results in (each for each in measured if part in each["parts"]):
        figures = results["parts"][part]
        size = f", {results['settings']['image_size']} pixels"
        lines += [f"{results['device']}{size}{': failed: ' + figures['failed'] if 'failed' in figures else ''}", ""]
        for sheet in sheets(part, figures):
            lines += [f"| {' | '.join(row)} |" for row in (sheet.columns, ("---",) * len(sheet.columns), *sheet.rows)]
            lines.append("")
    return "\n".join(lines)


def speed_conditions(measured: list[dict[str, Any]]) -> str:
    lines = []
    for results in measured:
        had, cores = results["settings"], f"{results['cpu_cores']} CPU cores"
        cores = "" if results["device"] == cores else f", {cores}"
        load = results.get("load_average_before")
        busy = "" if load is None else f" Load average before it began: {load}."
        lines.append(
            f"- {_where(results)}{cores}: {had['backbone']} with the {had['head']} head, "
            f"{had['image_size']} pixels, {had['labeled_batch']} labeled and as many unlabeled images a step, "
            f"{had['classes']} classes, {had['num_images']:,} images; {had['repeats']} rounds of {had['steps']} steps."
            f"{busy}"
        )
    return "\n".join([*lines, ""])


def speed_results() -> list[dict[str, Any]]:
    """Of the machines measured so far."""
    files = (ROOT / "results" / f"{name}.json" for name in ("speed", "speed_448", "speed_cpu"))
    return [json.loads(file.read_text()) for file in files if file.exists()]


def fill_speed(file: Path, measured: list[dict[str, Any]]) -> None:
    from percentmatch.speed import PARTS

    fill(file, "conditions", speed_conditions(measured))
    for part in PARTS:
        fill(file, part, speed_table(part, measured))


def fuzz_table(results: dict[str, Any]) -> str:
    """How many hostile files of each kind were read or refused, and how long the slowest took."""
    lines = ["| what is read | files | read | refused | slowest, seconds |", "|---|---|---|---|---|"]
    for name, row in results["readers"].items():
        counts = " | ".join(f"{row[key]:,}" for key in ("inputs", "accepted", "refused"))
        lines.append(f"| {name} | {counts} | {row['slowest_seconds']:.2f} |")
    seeds = ", ".join(map(str, results["seeds"]))
    lines += [
        "",
        f"{results['inputs']:,} files, seeds {seeds}, {results['minutes']:.1f} minutes, at most "
        f"{results['most_memory_mib']:,} MiB in all; {_where(results)}.",
        "",
    ]
    return "\n".join(lines)


def classes_table(results: dict[str, Any]) -> str:
    """Seconds and sizes of each piece of work for each number of classes, and how the last tenfold changed them."""
    rows = results["rows"]
    head = [f"{row['classes']:,}" for row in rows]
    lines = [f"| classes | {' | '.join(head)} | {head[-2]} to {head[-1]} |", "|---" * (len(head) + 2) + "|"]

    def add(name: str, values: list[float], shown: list[str]) -> None:
        lines.append(f"| {name} | {' | '.join(shown)} | x {values[-1] / values[-2]:.1f} |")

    for name in rows[0]["seconds"]:
        values = [row["seconds"][name] for row in rows]
        add(f"{name}, ms", values, [f"{1000 * value:,.1f}" for value in values])
    for name in rows[0]["bytes"]:
        values = [row["bytes"][name] for row in rows]
        add(f"{name}, kB", values, [f"{value / 1000:,.1f}" for value in values])
    for name in rows[0]["peak_bytes"]:
        values = [row["peak_bytes"][name] for row in rows]
        add(f"most memory, {name}, MB", values, [f"{value / 1e6:,.0f}" for value in values])
    lines += [
        "",
        f"{results['pool']:,} images of {results['side']} pixels ({results['labeled']:,} labeled, "
        f"{results['validation']} for validation), {results['test']} for the test, {results['labels_an_image']} labels "
        f"an image; test_resnet with a linear head, percentmatch, steps of 36 labeled and 36 unlabeled images, "
        f"{results['predicted']} images predicted; times are of the processor, on one thread (load average "
        f"before it began: {results['load_average_before']:.1f}); {_where(results)}.",
        "",
    ]
    return "\n".join(lines)


def faults_table(results: dict[str, Any]) -> str:
    """What became of runs after each kind of fault, with how often it was tried in which way."""
    columns = ("tried", "equal", "stopped", "lost", "different")
    groups: dict[str, dict[str, dict[str, int]]] = {}
    for kind, row in results["kinds"].items():
        what, _, how = kind.partition(": ")
        groups.setdefault(what, {})[how] = row
    lines = [
        "| fault | tried | went on, equal | stopped in one sentence | lost | different |",
        "|---|---|---|---|---|---|",
    ]
    for what, rows in groups.items():
        ways = ", ".join(f"{how} {row['tried']}" for how, row in rows.items())
        counts = " | ".join(str(sum(row[name] for row in rows.values())) for name in columns)
        lines.append(f"| {what}: {ways} | {counts} |")
    lines += [
        "",
        f"{results['faults']} faults, of them {results['kills']} kills, in {', '.join(results['commands'])}; seed "
        f"{results['seed']}, {results['minutes']:.1f} minutes; {_where(results)}.",
        "",
    ]
    return "\n".join(lines)


def stream_table(results: dict[str, Any]) -> str:
    """Training from images decoded before and from the stream, and resident memory over three passes."""
    lines = ["| training | unlabeled images/s, cached | streamed | streamed over cached |", "|---|---|---|---|"]
    for row in results["speed"]:
        what = f"{row['backbone']}, {row['image_size']} pixels"
        ratio = row["streamed_over_cached"]["median_of_turns"]
        lines.append(f"| {what} | {row['cached_images_per_s']} | {row['streamed_images_per_s']} | {ratio:.2f} |")
    memory = results["memory"]
    passes = ", ".join(f"{number:.0f}" for number in memory["largest_MB_of_each_pass"])
    lines += [
        "",
        f"{memory['images']:,} JPEG files of 64 pixels in {results['shards']} shards; a buffer of {memory['buffer']} "
        f"images, {memory['pool_over_buffer']:.0f} times less. Resident memory of the whole training, at most, in "
        f"three passes one after the other: {passes} MB. In a second "
        f"{results['find_images_in_shards_per_s']:,} images are found in shards, and "
        f"{results['stream_alone_images_per_s']:,} streamed without training. One thread trains; {_where(results)}; "
        f"the machine had a load of {results['load_average_before']} from elsewhere.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write every table again from the results files."""
    demo, labeler, tuning, voc_cpu, scenes, scenes_tuning = (
        json.loads((ROOT / "results" / f"{name}.json").read_text())
        for name in ("demo", "labeler", "demo_tuning", "voc_cpu", "scenes", "scenes_tuning")
    )
    for file in ("README.md", "docs/methods/README.md"):
        fill(ROOT / file, "scenes", scenes_table(scenes))
    fill(ROOT / "docs/experiments.md", "scenes_tuning", scenes_tuning_table(scenes_tuning))
    voc_tuning = json.loads((ROOT / "results/voc2007/tuning.json").read_text())
    fill(ROOT / "docs/experiments.md", "voc_tuning", voc_tuning_table(voc_tuning))
    cpu_pretrained = json.loads((ROOT / "results/voc2007/cpu_pretrained.json").read_text())
    fill(ROOT / "docs/experiments.md", "voc_cpu_pretrained", voc_tuning_table(cpu_pretrained))
    voc_paper = json.loads((ROOT / "results/voc2007/paper_first.json").read_text())
    fill(ROOT / "docs/experiments.md", "voc_paper", voc_paper_table(voc_paper))
    fill(ROOT / "docs/speed.md", "voc_run", voc_run_line(voc_paper))
    fill(ROOT / "docs/voc.md", "voc_cpu", voc_cpu_table(voc_cpu))
    same_data = json.loads((ROOT / "results/voc2007/same_data.json").read_text())
    for file in ("README.md", "docs/voc.md"):
        fill(ROOT / file, "voc_same_data", track_table(same_data))
    fill(ROOT / "docs/voc.md", "voc_pseudo_labels", pseudo_label_table(same_data))
    fill(ROOT / "docs/voc.md", "voc_class_gain", class_gain_table(same_data))
    pseudo_label_figure(same_data, ROOT / "docs/voc_pseudo_labels.svg")
    for name in ("pretrained_tuning", "cpu_learning_rate", "remedies"):
        tuned = json.loads((ROOT / f"results/voc2007/{name}.json").read_text())
        fill(ROOT / "docs/experiments.md", f"voc_{name}", grid_tuning_table(tuned))
    voc_cpu_figure(voc_cpu, ROOT / "docs/voc_cpu.svg")
    for file in ("README.md", "docs/demo.md"):
        fill(ROOT / file, "demo", demo_table(demo))
    one_thread = json.loads((ROOT / "results/demo_one_thread.json").read_text())
    fill(ROOT / "docs/demo.md", "demo_threads", demo_threads_line(demo, one_thread))
    fill(ROOT / "docs/benchmarks.md", "labeler", labeler_table(labeler))
    fill(ROOT / "docs/shards.md", "stream", stream_table(json.loads((ROOT / "results/stream.json").read_text())))
    fill(ROOT / "SECURITY.md", "fuzz", fuzz_table(json.loads((ROOT / "results/fuzz.json").read_text())))
    fill(ROOT / "docs/reliability.md", "faults", faults_table(json.loads((ROOT / "results/faults.json").read_text())))
    fill_speed(ROOT / "docs/speed.md", speed_results())
    fill(ROOT / "docs/experiments.md", "tuning", tuning_table(tuning, ("7", "8")))
    fill(
        ROOT / "docs/many-classes.md", "classes", classes_table(json.loads((ROOT / "results/classes.json").read_text()))
    )


if __name__ == "__main__":
    main()
