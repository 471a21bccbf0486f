"""Defects of the data, found before any training: every image is decoded once, at a small size."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from percentmatch.data.checks.duplicates import Group, Size, file_sizes, find_groups
from percentmatch.data.checks.unlike import FEWEST, looks, unlike
from percentmatch.data.divide import split_manifest
from percentmatch.data.manifest import Manifest, join
from percentmatch.data.pixels.cache import Progress, cache_folder, open_cache
from percentmatch.data.pixels.load import Say, print_to_stderr
from percentmatch.data.readers.detect import detected
from percentmatch.data.readers.folder import read_utf8, unlabeled_manifest
from percentmatch.data.readers.lenient import Finding, read_leniently
from percentmatch.data.shards.index import names_shards
from percentmatch.data.source import class_list, read_manifest, validation_ids
from percentmatch.data.split import PARTS, Split
from percentmatch.errors import UserError
from percentmatch.settings.config import DataSettings

SIDE = 64  # of the squares that images are compared at
FEW = 5  # labeled images of a class that a method should have
SURE = 0.95  # the chance that a class gets these, and one for validation, if as many images as `needed` show it
RARE = 10  # a name that is so many times rarer than one like it may be a slip
MOST_NAMES, LONGEST_NAME = 2000, 100  # classes, and letters of a name, up to which each is compared with each
ALIKE = 0.8  # the share of letters in common, above which two names are alike
TINY, LONG, BLANK = 32, 5, 2  # pixels of a side; longer side over shorter; spread of the 256 levels of a colour
SHARE = 0.2  # of the unlabeled images beyond the usual, above which they are unlike the labeled ones as a whole
CHUNK = 256  # images described at a time
LEVELS = ("serious", "warning", "note")
Describe = Callable[[Tensor], Tensor]  # images (n, 3, size, size) uint8 -> (n, d)
Counting = Callable[[str], AbstractContextManager[Progress]]


def _silent(_: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


def check_data(
    settings: DataSettings,
    *,
    embed: Describe | None = None,
    size: int = SIDE,
    counting: Counting = _silent,
    say: Say = print_to_stderr,
) -> dict[str, Any]:
    """All findings, as JSON values; what is `serious` would stop or spoil training or scores.

    Unlabeled images are compared with labeled ones by `embed`, a network for images of `size` pixels, or without it by
    colours and edges. `counting` shows progress under the name it gets.
    """
    settings = detected(settings)
    manifest, findings = _read(settings, say)
    findings += _names(manifest)
    if names := class_list(settings):
        manifest = manifest.choose(names)
    with counting("decoding images") as progress:
        cached = open_cache(
            manifest.paths,
            size=size,
            frame="squash",
            folder=cache_folder(),
            sources=manifest.sources,
            verify=settings.verify_cache,
            skip_bad=True,
            progress=progress,
        )
    bad = [{"images": [manifest.ids[row]], "text": text} for row, text in cached.bad.items()]
    findings += [Finding("unreadable", "serious", len(bad), "images that cannot be read", bad)] if bad else []
    split, found = _split(settings, manifest)
    findings += found + _labels(settings, manifest)
    findings += _few(settings, manifest, split) if split else []
    sizes = file_sizes(manifest.paths, [row for row in range(len(manifest)) if row not in cached.bad])
    with counting("comparing images") as progress:
        groups = find_groups(manifest.paths, cached.pixels, sizes, progress=progress)
    findings += _twins(manifest, groups, _parts(manifest, split))
    found, left = _strangers(manifest, cached.pixels, sizes, embed, counting)
    if len(manifest.class_names) > MOST_NAMES:
        left.append(f"class names that look like another one misspelt: there are more than {MOST_NAMES:,}")
    findings += found + _odd(manifest, cached.pixels, sizes)
    return {
        "images": len(manifest),
        "parts": {part: len(getattr(split, part)) for part in PARTS} if split else None,
        "serious": any(finding.level == "serious" for finding in findings),
        "findings": [asdict(finding) for level in LEVELS for finding in findings if finding.level == level],
        "not_checked": left,
    }


def _read(settings: DataSettings, say: Say) -> tuple[Manifest, list[Finding]]:
    """The data as training would read it; a CSV file that is refused, as far as it can be read."""
    settings = replace(settings, task="multi-label")  # images with too many labels are a finding
    try:
        return read_manifest(settings, say=say), []
    except UserError:
        file = Path(settings.labels)
        if not settings.labels or not file.is_file() or read_utf8(file).lstrip()[:1] in ("[", "{"):
            raise
        images = Path(settings.images) if settings.images else None
        manifest, findings = read_leniently(file, images, class_list(settings))
        if not findings:
            raise
    if settings.unlabeled and not names_shards(settings.unlabeled):
        manifest = join(manifest, unlabeled_manifest(Path(settings.unlabeled), manifest.class_names))
    return manifest, findings


def _split(settings: DataSettings, manifest: Manifest) -> tuple[Split | None, list[Finding]]:
    try:
        return split_manifest(settings, manifest, say=lambda _: None), []
    except UserError as error:
        if settings.split_file and not Path(settings.split_file).is_file():
            raise
        return None, [Finding("split", "serious", 1, str(error))]


def _parts(manifest: Manifest, split: Split | None) -> list[str]:
    """The part of each image: that of the split, or what the data says where it cannot be divided."""
    if split:
        part_of = {name: part for part in PARTS for name in getattr(split, part)}
        return [part_of.get(name, "left out") for name in manifest.ids]
    usual = ["labeled" if some else "unlabeled" for some in manifest.labels.known.in_rows().tolist()]
    return [part if part in PARTS else other for part, other in zip(manifest.parts, usual, strict=True)]


def _labels(settings: DataSettings, manifest: Manifest) -> list[Finding]:
    """Images with labels that have none, or of a single-label task not exactly one."""
    counts = manifest.labels.targets.in_rows() + manifest.labels.difficult.in_rows()
    single = settings.task == "single-label"
    wrong = (manifest.labels.known.in_rows() > 0) & (counts != 1 if single else counts == 0)
    rows = wrong.nonzero().flatten().tolist()
    if not rows:
        return []
    where = [f"{manifest.sources[row]}: {manifest.ids[row]}" for row in rows]
    if single:
        items = [{"images": [manifest.ids[r]], "text": f"{w}, {counts[r]}"} for r, w in zip(rows, where, strict=True)]
        return [Finding("labels an image", "serious", len(rows), "images that have not exactly one label", items)]
    items = [{"images": [manifest.ids[row]], "text": text} for row, text in zip(rows, where, strict=True)]
    return [Finding("no label", "note", len(rows), "labeled images that show none of the classes", items)]


def _names(manifest: Manifest) -> list[Finding]:
    """Class names that look like another one misspelt."""
    if len(manifest.class_names) > MOST_NAMES:
        return []
    positives = manifest.labels.targets.in_columns().tolist()
    counts = sorted(zip(positives, manifest.class_names, strict=True))
    plain = {name: "".join(letter for letter in name.casefold() if letter.isalnum()) or name for _, name in counts}
    digits = {name: "".join(filter(str.isdigit, name)) for _, name in counts}
    items = []
    for place, (few, rare) in enumerate(counts):
        for many, usual in reversed(counts[place + 1 :]):
            variant = plain[rare] == plain[usual]
            slip = few * RARE <= many and digits[rare] == digits[usual] and _alike(plain[rare], plain[usual])
            if variant or slip:
                why = "differs only in case, spaces or signs from" if variant else "may be a slip for"
                text = f"{rare!r} ({few} images) {why} {usual!r} ({many} images)"
                items.append({"label": rare, "like": usual, "images": few, "text": text})
                break
    return [Finding("class names", "warning", len(items), "classes named much like another", items)] if items else []


def _alike(one: str, other: str) -> bool:
    if sorted(one) == sorted(other):  # two letters changed places
        return True
    if max(len(one), len(other)) > LONGEST_NAME:
        return False
    match = SequenceMatcher(None, one, other, autojunk=False)
    return match.quick_ratio() > ALIKE and match.ratio() > ALIKE


def _few(settings: DataSettings, manifest: Manifest, split: Split) -> list[Finding]:
    """Classes that a part of the split hardly shows, and how many images such a split needs."""
    positive = manifest.labels.targets
    rows = {part: manifest.rows(getattr(split, part)) for part in PARTS}
    shown = {part: positive.select(rows[part]).in_columns().tolist() for part in PARTS}
    learnt = torch.tensor([part != "test" for part in manifest.parts]).nonzero().flatten()
    to_learn = positive.select(learnt).in_columns().tolist()
    enough = min(FEW, len(split.labeled))
    items = []
    for column, name in enumerate(manifest.class_names):
        counts = {part: shown[part][column] for part in PARTS if part != "unlabeled" and getattr(split, part)}
        if counts["labeled"] < enough or min(counts.values()) == 0:
            told = ", ".join(f"{count} {part}" for part, count in counts.items())
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
        total = sum(some > 0 and part != "test" and name not in fixed for name, part, some in about)
        count = needed(total, len(split.labeled), 0 if kept else drawn, enough)
        what += (
            f": from {count} images on, a class nearly always (19 times in 20) has enough among the "
            f"{len(split.labeled)} labeled and {drawn} validation images that are drawn from {total}"
        )
        for item in items:
            item["needed"] = count
    return [Finding("few positives", level, len(items), what, items)]


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


def _twins(manifest: Manifest, groups: Sequence[Group], parts: Sequence[str]) -> list[Finding]:
    """Duplicates, and what is wrong with them: parts that must not share an image, labels that differ."""
    everything, leaks, conflicts = [], [], []
    for group in groups:
        rows = list(group.rows)
        item: dict[str, Any] = {"kind": group.kind, "agreement": round(group.agreement, 3)}
        item |= {"images": [manifest.ids[row] for row in rows], "parts": [parts[row] for row in rows]}
        item["text"] = _tell(group.kind, item["images"], item["parts"])
        everything.append(item)
        apart = set(item["parts"]) - {"left out"}
        if ("test" in apart and len(apart) > 1) or apart >= {"labeled", "validation"}:
            leaks.append(item)
        shown, known = (table.bool() for table in manifest.labels.certain(torch.tensor(rows)))
        if ((shown & known).any(0) & (~shown & known).any(0)).any():
            labels = [";".join(_shown(manifest, row)) for row in rows]
            told = [f"[{label}]" if some else "no label" for label, some in zip(labels, known.any(1), strict=True)]
            conflicts.append({**item, "labels": labels, "text": _tell(group.kind, item["images"], told)})
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(group.kind for group in groups).items())
    told = (
        ("leak", "serious", leaks, "images in both the test and another part, or both labeled and in validation"),
        ("conflicting labels", "serious", conflicts, "images whose copies have different labels"),
        ("duplicates", "warning", everything, f"images that are there more than once ({kinds})"),
    )
    return [Finding(check, level, len(items), what, items) for check, level, items, what in told if items]


def _tell(kind: str, images: Sequence[str], facts: Sequence[str]) -> str:
    return f"{kind}: " + ", ".join(f"{image} ({fact})" for image, fact in zip(images, facts, strict=True))


def _shown(manifest: Manifest, row: int) -> list[str]:
    return [manifest.class_names[c] for c in manifest.labels.targets[[row]][0].nonzero().flatten().tolist()]


def _strangers(
    manifest: Manifest, pixels: Tensor, sizes: dict[int, Size], embed: Describe | None, counting: Counting
) -> tuple[list[Finding], list[str]]:
    """Unlabeled images unlike the labeled ones, or why they were not looked for."""
    known = (manifest.labels.known.in_rows() > 0).tolist()
    pool = [row for row in sizes if manifest.parts[row] != "test"]
    labeled, unlabeled = ([row for row in pool if known[row] is some] for some in (True, False))
    if not unlabeled:
        return [], ["unlabeled images unlike the labeled ones: every image has labels"]
    if len(labeled) < FEWEST:
        return [], [f"unlabeled images unlike the labeled ones: that needs {FEWEST} labeled images"]
    rows, described = torch.tensor(labeled + unlabeled), []
    with counting("describing images") as progress:
        for chunk in rows.split(CHUNK):
            described.append((embed or looks)(pixels[chunk]))
            progress(sum(map(len, described)), len(rows))
    both = torch.cat(described).float()
    found = unlike(both[: len(labeled)], both[len(labeled) :], whiten=embed is None)
    far = [(float(found.ratio[at]), unlabeled[at]) for at in found.ratio.argsort(descending=True).tolist()]
    far = [(ratio, row) for ratio, row in far if ratio > 1]
    if not far and found.share <= SHARE:
        return [], []
    items = [
        {"images": [manifest.ids[row]], "distance": round(ratio, 2), "text": f"{manifest.ids[row]} ({ratio:.1f})"}
        for ratio, row in far
    ]
    what = (
        f"unlabeled images that are far from all labeled ones; of the {len(unlabeled):,}, {100 * found.share:.0f}% are "
        "farther than 95% of the labeled ones are from each other (5% is usual)"
    )
    return [Finding("unlike the labeled", "warning", len(far), what, items)], []


def _odd(manifest: Manifest, pixels: Tensor, sizes: dict[int, Size]) -> list[Finding]:
    """Blank, tiny and long images."""
    rows = torch.tensor(list(sizes))
    spread = torch.cat([pixels[chunk].float().flatten(2).std(2).amax(1) for chunk in rows.split(CHUNK)])
    blank = rows[spread < BLANK].tolist()
    tiny = [row for row, size in sizes.items() if min(size) < TINY]
    long = [row for row, size in sizes.items() if max(size) > LONG * min(size)]
    found = []
    for check, level, odd, what in (
        ("blank", "warning", blank, "images of one colour"),
        ("tiny", "note", tiny, f"images with a side below {TINY} pixels"),
        ("long", "note", long, f"images more than {LONG} times as long as wide, or as wide as long"),
    ):
        about = [(manifest.ids[row], "{} x {}".format(*sizes[row])) for row in odd]
        items = [{"images": [name], "text": f"{name} ({size})"} for name, size in about]
        found += [Finding(check, level, len(items), what, items)] if items else []
    return found
