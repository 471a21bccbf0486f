"""A finished run's probabilities and thresholds, fitted anew."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from percentmatch.console.tables import cell, figures, first, percent, show
from percentmatch.data.pixels.cache import Progress
from percentmatch.errors import UserError, several, visible
from percentmatch.files import write_atomic, write_json
from percentmatch.models import classifier_bytes
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.calibration import decide
from percentmatch.scoring.predictions import logits
from percentmatch.use.evaluate import open_files, open_run


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
    metrics = folder.read_metrics() if folder.metrics.exists() else None
    write_atomic(folder.model, classifier_bytes(model, replace(card, decisions=decisions)))
    if metrics is not None:
        write_json(folder.metrics, {**metrics, **summary})
    return summary


def show_decisions(summary: dict[str, Any]) -> None:
    """Print the summary of `decide`: the error of the probabilities, and the threshold of each class."""
    errors, decisions = summary["calibration"], summary["decisions"]
    text = "calibration error (ECE) {ece_before:.4f} before, {ece_after:.4f} after, on {num_images} images"
    print(text.format(**errors))
    if "classes" not in decisions:
        return
    table = figures("class", "positives", "threshold", "precision", "recall", "F1")
    for name, row in first(decisions["classes"]):
        reached = (percent(row[key]) for key in ("precision", "recall", "F1"))
        table.add_row(cell(name), str(row["positives"]), f"{row['threshold']:.4f}", *reached)
    show(table)
    print(f"Thresholds for {'the best F1' if decisions['aim'] == 'F1' else decisions['aim']}")
    notes = {
        "missed": "Not reached, so the nearest is taken",
        "few_positives": "Few positives, so thresholds and figures are what the probabilities expect",
        "without_positives": "Without a positive, so the threshold is 0.5",
    }
    for key, note in notes.items():
        if decisions[key]:
            print(f"{note}: {visible(several(decisions[key]))}")
