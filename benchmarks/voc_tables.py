"""Tables of VOC2007, made from results/voc2007: `tables.py` writes them into the docs."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tables import ROOT, fill, read, spread, where_all, where_of


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
        f"with difficult pairs as positives), scored once with the EMA weights of the last step; "
        f"{run['wall_seconds']:.0f} seconds from start to end; {where_of(run['environment'])}.",
        "",
    ]
    return "\n".join(lines)


# Table 1 of the PercentMatch paper at 224 pixels: mAP and, where given, AUC; all but its own are those of the UPS paper
PUBLISHED: dict[str, dict[int, tuple[float, ...]]] = {
    "supervised": {500: (18.4,), 1000: (28.8,)},
    "pseudo_label": {500: (27.4,), 1000: (34.8,)},
    "mixmatch": {500: (29.6,), 1000: (37.0,)},
    "mean_teacher": {500: (32.6,), 1000: (39.6,)},
    "ups": {500: (34.2,), 1000: (40.3,)},
    "percentmatch": {500: (33.4, 81.1), 1000: (42.4, 85.7)},
}


def paper_table(results: dict[str, Any]) -> str:
    return track_table(results, PUBLISHED)


def track_table(results: dict[str, Any], published: Mapping[str, Mapping[int, tuple[float, ...]]] | None = None) -> str:
    """Mean +- standard deviation over the seeds of each run and number of labels, and the gain over supervised."""
    runs, columns = results["runs"], ["test mAP", "AUC", "mAP, difficult as positives", "gain in mAP, seed by seed"]
    if published is not None:
        columns = ["published mAP", *columns[:2], "11-point mAP", *columns[2:], "positive pseudo-labels right", "found"]
    head = ["labels", "method", *columns, "minutes"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for labeled in sorted({run["settings"]["labeled"] for run in runs}):
        here = [run for run in runs if run["settings"]["labeled"] == labeled]
        plain = {run["seed"]: run["test"]["ema"]["mAP"] for run in here if run["method"] == "supervised"}
        names = {run["group"].rpartition("-labeled=")[0]: run["method"] for run in here}
        for name in sorted(names, key=lambda name: (name != "supervised", name)):
            mine = sorted((run for run in here if run["group"].startswith(f"{name}-l")), key=lambda run: run["seed"])
            scores = [run["test"]["ema"] for run in mine]
            hard = [score["difficult_as_positive"] for score in scores]
            gains = [score["mAP"] - plain[run["seed"]] for score, run in zip(scores, mine, strict=True)]
            gain = "" if name == "supervised" else ", ".join(f"{100 * each:+.1f}" for each in gains)
            minutes = statistics.mean(run["minutes"] + run.get("pretraining_minutes", 0) for run in mine)
            values = [spread(scores, "mAP"), spread(scores, "AUC"), spread(hard, "mAP"), gain]
            if published is not None:
                theirs = ", AUC ".join(f"{score:.1f}" for score in published.get(names[name], {}).get(labeled, ()))
                values[2:2] = [spread(scores, "mAP_11point")]
                values = [theirs, *values, *_right_and_found(mine)]
            lines.append(f"| {labeled:,.0f} | {name} | {' | '.join(values)} | {minutes:.1f} |")
    seeds = sorted({run["seed"] for run in runs})
    named = f"seeds {', '.join(map(str, seeds))}; mean ± standard deviation" if len(seeds) > 1 else f"seed {seeds[0]}"
    where = where_all(runs)
    included = ", the pretraining included" if "pretraining_minutes" in runs[0] else ""
    lines += [
        "",
        f"{runs[0]['settings']['backbone']} at {runs[0]['settings']['image_size']} pixels, "
        f"{runs[0]['settings']['total_steps']:,} steps; {named}; test images scored once with the EMA weights of the "
        f"last step; minutes of one GPU{included}; {where}.",
        "",
    ]
    return "\n".join(lines)


def headline_table() -> str:
    """What unlabeled images add to the better of fine-tuning and a linear probe, from each start."""
    probes = read("voc2007/probe")["runs"]
    starts = {
        "random, pretrained on these images without labels": ("same_data", "same_data_long"),
        "ImageNet (EfficientNet-lite0)": ("pretrained",),
    }
    head = ["start weights", "labels", "labels alone, fine-tuned", "linear probe", "with unlabeled images", "gain"]
    lines, tracks = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"], []
    for start, names in starts.items():
        found = {name: read(f"voc2007/{name}") for name in names}
        tracks += [*found.values()]
        for labeled in (500, 1000):
            name = [name for name, each in found.items() if _scores(each["runs"], "priormatch", labeled)][-1]
            runs = [*found[name]["runs"], *(probes if name == "pretrained" else [])]
            scores = {method: _scores(runs, method, labeled) for method in ("supervised", "probe", "priormatch")}
            better = max(("supervised", "probe"), key=lambda method: sum(scores[method].values()))
            gains = (scores["priormatch"][seed] - score for seed, score in scores[better].items())
            cells = [_mean_and_spread(each) for each in scores.values()]
            lines.append(f"| {start} | {labeled:,} | {' | '.join(cells)} | {', '.join(f'{g:+.1f}' for g in gains)} |")
    chosen = {"random, 500 labels": "same_data", "random, 1,000 labels": "same_data_long", "ImageNet": "pretrained"}
    tried = "; ".join(f"{start} {_tried_with_and_without(f'voc2007/{name}')}" for start, name in chosen.items())
    lines += [
        "",
        "Test mAP, mean ± standard deviation of seeds 0, 1, 2; gain over the better of the two, seed by seed. ResNet50 "
        f"and EfficientNet-lite0 at 224 pixels; {where_all([run for each in tracks for run in each['runs']])}; probes "
        f"on {where_all(probes)}.",
        f"Runs on validation images that chose the settings, with unlabeled images and with labels alone: {tried}; "
        "probes by cross-validation.",
        f"Photographs: {tracks[0]['photographs']}.",
        "",
    ]
    return "\n".join(lines)


def _scores(runs: list[dict[str, Any]], method: str, labeled: int) -> dict[int, float]:
    """Test mAP by seed."""
    mine = [run for run in runs if (run["method"], run["settings"]["labeled"]) == (method, labeled)]
    return {run["seed"]: 100 * run["test"]["ema"]["mAP"] for run in sorted(mine, key=lambda run: run["seed"])}


def _mean_and_spread(scores: Mapping[int, float]) -> str:
    return spread([{"mAP": score / 100} for score in scores.values()], "mAP") if scores else ""


def ceiling_line(results: dict[str, Any]) -> str:
    """The test score of the one run with every label."""
    (run,) = results["runs"]
    score, minutes = run["test"]["ema"], run["minutes"] + run["pretraining_minutes"]
    hard = score["difficult_as_positive"]["mAP"]
    return (
        f"Test mAP {100 * score['mAP']:.1f}, AUC {100 * score['AUC']:.1f}, mAP with difficult pairs as positives "
        f"{100 * hard:.1f}; seed {run['seed']}, {minutes:.1f} minutes; {where_all([run])}.\n"
    )


def _right_and_found(runs: list[dict[str, Any]]) -> tuple[str, str]:
    """How many positive pseudo-labels were right near the end, and how many of all positives they found."""
    last = [(run["training"] or [{}])[-1].get("classes", {}) for run in runs]
    right, picked, true = (sum(sum(row.get(key, [])) for row in last) for key in PSEUDO[:3])
    return (f"{right / picked:.0%}", f"{right / true:.0%}") if picked else ("", "")


def pseudo_label_table(results: dict[str, Any]) -> str:
    """How many pseudo-labels of all pairs were right and how many true ones were found, over the steps of a run."""
    lines = [
        "| labels | step | positives right | positives found | negatives right | negatives found |",
        "|---|---|---|---|---|---|",
    ]
    for labeled, runs in with_pseudo_labels(results).items():
        for rows in list(zip(*(run["training"] for run in runs), strict=True))[::3]:
            counts = {key: sum(sum(row["classes"][key]) for row in rows) for key in PSEUDO}
            right, found = (counts["positives_right"] / counts[key] for key in ("positives_selected", "positives_true"))
            pairs = counts["positives_selected"] + counts["negatives_selected"]
            absent = counts["negatives_right"] / counts["negatives_selected"]
            kept = counts["negatives_right"] / (pairs - counts["positives_true"])
            values = f"{right:.0%} | {found:.0%} | {absent:.1%} | {kept:.1%}"
            lines.append(f"| {labeled:,.0f} | {rows[0]['step']:,} | {values} |")
    about = f"Positive: a soft target above 0.5. The steps before the one named; {_pseudowhere_of(results)}."
    return "\n".join([*lines, "", about, ""])


def class_gain_table(results: dict[str, Any]) -> str:
    """For each class and number of labels, its pseudo-labels in the second half of a run and its gain in AP."""
    runs, labeled = results["runs"], with_pseudo_labels(results)
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
                for method in ("supervised", "priormatch")
            }
            gain = score["priormatch"] - score["supervised"]
            cells += [f"{right / picked:.0%}", f"{right / true:.0%}", f"{score['supervised']:.1f}", f"{gain:+.1f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    about = (
        f"Supervised test AP and the gain, means of seeds {seeds}. Positive pseudo-labels: {_pseudowhere_of(results)}."
    )
    return "\n".join([*lines, "", about, ""])


PSEUDO = ("positives_right", "positives_selected", "positives_true", "negatives_right", "negatives_selected")


def with_pseudo_labels(results: dict[str, Any]) -> dict[float, list[dict[str, Any]]]:
    """The runs that kept the pseudo-labels of each class, by their number of labels."""
    there = [run for run in results["runs"] if run["method"] == "priormatch" and run.get("training")]
    counts = sorted({run["settings"]["labeled"] for run in there})
    return {count: [run for run in there if run["settings"]["labeled"] == count] for count in counts}


def _pseudowhere_of(results: dict[str, Any]) -> str:
    runs = [run for each in with_pseudo_labels(results).values() for run in each]
    return f"seed {', '.join(map(str, sorted({run['seed'] for run in runs})))}; {where_all(runs)}"


def grid_tuning_table(results: dict[str, Any]) -> str:
    """Validation scores of a grid's runs, and how many of their positive pseudo-labels were right near the end."""
    return _grid_table(results, [[group, *_tuning_cells(runs)] for group, runs in _groups(results).items()])


def ablation_table(results: dict[str, Any]) -> str:
    """The same, the best first, with the difference from the run "base"."""
    groups = _groups(results)
    score = {group: 100 * statistics.mean(run["validation"]["ema"]["mAP"] for run in groups[group]) for group in groups}
    rows = []
    for group in sorted(groups, key=lambda group: -score[group]):
        gain = "" if group == "base" else f"{score[group] - score['base']:+.1f}"
        rows.append([group, *_tuning_cells(groups[group]), gain])
    return _grid_table(results, rows, "difference in mAP")


def _groups(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    names = dict.fromkeys(run["group"] for run in results["runs"])
    return {name: [run for run in results["runs"] if run["group"] == name] for name in names}


def _tuning_cells(runs: list[dict[str, Any]]) -> list[str]:
    scores, (right, _) = [run["validation"]["ema"] for run in runs], _right_and_found(runs)
    minutes = statistics.mean(run["minutes"] for run in runs)
    return [spread(scores, "mAP"), spread(scores, "AUC"), right, f"{minutes:.1f}"]


def _grid_table(results: dict[str, Any], rows: list[list[str]], *more: str) -> str:
    head = ["run", "validation mAP", "AUC", "positive pseudo-labels right", "minutes", *more]
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    seeds = ", ".join(map(str, sorted({run["seed"] for run in results["runs"]})))
    images, where = results["runs"][0]["validation"]["ema"]["num_images"], where_all(results["runs"])
    scored = f"EMA weights of the last step, scored on {images:,} images of the official val half"
    return "\n".join([*lines, "", f"{scored}; seed {seeds}; {where}.", ""])


def voc_run_line(run: dict[str, Any]) -> str:
    steps, seconds = run["step"], run["wall_seconds"]
    return f"{seconds:.1f} seconds for {steps:,} steps ({1000 * seconds / steps:.1f} ms each, all included); " + (
        f"{where_of(run['environment'])}.\n"
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
        f"one run, seed {run['seed']}, split {run['split']}; {where_of(where)}.",
        "",
    ]
    return "\n".join(lines)


def suspects_table(results: dict[str, Any]) -> str:
    """One change at a time from the paper's recipe, each beside the run of its method without a change."""
    groups = _groups(results)
    lines = [
        "| run | validation mAP | difference | AUC | raw weights' mAP | best step of the EMA | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for group, runs in groups.items():
        name, _, labeled = group.rpartition("-labeled=")
        base = groups[f"{name.partition(',')[0]}-labeled={labeled}"]
        mine, other = ([run["validation"]["ema"] for run in each] for each in (runs, base))
        gain = statistics.mean(100 * run["mAP"] for run in mine) - statistics.mean(100 * run["mAP"] for run in other)
        best = statistics.mean(100 * max(row["mAP"] for row in run["curve"]) for run in runs)
        raw, minutes = [run["validation"]["model"] for run in runs], statistics.mean(run["minutes"] for run in runs)
        values = [spread(mine, "mAP"), "" if runs is base else f"{gain:+.1f}", spread(mine, "AUC")]
        lines.append(f"| {name} | {' | '.join([*values, spread(raw, 'mAP'), f'{best:.1f}', f'{minutes:.1f}'])} |")
    settings, images = results["runs"][0]["settings"], results["runs"][0]["validation"]["ema"]["num_images"]
    seeds = ", ".join(map(str, sorted({run["seed"] for run in results["runs"]})))
    about = (
        f"{settings['labeled']:,.0f} labels of the official train half, {settings['total_steps']:,} steps at "
        f"{settings['image_size']} pixels, scored on {images:,} images of the val half; seed {seeds}; "
        f"{where_all(results['runs'])}."
    )
    return "\n".join([*lines, "", about, ""])


def pretrained_suspects_table(results: dict[str, Any]) -> str:
    """Runs from ImageNet weights, and what the finished models score on images that are a little larger."""
    rows = []
    for group, runs in _groups(results).items():
        name, _, labeled = group.rpartition("-labeled=")
        larger = [run["read in other ways"]["8/7"] for run in runs]
        rows.append([name + ", all labels" * (labeled == "0"), *_tuning_cells(runs), spread(larger, "mAP")])
    return _grid_table(results, rows, "mAP at 256 pixels")


def second_round_table(results: dict[str, Any]) -> str:
    """The runs of both rounds, and what the models of the first one score together."""
    rows = [[group, *_tuning_cells(runs)] for group, runs in _groups(results).items()]
    for name, means in results["together"].items():
        rows.append([f"together: {name}", *(f"{100 * means[each]:.1f}" for each in ("mAP", "AUC")), "", ""])
    return _grid_table(results, rows)


def loss_table(results: dict[str, Any]) -> str:
    """What each loss ranks like, and how far its probabilities are from the frequencies."""
    lines = ["| loss of the labeled images | validation mAP | AUC | error of the probabilities |", "|---|---|---|---|"]
    for group, runs in _groups(results).items():
        scores = [run["validation"]["ema"] for run in runs]
        error = statistics.mean(100 * run["calibration"]["ece_before"] for run in runs)
        name = group.rpartition("-labeled=")[0]
        lines.append(f"| {name} | {spread(scores, 'mAP')} | {spread(scores, 'AUC')} | {error:.1f}% |")
    run = results["runs"][0]
    seeds = ", ".join(map(str, sorted({run["seed"] for run in results["runs"]})))
    about = (
        f"{run['settings']['labeled']:,.0f} labeled photographs of VOC2007, {run['settings']['total_steps']} steps at "
        f"{run['settings']['image_size']} pixels from ImageNet weights, scored on {scores[0]['num_images']:,} others; "
        f"the error is the expected calibration error before calibration; seed {seeds}; {where_all(results['runs'])}."
    )
    return "\n".join([*lines, "", about, ""])


# what a results file's settings were chosen by
TUNED_BY = {
    "voc2007/same_data": ("voc2007/tuning",),
    "voc2007/same_data_long": ("voc2007/tuning", "voc2007/remedies"),
    "voc2007/pretrained": ("voc2007/tuning", "voc2007/cpu_learning_rate", "voc2007/pretrained_tuning"),
}


def tried_line(results: str) -> str:
    """How many runs on validation images were made to choose the settings, method by method."""
    if results not in TUNED_BY:
        return ""
    counts = ", ".join(f"{kind} {n}" for kind, n in _tried(results).most_common())
    watched = "The recipe they began from came from trials that watched the test images."
    return f"Chosen by runs on validation images: {counts}. {watched}\n"


def _tried(results: str) -> Counter[str]:
    return Counter(_kind(run) for name in TUNED_BY[results] for run in read(name)["runs"])


def _tried_with_and_without(results: str) -> str:
    counts = _tried(results)
    alone = counts["supervised"]
    return f"{counts.total() - alone - counts['pretraining alone']} and {alone}"


def _kind(run: dict[str, Any]) -> str:
    """The method of a run; early results have names alone, in which sup is supervised and pm a way to pseudo-label."""
    words = run.get("method", run.get("name", "")).split()
    kinds = {"sup": "supervised", "pm": "pseudo-labels", "distill": "pseudo-labels", "mean": "mean_teacher"}
    kinds |= dict.fromkeys(("simclr", "moco"), "pretraining alone")
    return next((kinds[word] for word in ("sup", "pm", *words) if word in words and word in kinds), words[0])


# file, block, what makes the table, and of which results
BLOCKS: tuple[tuple[str, str, Callable[[dict[str, Any]], str], str], ...] = (
    ("docs/voc.md", "voc_same_data", track_table, "voc2007/same_data"),
    ("docs/voc.md", "voc_same_data_long", track_table, "voc2007/same_data_long"),
    ("docs/voc.md", "voc_ceiling", ceiling_line, "voc2007/ceiling"),
    ("docs/voc.md", "voc_pseudo_labels", pseudo_label_table, "voc2007/same_data"),
    ("docs/voc.md", "voc_class_gain", class_gain_table, "voc2007/same_data"),
    ("docs/voc.md", "voc_pretrained", track_table, "voc2007/pretrained"),
    ("docs/reproduce.md", "voc_paper_track", paper_table, "voc2007/paper"),
    ("docs/voc.md", "voc_cpu", voc_cpu_table, "voc_cpu"),
    ("docs/experiments.md", "voc_tuning", voc_tuning_table, "voc2007/tuning"),
    ("docs/experiments.md", "voc_cpu_pretrained", voc_tuning_table, "voc2007/cpu_pretrained"),
    ("docs/experiments.md", "voc_cpu_learning_rate", grid_tuning_table, "voc2007/cpu_learning_rate"),
    ("docs/experiments.md", "voc_cpu_start_tuning", grid_tuning_table, "voc2007/cpu_start_tuning"),
    ("docs/experiments.md", "voc_cpu_start", grid_tuning_table, "voc2007/cpu_start"),
    ("docs/losses.md", "losses", loss_table, "voc2007/losses"),
    ("docs/experiments.md", "voc_pretrained_tuning", grid_tuning_table, "voc2007/pretrained_tuning"),
    ("docs/experiments.md", "voc_pretrained_suspects", pretrained_suspects_table, "voc2007/pretrained_suspects"),
    ("docs/experiments.md", "voc_second_round", second_round_table, "voc2007/second_round"),
    ("docs/experiments.md", "voc_cpu_random", grid_tuning_table, "voc2007/cpu_random"),
    ("docs/experiments.md", "voc_cpu_methods", grid_tuning_table, "voc2007/cpu_methods"),
    ("docs/experiments.md", "voc_cpu_long", grid_tuning_table, "voc2007/cpu_long"),
    ("docs/experiments.md", "voc_remedies", grid_tuning_table, "voc2007/remedies"),
    ("docs/experiments.md", "voc_ablations", ablation_table, "voc2007/ablations"),
    ("docs/experiments.md", "voc_auc_gate", grid_tuning_table, "voc2007/ablation_auc_gate"),
    ("docs/reproduce.md", "voc_paper_suspects", suspects_table, "voc2007/paper_suspects"),
    ("docs/experiments.md", "voc_paper", voc_paper_table, "voc2007/paper_first"),
    ("docs/speed.md", "voc_run", voc_run_line, "voc2007/paper_first"),
)


def main() -> None:
    for file in ("README.md", "docs/index.md"):
        fill(ROOT / file, "headline", headline_table())
    for file, block, table, results in BLOCKS:
        fill(ROOT / file, block, text_of(table, results))


def text_of(table: Callable[[dict[str, Any]], str], results: str) -> str:
    """A table, what its settings were chosen by, and the copy of the photographs that it was made from."""
    found = read(results)
    return f"{table(found)}{tried_line(results)}Photographs: {found['photographs']}.\n"
