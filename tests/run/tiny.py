"""A run of a few seconds, and what it left behind."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from percentmatch.data.scenes import draw_scenes
from percentmatch.settings.config import Config

TINY = Config(
    data="scenes",
    scenes_pool=120,
    scenes_test=40,
    validation=30,
    labeled=40,
    image_size=32,
    backbone="test_resnet",
    head="linear",
    dropout=0.2,
    labeled_batch=8,
    total_steps=12,
    lr=1e-3,
    log_every=4,
    eval_every=6,
    save_every=5,
    options={"warmup_steps": 3, "gap_start": 0.0, "gap_full": 0.1},
)


def on_a_cpu(config: Config) -> Config:
    """The settings of a run on scenes with what a CPU decides for itself."""
    return replace(config, device="cpu", precision="float32", images_on="device", split_kind="random")


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.pt", weights_only=True)["model"]


def save_scenes(folder: Path, labeled: int, more: int) -> list[tuple[str, list[int]]]:
    """Scenes as PNG files in the folders photos and more; the names of the first ones and their first three labels."""
    drawn = draw_scenes(labeled + more, size=32)
    for n, pixels in enumerate(drawn.pixels):
        file = folder / ("photos" if n < labeled else "more") / f"{n:02}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file)
    return [(f"{n:02}.png", drawn.labels.targets.dense()[n, :3].tolist()) for n in range(labeled)]
