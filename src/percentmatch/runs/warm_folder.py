"""The folder of a warm start, the contract between `pretrain` and what goes on from it."""

from pathlib import Path
from typing import Any

import yaml

from percentmatch.errors import UserError
from percentmatch.files import check_numbers, read_sound, write_atomic
from percentmatch.runs.run_folder import RunFolder, from_anywhere, read_yaml
from percentmatch.settings.config import PretrainSettings


class WarmFolder:
    """pretrain.yaml, backbone.safetensors, pretrain.json; and log.jsonl, last.pt and split.json as in a run folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, RunFolder(path)
        self.settings, self.backbone = path / "pretrain.yaml", path / "backbone.safetensors"
        self.result = path / "pretrain.json"

    def check_new(self) -> None:
        if self.settings.exists():
            raise UserError(
                f"'{self.path}' already holds a warm start; continue it with --resume or choose another --out"
            )
        self.run.check_new()

    def create(self, settings: PretrainSettings) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder '{self.path}': {error.strerror}; choose another --out") from error
        self.run.hold()
        write_atomic(self.settings, yaml.safe_dump(from_anywhere(settings.to_dict()), sort_keys=False).encode())

    def read_settings(self) -> PretrainSettings:
        if not self.settings.exists():
            raise UserError(f"'{self.path}' holds no warm start (it has no pretrain.yaml)")
        return PretrainSettings.from_dict(read_yaml(self.settings), source=str(self.settings))

    def read_result(self) -> dict[str, Any]:
        """pretrain.json, whose figures are numbers."""
        return read_sound(self.result, lambda found: check_numbers(found, "images", "steps", "loss", "minutes"))

    def check_same(self, settings: PretrainSettings) -> None:
        """Refuse other settings than the warm start began with."""
        self.run.refuse_other(self.read_settings().to_dict(), settings.to_dict())
