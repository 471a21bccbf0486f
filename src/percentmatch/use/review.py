"""Which labels of a run are probably wrong: those that heads on frozen features, fitted without them, contradict."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from percentmatch.console.notices import print_to_stderr
from percentmatch.console.tables import cell, figures, first, show
from percentmatch.data import Images, read_manifest
from percentmatch.data.manifest import Manifest
from percentmatch.data.readers.table import LABEL_HEADERS, PART_HEADERS, guard, open_table, unguard, write_row
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError, did_you_mean
from percentmatch.files import replacing_named
from percentmatch.models import Card, Classifier, build_classifier
from percentmatch.records import Facts, Task, scores_of
from percentmatch.settings.config import Config
from percentmatch.training.probe import FEWEST, fit_probe, remembered_features
from percentmatch.use.evaluate import RunData, finished_run, open_trained, read_config
from percentmatch.use.suggest import relative_names

COLUMNS = ("image", "label of", "given", "probability", "finding", "answer")  # none is a column of labels
FINDINGS = ("wrong", "missing")  # of a label that is given as 1, and as 0
RESERVED = {*LABEL_HEADERS, *PART_HEADERS}
ANSWERS = {"": False, "reject": False, "accept": True}
SHOWN = 10


@dataclass(frozen=True)
class Suspect:
    """A label that is probably wrong."""

    image: str  # as train finds it
    row: int  # among the images reviewed
    column: int  # its class
    given: int  # 0 or 1
    probability: float  # of the class, from heads that have not seen this label

    @property
    def finding(self) -> str:
        return FINDINGS[1 - self.given]


@dataclass(frozen=True)
class Review:
    """The labels that were looked at, and those that are probably wrong, the most doubtful first."""

    images: Images
    suspects: list[Suspect]
    num_labels: int


def review(run: str | Path, number: int | None = None, *, device: str = "auto", **where: Unpack[RunData]) -> Review:
    """The `number` most doubtful labels of a run's labeled, validation and test images; see `usual_number`.

    `where` says how to find the data of the run.
    """
    if number is not None and number < 1:
        raise UserError(f"--number must be at least 1, not {number}")
    folder, on = finished_run(run), pick_device(device)
    config, split = read_config(folder, **where), folder.read_split()
    model, card, data = open_trained(folder, on, **where)
    parts = data.pool.part((*split.labeled, *split.validation)), data.test.part(split.test)
    images = _together([each for each in parts if len(each)])
    if len(images) < FEWEST:
        raise UserError(f"the run in '{run}' has {len(images)} images with labels; a review needs {FEWEST} and more")
    model = _frozen(model, config, card)
    features = torch.cat([remembered_features(model, each, card, on) for each in parts if len(each)])
    targets, known = images.scoring_labels(count_difficult=False)
    probabilities, doubt = doubts(features, targets, known, card.task)
    total = int(doubt.isfinite().sum())
    most = min(number or usual_number(total), total)
    chosen = [divmod(place, len(card.class_names)) for place in doubt.flatten().topk(most).indices.tolist()]
    config = None if where.get("data") or config.data in ("scenes", "shards") else config
    names = relative_names([images.ids[row] for row, _ in chosen], config) if config else None
    suspects = [
        Suspect(
            names[n] if names else images.ids[row],
            row,
            column,
            int(targets[row, column]),
            float(probabilities[row, column]),
        )
        for n, (row, column) in enumerate(chosen)
    ]
    return Review(images, suspects, total)


def usual_number(labels: int) -> int:
    """How many of them are listed: one in 200, of which about two in three are wrong in docs/review.md's table."""
    return min(max(labels // 200, 10), 100)


def doubts(
    features: Tensor, targets: Tensor, known: Tensor, task: Task = "multi-label", *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The probability of each label to be 1, from heads that have not seen it, and how doubtful that makes it: (n, c).

    Doubt is the log odds that a label is wrong, up to a constant. If each class has as many wrong labels as missing
    ones, a given 1 is as doubtful as its logit lies below the prevalence's, a 0 as its logit lies above 0. With one
    label an image, only another class can be doubted, by its distance to the given one. Unknown labels have none.
    """
    logits = fit_probe(features, targets, known, task, seed=seed).held_out  # (n, c)
    prior = Facts.from_targets(targets, known).prior_logits(task)
    doubt = torch.where(targets > 0, prior - logits, logits)
    if task == "single-label":
        doubt = (logits - (logits * targets).sum(1, keepdim=True)).masked_fill(targets > 0, -torch.inf)
    return scores_of(logits, task), doubt.masked_fill(known == 0, -torch.inf)


def _frozen(model: Classifier, config: Config, card: Card) -> Classifier:
    """The backbone as it was before it saw these labels, where it had learnt something by then."""
    if config.weights == "none":
        print_to_stderr(
            "this run began from random weights, so the features are those of its own network, which has learnt from "
            "these labels: wrong ones that it has memorised are not found; a run from pretrained weights finds more"
        )
        return model
    device = next(model.parameters()).device
    options: dict[str, Any] = {name: getattr(card, name) for name in ("backbone", "head", "image_size", "dropout")}
    return build_classifier(**options, num_classes=len(card.class_names), weights=config.weights).to(device).eval()


def _together(parts: Sequence[Images]) -> Images:
    labels = parts[0].labels.cat(*(each.labels for each in parts))
    ids = tuple(name for each in parts for name in each.ids)
    return Images(torch.cat([each.pixels for each in parts]), labels, ids, parts[0].class_names)


def write_review(found: Review, out: Path) -> None:
    """The list as a CSV file, with a column to fill in."""
    names = found.images.class_names
    with replacing_named(out) as file:
        write_row(file, list(COLUMNS))
        for each in found.suspects:
            image = each.image if guard(each.image) == each.image else f"./{each.image}"
            figures = str(each.given), f"{each.probability:.4f}", each.finding
            write_row(file, [image, guard(names[each.column]), *figures, ""])


def apply_review(run: str | Path, answers: Path, out: Path, *, moved: Any = None) -> tuple[int, int]:
    """Write the run's labels with the accepted corrections to a new CSV file; returns how many were made, of how many.

    The file has a column for each class, with 1, 0 or ? for unknown.
    """
    folder = finished_run(run)
    config = replace(folder.read_moved(moved or {}), unlabeled="")
    if config.data in ("scenes", "shards", "custom"):
        raise UserError("the labels of this run are in no file of yours; --apply is for --labels, VOC and COCO")
    manifest = read_manifest(config, say=lambda _: None)
    names = relative_names(list(manifest.ids), config)
    targets, known, difficult = (getattr(manifest.labels, name).dense() for name in ("targets", "known", "difficult"))
    row_of = {name: row for row, name in enumerate(names)}
    column_of = {name: column for column, name in enumerate(manifest.class_names)}
    made, total, accepted = 0, 0, {}
    for source, (image, name, given, _, _, answer) in _answers(answers):
        total += 1
        if answer.strip().lower() not in ANSWERS:
            raise UserError(f"{source}: the answer is '{answer}'; write accept or reject, or leave it empty")
        if not ANSWERS[answer.strip().lower()]:
            continue
        row = row_of.get(image, row_of.get(image.removeprefix("./")))
        if row is None:
            raise UserError(f"{source}: the run's labels have no image '{image}'; leave that column as it was written")
        if name not in column_of:
            raise UserError(f"{source}: the run has no class '{name}'{did_you_mean(name, column_of)}")
        column = column_of[name]
        if not known[row, column] or str(int(targets[row, column])) != given.strip():
            raise UserError(f"{source}: the label of '{name}' is not {given} any more; review the run's labels again")
        if config.task == "single-label":
            if int(given):
                raise UserError(f"{source}: '{image}' would show no class; accept the class that it shows instead")
            if row in accepted:
                raise UserError(
                    f"{source}: {accepted[row]} is accepted as well, and an image shows one class; keep one"
                )
            targets[row], accepted[row] = 0, source
        targets[row, column] = 1 - int(given)
        made += 1
    known = known * (targets | (1 - difficult))
    if lost := int((manifest.labels.known.dense() - known).sum()):
        print_to_stderr(f"{lost:,} labels marked difficult are unknown in {out}, which cannot say so")
    _write_labels(out, names, manifest, targets, known)
    return made, total


def _answers(file: Path) -> list[tuple[str, list[str]]]:
    """Where each line stands, and its cells in the order of COLUMNS."""
    table = open_table(file)
    if missing := [name for name in COLUMNS if name not in table.header]:
        raise UserError(
            f"--apply {file} has no column '{missing[0]}'; give the file that review --out wrote, filled in"
        )
    places, found = [table.header.index(name) for name in COLUMNS], []
    for source, line in zip(table.sources, table.lines, strict=True):
        if not isinstance(line, list):
            raise UserError(line.sentence)
        found.append((source, [unguard(line[place].strip()) for place in places]))
    return found


def _write_labels(out: Path, names: Sequence[str], manifest: Manifest, targets: Tensor, known: Tensor) -> None:
    if odd := next((name for name in manifest.class_names if name.strip().lower() in RESERVED), None):
        raise UserError(f"a class called '{odd}' cannot be a column of a file of labels; correct the labels by hand")
    classes, parts = map(guard, manifest.class_names), any(manifest.parts)
    with replacing_named(out) as file:
        write_row(file, ["image", *classes, *["part"] * parts])
        for name, part, row, sure in zip(names, manifest.parts, targets.tolist(), known.tolist(), strict=True):
            cells = [str(value) if there else "?" for value, there in zip(row, sure, strict=True)]
            write_row(file, [name if guard(name) == name else f"./{name}", *cells, *[part] * parts])


def show_review(found: Review) -> None:
    """How many labels of each class are in the list, and its first rows."""
    names = found.images.class_names
    counts = Counter((names[each.column], each.finding) for each in found.suspects)
    table = figures("class", "probably wrong", "probably missing")
    classes = {name: [counts[name, finding] for finding in FINDINGS] for name in names}
    for name, numbers in first({name: row for name, row in classes.items() if any(row)}):
        table.add_row(cell(name), *map(str, numbers))
    show(table)
    table = figures("the most doubtful", "class", "given", "probability")
    for each in found.suspects[:SHOWN]:
        table.add_row(cell(each.image), cell(names[each.column]), str(each.given), f"{each.probability:.3f}")
    show(table)
    print(f"The {len(found.suspects):,} most doubtful of {found.num_labels:,} labels of {len(found.images):,} images")
