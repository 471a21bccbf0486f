"""The commands that explain runs: report, compare, suggest."""

from pathlib import Path
from typing import Literal

from percentmatch.cli.flags import Device, Moved, RunFolder, read_pairs
from percentmatch.errors import UserError


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
    json: Path | None = None,
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
    json
        Also write all numbers to this file.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.files import write_json
    from percentmatch.use.compare import compare, show_comparison

    if json and (json.is_dir() or not json.parent.is_dir()):
        raise UserError(f"--json {json} must name a file in a folder that is there")
    with Counting("decoding images") as progress:
        found = compare(run, other, out=out, part=part, device=device, moved=read_pairs(moved), progress=progress)
    show_comparison(found)
    if json:
        write_json(json, found)


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
