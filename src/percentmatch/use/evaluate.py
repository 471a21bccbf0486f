"""Scores of a saved model: on the test or validation images of its run, or on other files."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from percentmatch.console.tables import cell, figures, first, percent, show
from percentmatch.data import Data, Images, load_data, load_images, read_labels
from percentmatch.data.labels import check_single
from percentmatch.data.pixels.cache import Progress
from percentmatch.data.pixels.images import print_to_stderr
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError, several, visible
from percentmatch.models import Card, Classifier, load_classifier
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.metrics import CLASS_METRICS, OVERALL_METRICS
from percentmatch.scoring.predictions import evaluate, probabilities
from percentmatch.scoring.table import ScoreTable
from percentmatch.settings.config import Config

Opened = tuple[Classifier, Card, Images, torch.device]


class RunData(TypedDict, total=False):
    """How to find the data of a run."""

    data: Data | None  # what the run was given in Python, if so
    moved: Mapping[str, Any] | None  # where its root, labels or images are now
    progress: Progress | None


def score_run(
    path: str | Path,
    part: str = "test",
    device: str = "auto",
    *,
    data: Data | None = None,
    moved: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ScoreTable:
    """Score the saved model of a run on the test or validation images of its split.

    `data` is what the run was given in Python, if so; else `moved` may say where its root, labels or images are now.
    """
    model, card, images, chosen_device = open_run(path, part, device, data=data, moved=moved, progress=progress)
    return evaluate(probabilities(model, images.pixels, card, chosen_device), images, card.task)


def score_files(
    path: str | Path,
    labels: Path,
    images: Path | None = None,
    device: str = "auto",
    *,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> ScoreTable:
    """Score the saved model of a run on other files: all rows of a file of labels with the model's classes."""
    model, card, loaded, chosen_device = open_files(path, labels, images, device, skip_bad=skip_bad, progress=progress)
    return evaluate(probabilities(model, loaded.pixels, card, chosen_device), loaded, card.task)


def open_run(path: str | Path, part: str, device: str, **where: Unpack[RunData]) -> Opened:
    """What `score_run` scores: model, card, images and device."""
    if part not in ("test", "validation"):
        raise UserError(f"no part is called {part!r}; choose test or validation")
    folder, chosen_device = RunFolder(Path(path)), pick_device(device)
    model, card, data = open_trained(folder, chosen_device, **where)
    ids = getattr(folder.read_split(), part)
    if not ids:
        other = "validation" if part == "test" else "test"
        raise UserError(f"the run in '{path}' has no {part} images; try --part {other}, or --labels with other files")
    return model, card, (data.test if part == "test" else data.pool).part(ids), chosen_device


def open_trained(folder: RunFolder, device: torch.device, **where: Unpack[RunData]) -> tuple[Classifier, Card, Data]:
    """The model of a run, and the run's data with the same classes."""
    config, data = read_config(folder, **where), where.get("data")
    model, card = load_classifier(folder.model, device)
    data = data or load_data(config, progress=where.get("progress"))
    if (card.image_size, card.task, card.backbone) != (config.image_size, config.task, config.backbone):
        raise UserError(f"'{folder.model}' and '{folder.config}' belong to different runs; restore the run folder")
    if card.class_names != data.pool.class_names:
        differ = sorted({*card.class_names} ^ {*data.pool.class_names}) or ["their order"]
        raise UserError(
            f"'{folder.model}' and the run's data differ in their classes: {', '.join(differ)}; put the labels back, "
            "or score other files by evaluate --labels"
        )
    return model, card, data


def read_config(folder: RunFolder, **where: Unpack[RunData]) -> Config:
    """The settings of a run, with the paths to its data as they are now."""
    return folder.read_config() if where.get("data") else folder.read_moved(where.get("moved") or {})


def finished_run(path: str | Path) -> RunFolder:
    folder = RunFolder(Path(path))
    folder.read_config()
    if not folder.metrics.exists():
        raise UserError(f"the run in '{path}' has not finished; continue it by train --out {path} --resume")
    return folder


def open_files(
    path: str | Path,
    labels: Path,
    images: Path | None,
    device: str,
    *,
    skip_bad: bool = False,
    progress: Progress | None,
) -> Opened:
    """What `score_files` scores: model, card, images and device."""
    chosen_device, folder = pick_device(device), RunFolder(Path(path))
    model, card = load_classifier(folder.model if folder.path.is_dir() else folder.path, chosen_device)
    manifest = read_labels(labels, images, classes=card.class_names)
    if card.task == "single-label":
        check_single(manifest.labels, manifest.ids, manifest.sources)
    if count := _count_trained_on(folder, manifest.paths):
        print_to_stderr(f"{count:,} of these {len(manifest):,} images are labeled images that the model was trained on")
    loaded = load_images(manifest, size=card.decode_size, frame=card.frame, skip_bad=skip_bad, progress=progress)
    return model, card, loaded, chosen_device


def _count_trained_on(folder: RunFolder, paths: Sequence[Path]) -> int:
    """How many of these files are labeled images of the run, if it was trained on files."""
    trained_on: set[str] = set()
    with contextlib.suppress(UserError):  # a model without its run, or with a damaged one, can still be scored
        config, labeled = folder.read_config(), folder.read_split().labeled
        base = Path(config.images or config.labels)
        base = base if base.is_dir() else base.parent
        trained_on = {os.path.realpath(base / name) for name in labeled if config.labels}
    return sum(os.path.realpath(path) in trained_on for path in paths if trained_on)


def show_scores(scores: ScoreTable) -> None:
    """Every metric of every class, the means, and what is left out of them."""
    table = figures("class", *(metric.title for metric in CLASS_METRICS.values()), "positives")
    for name, row in first(scores.classes):
        table.add_row(cell(name), *(percent(row.values.get(key)) for key in CLASS_METRICS), str(row.positives))
    table.add_section()
    table.add_row("mean", *(percent(scores.means.get(metric.mean)) for metric in CLASS_METRICS.values()), "")
    show(table)
    for name, value in scores.overall.items():
        print(f"{OVERALL_METRICS[name].title.capitalize()} {percent(value)}")
    if means := scores.difficult_as_positive:
        shown = "  ".join(f"{each.mean_title} {percent(means.get(each.mean))}" for each in CLASS_METRICS.values())
        print(f"With difficult pairs counted as positive: {shown}")
    for name, metric in CLASS_METRICS.items():
        if metric.needs and (left_out := scores.left_out(name)):
            print(f"Left out of the mean, without {metric.needs}: {visible(several(left_out))}")
    if scores.num_pairs_ignored:
        print(f"{scores.num_pairs_ignored} pairs of image and class were ignored (label unknown or difficult)")
