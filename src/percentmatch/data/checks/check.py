"""Defects of the data, found before any training: every image is decoded once, at a small size."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.console.notices import print_to_stderr
from percentmatch.data.checks.duplicates import Group, Size, file_sizes, find_groups
from percentmatch.data.checks.findings import LEVELS, MOST_NAMES, Finding, alike_names, found, of_rows, rare_classes
from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.cache import Progress, cache_folder, open_cache
from percentmatch.data.pixels.images import Say
from percentmatch.data.readers.detect import detected
from percentmatch.data.readers.rows import RowError
from percentmatch.data.source import class_list, open_data
from percentmatch.data.split import PARTS, Split, split_manifest
from percentmatch.errors import UserError
from percentmatch.settings.config import DataSettings

SIDE = 64  # of the squares that images are compared at
TINY, LONG, BLANK = 32, 5, 2  # pixels of a side; longer side over shorter; spread of the 256 levels of a colour
CHUNK = 256  # images described at a time
NEIGHBOURS = 5
FENCE = 6.0  # quartile ranges above the upper quartile of what is usual
SHRINK = 0.05  # of the mean variance, added to each when descriptors are whitened
FEWEST = 60  # labeled images that tell what is usual
DISTANCES = 1 << 24  # kept at a time
OPPONENT = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, -0.5, 0.0], [0.25, 0.25, -0.5]])  # light, red-green, yellow-blue
Describe = Callable[[Tensor], Tensor]  # images (n, 3, size, size) uint8 -> (n, d)
Counting = Callable[[str], AbstractContextManager[Progress]]


def check_data(
    settings: DataSettings,
    *,
    embed: Describe | None = None,
    size: int = SIDE,
    counting: Counting = lambda what: nullcontext(lambda done, total: None),
    say: Say = print_to_stderr,
) -> dict[str, Any]:
    """All findings, as JSON values; what is `serious` would stop or spoil training or scores.

    Unlabeled images are compared with labeled ones by `embed`, a network for images of `size` pixels, or without it by
    colours and edges. `counting` shows progress under the name it gets.
    """
    settings = detected(settings)
    errors: list[RowError] = []
    # as multi-label data, so that images with too many labels are a finding, not an error
    source = open_data(replace(settings, task="multi-label"), say=say, report=errors.append)
    if source.shards:
        say(f"not checked: {len(source.shards):,} unlabeled images in shards, which are streamed in training")
    manifest = source.images
    findings = of_rows(errors) + alike_names(manifest)
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
    findings += found("unreadable", "serious", "images that cannot be read", bad)
    split, more = _split(settings, manifest)
    findings += more + _labels(settings, manifest)
    findings += rare_classes(settings, manifest, split) if split else []
    sizes = file_sizes(manifest.paths, [row for row in range(len(manifest)) if row not in cached.bad])
    with counting("comparing images") as progress:
        groups = find_groups(manifest.paths, cached.pixels, sizes, progress=progress)
    findings += _duplicates(manifest, groups, _subsets(manifest, split))
    more, not_checked = _unlike_labeled(manifest, cached.pixels, sizes, embed, counting)
    if len(manifest.class_names) > MOST_NAMES:
        not_checked.append(f"class names that look like another one misspelt: there are more than {MOST_NAMES:,}")
    findings += more + _odd(manifest, cached.pixels, sizes)
    return {
        "images": len(manifest),
        "parts": {subset: len(getattr(split, subset)) for subset in PARTS} if split else None,
        "serious": any(finding.level == "serious" for finding in findings),
        "findings": [asdict(finding) for level in LEVELS for finding in findings if finding.level == level],
        "not_checked": not_checked,
    }


def _split(settings: DataSettings, manifest: Manifest) -> tuple[Split | None, list[Finding]]:
    try:
        return split_manifest(settings, manifest, say=lambda _: None), []
    except UserError as error:
        if settings.split_file and not Path(settings.split_file).is_file():
            raise
        return None, [Finding("split", "serious", 1, str(error))]


def _subsets(manifest: Manifest, split: Split | None) -> list[str]:
    """The subset of each image: that of the split, or what the data says where it cannot be divided."""
    if split:
        subset_of = {name: subset for subset in PARTS for name in getattr(split, subset)}
        return [subset_of.get(name, "left out") for name in manifest.ids]
    usual = ["labeled" if some else "unlabeled" for some in manifest.labels.known.in_rows().tolist()]
    return [subset if subset in PARTS else other for subset, other in zip(manifest.parts, usual, strict=True)]


def _labels(settings: DataSettings, manifest: Manifest) -> list[Finding]:
    """Images with labels that have none, or of a single-label task not exactly one."""
    counts = manifest.labels.targets.in_rows() + manifest.labels.difficult.in_rows()
    single = settings.task == "single-label"
    wrong = (manifest.labels.known.in_rows() > 0) & (counts != 1 if single else counts == 0)
    items = []
    for row in wrong.nonzero().flatten().tolist():
        number = f" has {counts[row]} labels" if single else ""
        items.append(_item(manifest.ids[row], f"{manifest.sources[row]}: {manifest.ids[row]}{number}"))
    if single:
        return found("number of labels", "serious", "images that have not exactly one label", items)
    return found("no label", "note", "labeled images that show none of the classes", items)


def _item(image: str, text: str, **more: Any) -> dict[str, Any]:
    return {"images": [image], **more, "text": text}


def _duplicates(manifest: Manifest, groups: Sequence[Group], subsets: Sequence[str]) -> list[Finding]:
    """Duplicates, and what is wrong with them: subsets that must not share an image, labels that differ."""
    duplicates, leaks, conflicts = [], [], []
    for group in groups:
        rows = list(group.rows)
        images, within = [manifest.ids[row] for row in rows], [subsets[row] for row in rows]
        item = {"kind": group.kind, "agreement": round(group.agreement, 3), "images": images, "parts": within}
        item["text"] = _listed(group, images, within)
        duplicates.append(item)
        used = set(within) - {"left out"}
        if ("test" in used and len(used) > 1) or used >= {"labeled", "validation"}:
            leaks.append(item)
        shown, known = (table.bool() for table in manifest.labels.certain(torch.tensor(rows)))
        if ((shown & known).any(0) & (~shown & known).any(0)).any():
            labels = [";".join(compress(manifest.class_names, row)) for row in manifest.labels.targets[rows].tolist()]
            named = [f"[{label}]" if some else "no label" for label, some in zip(labels, known.any(1), strict=True)]
            conflicts.append({**item, "labels": labels, "text": _listed(group, images, named)})
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(group.kind for group in groups).items())
    leak = "images both in the test set and in another subset, or both labeled and in validation"
    return [
        *found("leak", "serious", leak, leaks),
        *found("conflicting labels", "serious", "images whose copies have different labels", conflicts),
        *found("duplicates", "warning", f"images that are there more than once ({kinds})", duplicates),
    ]


def _listed(group: Group, images: Sequence[str], facts: Sequence[str]) -> str:
    return f"{group.kind}: " + ", ".join(f"{image} ({fact})" for image, fact in zip(images, facts, strict=True))


def _unlike_labeled(
    manifest: Manifest, pixels: Tensor, sizes: dict[int, Size], embed: Describe | None, counting: Counting
) -> tuple[list[Finding], list[str]]:
    """Unlabeled images unlike the labeled ones, or why they were not looked for."""
    known = (manifest.labels.known.in_rows() > 0).tolist()
    pool = [row for row in sizes if manifest.parts[row] != "test"]
    labeled, unlabeled = ([row for row in pool if known[row] is some] for some in (True, False))
    if not unlabeled or len(labeled) < FEWEST:
        why = f"this needs {FEWEST} labeled images" if unlabeled else "every image has labels"
        return [], [f"unlabeled images unlike the labeled ones: {why}"]
    rows, described = torch.tensor(labeled + unlabeled), []
    with counting("describing images") as progress:
        for chunk in rows.split(CHUNK):
            described.append((embed or looks)(pixels[chunk]))
            progress(sum(map(len, described)), len(rows))
    ratio, fraction = unlike(*torch.cat(described).float().split([len(labeled), len(unlabeled)]), whiten=embed is None)
    far = [(manifest.ids[unlabeled[at]], float(ratio[at])) for at in ratio.argsort(descending=True).tolist()]
    items = [_item(name, f"{name} ({far:.1f})", distance=round(far, 2)) for name, far in far if far > 1]
    what = (
        f"unlabeled images that are far from all labeled ones; of the {len(unlabeled):,}, {100 * fraction:.0f}% are "
        "farther than 95% of the labeled ones are from each other (5% is usual)"
    )
    return found("unlike the labeled", "warning", what, items), []


def _odd(manifest: Manifest, pixels: Tensor, sizes: dict[int, Size]) -> list[Finding]:
    """Blank, tiny and long images."""
    rows = torch.tensor(list(sizes))
    spread = torch.cat([pixels[chunk].float().flatten(2).std(2).amax(1) for chunk in rows.split(CHUNK)])
    items = {row: _item(manifest.ids[row], f"{manifest.ids[row]} ({w} x {h})") for row, (w, h) in sizes.items()}
    blank = [items[row] for row in rows[spread < BLANK].tolist()]
    tiny = [items[row] for row, size in sizes.items() if min(size) < TINY]
    long = [items[row] for row, size in sizes.items() if max(size) > LONG * min(size)]
    return [
        *found("blank", "warning", "images of one colour", blank),
        *found("tiny", "note", f"images with a side below {TINY} pixels", tiny),
        *found("long", "note", f"images more than {LONG} times as long as wide, or as wide as long", long),
    ]


def unlike(labeled: Tensor, unlabeled: Tensor, *, whiten: bool) -> tuple[Tensor, float]:
    """Compare descriptors (m, d) and (n, d) by the mean distance to the nearest labeled ones.

    Returns how far each unlabeled image is: (n,) distance above the upper quartile of what is usual, in FENCE quartile
    ranges, far beyond 1; and the fraction that is farther than 95% of the labeled ones are from each other. The labeled
    images are halved at random and each half is measured by the other, just as unlabeled images are. `whiten` gives all
    directions of a half the same weight.
    """
    order = torch.randperm(len(labeled), generator=torch.Generator().manual_seed(0))
    halves = labeled[order[::2]], labeled[order[1::2]]
    ratio, fraction = torch.zeros(len(unlabeled)), 0.0
    for reference, held in (halves, halves[::-1]):
        mean, weights = _whitening(reference) if whiten else (reference.mean(0), torch.eye(reference.shape[1]))
        reference, held, new = ((rows - mean) @ weights for rows in (reference, held, unlabeled))
        usual, new = _distances(held, reference), _distances(new, reference)
        low, high, rare = torch.quantile(usual, torch.tensor([0.25, 0.75, 0.95])).tolist()
        ratio += (new - high) / max(FENCE * (high - low), 1e-6) / 2
        fraction += float((new > rare).float().mean()) / 2
    return ratio, fraction


def _whitening(rows: Tensor) -> tuple[Tensor, Tensor]:
    mean = rows.mean(0)
    variance, axes = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    return mean, axes / (variance.clamp(min=0) + SHRINK * variance.mean() + 1e-9).sqrt()


def _distances(rows: Tensor, others: Tensor) -> Tensor:
    """The mean distance of each row to the nearest others: (n,)."""
    nearest, chunks = min(NEIGHBOURS, len(others)), rows.split(max(DISTANCES // len(others), 1))
    return torch.cat([torch.cdist(chunk, others).topk(nearest, largest=False).values.mean(1) for chunk in chunks])


def looks(pixels: Tensor) -> Tensor:
    """Colours and edges of images (n, 3, h, w) uint8, without any network: (n, 35).

    Light and two colour differences: their means, also by quarter, spreads, edges at five scales; the slant of edges.
    """
    images = torch.einsum("oc,nchw->nohw", OPPONENT, F.adaptive_avg_pool2d(pixels.float() / 255, SIDE))
    found = [images.mean((2, 3)), images.std((2, 3)).add(0.01).log(), F.avg_pool2d(images, SIDE // 2).flatten(1)]
    down, across = torch.gradient(F.avg_pool2d(images[:, :1], 2)[:, 0], dim=(1, 2))
    upright = (across.abs().mean((1, 2)) + 1e-3).log() - (down.abs().mean((1, 2)) + 1e-3).log()
    slant = (across * down).mean((1, 2)) / ((across**2 + down**2).mean((1, 2)) + 1e-5)
    for _ in range(5):
        half = F.avg_pool2d(images, 2)
        edges = images - F.interpolate(half, scale_factor=2)
        found.append(edges.square().mean((2, 3)).add(1e-5).log() / 2)
        images = half
    return torch.cat([*found, upright[:, None], slant[:, None]], 1)
