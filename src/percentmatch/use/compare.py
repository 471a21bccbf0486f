"""Did the unlabeled images help? A run against its supervised baseline, or any other, on the same images."""

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from percentmatch.console.notices import print_to_stderr
from percentmatch.console.tables import cell, figures, first, points, show
from percentmatch.errors import UserError, several, visible
from percentmatch.methods import METHODS, labeled_loss_of, num_students, uses_unlabeled
from percentmatch.runs.run_folder import MAY_CHANGE, RunFolder
from percentmatch.scoring.intervals import ENOUGH, LEVEL, bootstrap, class_gains, mean_gain, plain, resamples_of
from percentmatch.scoring.metrics import resampled_metrics
from percentmatch.scoring.predictions import probabilities
from percentmatch.settings.config import Config
from percentmatch.training.start import train
from percentmatch.use.evaluate import RunData, finished_run, open_run, read_config


def compare(
    run: Path,
    other: Path | None = None,
    *,
    out: Path | None = None,
    part: Literal["test", "validation"] | None = None,
    seeds: int = 1,
    device: str = "auto",
    **where: Unpack[RunData],
) -> dict[str, Any]:
    """What `run` gains over `other`, or over the better of its baselines, which are trained unless they are there.

    The supervised one is in `out`, a linear probe beside it. With `seeds` above 1, the run and its baselines are also
    trained with the next seeds, on the same split. Ready for JSON. `where` says how to find the data of the runs.
    """
    if seeds < 1 or (other and seeds > 1):
        raise UserError(f"--seeds {seeds}: give 1 or more, and only where no second run is named")
    folder = finished_run(run)
    split = folder.read_split()
    if not (getattr(split, part) if part else split.test or split.validation):
        raise UserError(
            f"the run in '{run}' has no {part or 'test or validation'} images to compare on; "
            f"{'choose another --part' if part else 'train it with --validation'}"
        )
    if other and out:
        raise UserError("--out is the folder of the supervised baseline; leave it out where a second run is named")
    part_of_baselines = part or ("test" if split.test else "validation")
    by_seed = [] if other else _by_seed(folder, seeds, out, part_of_baselines, device, **where)
    baselines = {each: mean for each, (method, mean) in by_seed[0].items() if each is not folder} if by_seed else {}
    second = finished_run(other) if other else max(baselines, key=baselines.__getitem__)
    folders, splits, both = (folder, second), (split, second.read_split()), f"'{run}' and '{second.path}'"
    part = part or ("test" if all(each.test for each in splits) else "validation")
    ids, other_ids = ({*getattr(each, part)} for each in splits)
    if not (ids and other_ids):
        raise UserError(f"{both} do not both have {part} images; choose by --part")
    if ids != other_ids:
        raise UserError(f"{both} have different {part} images; compare runs of one split")
    opened = [open_run(each.path, part, device, **where) for each in folders]
    images, others = (each[2] for each in opened)
    if images.class_names != others.class_names:
        raise UserError(f"{both} differ in their classes; compare runs with the same classes")
    scores, other_scores = (probabilities(model, each.pixels, card, chosen) for model, card, each, chosen in opened)
    if scores.isnan().any() or other_scores.isnan().any():
        raise UserError("a model gives probabilities that are not a number (NaN): training has diverged")
    rows = others.rows(images.ids)
    labels = images.scoring_labels(count_difficult=False)
    if not all(map(torch.equal, labels, (each[rows] for each in others.scoring_labels(count_difficult=False)))):
        raise UserError(f"{both} differ in the labels of their {part} images; train them anew")
    found = gains(scores, other_scores[rows], *labels, images.class_names)
    if found["mAP"]["gain"] is None:
        raise UserError(f"no {part} image is known to show a class, so there is nothing to compare; choose by --part")
    configs = [each.read_config() for each in folders]
    differ = _differences(*configs) + ["labeled images"] * ({*splits[0].labeled} != {*splits[1].labeled})
    names = str(folder.path), str(second.path)
    only_unlabeled = [uses_unlabeled(each.method) for each in configs] == [True, False] and differ == ["method"]
    return {
        "runs": [{"path": name, "method": c.method, "seed": c.seed} for name, c in zip(names, configs, strict=True)],
        "baselines": [{"path": str(each.path), "mAP": mean} for each, mean in baselines.items()],
        "part": part,
        "num_images": len(images),
        "resamples": resamples_of(len(images.class_names)),
        "differ": differ,
        **found,
        "seeds": _seed_table(by_seed, configs[0].seed) if seeds > 1 else None,
        "verdict": verdict(found, None if only_unlabeled else names),
    }


def gains(
    scores: Tensor,
    others: Tensor,
    targets: Tensor,
    known: Tensor,
    class_names: Sequence[str],
    *,
    resamples: int | None = None,
) -> dict[str, Any]:
    """AP and AUC of two sets of scores for the same images (n, c), and their differences with 95% intervals.

    Every resample draws the same images for both. A class is better or worse if its difference is larger, in units of
    its own spread, than the largest that chance makes of any class in 95% of the resamples.
    """
    resamples = resamples or resamples_of(len(class_names))
    both = others, scores
    exact = [plain(each, targets, known) for each in both]
    drawn = [bootstrap(each, targets, known, resamples=resamples) for each in both]
    difference = drawn[1].classes["AP"] - drawn[0].classes["AP"]  # (r, c)
    theirs, mine = (each.classes["AP"][0] for each in exact)  # (c,)
    gain = mine - theirs
    positives = (targets * known).sum(0, dtype=torch.long)
    enough = positives >= ENOUGH
    chance = difference - difference.nanmean(0)
    spread = chance.square().nanmean(0).sqrt()  # (c,)
    largest = (chance / spread).abs().nan_to_num(0)[:, enough].amax(1) if enough.any() else torch.zeros(1).double()
    clear = enough & (gain.abs() > largest.quantile(LEVEL) * spread)
    classes = {}
    for column, (name, ends) in enumerate(zip(class_names, class_gains(*drawn, "AP", positives), strict=True)):
        finding = "unclear" if enough[column] else "too few"
        if clear[column]:
            finding = "better" if gain[column] > 0 else "worse"
        row = _row(mine[column], theirs[column], gain[column], ends)
        classes[name] = {"positives": int(positives[column]), **row, "finding": finding}
    overall = {}
    for name, metric in resampled_metrics().items():
        (theirs,), (mine,) = (each.mean(name) for each in exact)
        overall[metric.mean] = _row(mine, theirs, mine - theirs, mean_gain(*drawn, name))
    return {**overall, "classes": classes}


def _row(first: Tensor, second: Tensor, gain: Tensor, ends: tuple[float, float] | None) -> dict[str, Any]:
    mine, theirs, gained = (None if value.isnan() else float(value) for value in (first, second, gain))
    return {"run": mine, "other": theirs, "gain": gained, "interval": ends}


def verdict(found: Mapping[str, Any], names: tuple[str, str] | None) -> str:
    """One sentence; `names` of the runs where they differ in more than the unlabeled images."""
    gain, (low, high) = found["mAP"]["gain"], found["mAP"]["interval"]
    one, other = names or ("The run with unlabeled images", "the one without")
    findings: dict[str, list[str]] = defaultdict(list)
    for name, row in found["classes"].items():
        findings[row["finding"]].append(name)
    if findings.keys() == {"too few"}:
        words = "Too few positives to tell"
    elif round(100 * low, 1) > 0:
        words = f"{one} is better than {other}"
    elif round(100 * high, 1) < 0:
        words = f"{one} is worse than {other}"
    else:
        words = "No difference" if gain == low == high == 0 else "No clear difference"
    better, worse, few = (several(findings[finding]) for finding in ("better", "worse", "too few"))
    return (
        f"{words}: mAP {points(gain)} (95% interval {points(low)} to {points(high)}); clearly better: "
        f"{better or 'none'}; clearly worse: {worse or 'none'}{few and f'; too few positives to tell: {few}'}."
    )


def show_comparison(found: Mapping[str, Any]) -> None:
    """The table of classes and the sentence."""
    for mark, each in zip("AB", found["runs"], strict=True):
        print(f"{mark}  {visible(str(each['path']))}  ({each['method']})")
    if len(baselines := found.get("baselines", ())) > 1:
        means = (f"{visible(each['path'])} {100 * each['mAP']:.1f}" for each in baselines)
        print(f"B is the baseline with the larger mAP: {', '.join(means)}.")
    if more := [name for name in found["differ"] if name != "method"]:
        print(f"They also differ in {', '.join(more)}.")
    table = figures("class", "positives", "AP of A", "AP of B", "gain", "95% interval", "")
    for name, row in first(found["classes"]):
        clear = row["finding"] if row["finding"] in ("better", "worse") else ""
        table.add_row(cell(name), str(row["positives"]), *_cells(row), clear)
    table.add_section()
    for metric in resampled_metrics().values():
        table.add_row(metric.mean_title, "", *_cells(found[metric.mean]), "")
    show(table)
    many = sum(row["interval"] is not None for row in found["classes"].values())
    print(
        f"On {found['num_images']:,} {found['part']} images. If both models ranked images equally well, about "
        f"{(1 - LEVEL) * many:.1f} of the {many} classes' intervals would still miss 0; better and worse allow for "
        "that, but not for the seed: a second training may differ by as much."
    )
    print(visible(found["verdict"]))
    if found.get("seeds"):
        _show_seeds(found["seeds"], found["part"])


def _show_seeds(found: Mapping[str, Any], part: str) -> None:
    """Mean and standard deviation over the seeds, and the gain over the better baseline, seed by seed."""
    print(f"\nWith seeds {', '.join(map(str, found['seeds']))}: mAP on the {part} images, mean and standard deviation")
    table = figures("method", "mAP", "gain", "seed by seed")
    for name, row in found["methods"].items():
        gained = [_spread(row["gains"], "+"), ", ".join(map(points, row["gains"]))] if row["gains"] else ["", ""]
        table.add_row(cell(name), _spread(row["mAP"]), *gained)
    show(table)
    print(f"Gains are over {cell(found['baseline'])}, the baseline with the larger mean.")


def _spread(values: Sequence[float], sign: str = "") -> str:
    return f"{100 * fmean(values):{sign}.1f} ± {100 * stdev(values):.1f}"


def _seed_table(by_seed: Sequence[Mapping[RunFolder, tuple[str, float]]], first_seed: int) -> dict[str, Any]:
    """The mAP of each method with each seed; the run's own method comes first."""
    columns = zip(*(each.values() for each in by_seed), strict=True)
    values = {column[0][0]: [mean for _, mean in column] for column in columns}
    _, *others = values
    best = max(others, key=lambda name: fmean(values[name]))
    over = {name: [a - b for a, b in zip(row, values[best], strict=True)] for name, row in values.items()}
    methods = {name: {"mAP": row, "gains": None if name == best else over[name]} for name, row in values.items()}
    return {"seeds": [first_seed + n for n in range(len(by_seed))], "baseline": best, "methods": methods}


def _cells(row: Mapping[str, Any]) -> list[str]:
    values = ("n/a" if row[key] is None else f"{100 * row[key]:.1f}" for key in ("run", "other"))
    gain, ends = row["gain"], row["interval"]
    shown = "n/a" if gain is None else points(gain)
    return [*values, shown, " to ".join(map(points, ends)) if ends else "n/a"]


def _by_seed(
    folder: RunFolder, seeds: int, out: Path | None, part: str, device: str, **where: Unpack[RunData]
) -> list[dict[RunFolder, tuple[str, float]]]:
    """For each seed the run and its baselines, with their methods and mAP.

    Baselines see the labeled images only: the same run without the unlabeled images, and a linear probe, which needs a
    backbone that has learnt something. What is not trained yet is trained.
    """
    own = config = read_config(folder, **where)
    if not uses_unlabeled(config.method):
        raise UserError(f"'{folder.path}' is a supervised run itself; name a second run to compare it with")
    base = folder.path.resolve() if folder.path.name in ("", "..") else folder.path
    path = out or base.with_name(f"{base.name}-supervised")
    loss = labeled_loss_of(config.method, config.options)
    config = replace(
        config,
        method="supervised",
        options={"loss": loss} if loss else {},
        total_steps=math.ceil(config.total_steps / num_students(config.method, config.options)),  # those of one student
        split_file=os.path.abspath(folder.split),
        device=config.device if device == "auto" else device,
    )
    configs = {path: config}
    if config.weights != "none":
        configs[path.with_name(f"{path.name.removesuffix('-supervised')}-probe")] = replace(
            config, method="probe", options={}, head="linear", head_start="probe"
        )
    found = []
    for seed in range(own.seed, own.seed + seeds):
        again = replace(own, seed=seed, split_file=config.split_file, device=config.device)
        if seed == own.seed:
            row = {folder: (own.method, folder.read_metrics()[part]["ema"]["mAP"] or 0.0)}
        else:
            row = _trained(folder, again, RunFolder(base.with_name(f"{base.name}-seed{seed}")), part, **where)
        for each, settings in configs.items():
            named = each if seed == own.seed else each.with_name(f"{each.name}-seed{seed}")
            row |= _trained(folder, replace(settings, seed=seed), RunFolder(named), part, **where)
        found.append(row)
    return found


def _trained(
    folder: RunFolder, config: Config, baseline: RunFolder, part: str, **where: Unpack[RunData]
) -> dict[RunFolder, tuple[str, float]]:
    """A baseline of a run, or the run with another seed, with its method and its mAP on a part of the images."""
    begun = baseline.config.exists()
    if not baseline.metrics.exists():
        what = {"supervised": "supervised baseline", "probe": "linear probe"}.get(config.method, config.method)
        print_to_stderr(f"{'continuing' if begun else 'training'} the {what} in {baseline.path}")
    train(config, baseline.path, resume=begun, data=where.get("data"))
    splits = folder.read_split(), baseline.read_split()
    if any(getattr(splits[0], each) != getattr(splits[1], each) for each in ("labeled", "validation", "test")):
        raise UserError(f"'{baseline.path}' is a run on other images than '{folder.path}'; choose another --out")
    return {baseline: (config.method, baseline.read_metrics()[part]["ema"]["mAP"] or 0.0)}


def _differences(first: Config, second: Config) -> list[str]:
    """The settings in which two runs differ."""
    mine, theirs = first.to_dict(), second.to_dict()
    apart = [*MAY_CHANGE, "options"]
    if not all(METHODS[name].method.trains for name in METHODS.keys() & {first.method, second.method}):
        apart += ["head", "head_start"]  # a probe has its own
    names = [name for name in mine if name not in apart and mine[name] != theirs[name]]
    if first.method == second.method:
        return names + ["options"] * (first.options != second.options)
    losses = {labeled_loss_of(each.method, each.options) for each in (first, second)} - {None}
    return names + ["loss"] * (len(losses) > 1)
