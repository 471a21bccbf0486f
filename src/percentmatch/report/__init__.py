"""Run folders in, one self-contained HTML page out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from percentmatch.console.notices import print_to_stderr
from percentmatch.data import Data
from percentmatch.data.pixels.cache import Progress
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError
from percentmatch.files import replacing_named
from percentmatch.report.collect import RunRecord, read_run, short_names
from percentmatch.report.page import page, page_examples
from percentmatch.report.scoring import PageRun, ScoredRun, score_own_images
from percentmatch.runs.run_folder import check_moved

MOST_CLASSES = 500  # on a page; of more, as many are shown, evenly from the most to the least frequent
MOST_POINTS = 12_000  # of all curves of a figure, about


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
    entries = []
    for record in [read_run(path, name) for path, name in zip(runs, short_names(runs), strict=True)]:
        scored, missing = None, "the page was asked for without images"
        if images:
            scored, missing = _score(record, device=device, data=data, moved=moved, progress=progress)
            if missing:
                say(f"{record.name}: without intervals and images: {missing}")
        entries.append(PageRun(record, scored, missing, _class_names(record, scored)))
    classes = list(dict.fromkeys(name for entry in entries for name in entry.class_names))
    number_of = {name: number for number, name in enumerate(classes)}
    shown = set(classes)
    if len(classes) > MOST_CLASSES:
        counts = entries[0].positives()
        shown = {classes[n] for n in page_examples([counts.get(name, 0) for name in classes], MOST_CLASSES)}
        # every run has something to show
        shown |= {e.class_names[0] for e in entries if e.class_names and shown.isdisjoint(e.class_names)}
    entries = [
        replace(
            entry,
            class_index=tuple(number_of[name] for name in entry.class_names),
            key=f"run{n}",
            most_points=max(40, min(120, MOST_POINTS // max(len(shown) * len(entries), 1))),
            shown=tuple(position for position, name in enumerate(entry.class_names) if name in shown),
        )
        for n, entry in enumerate(entries, start=1)
    ]
    text = page(entries, classes)
    with replacing_named(out) as file:
        file.write(text.encode(errors="replace").decode())  # a path need not be valid UTF-8


def _score(record: RunRecord, **options: Any) -> tuple[ScoredRun | None, str | None]:
    """The scores, or why there are none; `options` are those of `score_own_images`."""
    if record.minutes is None:
        return None, "the run has not finished, and a model is saved at the end"
    try:
        return score_own_images(record, **options), None
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
