"""Two short runs on images whose classes and names are as hostile as names can be, and what is made of them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import CLASSES, CONFIG

from percentmatch.data import Data
from percentmatch.data.scenes import draw_scenes
from percentmatch.training.start import train


@pytest.fixture(scope="session")
def data() -> Data:
    pool, test = draw_scenes(110, size=32), draw_scenes(40, size=32, first=1_000_000)
    parts = [
        replace(
            images,
            labels=images.labels.choose(range(len(CLASSES))),
            class_names=CLASSES,
            ids=tuple(f"<i>{name}</i>'&" for name in images.ids),
        )
        for images in (pool, test)
    ]
    return Data(*parts)


@pytest.fixture(scope="session")
def run(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a labeler."""
    folder = tmp_path_factory.mktemp("runs") / ("<u>run & co" + "o" * 70)
    train(CONFIG, folder, data=data)
    return folder


@pytest.fixture(scope="session")
def supervised(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run without one."""
    folder = tmp_path_factory.mktemp("runs") / "supervised"
    train(replace(CONFIG, method="supervised", options={}, seed=1), folder, data=data)
    return folder


@pytest.fixture
def unfinished(run: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "unfinished"
    shutil.copytree(run, folder)
    for name in ("metrics.json", "model.safetensors"):
        (folder / name).unlink()
    rows = (folder / "log.jsonl").read_text().splitlines(keepends=True)
    (folder / "log.jsonl").write_text("".join(rows[:-1]) + rows[-1][:20])  # torn in the last row
    return folder
