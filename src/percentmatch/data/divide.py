"""The split that settings ask for: drawn, or read from a file."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from percentmatch.data.labels import Labels
from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.load import Say, print_to_stderr
from percentmatch.data.readers.detect import detected
from percentmatch.data.source import Data, validation_ids
from percentmatch.data.split import Split, make_split, read_split, split_sizes
from percentmatch.settings.config import DataSettings
from percentmatch.settings.declare import declared


def split_data(
    settings: DataSettings,
    data: Data,
    *,
    saved: Path | None = None,
    unlabeled_needed: bool = True,
    say: Say = print_to_stderr,
) -> Split:
    """The split that the settings ask for; `say` gets a sentence about what it does without.

    Unlabeled images that a split file names must be there, unless nothing is learnt from them (`unlabeled_needed`).
    `saved` is where a run to be resumed keeps its split. If that is there, it counts instead of --split-file, which may
    be gone or changed by now.
    """
    settings, pool = detected(settings), data.pool
    if settings.split_file and saved and saved.exists():
        say(f"the split comes from '{saved}', without regard to --split-file")
        bare = _bare(pool.ids, pool.labels)
        split = read_split(saved, pool=pool.ids, test=data.test.ids, without_labels=bare, all_there=unlabeled_needed)
    else:
        test, validation = data.test.ids, data.validation
        split = _split(settings, pool.ids, test, validation, data.skipped, pool.labels, say, unlabeled_needed)
    if data.stream is None:
        return split
    if split.unlabeled:
        say(f"left out {len(split.unlabeled)} unlabeled images that are no shards': those of the shards replace them")
    return replace(split, unlabeled=(), stream=data.stream.digest)


def split_manifest(settings: DataSettings, manifest: Manifest, *, say: Say = print_to_stderr) -> Split:
    """The same before any pixel is read."""
    settings = detected(settings)
    pool = manifest.select([part != "test" for part in manifest.parts])
    test = [name for name, part in zip(manifest.ids, manifest.parts, strict=True) if part == "test"]
    return _split(settings, pool.ids, test, validation_ids(settings, manifest), (), pool.labels, say)


def count_split(settings: DataSettings, manifest: Manifest) -> tuple[int, int]:
    """How many labeled and unlabeled images the split of these settings has; nothing is drawn."""
    pool = manifest.select([subset != "test" for subset in manifest.parts])
    bare, fixed = _bare(pool.ids, pool.labels), validation_ids(settings, manifest)
    if settings.split_file:
        test = [name for name, subset in zip(manifest.ids, manifest.parts, strict=True) if subset == "test"]
        split = read_split(Path(settings.split_file), pool=pool.ids, test=test, without_labels=bare)
        return len(split.labeled), len(split.unlabeled)
    fixed = set(fixed) - bare
    total = len(pool) - len(bare) - len(fixed)
    labeled, validation = split_sizes(
        total, labeled=settings.labeled, validation=settings.validation, fixed=bool(fixed)
    )
    return labeled, len(pool) - len(fixed) - labeled - validation


def _bare(ids: Sequence[str], labels: Labels) -> set[str]:
    """The images without any label."""
    return {name for name, some in zip(ids, labels.known.in_rows().tolist(), strict=True) if not some}


def _split(
    settings: DataSettings,
    pool: Sequence[str],
    test: Sequence[str],
    fixed_validation: Sequence[str],
    skipped: Sequence[str],
    labels: Labels,
    say: Say,
    unlabeled_needed: bool = True,
) -> Split:
    """Read from --split-file, or drawn."""
    bare = _bare(pool, labels)
    if settings.split_file:
        split = read_split(
            Path(settings.split_file),
            pool=pool,
            test=test,
            without_labels=bare,
            skipped=skipped,
            all_there=unlabeled_needed,
        )
        unused = [
            f"--{name.replace('_', '-')}"
            for name, about in declared(DataSettings).items()
            if about.draws and getattr(settings, name) not in (getattr(DataSettings, name), "random")
        ]
        if unused:
            say(f"the split comes from '{settings.split_file}', without regard to {', '.join(unused)}")
        named = {*split.labeled, *split.unlabeled, *split.validation, *split.test}
        if left := len({*pool, *test} - named):
            say(f"left out {left} of {len(pool) + len(test)} images, which '{settings.split_file}' does not name")
        return split
    if unfit := len(bare.intersection(fixed_validation)):
        say(f"{unfit} of {len(fixed_validation)} images for validation have no labels; they count as unlabeled")
    return make_split(
        pool,
        test,
        labeled=settings.labeled,
        validation=settings.validation,
        seed=settings.split_seed,
        without_labels=bare,
        fixed_validation=fixed_validation,
        keep_classes=labels.targets if settings.split_kind == "every-class" else None,
    )
