"""The verbs that use a finished run: score, predict, explain, compare. `cli` makes commands of them."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from percentmatch.errors import UserError

Pairs = Annotated[list[str] | None, Parameter(negative="")]  # NAME=VALUE, may be repeated


def read_pairs(pairs: list[str] | None, example: str = "--set root=/data/coco") -> dict[str, str]:
    """What NAME=VALUE pairs of a flag say; the last one of a name counts."""
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"{example.split()[0]} takes NAME=VALUE, such as {example}, not '{pair}'")
        found[name.strip()] = value.strip()
    return found


def evaluate(
    run: Path,
    *,
    part: Literal["test", "validation"] | None = None,
    set: Pairs = None,
    labels: Path | None = None,
    images: Path | None = None,
    skip_bad_images: bool = False,
    device: str = "auto",
) -> None:
    """Score a finished run's model, class by class.

    Parameters
    ----------
    run
        The run folder.
    part
        Which of the run's own images; test if not given.
    set
        NAME=PATH, where the run's own data is now if it was moved: root, labels or images; may be repeated.
    labels
        Score all rows of this file of labels, in any format that train reads, instead of the run's own images.
    images
        The folder that the paths in --labels begin at; by default the folder of that file.
    skip_bad_images
        List images of --labels that cannot be read and go on without them.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.evaluate import score_files, score_run, show_scores

    if labels is None and (images or skip_bad_images):
        raise UserError("--images and --skip-bad-images go with --labels; the run's own images need neither")
    if labels and (part or set):
        raise UserError("--part and --set are for the run's own images; leave them out, or leave out --labels")
    with Counting("decoding images") as progress:
        if labels:
            scores = score_files(run, labels, images, device, skip_bad=skip_bad_images, progress=progress)
        else:
            scores = score_run(run, part or "test", device, moved=read_pairs(set), progress=progress)
    show_scores(scores)
    print(f"On {scores.num_images:,} {'images of ' + str(labels) if labels else (part or 'test') + ' images'}")


def predict(
    model: Path,
    *sources: Path,
    out: Path | None = None,
    format: Literal["csv", "jsonl"] | None = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    skip_bad_images: bool = False,
    device: str = "auto",
) -> None:
    """Write the labels decided on and the probability of every class for each image, as CSV or JSON Lines.

    Images that cannot be read are listed, the others are done; the exit code is then 1.

    Parameters
    ----------
    model
        A run folder, an exported folder or a model.safetensors.
    sources
        Images, folders of images, or text files with one path a line.
    out
        The file; without it the table is printed.
    format
        csv or jsonl; without it that of the suffix of --out, else csv.
    raw
        The network's own probabilities instead of the calibrated ones. Labels stay the same.
    skip_bad_images
        Images that cannot be read are no failure: exit code 0.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.predict import predict

    with Counting("images") as progress:
        done, skipped = predict(model, sources, out, form=format, raw=raw, device=device, progress=progress)
    if out:
        print(f"{done} images  {out}")
    if skipped:
        print(f"skipped {skipped} of {done + skipped} images", file=sys.stderr)
        if not skip_bad_images:
            sys.exit(1)


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    site: str = "",
    max_mb: float = 20,
    device: str = "auto",
) -> None:
    """Open a trained model to a browser, and to programs by POST /predict, until Ctrl-C.

    Parameters
    ----------
    model
        A run folder, an exported folder or a model.safetensors.
    host
        The address to listen at; by default this machine alone can use it.
    port
        0 picks a free one.
    site
        The name, and the port if it is not the usual one, of a web server that stands in front.
    max_mb
        The largest upload, in MB.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.serve import serve

    serve(model, host=host, port=port, site=site, max_mb=max_mb, device=device)


def calibrate(
    run: Path,
    *,
    precision: float | None = None,
    recall: float | None = None,
    set: Pairs = None,
    labels: Path | None = None,
    images: Path | None = None,
    device: str = "auto",
) -> None:
    """Calibrate a finished run's probabilities and choose its thresholds anew, from its validation images.

    Parameters
    ----------
    run
        The run folder. Its model.safetensors is replaced; the weights stay the same.
    precision
        Choose thresholds that reach this precision with the best recall, instead of the best F1.
    recall
        Choose thresholds that reach this recall with the best precision.
    set
        NAME=PATH, where the run's own data is now if it was moved: root, labels or images; may be repeated.
    labels
        Use all rows of this file of labels, in any format that train reads, instead of the run's validation images.
    images
        The folder that the paths in --labels begin at; by default the folder of that file.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.calibrate import recalibrate, show_decisions

    if (images and not labels) or (labels and set):
        raise UserError("--images goes with --labels, --set with the run's own images; leave out what does not fit")
    with Counting("decoding images") as progress:
        summary = recalibrate(
            run,
            labels=labels,
            images=images,
            moved=read_pairs(set),
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


def report(
    *runs: Path,
    out: Path,
    images: bool = True,
    set: Pairs = None,
    device: str = "auto",
) -> None:
    """Write one HTML page about a run, or about several and their differences.

    Parameters
    ----------
    runs
        Run folders, finished or not. Several are compared with the first.
    out
        The page, a file that ends in .html. It holds all it shows and loads nothing.
    images
        Score each run's images for intervals, calibration and pictures; --no-images reads the log only.
    set
        NAME=PATH, where the root, labels or images of the runs are now, if they were moved; may be repeated.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.report import write_report

    with Counting("decoding images") as progress:
        write_report(runs, out, images=images, device=device, moved=read_pairs(set), progress=progress)
    print(f"report  {out}")


def compare(
    run: Path,
    other: Path | None = None,
    *,
    part: Literal["test", "validation"] | None = None,
    out: Path | None = None,
    json: Path | None = None,
    set: Pairs = None,
    device: str = "auto",
) -> None:
    """Did the unlabeled images help? Compare a run with its supervised twin, which is trained first, or with another.

    Parameters
    ----------
    run
        The run folder.
    other
        A run on the same images to compare it with.
    part
        Which of the runs' images; test where there are such, else validation.
    out
        The folder of the supervised twin; RUN-supervised if not given. A broken twin is continued, a finished one kept.
    json
        Write all numbers to this file, too.
    set
        NAME=PATH, where the root, labels or images of the runs are now, if they were moved; may be repeated.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.files import write_json
    from percentmatch.use.compare import compare, show_comparison

    if json and (json.is_dir() or not json.parent.is_dir()):
        raise UserError(f"--json {json} must name a file in a folder that is there")
    moved = read_pairs(set)
    with Counting("decoding images") as progress:
        found = compare(run, other, out=out, part=part, device=device, moved=moved, progress=progress)
    show_comparison(found)
    if json:
        write_json(json, found)


def suggest(
    run: Path,
    *,
    out: Path,
    number: int = 100,
    set: Pairs = None,
    device: str = "auto",
) -> None:
    """List the unlabeled images of a run that are most worth labeling next, as a CSV file to fill in.

    Parameters
    ----------
    run
        The run folder.
    out
        The list, a new file with the columns of the run's own --labels, else image,labels.
    number
        How many images.
    set
        NAME=PATH, where the run's own data is now if it was moved: root, labels or images; may be repeated.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.use.suggest import show_suggestions, suggest

    moved = read_pairs(set)
    with Counting("decoding images") as decoding, Counting("unlabeled images") as progress:
        summary = suggest(run, number, out, device=device, moved=moved, progress=progress, decoding=decoding)
    show_suggestions(summary)
    print(f"{len(summary['images'])} images to label  {out}")
    print("fill in their labels, then add the rows to your file of labels; rows left as they are stay unlabeled")
