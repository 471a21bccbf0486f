"""The split that settings ask for: drawn, or read from a file."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from percentmatch.data.labels import Labels
from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.images import Images
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
    settings, pool, test = detected(settings), data.pool, data.test.ids
    if settings.split_file and saved and saved.exists():
        say(f"the split comes from '{saved}', without regard to --split-file")
        bare = _without_labels(pool.ids, pool.labels)
        split = read_split(saved, pool=pool.ids, test=test, without_labels=bare, all_there=unlabeled_needed)
    else:
        split = _split(settings, pool, test, data.validation, say, skipped=data.skipped, all_there=unlabeled_needed)
    if data.stream is None:
        return split
    if split.unlabeled:
        say(f"left out {len(split.unlabeled)} unlabeled images outside the shards: those of the shards replace them")
    return replace(split, unlabeled=(), stream=data.stream.digest)


def split_manifest(settings: DataSettings, manifest: Manifest, *, say: Say = print_to_stderr) -> Split:
    """The same before any pixel is read."""
    settings = detected(settings)
    pool = manifest.select([subset != "test" for subset in manifest.parts])
    test = [name for name, subset in zip(manifest.ids, manifest.parts, strict=True) if subset == "test"]
    return _split(settings, pool, test, validation_ids(settings, manifest), say)


def count_split(settings: DataSettings, manifest: Manifest) -> tuple[int, int]:
    """How many labeled and unlabeled images the split of these settings has; nothing is drawn."""
    if settings.split_file:
        split = split_manifest(settings, manifest, say=lambda _: None)
        return len(split.labeled), len(split.unlabeled)
    pool = manifest.select([subset != "test" for subset in manifest.parts])
    bare = _without_labels(pool.ids, pool.labels)
    fixed = set(validation_ids(settings, manifest)) - bare
    total = len(pool) - len(bare) - len(fixed)
    labeled, validation = split_sizes(total, settings.labeled, settings.validation, fixed=bool(fixed))
    return labeled, len(pool) - len(fixed) - labeled - validation


def _without_labels(ids: Sequence[str], labels: Labels) -> set[str]:
    return {name for name, known in zip(ids, labels.known.in_rows().tolist(), strict=True) if not known}


def _split(
    settings: DataSettings,
    pool: Images | Manifest,
    test: Sequence[str],
    fixed_validation: Sequence[str],
    say: Say,
    *,
    skipped: Collection[str] = (),
    all_there: bool = True,
) -> Split:
    """Read from --split-file, or drawn."""
    ids, file = pool.ids, settings.split_file
    bare = _without_labels(ids, pool.labels)
    if not file:
        if unfit := len(bare.intersection(fixed_validation)):
            say(f"{unfit} of {len(fixed_validation)} images for validation have no labels; they count as unlabeled")
        return make_split(
            ids,
            test,
            labeled=settings.labeled,
            validation=settings.validation,
            seed=settings.split_seed,
            without_labels=bare,
            fixed_validation=fixed_validation,
            keep_classes=pool.labels.targets if settings.split_kind == "every-class" else None,
        )
    split = read_split(Path(file), pool=ids, test=test, without_labels=bare, skipped=skipped, all_there=all_there)
    draws = [name for name, about in declared(DataSettings).items() if about.draws]
    given = [name for name in draws if getattr(settings, name) not in (getattr(DataSettings, name), "random")]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        say(f"the split comes from '{file}', without regard to {flags}")
    if left := len({*ids, *test}.difference(split.labeled, split.unlabeled, split.validation, split.test)):
        say(f"left out {left} of {len(ids) + len(test)} images, which '{file}' does not name")
    return split
