"""The verbs of `percentmatch data`: what the data holds, and its division, before any training."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from percentmatch.cli.flags import ConfigFile, DataFlags, Device, Preset, gather
from percentmatch.errors import UserError, visible
from percentmatch.settings.config import DataSettings

if TYPE_CHECKING:
    from torch import Tensor

    from percentmatch.data import Source

SHOWN = 5  # places of a finding that are printed

data_app = App(name="data", help="Look at data, and divide it, before any training.")


@data_app.command
def stats(
    *,
    config: ConfigFile = None,
    preset: Preset = None,
    out: Annotated[Path | None, Parameter(group="Run")] = None,
    settings: Annotated[DataFlags, Parameter(name="*")] = DataFlags(),  # noqa: B008  frozen
) -> None:
    """Count what the data holds: prevalence, labels an image, imbalance, classes seen together.

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
        _make_folder_of(out)
        write_json(out, facts)


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
    """Look for defects: unreadable images, duplicates, leaks, label conflicts, slips, rare classes, odd images.

    Exit code 0: nothing serious; 1: a finding that would stop or spoil training or scores; 2: bad input.

    Parameters
    ----------
    out
        Also write all findings to this JSON file.
    backbone
        Compare unlabeled with labeled images by this timm model; by colours and edges if not given.
    weights
        Of the backbone: pretrained (if not given), offline (tf_efficientnet_lite0) or a file.
    image_size
        Side of the square the backbone sees, in pixels.
    """
    from percentmatch.console.progress import Counting
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
    _show_findings(found, out)
    if out:
        _make_folder_of(out)
        write_json(out, found)
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
    parts = split_manifest(source.settings, source.images)
    _make_folder_of(out)
    write_atomic(out, parts.to_json().encode())
    names = ("labeled", "unlabeled", "validation", "test")
    print("  ".join(f"{name} {len(getattr(parts, name))}" for name in names), f" digest {parts.digest}")
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

    Those of --unlabeled alone, or all that the settings name, with their labels. The same command goes on where it was
    stopped.

    Parameters
    ----------
    out
        The folder of the shards: new, or one to go on with.
    shard_mb
        Megabytes of a shard.
    images_per_shard
        Images of a shard, instead.
    workers
        Shards written at a time; if not given, as many as there are cores.
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
    """The data that is named; says which images are not looked at."""
    from percentmatch.data import open_data
    from percentmatch.data.pixels.load import print_to_stderr

    source = open_data(DataSettings.from_dict(gather(DataSettings, flags, config=config, preset=preset)))
    if source.shards:
        print_to_stderr(
            f"not looked at: {len(source.shards):,} unlabeled images in shards, which are streamed in training"
        )
    return source


def _make_folder_of(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder '{file.parent}': {error.strerror or error}; choose another --out"
        ) from error


def _embedder(backbone: str, weights: str, image_size: int, device: str) -> Callable[["Tensor"], "Tensor"]:
    """Images (n, 3, h, w) uint8 to the backbone's pooled features, of length 1: (n, d)."""
    import torch
    from torch.nn import functional as F

    from percentmatch.augment import resize
    from percentmatch.distributed.device import pick_device
    from percentmatch.models import build_classifier

    place = pick_device(device)
    model = build_classifier(backbone, num_classes=1, head="linear", image_size=image_size, weights=weights)
    model = model.to(place).eval()

    @torch.inference_mode()
    def embed(pixels: "Tensor") -> "Tensor":
        parts = [model.read(resize(part.to(place), image_size, model.mean, model.std)) for part in pixels.split(64)]
        return F.normalize(torch.cat(parts).float(), dim=1).cpu()

    return embed


def _show_findings(found: dict[str, Any], out: Path | None) -> None:
    """One row for each finding, then the first few places of each."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    parts = "  ".join(f"{part} {count:,}" for part, count in (found["parts"] or {}).items())
    console.print(f"{found['images']:,} images  {parts}", highlight=False)
    table = Table("level", "check", box=None, padding=(0, 2, 0, 0))
    table.add_column("count", justify="right")
    table.add_column("what")
    for finding in found["findings"]:
        table.add_row(finding["level"], finding["check"], f"{finding['count']:,}", escape(visible(finding["text"])))
    console.print(table if found["findings"] else "nothing found")
    for finding in found["findings"]:
        items = finding["items"]
        if items:
            print(f"\n{finding['check']}")
        for item in items[:SHOWN]:
            print(visible(f"  {item['text']}"))
        if len(items) > SHOWN:
            print(f"  and {len(items) - SHOWN} more{f', all in {out}' if out else ': --out FILE.json lists all'}")
    for sentence in found["not_checked"]:
        print(f"\nnot checked: {sentence}")
