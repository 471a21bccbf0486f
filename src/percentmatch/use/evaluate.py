"""Scores of a saved model on its run's own images or on other files, and its thresholds fitted anew."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from percentmatch.console.notices import print_to_stderr
from percentmatch.console.tables import cell, figures, first, percent, show
from percentmatch.data import Data, Images, load_data, load_images, read_labels
from percentmatch.data.labels import check_single
from percentmatch.data.pixels.cache import Progress
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError, several, visible
from percentmatch.files import write_atomic, write_json
from percentmatch.models import Card, Classifier, classifier_bytes, load_classifier
from percentmatch.records import scores_of
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.calibration import FEW, FEW_SCORES, decide, decisions_of, thresholds_of
from percentmatch.scoring.decisions import DECISION_METRICS, DecisionTable, Estimates, score_decisions
from percentmatch.scoring.intervals import Ends
from percentmatch.scoring.metrics import CLASS_METRICS, OVERALL_METRICS
from percentmatch.scoring.predictions import evaluate, logits
from percentmatch.scoring.table import ScoreTable
from percentmatch.settings.config import Config
from percentmatch.use.thresholds import with_thresholds

MOST_CONFUSIONS = 10
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
    thresholds: str | Path | None = None,
    progress: Progress | None = None,
) -> ScoreTable:
    """Score the saved model of a run on the test or validation images of its split.

    `data` is what the run was given in Python, if so; else `moved` may say where its root, labels or images are now.
    Decisions are made with the model's own thresholds, or with those of a file.
    """
    return _score(*open_run(path, part, device, data=data, moved=moved, progress=progress), thresholds)


def score_files(
    path: str | Path,
    labels: Path,
    images: Path | None = None,
    device: str = "auto",
    *,
    skip_bad: bool = False,
    thresholds: str | Path | None = None,
    progress: Progress | None = None,
) -> ScoreTable:
    """Score the saved model of a run on other files: all rows of a file of labels with the model's classes."""
    return _score(*open_files(path, labels, images, device, skip_bad=skip_bad, progress=progress), thresholds)


def _score(
    model: Classifier, card: Card, images: Images, device: torch.device, thresholds: str | Path | None
) -> ScoreTable:
    card = with_thresholds(card, thresholds)
    found = logits(model, images.pixels, card, device)
    table = evaluate(scores_of(found, card.task), images, card.task)
    labels = images.scoring_labels(count_difficult=False)
    decided = score_decisions(decisions_of(found, card), *labels, card.class_names, thresholds_of(card))
    return replace(table, decisions=decided)


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


def open_files(path: str | Path, labels: Path, images: Path | None, device: str, **options: Any) -> Opened:
    """What `score_files` scores: model, card, images and device. `options` are those of `load_images`."""
    chosen_device, folder = pick_device(device), RunFolder(Path(path))
    model, card = load_classifier(folder.model if folder.path.is_dir() else folder.path, chosen_device)
    manifest = read_labels(labels, images, classes=card.class_names)
    if card.task == "single-label":
        check_single(manifest.labels, manifest.ids, manifest.sources)
    if count := _count_trained_on(folder, manifest.paths):
        print_to_stderr(f"{count:,} of these {len(manifest):,} images are labeled images that the model was trained on")
    loaded = load_images(manifest, size=card.decode_size, frame=card.frame, **options)
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
    if scores.decisions:
        show_scored_decisions(scores.decisions)


def show_scored_decisions(scores: DecisionTable) -> None:
    """Precision, recall and F1 with their intervals, and what is predicted in the place of missed classes."""
    print("\nDecisions, in percent, with 95% intervals")
    head = ["threshold"] * (scores.thresholds is not None) + [each.title for each in DECISION_METRICS.values()]
    table = figures("class", *head, "right", "wrong", "missed")
    thresholds = dict(zip(scores.classes, scores.thresholds or (), strict=False))
    for name, row in first(scores.classes):
        chosen = [f"{thresholds[name]:.4f}"] if thresholds else []
        table.add_row(cell(name), *chosen, *_estimates(row.scores), *map(str, (row.right, row.wrong, row.missed)))
    table.add_section()
    for name, means in (("all pairs (micro)", scores.micro), ("mean of classes (macro)", scores.macro)):
        table.add_row(name, *[""] * bool(thresholds), *_estimates(means), "", "", "")
    show(table)
    if len(thresholds) > 1 and len({*thresholds.values()}) == 1:
        print("One threshold for all classes, which is rough where few validation images chose it")
    exact = with_ends(scores.exact_match, scores.exact_match_interval)
    print(f"Every label of the image right (exact match): {exact}")
    if pairs := scores.confusions(MOST_CONFUSIONS):
        print("Predicted in the place of a missed class more often than by chance:")
    for missed, predicted, each in pairs:
        number = f"{each.images} of {scores.classes[missed].missed} missed, {each.lift:.1f} times as often as by chance"
        print(visible(f"  {predicted} in the place of {missed}: {number}"))


def _estimates(scores: Estimates) -> list[str]:
    return [with_ends(scores.values[name], scores.intervals[name]) for name in DECISION_METRICS]


def with_ends(value: float | None, ends: Ends | None) -> str:
    """A share in percent with its interval: 81.2 (70 to 89)."""
    if value is None:
        return "n/a"
    return f"{100 * value:.1f}" + (f" ({100 * ends[0]:.0f} to {100 * ends[1]:.0f})" if ends else "")


def recalibrate(
    run: str | Path,
    *,
    labels: Path | None = None,
    images: Path | None = None,
    moved: Mapping[str, Any] | None = None,
    precision: float | None = None,
    recall: float | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write new decisions to a run's model, and the lines on them to its metrics.json; returns the summary.

    The images are the run's validation images, or all rows of the file `labels`, whose paths begin at `images`.
    """
    folder = RunFolder(Path(run))
    if (folder.path / "config.json").exists() and not folder.config.exists():
        raise UserError(f"'{run}' is an exported model; calibrate the run it comes from, then export that again")
    if labels:
        model, card, data, on = open_files(run, labels, images, device, progress=progress)
    elif folder.split.exists() and not folder.read_split().validation:
        raise UserError(f"the run in '{run}' has no validation images; give labeled ones by --labels")
    else:
        model, card, data, on = open_run(run, "validation", device, moved=moved, progress=progress)
    scores = logits(model, data.pixels, card, on)
    if not scores.isfinite().all():
        raise UserError(f"the model in '{run}' gives scores that are not finite numbers: training has diverged")
    options: dict[str, Any] = {"task": card.task, "class_names": card.class_names}
    options |= {"precision": precision, "recall": recall}
    decided = decide(scores, *data.scoring_labels(count_difficult=False), **options)
    if decided is None:
        source = labels or "the validation images"
        raise UserError(f"no label is 1, or none is 0, in {source}; calibrate with other files by --labels")
    decisions, summary = decided
    with folder:
        folder.hold()
        metrics = folder.read_metrics() if folder.metrics.exists() else None
        write_atomic(folder.model, classifier_bytes(model, replace(card, decisions=decisions)))
        if metrics is not None:
            write_json(folder.metrics, {**metrics, **summary})
    return summary


def show_decisions(summary: dict[str, Any]) -> None:
    """Print the summary of `decide`: the error of the probabilities, and the threshold of each class."""
    errors, decisions = summary["calibration"], summary["decisions"]
    text = "calibration error (ECE) {ece_before:.4f} before, {ece_after:.4f} after, on {num_images} images"
    if not errors["kept"]:
        text = (
            "not calibrated, since that did not clearly lower the loss of images left out of the fit: probabilities "
            "are the network's own, with an error (ECE) of {ece_before:.4f} on {num_images} images"
        )
    print(text.format(**errors))
    if "classes" not in decisions:
        return
    table = figures("class", "positives", "threshold", *(each.title for each in DECISION_METRICS.values()))
    for name, row in first(decisions["classes"]):
        reached = (with_ends(row[key], row["intervals"][key]) for key in DECISION_METRICS)
        table.add_row(cell(name), str(row["positives"]), f"{row['threshold']:.4f}", *reached)
    show(table)
    aim = "the best F1" if decisions["aim"] == "F1" else decisions["aim"]
    print(f"Thresholds for {aim}; in brackets 95% intervals. Expect less on images that did not choose the thresholds")
    if decisions["missed"]:
        print(f"Not reached, so the nearest is taken: {visible(several(decisions['missed']))}")
    if few := [*decisions["few_positives"], *decisions["without_positives"]]:
        print(
            f"Rough: {len(few):,} of {len(decisions['classes']):,} classes have fewer than {FEW} positives here, so "
            f"probabilities and not labels chose their thresholds{_shared(decisions)}; calibrate with more images by "
            f"--labels: {visible(several(few))}"
        )


def _shared(decisions: Mapping[str, Any]) -> str:
    value = decisions["shared_threshold"]
    return "" if value is None else f", {value:.4f} for those with fewer than {FEW_SCORES} images"
