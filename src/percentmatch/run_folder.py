"""The folder of a run, the contract between training and everything that reads a run afterwards."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from percentmatch import __version__
from percentmatch.checkpoint import cannot_write, read_json, write_atomic, write_json
from percentmatch.config import Config
from percentmatch.data.detect import detected
from percentmatch.data.split import Split
from percentmatch.errors import UserError

PLACES = ("root", "labels", "images")  # of what a run is scored on
# settings that a resumed run may change
MAY_CHANGE = (*PLACES, "unlabeled", "split_file", "device", "images_on", "cuda_graph", "compile", "verify_cache")


class RunFolder:
    """config.yaml, split.json, environment.json, log.jsonl, last.pt, model.safetensors, metrics.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.split, self.environment = path / "config.yaml", path / "split.json", path / "environment.json"
        self.log, self.checkpoint = path / "log.jsonl", path / "last.pt"
        self.model, self.metrics = path / "model.safetensors", path / "metrics.json"
        self.readers: list[Callable[[dict[str, Any]], None]] = []  # get each row that is written to the log

    def check_new(self) -> None:
        """Refuse a folder that holds anything: nobody's results are overwritten."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"'{self.path}' is a file; choose another --out")
            if self.config.exists():
                raise UserError(f"'{self.path}' already holds a run; continue it with --resume or choose another --out")
            if self.path.exists() and any(self.path.iterdir()):
                raise UserError(f"'{self.path}' is not empty; choose another --out")
        except OSError as error:
            raise UserError(f"cannot look into '{self.path}': {error.strerror}; choose another --out") from error

    def create(self, config: Config, split: Split, device: torch.device) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder '{self.path}': {error.strerror}; choose another --out") from error
        names = (*PLACES, "unlabeled")
        here = {name: os.path.abspath(place) for name in names if (place := getattr(config, name))}
        config = replace(config, **here)  # found from any working directory
        write_atomic(self.config, yaml.safe_dump(config.to_dict(), sort_keys=False).encode())
        self.complete(split, device)

    def complete(self, split: Split, device: torch.device) -> None:
        """Write what a fault at the start may have left out; refuse another run's split."""
        if not self.environment.exists():
            write_json(self.environment, environment(device))
        if not self.split.exists():
            write_atomic(self.split, split.to_json().encode())
        if self.read_split().digest != split.digest:
            raise UserError(f"'{self.split}' names other images than the run's settings; choose another --out")

    def read_config(self) -> Config:
        if not self.config.exists():
            raise UserError(f"'{self.path}' holds no run (it has no config.yaml)")
        values = read_yaml(self.config)
        missing = sorted(Config().to_dict().keys() - values.keys())
        if missing:
            raise UserError(f"'{self.config}' is damaged: it lacks {', '.join(missing)}")
        return Config.from_dict(values, source=str(self.config))

    def read_moved(self, moved: Mapping[str, Any]) -> Config:
        """The settings to score with, the run's data where it is now; unlabeled images need not be there."""
        for name in moved:
            if name not in PLACES:
                raise UserError(f"--set says where the run's data is now, by {', '.join(PLACES)}, not by '{name}'")
        config = Config.from_dict({**self.read_config().to_dict(), **moved}, source="--set")
        for name in PLACES:
            place = getattr(config, name)
            if place and not os.path.exists(place):
                raise UserError(
                    f"the run's {name}, {place}, is not there; put it back, or say where it is now by --set {name}=PATH"
                )
        return config if os.path.exists(config.unlabeled) else replace(config, unlabeled="")

    def check_same(self, config: Config) -> None:
        """Refuse to resume with other settings than the run began with."""
        mine, theirs = self.read_config().to_dict(), detected(config).to_dict()
        for name in mine:
            if name not in MAY_CHANGE and mine[name] != theirs[name]:
                raise UserError(
                    f"'{self.path}' was begun with {name}={mine[name]}, not {theirs[name]}; resume with the same "
                    "settings or choose another --out"
                )

    def read_split(self) -> Split:
        return Split.from_values(read_json(self.split), str(self.split))

    def append(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, allow_nan=False) + "\n"
        try:
            with open(self.log, "a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.log, error) from error
        for read in self.readers:
            read(row)

    def read_log(self) -> list[tuple[str, dict[str, Any]]]:
        """Each line with what it says; only the last may be torn, and is left out."""
        try:
            lines = self.log.read_text(encoding="utf-8").splitlines(keepends=True) if self.log.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"'{self.log}' is damaged ({type(error).__name__})") from error
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                row["step"] + 0
            except (ValueError, TypeError, KeyError, RecursionError):
                if number < len(lines):
                    raise UserError(
                        f"'{self.log}', line {number}, is damaged; restore the file or start anew"
                    ) from None
                break
            rows.append((line, row))
        return rows

    def keep_log(self, steps: int) -> None:
        """Drop rows later than `steps` and a torn last one, so that a resumed run writes them again."""
        kept = [line for line, row in self.read_log() if row["step"] <= steps]
        write_atomic(self.log, "".join(kept).encode())


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no config file '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read '{path}': {error}") from None
    except RecursionError:
        raise UserError(f"'{path}' is nested too deeply to be a config") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"'{path}' is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict | None):
        raise UserError(f"'{path}' must hold names and values, such as 'lr: 0.001'")
    return values or {}


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
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPU cores",
    }


def _commit() -> str | None:
    """$PERCENTMATCH_COMMIT, or that of the checkout this file belongs to, `-dirty` if it was changed since, or None."""
    if given := os.environ.get("PERCENTMATCH_COMMIT"):
        return given
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=True, timeout=10)
        found = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
