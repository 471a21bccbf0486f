"""A run of a few seconds, and what it left behind."""

import json
from pathlib import Path

import torch

from percentmatch.config import Config

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


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.pt", weights_only=True)["model"]
