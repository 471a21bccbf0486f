"""The data that settings name: as a manifest, before any pixel is read, and decoded."""

import os
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Any, Literal

import torch

from percentmatch.console.notices import print_to_stderr
from percentmatch.data.labels import check_single
from percentmatch.data.manifest import SUBSET_OF, Manifest, concat, join
from percentmatch.data.pixels.cache import Progress, cache_folder
from percentmatch.data.pixels.images import Images, Say, load_images
from percentmatch.data.readers.coco import read_instances
from percentmatch.data.readers.detect import OWN, detected, read_labels
from percentmatch.data.readers.folder import is_image_name, unlabeled_manifest
from percentmatch.data.readers.rows import LabelFile, Report, refuse, without_missing
from percentmatch.data.readers.voc import read_voc
from percentmatch.data.scenes import draw_scenes
from percentmatch.data.shards.copies import without_copies
from percentmatch.data.shards.index import Shards, labeled_manifest, names_shards, open_shards
from percentmatch.data.shards.stream import Stream
from percentmatch.errors import UserError
from percentmatch.records import Task
from percentmatch.settings.config import Config, DataSettings
from percentmatch.settings.declare import declared

SCENES_SEED = 2022  # the scenes are one fixed data set; a run's seeds choose labels and training, not pictures
FIRST_TEST_SCENE = 1_000_000  # pools begin at 0, and hold at most as many, so none holds a test scene


@dataclass(frozen=True)
class Data:
    """The images a run may learn from, and those it is tested on, which may be none."""

    pool: Images
    test: Images
    validation: tuple[str, ...] = ()  # ids of the pool's images that the data itself sets apart for validation
    skipped: tuple[str, ...] = ()  # ids of images that are in neither because they cannot be read
    stream: Stream | None = None  # unlabeled images in shards: then the pool's own are not learnt from

    def __post_init__(self) -> None:
        if self.pool.class_names != self.test.class_names:
            raise UserError("pool and test must have the same classes in the same order")
        if shared := set(self.pool.ids) & set(self.test.ids):
            raise UserError(f"image '{min(shared)}' is both in the pool and in the test set; take it out of one")
        if foreign := set(self.validation) - set(self.pool.ids):
            raise UserError(f"validation image '{min(foreign)}' is not in the pool")
        if len(self.test) and self.pool.pixels.shape[2:] != self.test.pixels.shape[2:]:
            raise UserError("pool and test must have images of one size")
        if self.stream and self.pool.pixels.shape[2:] != (self.stream.size, self.stream.size):
            raise UserError(f"the pool must have images of {self.stream.size} x {self.stream.size} as the stream has")


@dataclass(frozen=True)
class Source:
    """The data that settings name, read but not decoded."""

    settings: DataSettings  # in which the kind of data and of split are said
    manifest: Manifest | None  # of all images but streamed ones; None where scenes are drawn
    shards: Shards | None  # where the unlabeled images lie in shards

    @property
    def images(self) -> Manifest:
        if self.manifest is None:
            raise UserError("scenes are drawn, not read from files; name --data files, voc, coco or shards")
        return self.manifest


def open_data(settings: DataSettings, *, say: Say = print_to_stderr, report: Report = refuse) -> Source:
    """Read what settings name: images with labels, without, and for the test. No image is opened.

    `say` gets a sentence about images of --unlabeled that are left out and about work that takes long, `report` each
    bad row of --labels.
    """
    settings = detected(settings)
    for name, about in declared(DataSettings).items():
        if about.kinds and getattr(settings, name) and settings.data not in about.kinds:
            flag, kinds = "--" + name.replace("_", "-"), " or ".join(about.kinds)
            raise UserError(f"{flag} is for --data {kinds}, not --data {settings.data}; change one of them")
    if settings.data == "custom":
        raise UserError("this run's data was given in Python; give it again, as train(..., data=...)")
    if settings.data == "scenes":
        return Source(settings, None, None)
    shards = None
    if settings.data == "shards":
        if not settings.root:
            raise UserError("--data shards needs --root, a folder of .tar files or a pattern as x/{000..099}.tar")
        shards = _open_shards(settings, "root", say)
        manifest = labeled_manifest(shards, settings.root, class_list(settings))
    else:
        report = without_missing(say) if settings.skip_bad_images and report is refuse else report
        manifest = _read(settings, report, say)
    if settings.task == "single-label":
        check_single(manifest.labels, manifest.ids, manifest.sources)
    if settings.unlabeled and shards:
        raise UserError(f"--unlabeled: the shards of --root hold {len(shards):,} unlabeled images; leave it out")
    if settings.unlabeled and names_shards(settings.unlabeled):
        shards = _open_shards(settings, "unlabeled", say)
    elif settings.unlabeled:
        manifest = _with_unlabeled(manifest, Path(settings.unlabeled), say, skip_bad=settings.skip_bad_images)
    if settings.images and not settings.only_named and not shards:
        manifest = _with_unnamed(manifest, settings, say)
    return Source(settings, manifest, shards or None)


def read_manifest(settings: DataSettings, *, say: Say = print_to_stderr) -> Manifest:
    """All images that the settings name; see `open_data`."""
    return open_data(settings, say=say).images


def _open_shards(settings: DataSettings, name: Literal["root", "unlabeled"], say: Say) -> Shards:
    options = {"cache": cache_folder(), "skip_bad": settings.skip_bad_images, "say": say}
    try:
        return open_shards(getattr(settings, name), labels=name == "root", **options)
    except UserError as error:
        raise UserError(f"--{name}: {error}") from None


def load_data(
    config: Config, *, source: Source | None = None, progress: Progress | None = None, say: Say = print_to_stderr
) -> Data:
    """The data a config names, decoded; `source` is what `open_data` has found, if that was asked before."""
    source = source or open_data(config, say=say)
    if source.manifest is None:
        return _scenes(config.scenes_pool, config.scenes_test, config.image_size, config.task)
    settings, manifest, shards = source.settings, source.manifest, source.shards
    check_classes(settings, manifest)
    for sentence in shards.left_out if shards else ():
        say(f"skipped: {sentence}")
    if shards:
        total, all_labeled = len(shards), not (settings.labeled or settings.split_file)
        rows = zip(manifest.paths, manifest.parts, manifest.labels.known.in_rows().tolist(), strict=True)
        used = [path for path, part, known in rows if (known and all_labeled) or part in ("validation", "test")]
        shards = without_copies(shards, used, cache=cache_folder(), say=say)
        if fewer := total - len(shards):
            say(f"left out {fewer:,} of {total:,} images in the shards that the labeled data holds already")
    options: dict[str, Any] = {"size": config.decode_size, "frame": config.frame, "say": say}
    options["skip_bad"] = config.skip_bad_images
    load = partial(load_images, verify=config.verify_cache, progress=progress, **options)
    tested = [part == "test" for part in manifest.parts]
    pool = load(manifest.select([not test for test in tested]))
    test = load(manifest.select(tested)) if any(tested) else pool.part(())
    left = {*pool.ids, *test.ids}
    validation = tuple(name for name in validation_ids(settings, manifest) if name in left)
    stream = Stream(shards, seed=config.seed, buffer=config.shuffle_buffer, **options) if shards else None
    return Data(pool, test, validation, tuple(name for name in manifest.ids if name not in left), stream)


def validation_ids(settings: DataSettings, manifest: Manifest) -> tuple[str, ...]:
    """The images that the data itself sets apart for validation, where they are to be used so."""
    if settings.data not in OWN and not settings.official_validation:
        return ()
    ids = tuple(name for name, part in zip(manifest.ids, manifest.parts, strict=True) if part == "validation")
    if settings.official_validation and not ids:
        raise UserError(f"--official-validation: {settings.root} has no list of its own for validation; leave it out")
    return ids


def check_classes(settings: DataSettings, manifest: Manifest) -> None:
    """Refuse a class that no image outside the test part shows."""
    where = manifest.sources[0].partition(", line")[0]
    rows = torch.tensor([row for row, part in enumerate(manifest.parts) if part != "test"], dtype=torch.long)
    labels = manifest.labels.select(rows)
    if not labels.known.any():
        known = manifest.labels.known.any()
        what = "every image with labels is for the test" if known else "no image has a known label"
        raise UserError(f"{where}: {what}; {'keep' if known else 'label'} some to learn from")
    positives = labels.targets.in_columns().tolist()
    if empty := [repr(name) for name, count in zip(manifest.class_names, positives, strict=True) if not count]:
        also = " (in a column of labels, also remove these)" if settings.data == "files" else ""
        what = f"no image to learn from shows {', '.join(empty)}"
        raise UserError(f"{where}: {what}; label at least one, or name the other classes by --classes{also}")


def _with_unlabeled(manifest: Manifest, path: Path, say: Say, *, skip_bad: bool) -> Manifest:
    try:
        if not os.path.exists(path):
            raise UserError(f"there is no file or folder {path}; check the path")
        if is_image_name(path.name) and os.path.isfile(path):
            raise UserError(f"{path} is an image; give a folder, or a text file with one path a line")
        more = unlabeled_manifest(path, manifest.class_names, skip=say if skip_bad else None)
    except UserError as error:
        raise UserError(f"--unlabeled: {error}") from None
    joined = join(manifest, more)
    added = len(joined) - len(manifest)
    if added < len(more):
        say(f"--unlabeled: added {added} images, left out {len(more) - added} that the labeled data holds already")
    return joined


def _with_unnamed(manifest: Manifest, settings: DataSettings, say: Say) -> Manifest:
    """Also the images of --images that are not in `manifest`; a folder that is called like a subset keeps its own."""
    try:
        more = unlabeled_manifest(Path(settings.images), manifest.class_names)
    except UserError:  # it holds no image that is named like one
        return manifest
    joined = join(manifest, more)
    rows = range(len(manifest), len(joined))
    apart = {row for row in rows if _kept_apart(joined.paths[row].relative_to(settings.images))}
    if apart:
        what = f"{len(apart):,} images in {settings.images} that {settings.labels} does not name are not used"
        say(f"{what}, as they lie in folders for a test or for validation; give others by --unlabeled")
    if added := len(rows) - len(apart):
        what = f"{added:,} images in {settings.images} that {settings.labels} does not name count as unlabeled"
        say(f"{what} (--only-named leaves them out, such as those kept for a test)")
    return joined.select([row for row in range(len(joined)) if row not in apart]) if apart else joined


def _kept_apart(path: Path) -> bool:
    return any(SUBSET_OF.get(folder.lower()) in ("test", "validation") for folder in path.parts[:-1])


def _read(settings: DataSettings, report: Report, say: Say) -> Manifest:
    """The manifest of files, VOC or COCO."""
    classes, root = class_list(settings), Path(settings.root)
    if settings.data == "files":
        if not settings.labels:
            raise UserError("--data files needs --labels, such as a CSV file with the columns image and labels")
        images = Path(settings.images) if settings.images else None
        return read_labels(Path(settings.labels), images, classes=classes, report=report, say=say)
    if not settings.root:
        raise UserError(f"--data {settings.data} needs --root, the folder of the data")
    if not root.is_dir():
        raise UserError(f"--root: there is no folder {root}; check the path")
    if settings.data == "voc":
        return read_voc(root, year=settings.year, classes=classes, report=report)
    name = f"instances_train{settings.year or '20[0-9][0-9]'}.json"
    found = sorted((root / "annotations").glob(name))
    if len(found) != 1:
        there = " and ".join(file.name for file in found) or f"no {name}"
        raise UserError(f"{root}: annotations holds {there}; give the folder that holds it, or choose by --year")
    test = found[0].with_name(found[0].name.replace("train", "val"))
    files = {found[0]: "train"} | ({test: "test"} if test.exists() else {})
    read = partial(read_instances, keep_empty=not settings.drop_empty)
    return reduce(
        concat, (read(LabelFile(file, classes=classes, report=report), part=part) for file, part in files.items())
    )


def class_list(settings: DataSettings) -> list[str] | None:
    """The classes that --classes names, None for all."""
    names = [name.strip() for name in settings.classes.split(",") if name.strip()]
    if settings.classes and not names:
        raise UserError(f"--classes {settings.classes!r} names no class; name some, or leave it out to take all")
    return names or None


@lru_cache(maxsize=1)
def _scenes(num_pool: int, num_test: int, size: int, task: Task) -> Data:
    test = draw_scenes(num_test, size=size, seed=SCENES_SEED, task=task, first=FIRST_TEST_SCENE)
    pool = draw_scenes(num_pool, size=size, seed=SCENES_SEED, task=task)
    return Data(pool, test)
