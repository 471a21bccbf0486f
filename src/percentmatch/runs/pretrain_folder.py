"""The folder of a pretraining, the contract between `pretrain` and what continues from it."""

from pathlib import Path
from typing import Any

from percentmatch.files import check_numbers, read_sound
from percentmatch.runs.run_folder import Folder
from percentmatch.settings.given import all_of
from percentmatch.settings.pretraining import PretrainSettings


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
