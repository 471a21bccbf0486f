"""Run folders in, one self-contained HTML page out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from percentmatch.data import Data
from percentmatch.data.pixels.cache import Progress
from percentmatch.data.pixels.load import print_to_stderr
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError
from percentmatch.files import replacing_named
from percentmatch.report.collect import RunRecord, read_run, short_names
from percentmatch.report.page import frequencies, page
from percentmatch.report.scoring import PageRun, ScoredRun, score_own_images
from percentmatch.report.sections import page_examples
from percentmatch.runs.run_folder import check_moved

MOST_CLASSES = 500  # on a page; of more, as many are shown, evenly from the most to the least frequent
NO_IMAGES = "the page was asked for without images"


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    images: bool = True,
    device: str = "auto",
    data: Data | None = None,
    moved: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = print_to_stderr,
) -> None:
    """Write the report of one run or of several to `out`.

    With `images`, each run's model scores the run's own images; what cannot be scored is left out, and `say` and the
    page tell why. `data` is what the runs were given in Python, if so; else `moved` may say where their root, labels or
    images are now.
    """
    if not runs:
        raise UserError("name at least one run folder")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file that ends in .html")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out} must end in .html")
    check_moved(moved or {})
    if images:
        pick_device(device)
    records = [read_run(path, name) for path, name in zip(runs, short_names(runs), strict=True)]
    found = [_score(record, images, device, data, moved or {}, progress) for record in records]
    for record, (_, missing) in zip(records, found, strict=True):
        if missing and images:
            say(f"{record.name}: without intervals and images: {missing}")
    names = [_class_names(record, scored) for record, (scored, _) in zip(records, found, strict=True)]
    classes = list(dict.fromkeys(name for each in names for name in each))
    number_of = {name: number for number, name in enumerate(classes)}
    shown = set(classes)
    if len(classes) > MOST_CLASSES:
        counts = frequencies(records[0], names[0], found[0][0], classes)
        shown = {classes[number] for number in page_examples(counts, MOST_CLASSES)}
        shown |= {each[0] for each in names if each and shown.isdisjoint(each)}  # every run has something to show
    most_points = max(40, min(120, 12_000 // max(len(shown) * len(records), 1)))
    entries = [
        PageRun(
            record,
            *found[n],
            names[n],
            tuple(number_of[name] for name in names[n]),
            f"run{n + 1}",
            most_points,
            tuple(position for position, name in enumerate(names[n]) if name in shown),
        )
        for n, record in enumerate(records)
    ]
    text = page(entries, classes)
    with replacing_named(out) as file:
        file.write(text.encode(errors="replace").decode())  # a path need not be valid UTF-8


def _score(
    record: RunRecord, images: bool, device: str, data: Data | None, moved: Mapping[str, Any], progress: Progress | None
) -> tuple[ScoredRun | None, str | None]:
    """The scores, or why there are none."""
    if not images:
        return None, NO_IMAGES
    if record.minutes is None:
        return None, "the run has not finished, and a model is saved at the end"
    try:
        return score_own_images(record, device, data=data, moved=moved, progress=progress), None
    except (UserError, OSError) as error:
        return None, " ".join(str(error).split()).rstrip(".")


def _class_names(record: RunRecord, scored: ScoredRun | None) -> tuple[str, ...]:
    """From the log, from the model, or numbers."""
    if record.class_names:
        return record.class_names
    if scored:
        return scored.class_names
    number = max((len(values) for row in record.train for values in row["classes"].values()), default=0)
    return tuple(f"class {n + 1}" for n in range(number))
