"""Did the unlabeled images help? A run against its supervised twin, or any other, class by class and image by image."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from percentmatch.console.tables import cell, figures, first, points, show
from percentmatch.data import Data
from percentmatch.data.pixels.cache import Progress
from percentmatch.data.pixels.load import print_to_stderr
from percentmatch.errors import UserError, several, visible
from percentmatch.methods import labeled_loss_of, num_students, uses_unlabeled
from percentmatch.runs.run_folder import MAY_CHANGE, RunFolder
from percentmatch.scoring.intervals import ENOUGH, LEVEL, bootstrap, class_gains, mean_gain, plain, resamples_of
from percentmatch.scoring.metrics import resampled_metrics
from percentmatch.scoring.predictions import probabilities
from percentmatch.settings.config import Config
from percentmatch.training.start import train
from percentmatch.use.evaluate import open_run

Part = Literal["test", "validation"]


def compare(
    run: Path,
    other: Path | None = None,
    *,
    out: Path | None = None,
    part: Part | None = None,
    device: str = "auto",
    data: Data | None = None,
    moved: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = print_to_stderr,
) -> dict[str, Any]:
    """What `run` gains over `other`, or over its supervised twin, which is trained into `out` unless it is there.

    Ready for JSON. `data` is what the runs were given in Python, if so; else `moved` may say where their root, labels
    or images are now.
    """
    folder = _finished(run)
    own = folder.read_split()
    if not (getattr(own, part) if part else own.test or own.validation):
        raise UserError(
            f"the run in '{run}' has no {part or 'test or validation'} images to compare on; "
            f"{'choose another --part' if part else 'train it with --validation'}"
        )
    if other is None:
        twin = _twin(folder, out, device, data, moved or {}, say)
    elif out:
        raise UserError("--out is the folder of the supervised twin; leave it out where a second run is named")
    else:
        twin = _finished(other)
    folders, splits = (folder, twin), (own, twin.read_split())
    part = part or ("test" if all(split.test for split in splits) else "validation")
    if not all(getattr(split, part) for split in splits):
        raise UserError(f"'{run}' and '{twin.path}' do not both have {part} images; choose by --part")
    if set(getattr(splits[0], part)) != set(getattr(splits[1], part)):
        raise UserError(f"'{run}' and '{twin.path}' have different {part} images; compare runs of one split")
    opened = [open_run(each.path, part, device, data=data, moved=moved, progress=progress) for each in folders]
    images, others = opened[0][2], opened[1][2]
    if images.class_names != others.class_names:
        raise UserError(f"'{run}' and '{twin.path}' differ in their classes; compare runs with the same classes")
    scores = [probabilities(model, loaded.pixels, card, chosen_device) for model, card, loaded, chosen_device in opened]
    if any(each.isnan().any() for each in scores):
        raise UserError("a model gives probabilities that are not a number (NaN): training has diverged")
    rows = others.rows(images.ids)
    labels = images.scoring_labels(count_difficult=False)
    for mine, theirs in zip(labels, others.scoring_labels(count_difficult=False), strict=True):
        if not torch.equal(mine, theirs[rows]):
            raise UserError(f"'{run}' and '{twin.path}' differ in the labels of their {part} images; train them anew")
    found = gains(scores[0], scores[1][rows], *labels, images.class_names)
    if found["mAP"]["gain"] is None:
        raise UserError(f"no {part} image is known to show a class, so there is nothing to compare; choose by --part")
    configs = [each.read_config() for each in folders]
    differ = _differences(*configs, same_labels=set(splits[0].labeled) == set(splits[1].labeled))
    names = [str(each.path) for each in folders]
    pairs = zip(names, configs, strict=True)
    about = {
        "runs": [{"path": name, "method": config.method, "seed": config.seed} for name, config in pairs],
        "part": part,
        "num_images": len(images),
        "resamples": resamples_of(len(images.class_names)),
        "differ": differ,
    }
    only_unlabeled = [uses_unlabeled(each.method) for each in configs] == [True, False] and differ == ["method"]
    return {**about, **found, "verdict": verdict(found, None if only_unlabeled else (names[0], names[1]))}


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
    words = {True: "better", False: "worse"}
    columns = zip(mine, theirs, gain, class_gains(*drawn, "AP", positives), strict=True)
    classes = {
        name: {
            "positives": int(positives[column]),
            **_row(*values),
            "finding": words[bool(gain[column] > 0)] if clear[column] else "unclear" if enough[column] else "too few",
        }
        for column, (name, values) in enumerate(zip(class_names, columns, strict=True))
    }
    overall = {}
    for name, metric in resampled_metrics().items():
        (theirs,), (mine,) = (each.mean(name) for each in exact)
        overall[metric.mean] = _row(mine, theirs, mine - theirs, mean_gain(*drawn, name))
    return {**overall, "classes": classes}


def _row(first: Tensor, second: Tensor, gain: Tensor, ends: tuple[float, float] | None) -> dict[str, Any]:
    values = [None if value.isnan() else float(value) for value in (first, second, gain)]
    return dict(zip(("run", "other", "gain", "interval"), (*values, ends), strict=True))


def verdict(found: Mapping[str, Any], names: tuple[str, str] | None) -> str:
    """One sentence; `names` of the runs where they differ in more than the unlabeled images."""
    gain, (low, high) = found["mAP"]["gain"], found["mAP"]["interval"]
    one, other = names or ("The run with unlabeled images", "the one without")
    if all(row["finding"] == "too few" for row in found["classes"].values()):
        words = "Too few positives to tell"
    elif round(100 * low, 1) > 0:
        words = f"{one} is better than {other}"
    elif round(100 * high, 1) < 0:
        words = f"{one} is worse than {other}"
    else:
        words = "No difference" if gain == low == high == 0 else "No clear difference"
    classes = {
        finding: several([name for name, row in found["classes"].items() if row["finding"] == finding]) or "none"
        for finding in ("better", "worse", "too few")
    }
    few = f"; too few positives to tell: {classes['too few']}" if classes["too few"] != "none" else ""
    return (
        f"{words}: mAP {points(gain)} (95% interval {points(low)} to {points(high)}); clearly better: "
        f"{classes['better']}; clearly worse: {classes['worse']}{few}."
    )


def show_comparison(found: Mapping[str, Any]) -> None:
    """The table of classes and the sentence."""
    for mark, each in zip("AB", found["runs"], strict=True):
        print(f"{mark}  {visible(str(each['path']))}  ({each['method']})")
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


def _cells(row: Mapping[str, Any]) -> list[str]:
    values = ["n/a" if row[key] is None else f"{100 * row[key]:.1f}" for key in ("run", "other")]
    ends = row["interval"]
    gain = "n/a" if row["gain"] is None else points(row["gain"])
    return [*values, gain, f"{points(ends[0])} to {points(ends[1])}" if ends else "n/a"]


def _finished(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.read_config()
    if not folder.metrics.exists():
        raise UserError(f"the run in '{path}' has not finished; continue it by train --out {path} --resume")
    return folder


def _twin(
    folder: RunFolder,
    out: Path | None,
    device: str,
    data: Data | None,
    moved: Mapping[str, Any],
    say: Callable[[str], None],
) -> RunFolder:
    """The same run on labeled images only: found finished, continued, or trained."""
    config = folder.read_config() if data else folder.read_moved(moved)
    if not uses_unlabeled(config.method):
        raise UserError(f"'{folder.path}' is a supervised run, so it has no twin; name a second run to compare it with")
    path = folder.path.resolve() if folder.path.name in ("", "..") else folder.path
    twin = RunFolder(out or path.with_name(f"{path.name}-supervised"))
    loss = labeled_loss_of(config.method, config.options)
    config = replace(
        config,
        method="supervised",
        options={"loss": loss} if loss else {},
        total_steps=-(-config.total_steps // num_students(config.method, config.options)),  # those of one student
        split_file=os.path.abspath(folder.split),
        device=config.device if device == "auto" else device,
    )
    if not twin.metrics.exists():
        say(f"{'continuing' if twin.config.exists() else 'training'} the supervised twin in {twin.path}")
    train(config, twin.path, resume=twin.config.exists(), data=data)
    splits = folder.read_split(), twin.read_split()
    if any(getattr(splits[0], each) != getattr(splits[1], each) for each in ("labeled", "validation", "test")):
        raise UserError(f"'{twin.path}' is a run on other images than '{folder.path}'; choose another --out")
    return twin


def _differences(first: Config, second: Config, *, same_labels: bool) -> list[str]:
    """The settings in which two runs differ, and whether they saw other labels."""
    mine, theirs = first.to_dict(), second.to_dict()
    names = [name for name in mine if name not in (*MAY_CHANGE, "options") and mine[name] != theirs[name]]
    if first.method == second.method and first.options != second.options:
        names.append("options")
    else:
        losses = [labeled_loss_of(each.method, each.options) for each in (first, second)]
        names += ["loss"] if None not in losses and losses[0] != losses[1] else []
    return names if same_labels else [*names, "labeled images"]
