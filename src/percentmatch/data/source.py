"""The data that settings name: as a manifest, before any pixel is read, and decoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor

from percentmatch.config import Config, DataSettings
from percentmatch.data.cache import Progress, cache_folder
from percentmatch.data.coco import read_coco
from percentmatch.data.folder import unlabeled_manifest
from percentmatch.data.images import Images
from percentmatch.data.load import load_images, print_to_stderr
from percentmatch.data.manifest import Manifest, concat, join
from percentmatch.data.memo import remember
from percentmatch.data.scenes import draw_scenes
from percentmatch.data.split import Split, make_split, read_split
from percentmatch.data.table import read_table
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

    def __post_init__(self) -> None:
        if self.pool.class_names != self.test.class_names:
            raise UserError("pool and test must have the same classes in the same order")
        shared = set(self.pool.ids) & set(self.test.ids)
        if shared:
            raise UserError(f"image '{min(shared)}' is both in the pool and in the test set; take it out of one")
        foreign = set(self.validation) - set(self.pool.ids)
        if foreign:
            raise UserError(f"validation image '{min(foreign)}' is not in the pool")


def read_manifest(settings: DataSettings) -> Manifest:
    """All images that the settings name: with labels, without, and for the test. No image is opened."""
    _check_flags(settings)
    readers = {"files": _files, "voc": _voc, "coco": _coco}
    if settings.data == "custom":
        raise UserError(
            "this run's data was given in Python; give it again: train(..., data=...), score_run(..., data=...)"
        )
    if settings.data not in readers:
        raise UserError(f"{settings.data} are drawn, not read from files; name --data files, voc or coco")
    manifest = readers[settings.data](settings)
    if settings.unlabeled:
        manifest = join(manifest, unlabeled_manifest(Path(settings.unlabeled), manifest.class_names))
    return manifest


def load_data(
    config: Config,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] = print_to_stderr,
) -> Data:
    """The data a config names, decoded."""
    if config.data == "scenes":
        _check_flags(config)
        return _scenes(config.scenes_pool, config.scenes_test, config.image_size, config.task)
    manifest = read_manifest(config)
    check_classes(manifest)
    if config.task == "single-label":
        check_single(manifest)
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
    left = set(pool.ids)
    return Data(pool, test, tuple(name for name in validation_ids(config, manifest) if name in left))


def validation_ids(settings: DataSettings, manifest: Manifest) -> tuple[str, ...]:
    """The images that the data itself sets apart for validation, where they are to be used so."""
    if settings.data != "files" and not settings.official_validation:
        return ()
    ids = tuple(name for name, part in zip(manifest.ids, manifest.parts, strict=True) if part == "validation")
    if settings.official_validation and not ids:
        raise UserError(f"--official-validation: {settings.root} has no list of its own for validation; leave it out")
    return ids


def check_classes(manifest: Manifest) -> None:
    """Refuse a class that no image outside the test part shows."""
    rows = [row for row, part in enumerate(manifest.parts) if part != "test"]
    positives = (manifest.targets[rows] * manifest.known[rows]).sum(0).tolist()
    empty = [name for name, count in zip(manifest.class_names, positives, strict=True) if not count]
    if empty:
        where = manifest.sources[0].partition(", line")[0]
        raise UserError(
            f"{where}: no image to learn from shows {', '.join(map(repr, empty))}; label at least one, or name the "
            "other classes by --classes"
        )


def check_single(manifest: Manifest) -> None:
    """Refuse an image with labels that has not exactly one."""
    wrong = (manifest.known.any(1) & ((manifest.targets * manifest.known).sum(1) != 1)).nonzero().flatten().tolist()
    if wrong:
        row = wrong[0]
        count = int((manifest.targets[row] * manifest.known[row]).sum())
        raise UserError(
            f"{manifest.sources[row]}: image '{manifest.ids[row]}' has {count} labels ({len(wrong)} images have not "
            "exactly one); correct them or leave out --task single-label"
        )


def split_data(settings: DataSettings, data: Data) -> Split:
    """The split that the settings ask for."""
    pool = data.pool
    return _split(settings, pool.ids, data.test.ids, data.validation, pool.targets, pool.known)


def split_manifest(settings: DataSettings, manifest: Manifest) -> Split:
    """The same before any pixel is read."""
    pool = manifest.select([part != "test" for part in manifest.parts])
    test = [name for name, part in zip(manifest.ids, manifest.parts, strict=True) if part == "test"]
    return _split(settings, pool.ids, test, validation_ids(settings, manifest), pool.targets, pool.known)


def _split(
    settings: DataSettings,
    pool: Sequence[str],
    test: Sequence[str],
    fixed_validation: Sequence[str],
    targets: Tensor,
    known: Tensor,
) -> Split:
    """Read from --split-file, or drawn."""
    bare = [name for name, some in zip(pool, known.any(1).tolist(), strict=True) if not some]
    if settings.split_file:
        return read_split(Path(settings.split_file), pool=pool, test=test, without_labels=bare)
    return make_split(
        pool,
        test,
        labeled=settings.labeled,
        validation=settings.validation,
        seed=settings.split_seed,
        without_labels=bare,
        fixed_validation=fixed_validation,
        keep_classes=targets * known if settings.split_kind == "every-class" else None,
    )


def _check_flags(settings: DataSettings) -> None:
    """Refuse a setting that this kind of data would ignore."""
    for name, kinds in BELONGS.items():
        if getattr(settings, name) and settings.data not in kinds:
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"{flag} is for --data {' or '.join(kinds)}, not --data {settings.data}; change one of them"
            )


def _files(settings: DataSettings) -> Manifest:
    if not settings.labels:
        raise UserError("--data files needs --labels, a CSV file with the columns image and labels")
    images = Path(settings.images) if settings.images else None
    return read_table(Path(settings.labels), images, classes=_classes(settings))


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
    return remember(read, file, folder, part, drop_empty, folder=cache_folder())


def _root(settings: DataSettings) -> Path:
    if not settings.root:
        raise UserError(f"--data {settings.data} needs --root, the folder of the data")
    if not Path(settings.root).is_dir():
        raise UserError(f"--root: there is no folder {settings.root}; check the path")
    return Path(settings.root)


def _classes(settings: DataSettings) -> list[str] | None:
    names = [name.strip() for name in settings.classes.split(",") if name.strip()]
    return names or None


@lru_cache(maxsize=1)
def _scenes(num_pool: int, num_test: int, size: int, task: Task) -> Data:
    test = draw_scenes(num_test, size=size, seed=SCENES_SEED, task=task, first=FIRST_TEST_SCENE)
    pool = draw_scenes(num_pool, size=size, seed=SCENES_SEED, task=task)
    return Data(pool, test)
