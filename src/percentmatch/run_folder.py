"""The folder of a run, the contract between training and everything that reads a run afterwards."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
import yaml

from percentmatch import __version__
from percentmatch.checkpoint import write_atomic, write_json
from percentmatch.config import Config
from percentmatch.data.split import Split
from percentmatch.errors import UserError

MAY_CHANGE = ("device",)  # settings that a resumed run may change


class RunFolder:
    """config.yaml, split.json, environment.json, log.jsonl, last.pt, model.safetensors, metrics.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.split, self.environment = path / "config.yaml", path / "split.json", path / "environment.json"
        self.log, self.checkpoint = path / "log.jsonl", path / "last.pt"
        self.model, self.metrics = path / "model.safetensors", path / "metrics.json"

    def check_new(self) -> None:
        """Refuse a folder that holds anything: nobody's results are overwritten."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            holds = "already holds a run; continue it with --resume" if self.config.exists() else "is not empty"
            raise UserError(f"'{self.path}' {holds}, or choose another --out")

    def create(self, config: Config, split: Split, device: torch.device) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder '{self.path}': {error.strerror}; choose another --out") from error
        write_json(self.environment, environment(device))
        write_atomic(self.split, split.to_json().encode())
        write_atomic(self.config, yaml.safe_dump(config.to_dict(), sort_keys=False).encode())

    def read_config(self) -> Config:
        if not self.config.exists():
            raise UserError(f"'{self.path}' holds no run (it has no config.yaml)")
        return read_config_file(self.config)

    def check_same(self, config: Config) -> None:
        """Refuse to resume with other settings than the run began with."""
        mine, theirs = self.read_config().to_dict(), config.to_dict()
        for name in mine:
            if name not in MAY_CHANGE and mine[name] != theirs[name]:
                raise UserError(
                    f"'{self.path}' was begun with {name}={mine[name]}, not {theirs[name]}; resume with the same "
                    "settings or choose another --out"
                )

    def read_split(self) -> Split:
        return Split.from_json(self.split.read_text())

    def append(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, allow_nan=False) + "\n"
        try:
            with open(self.log, "a") as file:
                file.write(line)
        except OSError as error:
            raise UserError(
                f"cannot write '{self.log}': {error.strerror}; make room and continue with --resume"
            ) from error

    def keep_log(self, steps: int) -> None:
        """Drop rows later than `steps` and a torn last one, so that a resumed run writes them again."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        kept = []
        for line in lines:
            try:
                if json.loads(line)["step"] > steps:
                    break
            except ValueError:
                break
            kept.append(line)
        write_atomic(self.log, "".join(kept).encode())


def read_config_file(path: Path) -> Config:
    return Config.from_dict(read_yaml(path), source=str(path))


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no config file '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read '{path}': {error}") from None
    except yaml.YAMLError as error:
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
    """The commit of the checkout this package runs from; `-dirty` if it was changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
