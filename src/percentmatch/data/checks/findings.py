"""Findings about labels: rows in error, classes named like another one, and classes with too few images."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal

import torch

from percentmatch.data.manifest import Manifest
from percentmatch.data.readers.rows import RowError
from percentmatch.data.source import validation_ids
from percentmatch.data.split import PARTS, Split
from percentmatch.errors import several
from percentmatch.settings.config import DataSettings

Level = Literal["serious", "warning", "note"]
LEVELS = ("serious", "warning", "note")
OF_ROWS = {  # the kinds of errors, and what each is of
    "missing image": "images that the labels name and that are not in their folder",
    "bad row": "rows that cannot be read",
    "unknown class": "labels that are none of the classes asked for",
    "conflicting labels": "images that are named twice, with different labels",
    "leak": "images that are named twice, for different subsets",
}
RARE = 10  # a name that is so many times rarer than one like it may be misspelt
MOST_NAMES, LONGEST_NAME = 2000, 100  # classes, and letters of a name, up to which names are compared in pairs
ALIKE = 0.8  # the fraction of letters in common, above which two names are alike
FEW = 5  # labeled images of a class that a method should have
SURE = 0.95  # the chance that a class gets these, and one for validation, if as many images as `needed` show it


@dataclass(frozen=True)
class Finding:
    """One kind of defect and where it is."""

    check: str
    level: Level
    count: int
    text: str  # of what
    items: list[dict[str, Any]] = field(default_factory=list)  # each with a "text" of its own


def found(check: str, level: Level, text: str, items: list[dict[str, Any]]) -> list[Finding]:
    """A finding for these items, none if there are none."""
    return [Finding(check, level, len(items), text, items)] if items else []


def of_rows(errors: Sequence[RowError]) -> list[Finding]:
    """The findings for errors in rows of a file; an unknown class is one item, however many rows name it."""
    findings = []
    for kind, what in OF_ROWS.items():
        some = [error for error in errors if error.kind == kind]
        count = len({error.name for error in some}) if kind in ("conflicting labels", "leak") else len(some)
        if kind == "unknown class":
            rows, first = Counter(error.name for error in some), {error.name: error for error in reversed(some)}
            text = {name: f"{first[name].source}: {name!r}, on {rows[name]} images{first[name].hint}" for name in rows}
            items = [{"label": name, "images": rows[name], "text": text[name]} for name in rows]
            count = len(items)
        elif kind == "missing image":
            items = [{"image": error.name, "text": f"{error.source}: {error.name}"} for error in some]
        else:
            about = [{"images": [error.name]} if kind != "bad row" else {} for error in some]
            items = [{**which, "text": error.sentence} for which, error in zip(about, some, strict=True)]
        findings += [Finding(kind, "serious", count, what, items)] if items else []
    return findings


def alike_names(manifest: Manifest) -> list[Finding]:
    """Class names that look like another one misspelt, among at most MOST_NAMES."""
    if len(manifest.class_names) > MOST_NAMES:
        return []
    positives = manifest.labels.targets.in_columns().tolist()
    counts = sorted(zip(positives, manifest.class_names, strict=True))
    plain = {name: "".join(letter for letter in name.casefold() if letter.isalnum()) or name for _, name in counts}
    digits = {name: "".join(filter(str.isdigit, name)) for _, name in counts}
    items = []
    for rank, (few, rare) in enumerate(counts):
        for many, usual in reversed(counts[rank + 1 :]):
            variant = plain[rare] == plain[usual]
            slip = few * RARE <= many and digits[rare] == digits[usual] and _alike(plain[rare], plain[usual])
            if variant or slip:
                why = "differs only in case, spaces or signs from" if variant else "may be a misspelling of"
                text = f"{rare!r} ({few} images) {why} {usual!r} ({many} images)"
                items.append({"label": rare, "like": usual, "images": few, "text": text})
                break
    return found("class names", "warning", "classes with names much like another's", items)


def alike_classes(manifest: Manifest) -> list[str]:
    """One sentence about such names, for training."""
    texts = [item["text"] for finding in alike_names(manifest) for item in finding.items]
    return [f"class {several(texts, FEW)}; correct the labels if they mean the same"] if texts else []


def _alike(one: str, other: str) -> bool:
    if sorted(one) == sorted(other) or max(len(one), len(other)) > LONGEST_NAME:
        return sorted(one) == sorted(other)  # letters in another order
    match = SequenceMatcher(None, one, other, autojunk=False)
    return match.quick_ratio() > ALIKE and match.ratio() > ALIKE


def rare_classes(settings: DataSettings, manifest: Manifest, split: Split) -> list[Finding]:
    """Classes that a subset of the split hardly shows, and how many images such a split needs."""
    positive = manifest.labels.targets
    learnt = torch.tensor([subset != "test" for subset in manifest.parts]).nonzero().flatten()
    to_learn = positive.select(learnt).in_columns().tolist()
    enough = min(FEW, len(split.labeled))
    ids = {subset: getattr(split, subset) for subset in PARTS if subset != "unlabeled" and getattr(split, subset)}
    shown = {subset: positive.select(manifest.rows(ids[subset])).in_columns().tolist() for subset in ids}
    items = []
    for column, name in enumerate(manifest.class_names):
        counts = {subset: shown[subset][column] for subset in ids}
        if counts["labeled"] < enough or min(counts.values()) == 0:
            listed = ", ".join(f"{count} {subset}" for subset, count in counts.items())
            text = f"{name!r}: {to_learn[column]} images to learn from show it ({listed})"
            items.append({"class": name, "images": to_learn[column], **counts, "text": text})
    level = "warning" if all(item["images"] for item in items) else "serious"
    what = f"classes with fewer than {enough} labeled images, or none for validation or the test; label more of them"
    if items and not settings.split_file:
        fixed = set(validation_ids(settings, manifest))
        drawn = 0 if fixed else len(split.validation)
        about = zip(manifest.ids, manifest.parts, manifest.labels.known.in_rows().tolist(), strict=True)
        total = sum(some > 0 and subset != "test" and name not in fixed for name, subset, some in about)
        every = settings.split_kind == "every-class"
        count = needed(total, len(split.labeled), 0 if every else drawn, enough)
        what += (
            f": a class that {count} of the {total} images show has enough of them among the {len(split.labeled)} "
            f"labeled and {drawn} validation images in 19 of 20 random splits"
        )
        items = [{**item, "needed": count} for item in items]
    return found("few positives", level, what, items)


def needed(total: int, labeled: int, validation: int, enough: int) -> int:
    """How many of `total` images must show a class so that a random draw gives `enough` labeled and one validated."""

    def chance(shown: int, drawn: int, least: int) -> float:
        """That `drawn` of the images hold at least `least` of those `shown`: hypergeometric."""
        lowest = max(0, drawn - (total - shown))
        below = range(lowest, min(least, shown + 1, drawn + 1))
        ways = _log_choose(total, drawn)
        terms = (_log_choose(shown, k) + _log_choose(total - shown, drawn - k) - ways for k in below)
        return 1 - sum(map(math.exp, terms))

    def sure(shown: int) -> bool:
        return chance(shown, labeled, enough) >= SURE and (not validation or chance(shown, validation, 1) >= SURE)

    return enough + bisect_left(range(enough, total), True, key=sure)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
