"""Which unlabeled images to label next: unsure positives of weak classes with few labels, all different."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.console.notices import print_to_stderr
from percentmatch.console.tables import cell, figures, first, percent, show
from percentmatch.data import Images, read_manifest
from percentmatch.data.pixels.cache import Progress, cache_folder
from percentmatch.data.readers.class_folders import is_class_folders
from percentmatch.data.readers.detect import metadata_files, only_file
from percentmatch.data.readers.exports import is_export
from percentmatch.data.readers.nus_wide import is_nus_wide
from percentmatch.data.readers.parquet import is_parquet
from percentmatch.data.readers.rows import LabelFile
from percentmatch.data.readers.table import (
    NOTHING_KNOWN,
    NOWHERE,
    Table,
    class_columns,
    guard,
    marks_in,
    open_table,
    write_row,
)
from percentmatch.data.source import class_list
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError
from percentmatch.files import replacing_named
from percentmatch.models import Card, Classifier
from percentmatch.scoring.calibration import probabilities_of
from percentmatch.scoring.predictions import BATCH, logits
from percentmatch.scoring.table import final_scores
from percentmatch.settings.config import Config
from percentmatch.use.evaluate import RunData, finished_run, open_trained, read_config

CANDIDATES = 3  # for each image asked for, among which those are chosen that differ
LEAST_WEAKNESS = 0.05  # of a class with a perfect AP
WEAK_RUN = 0.75  # validation AUC below which a list has been seen to be worse than a random one
PLAIN = Table(Path(), ["image", "labels"], (), (), image=0, labels=1, subset=NOWHERE)


def suggest(
    run: str | Path,
    number: int,
    out: Path,
    *,
    device: str = "auto",
    decoding: Progress | None = None,
    **where: Unpack[RunData],
) -> dict[str, Any]:
    """Write a list of the unlabeled images of a run to label next, the most useful first; returns a summary.

    The list has the columns of the run's CSV file of labels, else `image,labels`, and can be filled in. `where` says
    how to find the data of the run; its `progress` is told of images scored, `decoding` of images decoded.
    """
    if number < 1:
        raise UserError(f"--number must be at least 1, not {number}")
    if out.exists():
        raise UserError(f"--out {out} is there already; name a new file, or move it away")
    chosen_device, folder, data = pick_device(device), finished_run(run), where.get("data")
    config, split = read_config(folder, **where), folder.read_split()
    if split.stream:
        raise UserError(
            f"the run in '{run}' streamed its unlabeled images, which have no rows to choose from; train on some of "
            "them as files, by --unlabeled FOLDER"
        )
    if not split.unlabeled:
        raise UserError(f"the run in '{run}' has no unlabeled images to choose from; train with --unlabeled")
    unlabeled = folder.read_config().unlabeled
    if not data and unlabeled and not config.unlabeled:
        raise UserError(f"the run's unlabeled images, {unlabeled}, are not there; put them back")
    progress, where["progress"] = where.get("progress"), decoding
    model, card, loaded = open_trained(folder, chosen_device, **where)
    pool = loaded.pool
    left = _still_unlabeled(pool, split.unlabeled, drawn=bool(data or config.labeled or config.split_file))
    if not left:
        raise UserError(f"every unlabeled image of the run in '{run}' has labels by now, or is gone; train a new run")
    if fewer := len(split.unlabeled) - len(left):
        print_to_stderr(f"left out {fewer:,} unlabeled images that the file of labels lists by now, or that are gone")
    rows, labeled = pool.rows(left), pool.rows(split.labeled)
    found = []
    for batch in rows.split(BATCH):
        found.append(logits(model, pool.pixels[batch], card, chosen_device))
        if progress:
            progress(min(len(found) * BATCH, len(rows)), len(rows))
    probabilities = probabilities_of(torch.cat(found), card).float()  # (n, c)
    if probabilities.isnan().any():
        raise UserError(f"the model in '{run}' gives probabilities that are not a number (NaN): training has diverged")
    positives = pool.labels.targets.select(labeled).in_columns().float()  # (c,)
    scores = final_scores(folder.read_metrics()).get("validation")
    if scores and (auc := scores.means["AUC"]) is not None and auc < WEAK_RUN:
        print_to_stderr(
            f"this run still ranks poorly (validation AUC {percent(auc)}), so its list may be worse than a random one; "
            "begin from pretrained weights, or label some at random first"
        )
    known = scores.classes if scores else {}
    aps = [known[name].values["AP"] if name in known else None for name in card.class_names]
    weakness = torch.tensor([1 - (ap or 0.0) for ap in aps]).clamp(min=LEAST_WEAKNESS)  # (c,)

    number = min(number, len(rows))
    likely = pick(probabilities, positives, weakness, CANDIDATES * number)
    vectors = embed(model, pool.pixels, rows[likely], card, chosen_device)
    near = torch.cdist(vectors, embed(model, pool.pixels, labeled, card, chosen_device)).amin(1)
    chosen = likely[pick(probabilities[likely], positives, weakness, number, vectors=vectors, near=near)]
    ids = [left[row] for row in chosen.tolist()]
    _write(out, ids, None if data or config.data in ("scenes", "shards") else config)
    expected, usual = probabilities[chosen].sum(0).tolist(), (number * probabilities.mean(0)).tolist()
    counts = zip(card.class_names, aps, positives.long().tolist(), expected, usual, strict=True)
    keys = ("AP", "labeled", "expected", "at_random")
    return {"images": ids, "classes": {name: dict(zip(keys, row, strict=True)) for name, *row in counts}}


def pick(
    probabilities: Tensor,
    positives: Tensor,
    weakness: Tensor,
    number: int,
    *,
    vectors: Tensor | None = None,
    near: Tensor | None = None,
) -> Tensor:
    """The rows of `number` images to label, chosen one after the other: each is the most useful beside those before.

    Labeling image i brings class c about p(1 - p) positives that were not certain: probabilities (n, c). Such a
    positive is worth more in a weaker class (c,), and in one with fewer positives (c,), labeled or expected of the
    images chosen, so that the classes take turns. With `vectors` (n, d), the worth of an image is multiplied by its
    distance to the nearest chosen or labeled image (`near` (n,)): of two that look alike, one is taken.
    """
    brings = probabilities * (1 - probabilities)  # (n, c)
    have = positives.clamp(min=1).clone()
    far = torch.full((len(brings),), torch.inf) if near is None else near.clone()
    free = torch.ones(len(brings), dtype=torch.bool)
    chosen = []
    for _ in range(min(number, len(brings))):
        worth = brings @ (weakness / have)  # (n,)
        worth = worth if vectors is None else worth * far.clamp(max=2)  # 2: across the sphere
        best = int(worth.masked_fill(~free, -1).argmax())
        free[best] = False
        chosen.append(best)
        have += brings[best]
        if vectors is not None:
            far = torch.minimum(far, (vectors - vectors[best]).norm(dim=1))
    return torch.tensor(chosen, dtype=torch.long)


def embed(model: Classifier, pixels: Tensor, rows: Tensor, card: Card, device: torch.device) -> Tensor:
    """What the head of the model sees of images, the mean of its tokens, as vectors of length 1: (rows, d)."""
    seen = []

    def keep(_: object, inputs: tuple[Tensor, ...]) -> None:
        features = inputs[0].float()
        seen.append((features if features.ndim == 2 else features.mean(1)).cpu())

    hook = model.head.register_forward_pre_hook(keep)
    try:
        for batch in rows.split(BATCH):
            logits(model, pixels[batch], card, device)
    finally:
        hook.remove()
    return F.normalize(torch.cat(seen))


def _still_unlabeled(pool: Images, ids: Sequence[str], *, drawn: bool) -> list[str]:
    """Those that still exist and, unless the labeled images were `drawn` from more, have no labels yet."""
    counts = pool.labels.known.in_rows().tolist()
    unlabeled = {name for name, known in zip(pool.ids, counts, strict=True) if drawn or not known}
    return [name for name in ids if name in unlabeled]


def _write(out: Path, ids: list[str], config: Config | None) -> None:
    """The list, in the columns of the user's file if that is a CSV file. Without a config, images are ids."""
    table = _labels_table(config) if config else PLAIN
    silent = [table.labels]  # columns where an empty cell would mean none of the classes
    if config and table.labels == NOWHERE:
        wanted = class_list(config)
        columns = [column for name, column in class_columns(table).items() if wanted is None or name in wanted]
        silent = columns if marks_in(table, columns) else []
    with replacing_named(out) as file:
        write_row(file, [guard(cell) for cell in table.header], table.mark)
        for name in relative_names(ids, config) if config else ids:
            cells = [""] * len(table.header)
            cells[table.image] = name if guard(name) == name else f"./{name}"
            for column in silent:
                cells[column] = NOTHING_KNOWN
            write_row(file, cells, table.mark)


def _labels_table(config: Config) -> Table:
    """The user's CSV file of labels; a plain one if the labels come in another format."""
    path = Path(config.labels)
    if not config.labels or is_parquet(LabelFile(path)) or is_nus_wide(LabelFile(path)):
        return PLAIN
    if path.is_dir():
        metadata = metadata_files(path)
        if any(metadata.values()) or (not metadata and is_class_folders(LabelFile(path))):  # several files, or none
            return PLAIN
        path = next(iter(metadata), None) or path / only_file(path)
    text = LabelFile(path, say=lambda _: None).text
    if path.suffix.lower() in (".jsonl", ".ndjson") or text.lstrip()[:1] in ("", "[", "{"):
        return PLAIN
    table = open_table(path, text)
    return PLAIN if is_export(table) else table


def relative_names(ids: list[str], config: Config) -> list[str]:
    """The images as `train` finds them, from --images, --root or the folder of the labels."""
    labels = Path(config.labels)
    base = Path(config.images or config.root or (labels if labels.is_dir() else labels.parent))
    manifest, start = read_manifest(config, say=lambda _: None), os.path.realpath(base)
    names = []
    for name, path in zip(ids, (manifest.paths[row] for row in manifest.rows(ids).tolist()), strict=True):
        real = os.path.join(os.path.realpath(path.parent), path.name)
        own = base / name == path or path.is_relative_to(cache_folder())  # that of a Parquet file is no file of its own
        names.append(name if own else Path(os.path.relpath(real, start)).as_posix())
    return names


def show_suggestions(summary: dict[str, Any]) -> None:
    """What the list aims at, class by class."""
    table = figures("class", "validation\nAP", "positives:\nlabeled", "expected\nin list", "in a random\nlist")
    for name, row in first(summary["classes"]):
        expected = (f"{row[key]:.1f}" for key in ("expected", "at_random"))
        table.add_row(cell(name), percent(row["AP"]), str(row["labeled"]), *expected)
    show(table)
