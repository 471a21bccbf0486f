"""The side that disturbs: worlds (a command and what it leaves when nothing happens), attempts, and their judgement."""

import hashlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from farm import Fault, attempt

from percentmatch.data.scenes import draw_scenes
from percentmatch.settings.config import Config, PretrainSettings

PATIENCE = 120  # seconds that an attempt may take
NOT_COMPARED = {"minutes", "warm_start_minutes", "environment", "seconds"}
OUTCOMES = ("equal", "stopped", "lost", "different")

SMALL: dict[str, Any] = {
    "data": "scenes",
    "scenes_pool": 48,
    "scenes_test": 16,
    "validation": 12,
    "labeled": 16,
    "image_size": 32,
    "backbone": "test_resnet",
    "head": "linear",
    "labeled_batch": 4,
    "total_steps": 10,
    "lr": 1e-3,
    "log_every": 2,
    "eval_every": 4,
    "save_every": 3,
}
PERCENTMATCH = {**SMALL, "dropout": 0.2, "options": {"warmup_steps": 2, "gap_start": 0.0, "gap_full": 0.1}}


@dataclass(frozen=True)
class Attempt:
    code: int
    said: str
    seconds: float
    disturbed: bool  # whether the fault or the signal came before its end

    @property
    def is_sentence(self) -> bool:
        """Exit code 2, one sentence at the end and no traceback."""
        last = self.said.strip().rpartition("\n")[2]
        return self.code == 2 and last.startswith("percentmatch: ") and "Traceback" not in self.said


@dataclass
class World:
    """A command, how it goes on, and what an undisturbed one leaves, point by point."""

    name: str
    begin: list[str]  # of the command line, without --out
    resume: list[str]  # the same to go on
    begun: str  # the file by which one knows that there is something to go on with; "": it is the same command
    expected: dict[str, str] = field(default_factory=dict)
    points: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def tokens(self, folder: Path) -> list[str]:
        going_on = not self.begun or (folder / self.begun).exists()
        return [*(self.resume if going_on else self.begin), "--out", str(folder)]


class Lab:
    """Runs attempts in children of a server that has imported everything."""

    def __init__(self, place: Path) -> None:
        self.place, self.number = place, 0
        self.cache = place / "cache"
        self.environment = {"PERCENTMATCH_CACHE": str(self.cache), "OMP_NUM_THREADS": "1"}
        self.environment["PERCENTMATCH_COMMIT"] = "none"  # git takes its time
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["farm"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # where the farm is
            forkserver.ensure_running()

    def folder(self) -> Path:
        self.number += 1
        return self.place / f"run{self.number}"

    def run(
        self,
        tokens: Sequence[str],
        fault: Fault | None = None,
        *,
        kill: tuple[int, float] | None = None,
        points: str = "",
    ) -> Attempt:
        """One attempt, with a fault or with a signal after so many seconds."""
        said, reached = self.place / "said", self.place / "reached"
        reached.unlink(missing_ok=True)
        values = list(tokens), str(said), self.environment, fault, str(reached), points or None
        process = self.context.Process(target=attempt, args=values)
        started = time.monotonic()
        process.start()
        if kill:
            process.join(kill[1])
            if process.exitcode is None:
                reached.touch()
                os.kill(process.pid, kill[0])
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{tokens} did not end within {PATIENCE} seconds: {said.read_text()}")
        seconds = time.monotonic() - started
        text = said.read_text(errors="replace") if said.exists() else ""
        return Attempt(process.exitcode, text, seconds, reached.exists())

    def begin(self, world: World) -> World:
        """Run it undisturbed, to know what it leaves."""
        folder, points = self.folder(), self.place / "points"
        first = self.run(world.tokens(folder), points=str(points))
        assert first.code == 0, first.said
        world.expected, world.seconds, world.points = snapshot(folder), first.seconds, points.read_text().splitlines()
        shutil.rmtree(folder)
        return world

    def judge(self, world: World, folder: Path, last: Attempt) -> str:
        """What became of it after an attempt that nobody disturbed; "stopped" says nothing of what is left."""
        if last.code == 0:
            return "equal" if snapshot(folder) == world.expected else "different"
        return "stopped" if last.is_sentence else "lost"


def snapshot(folder: Path) -> dict[str, str]:
    """Every file with a hash of what it holds, apart from clocks and machines."""
    here = os.fsencode(folder)
    return {str(file.relative_to(folder)): _hash(file, here) for file in sorted(folder.rglob("*")) if file.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def _hash(file: Path, folder: bytes) -> str:
    digest = hashlib.sha256()
    if file.suffix == ".pt":
        _add(digest, torch.load(file, weights_only=True), folder)
    elif file.suffix == ".json":
        _add(digest, json.loads(file.read_bytes()), folder)
    else:
        digest.update(file.read_bytes().replace(folder, b"."))
    return digest.hexdigest()[:16]


def _add(digest: Any, value: Any, folder: bytes) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode() + value.contiguous().view(-1).numpy().tobytes())
    elif isinstance(value, dict):
        for key, each in value.items():
            if key not in NOT_COMPARED:
                digest.update(repr(key).encode())
                _add(digest, each, folder)
    elif isinstance(value, list):
        digest.update(f"[{len(value)}".encode())
        for each in value:
            _add(digest, each, folder)
    else:
        digest.update(repr(value).encode().replace(folder, b"."))


def training(place: Path, name: str, settings: dict[str, Any]) -> World:
    file = place / f"{name}.yaml"
    file.write_text(yaml.safe_dump(Config.from_dict(settings, source=name).to_dict()))
    return World(name, ["train", "--config", str(file)], ["train", "--resume"], "config.yaml")


def warm_start(place: Path) -> World:
    names = ("data", "scenes_pool", "scenes_test", "validation", "labeled", "image_size", "backbone", "lr")
    names += ("log_every", "save_every")
    settings = {**{name: SMALL[name] for name in names}, "total_steps": 8, "batch": 8}
    file = place / "warm.yaml"
    file.write_text(yaml.safe_dump(PretrainSettings.from_dict(settings, source="warm").to_dict()))
    return World("pretrain", ["pretrain", "--config", str(file)], ["pretrain", "--resume"], "pretrain.yaml")


def grid(place: Path) -> World:
    """Two runs, one from a warm start."""
    settings = {**SMALL, "total_steps": 4, "save_every": 2}
    warm = {"image_size": 32, "total_steps": 3, "batch": 8, "log_every": 1, "save_every": 2}
    runs = {"supervised": {"method": "supervised", "weights": "none"}, "pseudo": {"method": "pseudo_label"}}
    file = place / "grid.yaml"
    file.write_text(yaml.safe_dump({"settings": settings, "warm_start": warm, "runs": runs, "seeds": [0]}))
    command = ["benchmark", str(file)]
    return World("benchmark", command, command, "")


def draw_images(place: Path) -> Path:
    """A few image files with labels, as a user has them."""
    from PIL import Image

    folder = place / "mine"
    folder.mkdir()
    scenes = draw_scenes(60, seed=3, size=32)
    rows = ["image,labels,split"]
    for number, pixels in enumerate(scenes.pixels):
        name = f"{number:03d}.png"
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / name)
        shown = [scenes.class_names[c] for c in scenes.labels.targets.dense()[number].nonzero().flatten().tolist()]
        rows.append(f"{name},{';'.join(shown)},{'test' if number < 12 else ''}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def own_files(place: Path, images: Path) -> World:
    return training(place, "own files", {**PERCENTMATCH, "data": "files", "labels": str(images / "labels.csv")})


def streamed(place: Path, images: Path, shards: Path) -> World:
    """Unlabeled images from tar shards."""
    settings = {**PERCENTMATCH, "data": "files", "labels": str(images / "labels.csv"), "unlabeled": str(shards)}
    return training(place, "shards", settings)


def sharding(images: Path) -> World:
    command = ["data", "shard", "--labels", str(images / "labels.csv"), "--images-per-shard", "7"]
    return World("data shard", command, command, "")
