"""The verbs of `percentmatch data`: what the data holds, and its division, before any training."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from percentmatch.config import DataSettings
from percentmatch.errors import UserError

data_app = App(name="data", help="Look at data, and divide it, before any training.")


@data_app.command
def stats(
    *,
    config: Annotated[Path | None, Parameter(group="Run")] = None,
    preset: Annotated[str | None, Parameter(group="Run")] = None,
    out: Annotated[Path | None, Parameter(group="Run")] = None,
    settings: Annotated[DataSettings, Parameter(name="*")] = DataSettings(),  # noqa: B008  frozen
) -> None:
    """Count what the data holds: prevalence, labels an image, imbalance, classes seen together.

    Parameters
    ----------
    config
        A YAML file of settings, such as a run's config.yaml.
    preset
        A named set of settings: voc2007-paper or coco2014-paper.
    out
        Also write the counts, with all pairs of classes, to this JSON file.
    """
    from percentmatch.checkpoint import write_json
    from percentmatch.data import describe, read_manifest
    from percentmatch.show import show_stats

    if out and out.is_dir():
        raise UserError(f"--out '{out}' is a folder; name a JSON file")
    facts = describe(read_manifest(settings))
    show_stats(facts)
    if out:
        _make_folder_of(out)
        write_json(out, facts)


@data_app.command
def split(
    *,
    out: Annotated[Path, Parameter(group="Run")],
    config: Annotated[Path | None, Parameter(group="Run")] = None,
    preset: Annotated[str | None, Parameter(group="Run")] = None,
    settings: Annotated[DataSettings, Parameter(name="*")] = DataSettings(),  # noqa: B008  frozen
) -> None:
    """Draw labeled, unlabeled and validation images and save their ids, for `train --split-file`.

    Parameters
    ----------
    out
        The JSON file to write; it must not exist.
    config
        A YAML file of settings, such as a run's config.yaml.
    preset
        A named set of settings: voc2007-paper or coco2014-paper.
    """
    from percentmatch.checkpoint import write_atomic
    from percentmatch.data import check_classes, read_manifest, split_manifest

    if out.exists():
        raise UserError(f"'{out}' is already there; choose another --out")
    manifest = read_manifest(settings)
    check_classes(settings, manifest)
    parts = split_manifest(settings, manifest)
    _make_folder_of(out)
    write_atomic(out, parts.to_json().encode())
    names = ("labeled", "unlabeled", "validation", "test")
    print("  ".join(f"{name} {len(getattr(parts, name))}" for name in names), f" digest {parts.digest}")
    print(f"split file  {out}")


def _make_folder_of(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder '{file.parent}': {error.strerror or error}; choose another --out"
        ) from error
