"""The folder of a pretraining, the contract between `pretrain` and what goes on from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from percentmatch.data.split import Split
from percentmatch.errors import UserError
from percentmatch.files import check_numbers, read_sound, read_yaml
from percentmatch.runs.run_folder import RunFolder, refuse_other, write_settings
from percentmatch.settings.given import all_of, to_repeat
from percentmatch.settings.pretraining import PretrainSettings


class PretrainFolder:
    """pretrain.yaml, backbone.safetensors, pretrain.json; and log.jsonl, last.pt and split.json as in a run folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, RunFolder(path)
        self.settings, self.backbone = path / "pretrain.yaml", path / "backbone.safetensors"
        self.result = path / "pretrain.json"

    def check_new(self) -> None:
        if self.settings.exists():
            raise UserError(
                f"'{self.path}' already holds a pretraining; continue it with --resume or choose another --out"
            )
        self.run.check_new()

    def create(self, settings: PretrainSettings, given: Mapping[str, Any], split: Split, device: torch.device) -> None:
        self.run.make()
        write_settings(self.settings, settings, given)
        self.run.complete(split, device)

    def read_settings(self) -> PretrainSettings:
        if not self.settings.exists():
            raise UserError(f"'{self.path}' holds no pretraining (it has no pretrain.yaml)")
        source = str(self.settings)
        return PretrainSettings.from_dict(all_of(read_yaml(self.settings), source), source=source)

    def read_to_resume(self) -> dict[str, Any]:
        """The settings to go on with: all but those that this machine decides anew."""
        self.read_settings()
        return to_repeat(read_yaml(self.settings), str(self.settings))

    def read_result(self) -> dict[str, Any]:
        """pretrain.json, whose figures are numbers."""
        return read_sound(self.result, lambda found: check_numbers(found, "images", "steps", "loss", "minutes"))

    def check_same(self, settings: PretrainSettings) -> None:
        """Refuse other settings than the pretraining began with."""
        refuse_other(self.path, self.read_settings(), settings)
