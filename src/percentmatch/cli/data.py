"""The commands of `percentmatch data`: check, count, split and shard data before training."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from percentmatch.cli.flags import ConfigFile, DataFlags, Device, Preset, gather
from percentmatch.errors import UserError
from percentmatch.settings.config import DataSettings

if TYPE_CHECKING:
    from torch import Tensor

    from percentmatch.data import Source

data_app = App(name="data", help="Check, count, split and shard data before training.")


@data_app.command
def stats(
    *,
    config: ConfigFile = None,
    preset: Preset = None,
    out: Annotated[Path | None, Parameter(group="Run")] = None,
    settings: Annotated[DataFlags, Parameter(name="*")] = DataFlags(),  # noqa: B008  frozen
) -> None:
    """Count what the data holds: prevalence, labels per image, imbalance, classes that occur together.

    Parameters
    ----------
    out
        Also write the counts, with all pairs of classes, to this JSON file.
    """
    from percentmatch.console.tables import show_stats
    from percentmatch.data import describe
    from percentmatch.files import write_json

    if out and out.is_dir():
        raise UserError(f"--out '{out}' is a folder; name a JSON file")
    source = _open(settings, config, preset)
    facts = describe(source.images)
    show_stats(facts)
    if out:
        write_json(_with_folder(out), facts)


@data_app.command
def check(
    *,
    config: ConfigFile = None,
    preset: Preset = None,
    out: Annotated[Path | None, Parameter(group="Run")] = None,
    backbone: Annotated[str | None, Parameter(group="Model")] = None,
    weights: Annotated[str | None, Parameter(group="Model")] = None,
    image_size: Annotated[int, Parameter(group="Model")] = 224,
    device: Device = "auto",
    settings: Annotated[DataFlags, Parameter(name="*")] = DataFlags(),  # noqa: B008  frozen
) -> None:
    """Look for unreadable, duplicate and unusual images, leaks, wrong or contradictory labels, and rare classes.

    Exit code 0: nothing serious; 1: a finding that stops training or distorts scores; 2: bad input.

    Parameters
    ----------
    out
        Also write all findings to this JSON file.
    backbone
        The timm model whose features compare unlabeled with labeled images; by default colours and edges do.
    weights
        Of the backbone: pretrained (the default), offline (tf_efficientnet_lite0 to lite2) or a file.
    image_size
        Side of the square the backbone sees, in pixels.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.console.tables import show_findings
    from percentmatch.data.checks.check import SIDE, check_data
    from percentmatch.files import write_json

    if out and out.is_dir():
        raise UserError(f"--out '{out}' is a folder; name a JSON file")
    if weights and not backbone:
        raise UserError("--weights goes with --backbone; name the backbone they are for")
    embed = _embedder(backbone, weights or "pretrained", image_size, device) if backbone else None
    size = max(SIDE, image_size) if backbone else SIDE
    given = DataSettings.from_dict(gather(DataSettings, settings, config=config, preset=preset))
    found = check_data(given, embed=embed, size=size, counting=Counting)
    show_findings(found, out)
    if out:
        write_json(_with_folder(out), found)
    if found["serious"]:
        raise SystemExit(1)


@data_app.command
def split(
    *,
    out: Annotated[Path, Parameter(group="Run")],
    config: ConfigFile = None,
    preset: Preset = None,
    settings: Annotated[DataFlags, Parameter(name="*")] = DataFlags(),  # noqa: B008  frozen
) -> None:
    """Draw labeled, unlabeled and validation images and save their ids, for `train --split-file`.

    Parameters
    ----------
    out
        The JSON file to write; it must not exist.
    """
    from percentmatch.data import check_classes, split_manifest
    from percentmatch.files import write_atomic

    if out.exists():
        raise UserError(f"'{out}' is already there; choose another --out")
    source = _open(settings, config, preset)
    check_classes(source.settings, source.images)
    drawn = split_manifest(source.settings, source.images)
    write_atomic(_with_folder(out), drawn.to_json().encode())
    names = ("labeled", "unlabeled", "validation", "test")
    print("  ".join(f"{name} {len(getattr(drawn, name))}" for name in names), f" digest {drawn.digest}")
    print(f"split file  {out}")


@data_app.command
def shard(
    *,
    out: Annotated[Path, Parameter(group="Run")],
    shard_mb: Annotated[float, Parameter(group="Run")] = 256,
    images_per_shard: Annotated[int | None, Parameter(group="Run")] = None,
    workers: Annotated[int | None, Parameter(group="Run")] = None,
    config: ConfigFile = None,
    preset: Preset = None,
    settings: Annotated[DataFlags, Parameter(name="*")] = DataFlags(),  # noqa: B008  frozen
) -> None:
    """Write images into tar shards (WebDataset), in a random order, for `train --unlabeled`.

    The images of --unlabeled alone, or all images of the settings, with their labels. After an interruption, the same
    command continues.

    Parameters
    ----------
    out
        The folder of the shards: new, or one to continue.
    shard_mb
        Size of a shard in megabytes.
    images_per_shard
        Number of images in a shard, instead of its size.
    workers
        Shards written at the same time; by default as many as there are cores.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.data import read_manifest, unlabeled_manifest, write_shards
    from percentmatch.data.shards.index import names_shards

    if shard_mb <= 0 or (images_per_shard or 1) < 1 or (workers or 1) < 1:
        raise UserError("--shard-mb, --images-per-shard and --workers must be above 0")
    given = DataSettings.from_dict(gather(DataSettings, settings, config=config, preset=preset))
    if given.unlabeled and names_shards(given.unlabeled):
        raise UserError(f"--unlabeled: {given.unlabeled} are shards already; give a folder or a list of images")
    if given.unlabeled and not (given.labels or given.root):
        manifest = unlabeled_manifest(Path(given.unlabeled), ("no class",))
    else:
        manifest = read_manifest(given)
    with Counting("images") as progress:
        plan = write_shards(
            manifest,
            out,
            shard_mb=shard_mb,
            images_per_shard=images_per_shard or 0,
            workers=workers,
            skip_bad=given.skip_bad_images,
            progress=progress,
        )
    print(f"{plan['images']:,} images in {len(plan['shards']):,} shards")
    print(f"train from them by --{'root' if manifest.labels.known.any() else 'unlabeled'} {out}")


def _open(flags: Any, config: Path | None, preset: str | None) -> "Source":
    """The data that the settings name; prints which images are not counted."""
    from percentmatch.console.notices import print_to_stderr
    from percentmatch.data import open_data

    source = open_data(DataSettings.from_dict(gather(DataSettings, flags, config=config, preset=preset)))
    if source.shards:
        print_to_stderr(f"{len(source.shards):,} unlabeled images in shards are not counted; training streams them")
    return source


def _with_folder(file: Path) -> Path:
    """The file, once there is a folder for it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot make the folder '{file.parent}': {reason}; choose another --out") from error
    return file


def _embedder(backbone: str, weights: str, image_size: int, device: str) -> Callable[["Tensor"], "Tensor"]:
    """Images (n, 3, h, w) uint8 to the backbone's pooled features, of length 1: (n, d)."""
    import torch
    from torch.nn import functional as F

    from percentmatch.augment import resize
    from percentmatch.distributed.device import pick_device
    from percentmatch.models import build_classifier

    chosen = pick_device(device)
    model = build_classifier(backbone, num_classes=1, head="linear", image_size=image_size, weights=weights)
    model = model.to(chosen).eval()

    @torch.inference_mode()
    def embed(pixels: "Tensor") -> "Tensor":
        batches = (resize(batch.to(chosen), image_size, model.mean, model.std) for batch in pixels.split(64))
        return F.normalize(torch.cat([model.read(batch) for batch in batches]).float(), dim=1).cpu()

    return embed
