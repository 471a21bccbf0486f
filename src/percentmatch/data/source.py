"""The data that settings name: as a manifest, before any pixel is read, and decoded."""

import os
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from percentmatch.config import Config, DataSettings
from percentmatch.data.cache import Progress, cache_folder
from percentmatch.data.coco import read_coco
from percentmatch.data.detect import detected, read_labels
from percentmatch.data.folder import is_image_name, unlabeled_manifest
from percentmatch.data.images import Images
from percentmatch.data.load import Say, load_images, print_to_stderr
from percentmatch.data.manifest import Manifest, concat, join
from percentmatch.data.memo import remember
from percentmatch.data.scenes import draw_scenes
from percentmatch.data.voc import read_voc
from percentmatch.errors import UserError
from percentmatch.records import Task

SCENES_SEED = 2022  # the scenes are one fixed data set; a run's seeds choose labels and training, not pictures
FIRST_TEST_SCENE = 1_000_000  # pools begin at 0, and hold at most as many, so none holds a test scene
BELONGS = {"root": ("voc", "coco"), "year": ("voc", "coco"), "labels": ("files",), "images": ("files",)}
BELONGS |= {"drop_empty": ("coco",), "official_validation": ("voc", "custom")}
BELONGS |= {"unlabeled": ("files", "voc", "coco"), "classes": ("files", "voc", "coco")}


@dataclass(frozen=True)
class Data:
    """The images a run may learn from, and those it is tested on, which may be none."""

    pool: Images
    test: Images
    validation: tuple[str, ...] = ()  # ids of the pool's images that the data itself sets apart for validation
    skipped: tuple[str, ...] = ()  # ids of images that are in neither because they cannot be read

    def __post_init__(self) -> None:
        if self.pool.class_names != self.test.class_names:
            raise UserError("pool and test must have the same classes in the same order")
        shared = set(self.pool.ids) & set(self.test.ids)
        if shared:
            raise UserError(f"image '{min(shared)}' is both in the pool and in the test set; take it out of one")
        foreign = set(self.validation) - set(self.pool.ids)
        if foreign:
            raise UserError(f"validation image '{min(foreign)}' is not in the pool")


def read_manifest(settings: DataSettings, *, say: Say = print_to_stderr) -> Manifest:
    """All images that the settings name: with labels, without, and for the test. No image is opened.

    `say` gets a sentence about images of --unlabeled that are left out.
    """
    settings = detected(settings)
    _check_flags(settings)
    readers = {"files": _files, "voc": _voc, "coco": _coco}
    if settings.data == "custom":
        raise UserError(
            "this run's data was given in Python; give it again: train(..., data=...), score_run(..., data=...)"
        )
    if settings.data not in readers:
        raise UserError(f"{settings.data} are drawn, not read from files; name --data files, voc or coco")
    manifest = readers[settings.data](settings)
    if settings.task == "single-label":
        check_single(manifest)
    return _with_unlabeled(manifest, Path(settings.unlabeled), say) if settings.unlabeled else manifest


def load_data(
    config: Config,
    *,
    progress: Progress | None = None,
    say: Say = print_to_stderr,
) -> Data:
    """The data a config names, decoded."""
    config = detected(config)
    if config.data == "scenes":
        _check_flags(config)
        return _scenes(config.scenes_pool, config.scenes_test, config.image_size, config.task)
    manifest = read_manifest(config, say=say)
    check_classes(config, manifest)
    load = partial(
        load_images,
        size=config.decode_size,
        frame=config.frame,
        verify=config.verify_cache,
        skip_bad=config.skip_bad_images,
        progress=progress,
        say=say,
    )
    tested = [part == "test" for part in manifest.parts]
    pool = load(manifest.select([not test for test in tested]))
    test = load(manifest.select(tested)) if any(tested) else pool.part(())
    left = {*pool.ids, *test.ids}
    validation = tuple(name for name in validation_ids(config, manifest) if name in left)
    return Data(pool, test, validation, tuple(name for name in manifest.ids if name not in left))


def validation_ids(settings: DataSettings, manifest: Manifest) -> tuple[str, ...]:
    """The images that the data itself sets apart for validation, where they are to be used so."""
    settings = detected(settings)
    if settings.data != "files" and not settings.official_validation:
        return ()
    ids = tuple(name for name, part in zip(manifest.ids, manifest.parts, strict=True) if part == "validation")
    if settings.official_validation and not ids:
        raise UserError(f"--official-validation: {settings.root} has no list of its own for validation; leave it out")
    return ids


def check_classes(settings: DataSettings, manifest: Manifest) -> None:
    """Refuse a class that no image outside the test part shows."""
    where = manifest.sources[0].partition(", line")[0]
    rows = [row for row, part in enumerate(manifest.parts) if part != "test"]
    if not manifest.known[rows].any():
        known = manifest.known.any()
        what = "every image with labels is for the test" if known else "no image has a known label"
        raise UserError(f"{where}: {what}; {'keep' if known else 'label'} some to learn from")
    positives = (manifest.targets[rows] * manifest.known[rows]).sum(0).tolist()
    empty = [name for name, count in zip(manifest.class_names, positives, strict=True) if not count]
    if empty:
        also = " (in a column of labels, also remove these)" if detected(settings).data == "files" else ""
        raise UserError(
            f"{where}: no image to learn from shows {', '.join(map(repr, empty))}; label at least one, or name the "
            f"other classes by --classes{also}"
        )


def check_single(manifest: Manifest) -> None:
    """Refuse an image with labels that has not exactly one."""
    wrong = (manifest.known.any(1) & ((manifest.targets * manifest.known).sum(1) != 1)).nonzero().flatten().tolist()
    if wrong:
        row = wrong[0]
        count = int((manifest.targets[row] * manifest.known[row]).sum())
        raise UserError(
            f"{manifest.sources[row]}: image '{manifest.ids[row]}' has {count} labels ({len(wrong)} images have not "
            "exactly one); correct them, or train with --task multi-label"
        )


def _check_flags(settings: DataSettings) -> None:
    """Refuse a setting that this kind of data would ignore."""
    for name, kinds in BELONGS.items():
        if getattr(settings, name) and settings.data not in kinds:
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"{flag} is for --data {' or '.join(kinds)}, not --data {settings.data}; change one of them"
            )


def _with_unlabeled(manifest: Manifest, place: Path, say: Say) -> Manifest:
    if not os.path.exists(place):
        raise UserError(f"--unlabeled: there is no file or folder {place}; check the path")
    if is_image_name(place.name) and os.path.isfile(place):
        raise UserError(f"--unlabeled: {place} is an image; give a folder, or a text file with one path a line")
    try:
        more = unlabeled_manifest(place, manifest.class_names)
    except UserError as error:
        raise UserError(f"--unlabeled: {error}") from None
    joined = join(manifest, more)
    added = len(joined) - len(manifest)
    if added < len(more):
        say(f"--unlabeled: added {added} images, left out {len(more) - added} that the labeled data holds already")
    return joined


def _files(settings: DataSettings) -> Manifest:
    if not settings.labels:
        raise UserError("--data files needs --labels, such as a CSV file with the columns image and labels")
    images = Path(settings.images) if settings.images else None
    return read_labels(Path(settings.labels), images, classes=_classes(settings))


def _voc(settings: DataSettings) -> Manifest:
    return read_voc(_root(settings), year=settings.year, classes=_classes(settings))


def _coco(settings: DataSettings) -> Manifest:
    root = _root(settings)
    name = f"instances_train{settings.year or '20[0-9][0-9]'}.json"
    found = sorted((root / "annotations").glob(name))
    if len(found) != 1:
        there = " and ".join(file.name for file in found) or f"no {name}"
        raise UserError(f"{root}: annotations holds {there}; give the folder that holds it, or choose by --year")
    manifest = _coco_part(root, found[0], "train", settings.drop_empty)
    test = found[0].with_name(found[0].name.replace("train", "val"))
    if test.exists():
        manifest = concat(manifest, _coco_part(root, test, "test", settings.drop_empty))
    classes = _classes(settings)
    return manifest.choose(classes) if classes else manifest


def _coco_part(root: Path, file: Path, part: str, drop_empty: bool) -> Manifest:
    name = file.stem.removeprefix("instances_")  # train2014
    folder = next((place for place in (root / name, root / "images" / name) if place.is_dir()), root / name)
    read = partial(read_coco, file, folder, part=part, keep_empty=not drop_empty)
    return remember(read, file, folder, part, drop_empty, cache=cache_folder())


def _root(settings: DataSettings) -> Path:
    if not settings.root:
        raise UserError(f"--data {settings.data} needs --root, the folder of the data")
    if not Path(settings.root).is_dir():
        raise UserError(f"--root: there is no folder {settings.root}; check the path")
    return Path(settings.root)


def _classes(settings: DataSettings) -> list[str] | None:
    names = [name.strip() for name in settings.classes.split(",") if name.strip()]
    if settings.classes and not names:
        raise UserError(f"--classes {settings.classes!r} names no class; name some, or leave it out to take all")
    return names or None


@lru_cache(maxsize=1)
def _scenes(num_pool: int, num_test: int, size: int, task: Task) -> Data:
    test = draw_scenes(num_test, size=size, seed=SCENES_SEED, task=task, first=FIRST_TEST_SCENE)
    pool = draw_scenes(num_pool, size=size, seed=SCENES_SEED, task=task)
    return Data(pool, test)
