"""The folder of a run or a pretraining: the contract between training and everything that reads it afterwards."""

import os
import platform
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import yaml

from percentmatch import __version__
from percentmatch.data.pixels.cache import cores
from percentmatch.data.readers.detect import detected
from percentmatch.data.shards.index import names_shards
from percentmatch.data.split import Split
from percentmatch.errors import UserError
from percentmatch.files import check_numbers, is_part, read_json, read_sound, read_yaml, sweep, write_atomic, write_json
from percentmatch.runs.checkpoint import Checkpoints
from percentmatch.runs.lock import NAME as LOCK
from percentmatch.runs.lock import Lock
from percentmatch.runs.log import Log
from percentmatch.scoring.table import final_scores
from percentmatch.settings.config import NO_FILE, Config, DataSettings, PretrainSettings, to_repeat, with_absolute_paths
from percentmatch.settings.declare import GIVEN, all_of, declared, flat, given_in, has_sections, sections
from percentmatch.settings.renamed import renamed

ALWAYS_THERE = ("data", "method", "seed")  # the first setting, one in the middle and one of the last: the file is whole


class WithoutAliases(yaml.SafeDumper):
    """Writes a value that stands twice as often; aliases are not read again."""

    def ignore_aliases(self, data: object) -> bool:
        return True


class Folder(ABC):
    """What the folders of a run and of a pretraining share: settings, split, environment, log and checkpoints.

    In a `with` block, `hold` keeps other processes out; when it ends, every checkpoint is written.
    """

    kind: str  # what a person calls it
    settings_name: str

    def __init__(self, path: Path) -> None:
        self.path, self.config = path, path / self.settings_name
        self.split, self.environment = path / "split.json", path / "environment.json"
        self.log = Log(path / "log.jsonl")
        self.checkpoints = Checkpoints(path, self.log)
        self.entered, self.lock = False, Lock(path)

    def __enter__(self) -> Self:
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.checkpoints.wait()
        finally:
            self.entered = False
            self.lock.free()

    def hold(self) -> None:
        """Make the folder, and until the block or the process ends let nobody else write there."""
        if self.entered and self.lock.file is None:
            self.lock.take()
            sweep(self.path, alone=True)

    def check_new(self) -> None:
        """Refuse a folder that holds anything: nobody's results are overwritten."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"'{self.path}' is a file; choose another --out")
            if self.config.exists():
                how = "continue it with --resume or choose another --out"
                raise UserError(f"'{self.path}' already holds a {self.kind}; {how}")
            if self.path.exists() and not all(is_part(path) or path.name == LOCK for path in self.path.iterdir()):
                raise UserError(f"'{self.path}' is not empty; choose another --out")
        except OSError as error:
            raise UserError(f"cannot look into '{self.path}': {error.strerror}; choose another --out") from error

    def create(self, settings: DataSettings, given: Mapping[str, Any], split: Split, device: torch.device) -> None:
        """Make the folder unless it is held, and write what is known before training; paths are absolute."""
        self.path.mkdir(parents=True, exist_ok=True)
        values = {name: with_absolute_paths(each) for name, each in sections(settings, given).items()}
        write_atomic(self.config, yaml.dump(values, Dumper=WithoutAliases, sort_keys=False).encode())
        self.complete(split, device)

    def complete(self, split: Split, device: torch.device) -> None:
        """Write what a fault at the start may have left out; refuse another run's split."""
        if not self.environment.exists():
            write_json(self.environment, environment(device))
        if not self.split.exists():
            write_atomic(self.split, split.to_json().encode())
        if self.read_split().digest != split.digest:
            raise UserError(f"'{self.split}' names other images than the run's settings; choose another --out")

    def read_settings_file(self) -> dict[str, Any]:
        if not self.config.exists():
            raise UserError(f"'{self.path}' holds no {self.kind} (it has no {self.config.name})")
        return read_yaml(self.config)

    @abstractmethod
    def read_settings(self) -> DataSettings:
        """All settings; one that an older version did not know has its default."""

    def read_to_resume(self) -> dict[str, Any]:
        """The settings to continue with: all but those that this machine decides anew."""
        self.read_settings()
        return to_repeat(self.read_settings_file(), str(self.config))

    def check_same(self, settings: DataSettings, begun: Mapping[str, Any] | None = None) -> None:
        """Refuse to resume with other settings than those in the folder, or than `begun` of a checkpoint."""
        if begun is None:
            then = self.read_settings()
        else:  # by another version, perhaps
            known = {name: value for name, value in renamed(begun).items() if name in declared(type(settings))}
            then = settings.from_dict(known, source="the checkpoint")
        refuse_other(self.path, then, settings)

    def read_split(self) -> Split:
        return Split.from_values(read_json(self.split), str(self.split))


class RunFolder(Folder):
    """config.yaml, split.json, environment.json, log.jsonl, last.pt, model.safetensors, metrics.json."""

    kind, settings_name = "run", "config.yaml"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.model, self.metrics = path / "model.safetensors", path / "metrics.json"

    def read_config(self) -> Config:
        """The settings of the run; refused if they are incomplete, or if a newer version wrote one of them."""
        values = renamed(all_of(self.read_settings_file(), str(self.config)))
        if missing := [name for name in ALWAYS_THERE if name not in values]:
            raise UserError(f"'{self.config}' is damaged: it lacks {', '.join(missing)}")
        usual = Config().to_dict()
        known = {*usual, *flat(usual)}
        if strange := [name for name in flat(values) if name not in known and not name.startswith("options.")]:
            maker = read_json(self.environment).get("percentmatch") if self.environment.exists() else None
            raise UserError(
                f"'{self.config}' has the setting '{strange[0]}', which percentmatch {__version__} does not know; the "
                f"run was made by percentmatch {maker or 'of an unknown version'}, so use that version or a newer one"
            )
        return Config.from_dict(values, source=str(self.config))

    read_settings = read_config

    def read_given(self) -> dict[str, Any]:
        """What flags, files, a preset or Python set; of a file that does not say, what differs from the defaults."""
        values = self.read_settings_file()
        return dict(values[GIVEN]) if has_sections(values, str(self.config)) else given_in(self.read_config())

    def read_moved(self, moved: Mapping[str, Any]) -> Config:
        """The settings to score with, the run's data where it is now; unlabeled images need not be there."""
        check_moved(moved)
        config = Config.from_dict({**self.read_config().to_dict(), **moved}, source="--set")
        for name in SCORED:
            path = getattr(config, name)
            if path and not os.path.exists(path) and not names_shards(path):
                how = f"put it back, or say where it is now by --set {name}=PATH"
                raise UserError(f"the run's {name}, {path}, is not there; {how}")
        keep = os.path.exists(config.unlabeled) and not names_shards(config.unlabeled)  # nobody scores a stream
        return config if keep else replace(config, unlabeled="")

    def read_metrics(self) -> dict[str, Any]:
        """metrics.json, whose scores are numbers."""
        return read_sound(self.metrics, _check_metrics)


class PretrainFolder(Folder):
    """pretrain.yaml, backbone.safetensors, pretrain.json; and log.jsonl, last.pt and split.json as in a run folder."""

    kind, settings_name = "pretraining", "pretrain.yaml"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.settings, self.backbone, self.result = self.config, path / "backbone.safetensors", path / "pretrain.json"

    def read_settings(self) -> PretrainSettings:
        source = str(self.settings)
        return PretrainSettings.from_dict(all_of(self.read_settings_file(), source), source=source)

    def read_result(self) -> dict[str, Any]:
        """pretrain.json, whose figures are numbers."""
        return read_sound(self.result, lambda found: check_numbers(found, "images", "steps", "loss", "minutes"))


SCORED = tuple(name for name, about in declared(Config).items() if about.path == "data")
MAY_CHANGE = tuple(name for name, about in declared(Config).items() if about.path or about.resumable)


def check_moved(moved: Mapping[str, Any]) -> None:
    for name in moved:
        if name not in SCORED:
            raise UserError(f"--set says where the run's data is now, by {', '.join(SCORED)}, not by '{name}'")


def refuse_other(path: Path, begun: DataSettings, now: DataSettings) -> None:
    """Refuse to continue in the folder `path` with settings that a resumed run must not change."""
    then, new = (with_absolute_paths(detected(each).to_dict()) for each in (begun, now))
    if {then.get("weights"), new.get("weights")}.isdisjoint(NO_FILE) and not os.path.exists(then["weights"]):
        then["weights"] = new["weights"]  # the file was moved, or is named from elsewhere
    same_split = begun.split_file and now.split_file  # then nothing is drawn
    for name, about in declared(type(now)).items():
        same = then[name] == new[name] or (about.machine and "auto" in (then[name], new[name]))
        if same or name in MAY_CHANGE or (same_split and about.draws):
            continue
        how = "resume with the same settings or choose another --out"
        raise UserError(f"'{path}' was begun with {name}={then[name]}, not {new[name]}; {how}")


def _check_metrics(metrics: dict[str, Any]) -> None:
    check_numbers(metrics, "step", "minutes", "seed")
    for weights in ("ema", "model"):
        final_scores(metrics, weights)
    if "calibration" in metrics:
        check_numbers(metrics["calibration"], "ece_before", "ece_after")
    for name in ("few_positives", "without_positives") if "decisions" in metrics else ():
        ", ".join(metrics["decisions"].get(name, ()))  # lists of names


def environment(device: torch.device) -> dict[str, Any]:
    """Where a run was made: versions, hardware and, in a checkout, the commit."""
    import timm

    return {
        "percentmatch": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "platform": platform.platform(terse=True),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{cores()} CPU cores",
    }


def _commit() -> str | None:
    """$PERCENTMATCH_COMMIT, or that of the checkout this file belongs to, `-dirty` if it was changed since, or None."""
    if given := os.environ.get("PERCENTMATCH_COMMIT"):
        return given
    git = partial(subprocess.check_output, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, timeout=10)
    try:
        git(["git", "ls-files", "--error-unmatch", __file__])
        return git(["git", "describe", "--always", "--dirty", "--abbrev=12"]).decode().strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
