"""Classes with too few images to learn, validate or score, and how many images they need."""

import math

import torch

from percentmatch.data.checks.findings import Finding, found
from percentmatch.data.manifest import Manifest
from percentmatch.data.source import validation_ids
from percentmatch.data.split import PARTS, Split
from percentmatch.settings.config import DataSettings

FEW = 5  # labeled images of a class that a method should have
SURE = 0.95  # the chance that a class gets these, and one for validation, if as many images as `needed` show it


def rare_classes(settings: DataSettings, manifest: Manifest, split: Split) -> list[Finding]:
    """Classes that a subset of the split hardly shows, and how many images such a split needs."""
    positive = manifest.labels.targets
    rows = {subset: manifest.rows(getattr(split, subset)) for subset in PARTS}
    shown = {subset: positive.select(rows[subset]).in_columns().tolist() for subset in PARTS}
    learnt = torch.tensor([subset != "test" for subset in manifest.parts]).nonzero().flatten()
    to_learn = positive.select(learnt).in_columns().tolist()
    enough = min(FEW, len(split.labeled))
    scored = [subset for subset in PARTS if subset != "unlabeled" and getattr(split, subset)]
    items = []
    for column, name in enumerate(manifest.class_names):
        counts = {subset: shown[subset][column] for subset in scored}
        if counts["labeled"] < enough or min(counts.values()) == 0:
            told = ", ".join(f"{count} {subset}" for subset, count in counts.items())
            text = f"{name!r}: {to_learn[column]} images to learn from show it ({told})"
            items.append({"class": name, "images": to_learn[column], **counts, "text": text})
    if not items:
        return []
    level = "serious" if any(not item["images"] for item in items) else "warning"
    what = (
        f"classes with fewer than {enough} labeled images, or with none for validation or the test; label more of them"
    )
    if not settings.split_file:
        fixed = set(validation_ids(settings, manifest))
        drawn = 0 if fixed else len(split.validation)
        kept = settings.split_kind == "every-class"
        about = zip(manifest.ids, manifest.parts, manifest.labels.known.in_rows().tolist(), strict=True)
        total = sum(some > 0 and subset != "test" and name not in fixed for name, subset, some in about)
        count = needed(total, len(split.labeled), 0 if kept else drawn, enough)
        what += (
            f": from {count} images on, a class nearly always (19 times in 20) has enough among the "
            f"{len(split.labeled)} labeled and {drawn} validation images that are drawn from {total}"
        )
        for item in items:
            item["needed"] = count
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

    low, high = enough, total
    while low < high:
        middle = (low + high) // 2
        good = chance(middle, labeled, enough) >= SURE and (not validation or chance(middle, validation, 1) >= SURE)
        low, high = (low, middle) if good else (middle + 1, high)
    return low


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
