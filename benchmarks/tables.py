"""Tables in the docs, made from results files. A table stands between `<!-- name -->` and `<!-- /name -->`."""

import json
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from percentmatch.settings.renamed import renamed

ROOT = Path(__file__).parent.parent


def write_json(path: Path, value: object) -> None:
    """With lists of numbers and names on one line."""
    text = json.dumps(value, indent=1)
    short = re.sub(r"\[\n[^\[\]{}]*\]", lambda found: re.sub(r"\n\s*", "", found[0]).replace(",", ", "), text)
    path.parent.mkdir(exist_ok=True)
    path.write_text((short if json.loads(short) == json.loads(text) else text) + "\n")


def read(name: str) -> dict[str, Any]:
    """A results file, with methods and options as they are called today."""
    results = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return {**results, "runs": [_of_today(run) for run in results["runs"]]} if "runs" in results else results


def _of_today(run: dict[str, Any]) -> dict[str, Any]:
    if "settings" not in run:
        return run
    then, settings = run["method"], renamed(run["settings"])
    now = settings["method"]
    group = run["group"]
    group = now + group.removeprefix(then) if group.startswith(then) else group
    return {**run, "group": group, "method": now, "settings": settings}


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
        lines.append(f"| {method} | {spread(runs, 'mAP')} | {spread(runs, 'AUC')} | {gains} | {minutes:.1f} |")
    seeds = ", ".join(str(seed) for seed in results["seeds"])
    chosen = {
        (run["method"], batch["batch"], run["labeled"], run["run"])
        for batch in read("demo_tuning")["batches"]
        for run in batch["runs"]
    }
    tried = Counter(method for method, *_ in chosen)
    lines += [
        "",
        f"{results['labeled']} labeled and {results['unlabeled']} unlabeled scenes of {results['image_size']} pixels, "
        f"{results['total_steps']} steps; seeds {seeds}; mean ± standard deviation; {where_of(results)}.",
        f"Settings tried on validation scenes: {', '.join(f'{name} {n}' for name, n in tried.most_common())}.",
        "",
    ]
    return "\n".join(lines)


def demo_threads_line(results: dict[str, Any], other: dict[str, Any]) -> str:
    """The same seed with another number of threads, method by method."""
    usual = {run["method"]: run["mAP"] for run in results["runs"] if run["seed"] == other["runs"][0]["seed"]}
    rows = (f"{run['method']} {100 * run['mAP']:.1f} ({100 * usual[run['method']]:.1f})" for run in other["runs"])
    seed = other["runs"][0]["seed"]
    return f"Seed {seed} on one thread (in brackets on two), test mAP: {', '.join(rows)}; {where_of(other)}.\n"


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


def where_of(results: dict[str, Any]) -> str:
    device = results["device"].replace("1 CPU cores", "1 CPU core")
    return f"{device}, torch {results['torch']}, commit {results['commit']}"


def where_all(runs: list[dict[str, Any]]) -> str:
    """Where runs of one kind of machine were made, with all their commits."""
    where = [run["environment"] for run in runs]
    commits = ", ".join(sorted({each["commit"] for each in where}))
    return "; ".join(sorted({where_of({**each, "commit": commits}) for each in where}))


def spread(runs: list[dict[str, Any]], key: str) -> str:
    values = [100 * run[key] for run in runs]
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def scenes_table(results: dict[str, Any]) -> str:
    """All methods by mean test mAP, and whether each beats supervised on every seed, on the mean, or not.

    Rows called defaults were not tuned; of the others it says how many settings were tried on validation images.
    """
    tried: dict[str, set[str]] = {}
    for run in read("scenes_tuning")["runs"]:
        tried.setdefault(run["method"], set()).add(json.dumps(run["options"], sort_keys=True))
    runs, seconds = results["runs"], results["seconds_a_step"]
    baseline = {run["seed"]: run["mAP"] for run in runs if run["row"] == "supervised"}
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        rows.setdefault(run["row"], []).append(run)
    order = sorted(rows, key=lambda row: -statistics.mean(run["mAP"] for run in rows[row]))
    lines = [
        "| method | test mAP | test AUC | gain over supervised, seed by seed | time a step | settings tried |",
        "|---|---|---|---|---|---|",
    ]
    for row in order:
        gains = [100 * (run["mAP"] - baseline[run["seed"]]) for run in rows[row]]
        shown = "" if row == "supervised" else ", ".join(f"{gain:+.1f}" for gain in gains)
        ratio = f"{seconds[row] / seconds['supervised']:.2f}" if seconds else ""
        count = 1 if "(defaults)" in row else len(tried[row.partition(" (")[0]])
        lines.append(
            f"| {row} | {spread(rows[row], 'mAP')} | {spread(rows[row], 'AUC')} | {shown} | {ratio} | {count} |"
        )
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
        f"time relative to supervised ({results['timed_on']}); trained on {where_of(where)}.",
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


def speed_table(part: str, measured: list[dict[str, Any]]) -> str:
    """The tables of one part of `run_speed.py` on every machine that has measured it."""
    from speed import sheets

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
            f"- {where_of(results)}{cores}: {had['backbone']} with the {had['head']} head, "
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
    from speed import PARTS

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
        f"{results['most_memory_mib']:,} MiB in all; {where_of(results)}.",
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
        f"before it began: {results['load_average_before']:.1f}); {where_of(results)}.",
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
    commands = results["commands"]  # with the kills of each; earlier results have the names alone
    named = ", ".join(f"{name} {commands[name]}" if isinstance(commands, dict) else name for name in commands)
    lines += [
        "",
        f"{results['faults']} faults, of them {results['kills']} kills, in {named}; seed "
        f"{results['seed']}, {results['minutes']:.1f} minutes; {where_of(results)}.",
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
        f"{results['stream_alone_images_per_s']:,} streamed without training. One thread trains; {where_of(results)}; "
        f"the machine had a load of {results['load_average_before']} from elsewhere.",
        "",
    ]
    return "\n".join(lines)


def review_table(results: dict[str, Any]) -> str:
    """How many of the labels listed first are among those that were made wrong, and how many of those are listed."""
    runs = results["runs"]
    lines = ["| labels listed | of them wrong, % | found of all wrong, % | found of the removed, % | of the false, % |"]
    lines.append("|---|---|---|---|---|")
    for length in runs[0]["found"]:
        shares: list[list[float]] = []
        for run in runs:
            hits, removed, errors = run["found"][length], run["found_removed"][length], run["errors"]
            shares.append([hits / int(length), hits / errors, 2 * removed / errors, 2 * (hits - removed) / errors])
        columns = ([100 * value for value in column] for column in zip(*shares, strict=True))
        cells = (f"{statistics.mean(each):.1f} ± {statistics.stdev(each):.1f}" for each in columns)
        lines.append(f"| {int(length):,} | {' | '.join(cells)} |")
    seeds = ", ".join(map(str, results["seeds"]))
    lines += [
        "",
        f"VOC2007 trainval: {runs[0]['labels']:,} labels of {results['images']:,} photographs, of which "
        f"{runs[0]['errors']} were made wrong: {100 * results['share']:.0f}% of the positive ones removed, and as many "
        f"false ones added at random. {results['backbone']}; seeds {seeds}; mean ± standard deviation; "
        f"{where_of(results)}.",
        f"Photographs: {results['photographs']}.",
        "",
    ]
    return "\n".join(lines)


def thresholds_table(results: dict[str, Any]) -> str:
    """Macro and micro F1 on other images of each rule, by the number of images that chose the thresholds."""
    words = {
        "used": "as chosen here",
        "expected": "each class, by expected F1 under the calibrated probabilities",
        "own": "each class, by its labels",
        "half": "0.5",
    }
    numbers = [row["images"] for row in results["means"] if row["rule"] == "used"]
    lines = [f"| thresholds | {' | '.join(f'{n:,} images' for n in numbers)} |", "|---" * (len(numbers) + 1) + "|"]
    for rule, name in words.items():
        rows = [row for row in results["means"] if row["rule"] == rule]
        cells = (f"{100 * row['macro'][0]:.1f} / {100 * row['micro'][0]:.1f}" for row in rows)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    least, most = (100 * row["macro"][1] for row in (results["means"][len(numbers) - 1], results["means"][0]))
    lines += [
        "",
        f"Macro / micro F1 on {results['scored']:,} other photographs of VOC2007, a linear probe of "
        f"{results['labeled']} labels on {results['backbone']}, calibrated on the images that choose its thresholds; "
        f"means of {results['draws']} draws for each of the seeds {', '.join(map(str, results['seeds']))}. Macro F1 of "
        f"the first row has a standard deviation from {most:.1f} to {least:.1f}. {where_of(results)}.",
        f"Photographs: {results['photographs']}.",
        "",
    ]
    return "\n".join(lines)


def backbones_table(results: dict[str, Any]) -> str:
    """What a linear probe reaches on the features of each backbone, and how quickly it reads and learns."""
    head = ("backbone", "parameters", "500 labels", "1,000 labels", "reads, images/s", "learns, images/s")
    lines = [f"| {' | '.join(head)} | 100 steps, minutes |", "|---" * 7 + "|"]
    for row in results["backbones"]:
        cells = []
        for labeled in sorted({each["labeled"] for each in row["probes"]}):
            values = [100 * each["mAP"] for each in row["probes"] if each["labeled"] == labeled]
            cells.append(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}")
        minutes = 100 * (32 / row["trains"] + 16 / row["reads"]) / 60
        speeds = f"{row['reads']:.0f} | {row['trains']:.1f} | {minutes:.1f}"
        lines.append(f"| {row['backbone']} | {row['millions']:.1f} million | {' | '.join(cells)} | {speeds} |")
    seeds = ", ".join(map(str, results["seeds"]))
    about = f"Test mAP of a linear probe on VOC2007 at {results['image_size']} pixels"
    about += f"; seeds {seeds}; mean ± standard deviation; in a step of PriorMatch 32 images learn and 16 are read"
    lines += ["", f"{about}; {where_of(results)}.", f"Photographs: {results['photographs']}.", ""]
    return "\n".join(lines)


def other_pool_table(results: dict[str, Any]) -> str:
    """Test scores of what `train` hands over with a pool that shows none of the classes."""
    lines = ["| run | prevalence_ratio | test mAP | AUC | steps |", "|---|---|---|---|---|"]
    for run in results["runs"]:
        mean_ap, auc = (100 * run["test"]["ema"][name] for name in ("mAP", "AUC"))
        ratio = run["settings"]["options"].get("prevalence_ratio", "")
        lines.append(f"| {run['group']} | {ratio} | {mean_ap:.1f} | {auc:.1f} | {run['step']} |")
    about = f"One seed, {results['runs'][0]['test']['ema']['num_images']:,} test images"
    return "\n".join(
        [*lines, "", f"{about}; {where_all(results['runs'])}.", f"Photographs: {results['photographs']}.", ""]
    )


def pool_prevalence_table(results: dict[str, Any]) -> str:
    """What a run would choose for pools whose truth is known, seed by seed."""
    labels = list(dict.fromkeys(row["labels"] for row in results["rows"]))
    lines = [f"| pool | {' | '.join(f'{each} labels' for each in labels)} |", "|---" * (len(labels) + 1) + "|"]
    for pool in dict.fromkeys(row["pool"] for row in results["rows"]):
        cells = []
        for each in labels:
            rows = [row for row in results["rows"] if (row["pool"], row["labels"]) == (pool, each)]
            truth = statistics.mean(row["truth"] for row in rows)
            cells.append(", ".join(f"{row['ratio']:.2f}" for row in rows) + f" (true {truth:.2f})")
        lines.append(f"| {pool} | {' | '.join(cells)} |")
    about = f"`prevalence_ratio`, seeds 0 to 5; {where_of(results['environment'])}."
    return "\n".join([*lines, "", about, f"Photographs: {results['photographs']}.", ""])


def main() -> None:
    """Write every table again from the results files."""
    import api_page
    import settings_tables
    import voc_figures
    import voc_tables

    api_page.PAGE.write_text(api_page.page())
    fill(ROOT / "docs/settings.md", "presets", settings_tables.presets_table())
    fill(ROOT / "docs/settings.md", "settings", settings_tables.settings_tables())
    fill(ROOT / "docs/methods/README.md", "scenes", scenes_table(read("scenes")))
    fill(ROOT / "docs/experiments.md", "scenes_tuning", scenes_tuning_table(read("scenes_tuning")))
    fill(ROOT / "docs/experiments.md", "other_pool", other_pool_table(read("other_pool")))
    fill(ROOT / "docs/experiments.md", "pool_prevalence", pool_prevalence_table(read("pool_prevalence")))
    voc_tables.main()
    voc_figures.main()
    demo = read("demo")
    fill(ROOT / "docs/demo.md", "demo", demo_table(demo))
    fill(ROOT / "docs/demo.md", "demo_threads", demo_threads_line(demo, read("demo_one_thread")))
    fill(ROOT / "docs/review.md", "review", review_table(read("voc2007/review")))
    fill(ROOT / "docs/backbones.md", "backbones", backbones_table(read("voc2007/backbones")))
    fill(ROOT / "docs/predict-and-export.md", "thresholds", thresholds_table(read("voc2007/thresholds")))
    fill(ROOT / "docs/shards.md", "stream", stream_table(read("stream")))
    fill(ROOT / "SECURITY.md", "fuzz", fuzz_table(read("fuzz")))
    fill(ROOT / "docs/reliability.md", "faults", faults_table(read("faults")))
    fill_speed(ROOT / "docs/speed.md", speed_results())
    fill(ROOT / "docs/experiments.md", "tuning", tuning_table(read("demo_tuning"), ("7", "8")))
    fill(ROOT / "docs/many-classes.md", "classes", classes_table(read("classes")))


if __name__ == "__main__":
    main()
