"""The commands for finished runs and trained models: score, predict, serve, calibrate, export, explain."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from percentmatch.cli.flags import Device, ImagesFolder, JsonFile, ModelPath, Moved, RunFolder, Thresholds, read_pairs
from percentmatch.errors import UserError


def evaluate(
    run: RunFolder,
    *,
    part: Literal["test", "validation"] | None = None,
    moved: Moved = None,
    labels: Path | None = None,
    images: ImagesFolder = None,
    skip_bad_images: bool = False,
    thresholds: Thresholds = None,
    json: JsonFile = None,
    device: Device = "auto",
) -> None:
    """Score a finished run's model, class by class.

    Parameters
    ----------
    part
        Which of the run's own images; by default test.
    labels
        Score all rows of this file of labels, in any format that train reads, instead of the run's own images.
    skip_bad_images
        List images of --labels that cannot be read, and continue without them.
    json
        Also write all numbers to this file; "-" prints them, and nothing else.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.evaluate import score_files, score_run, show_scores

    if labels is None and (images or skip_bad_images):
        raise UserError("--images and --skip-bad-images go with --labels; the run's own images need neither")
    if labels and (part or moved):
        raise UserError("--part and --set are for the run's own images; leave them out, or leave out --labels")
    _check_json(json)
    with Counting("decoding images") as progress:
        how: dict[str, Any] = {"thresholds": thresholds, "progress": progress}
        if labels:
            scores = score_files(run, labels, images, device, skip_bad=skip_bad_images, **how)
        else:
            scores = score_run(run, part or "test", device, moved=read_pairs(moved), **how)
    if json != Path("-"):
        show_scores(scores)
        print(f"On {scores.num_images:,} {'images of ' + str(labels) if labels else (part or 'test') + ' images'}")
    _write_json(json, scores.to_dict())


def predict(
    model: ModelPath,
    *sources: Path,
    out: Path | None = None,
    format: Literal["csv", "jsonl", "fiftyone", "label-studio"] | None = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    thresholds: Thresholds = None,
    skip_bad_images: bool = False,
    device: Device = "auto",
) -> None:
    """Write the predicted labels and the probability of every class for each image, as CSV or JSON Lines.

    Images that cannot be read are listed and left out; the exit code is then 1.

    Parameters
    ----------
    sources
        Images, folders of images, or text files with one path a line.
    out
        The file to write; by default the table is printed.
    format
        By default the suffix of --out decides, csv or jsonl. fiftyone: a samples.json; label-studio: tasks with
        predictions.
    raw
        Write uncalibrated probabilities. The labels stay the same.
    skip_bad_images
        Exit with code 0 even if images cannot be read.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.predict import predict

    with Counting("images") as progress:
        done, skipped = predict(
            model, sources, out, form=format, raw=raw, thresholds=thresholds, device=device, progress=progress
        )
    if out:
        print(f"{done} images  {out}")
    if skipped:
        print(f"skipped {skipped} of {done + skipped} images", file=sys.stderr)
        if not skip_bad_images:
            sys.exit(1)


def serve(
    model: ModelPath,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    site: str = "",
    max_mb: float = 20,
    device: Device = "auto",
) -> None:
    """Serve a trained model to browsers, and to programs by POST /predict, until Ctrl-C.

    Parameters
    ----------
    host
        The address to listen on; by default only this machine can connect.
    port
        0 chooses a free one.
    site
        The host name, and the port if it is not the default, of a reverse proxy in front.
    max_mb
        The largest upload in megabytes.
    """
    from percentmatch.serve import serve

    try:
        serve(model, host=host, port=port, site=site, max_mb=max_mb, device=device)
    except KeyboardInterrupt:
        sys.stdout.flush()
        os._exit(130)  # at once: to take torch down would need seconds, and a thread may be at work


def calibrate(
    run: Path,
    *,
    precision: float | None = None,
    recall: float | None = None,
    moved: Moved = None,
    labels: Path | None = None,
    images: ImagesFolder = None,
    device: Device = "auto",
) -> None:
    """Calibrate a finished run's probabilities and choose new thresholds on its validation images.

    Parameters
    ----------
    run
        The run folder. Its model.safetensors is replaced; the weights stay the same.
    precision
        Choose thresholds that reach this precision with the best recall, instead of the best F1.
    recall
        Choose thresholds that reach this recall with the best precision.
    labels
        Use all rows of this file of labels, in any format that train reads, instead of the run's validation images.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.evaluate import recalibrate, show_decisions

    if (images and not labels) or (labels and moved):
        raise UserError("--images goes with --labels, --set with the run's own images; leave out what does not fit")
    with Counting("decoding images") as progress:
        summary = recalibrate(
            run,
            labels=labels,
            images=images,
            moved=read_pairs(moved),
            precision=precision,
            recall=recall,
            device=device,
            progress=progress,
        )
    show_decisions(summary)
    print(f"model  {run / 'model.safetensors'}")


def export(model: Path, *, out: Path) -> None:
    """Write a trained model for other programs: one ONNX file, or a folder for Python and the Hugging Face Hub.

    Parameters
    ----------
    model
        A run folder or a model.safetensors.
    out
        A file that ends in .onnx, or a new folder.
    """
    from percentmatch.use.export import export

    for line in export(model, out):
        print(line)


def report(*runs: Path, out: Path, images: bool = True, moved: Moved = None, device: Device = "auto") -> None:
    """Write one HTML page about a run, or about several runs and their differences.

    Parameters
    ----------
    runs
        Run folders, finished or not. The others are compared with the first.
    out
        The page, a file that ends in .html. It contains everything it shows and loads no other file.
    images
        Score each run's images for intervals, calibration and pictures; --no-images reads the log only.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.report import write_report

    with Counting("decoding images") as progress:
        write_report(runs, out, images=images, device=device, moved=read_pairs(moved), progress=progress)
    print(f"report  {out}")


def compare(
    run: RunFolder,
    other: Path | None = None,
    *,
    part: Literal["test", "validation"] | None = None,
    out: Path | None = None,
    seeds: int = 1,
    json: JsonFile = None,
    moved: Moved = None,
    device: Device = "auto",
) -> None:
    """Compare a run with its supervised baseline, which is trained first, or with another run.

    Parameters
    ----------
    other
        Another run on the same images, instead of the baseline.
    part
        The images to compare on; by default test if there are any, else validation.
    out
        The folder of the supervised baseline; by default RUN-supervised. An interrupted baseline is continued.
    seeds
        Train the run and its baselines with so many seeds, in folders that end in -seedN, and show mean and spread.
    json
        Also write all numbers to this file; "-" prints them, and nothing else.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.compare import compare, show_comparison

    _check_json(json)
    with Counting("decoding images") as progress:
        how: dict[str, Any] = {"part": part, "seeds": seeds, "device": device, "progress": progress}
        found = compare(run, other, out=out, moved=read_pairs(moved), **how)
    if json != Path("-"):
        show_comparison(found)
    _write_json(json, found)


def suggest(run: RunFolder, *, out: Path, number: int = 100, moved: Moved = None, device: Device = "auto") -> None:
    """List the unlabeled images of a run that are most worth labeling next, as a CSV file to fill in.

    Parameters
    ----------
    out
        The list, a new file with the columns of the run's own --labels, or else image,labels.
    number
        Number of images to list.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.suggest import show_suggestions, suggest

    with Counting("decoding images") as decoding, Counting("unlabeled images") as progress:
        summary = suggest(
            run, number, out, device=device, moved=read_pairs(moved), progress=progress, decoding=decoding
        )
    show_suggestions(summary)
    print(f"{len(summary['images'])} images to label  {out}")
    print("fill in their labels, then add the rows to your file of labels; rows left as they are stay unlabeled")


def _check_json(file: Path | None) -> None:
    """Before any work is done."""
    if file and file != Path("-") and (file.is_dir() or not file.parent.is_dir()):
        raise UserError(f"--json {file} must name a file in a folder that is there")


def _write_json(file: Path | None, found: dict[str, Any]) -> None:
    from percentmatch.files import json_text, write_json

    if file == Path("-"):
        sys.stdout.write(json_text(found))
    elif file:
        write_json(file, found)
