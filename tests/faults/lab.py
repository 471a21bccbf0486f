"""The side that disturbs: worlds (a command and what it leaves when nothing happens), attempts, and their judgement."""

import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import yaml
from farm import Fault, Machine, attempt

from forked import CONTEXT
from percentmatch.data.scenes import draw_scenes
from percentmatch.runs.lock import NAME as LOCK
from percentmatch.settings.config import Config, PretrainSettings

PATIENCE = 120  # seconds that an attempt may take
NOT_COMPARED = {"minutes", "pretraining_minutes", "environment", "seconds"}
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
    printed: str
    said: str
    seconds: float
    disturbed: bool  # whether the fault or the signal came before its end

    @property
    def is_sentence(self) -> bool:
        """Exit code 2, one sentence at the end and no traceback."""
        last = self.said.strip().rpartition("\n")[2]
        return self.code == 2 and last.startswith("percentmatch: ") and "Traceback" not in self.said


@dataclass(frozen=True)
class Started:
    process: BaseProcess
    place: Path
    since: float


@dataclass
class World:
    """A command, how it goes on, and what an undisturbed one leaves, point by point. {} stands for its folder."""

    name: str
    begin: list[str]  # of the command line
    resume: list[str]  # the same to go on
    begun: str = ""  # the file by which one knows that there is something to go on with; "": it is the same command
    start: Path | None = None  # what is in the folder before; decoded images are then kept there, too
    done: str = ""  # what it says when it finds its work done
    partly: str = ""  # what it says when it left out what it could not read
    prints: bool = False  # whether what it prints is what it is for
    expected: dict[str, str] = field(default_factory=dict)
    points: list[str] = field(default_factory=list)
    seconds: float = 0.0
    size: int = 0  # of what it leaves, in pages of 4 KiB

    def tokens(self, folder: Path) -> list[str]:
        going_on = not self.begun or (folder / self.begun).exists()
        return [token.replace("{}", str(folder)) for token in (self.resume if going_on else self.begin)]

    def has_ended(self, tried: Attempt) -> bool:
        return tried.code == 0 or bool(self.done and tried.is_sentence and self.done in tried.said)

    def has_left_out(self, tried: Attempt) -> bool:
        """Whether it went on without what it could not read, and said so."""
        return bool(self.partly) and self.partly in tried.said and tried.code in (0, 1)


class Lab:
    """Runs attempts in copies of a process that has imported everything."""

    def __init__(self, place: Path) -> None:
        self.place, self.number, self.differs = place, 0, ""
        self.cache = place / "cache"
        self.environment = {"OMP_NUM_THREADS": "1", "PERCENTMATCH_COMMIT": "none"}  # git takes its time
        self.context = CONTEXT
        if torch.cuda.is_available():  # a copy of this process could not use it
            self.context = multiprocessing.get_context("forkserver")
            self.context.set_forkserver_preload(["farm"])
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("OMP_NUM_THREADS", "1")
                patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where the farm is
                forkserver.ensure_running()

    def folder(self, world: World | None = None) -> Path:
        """A new one, with what the command finds there."""
        self.number += 1
        path = self.place / f"run{self.number}"
        if world and world.start:
            shutil.copytree(world.start, path)
        return path

    def cache_of(self, world: World, folder: Path) -> Path:
        return folder / "cache" if world.start else self.cache

    def start(
        self, world: World, folder: Path, fault: Fault | None, machine: Machine | None, *, points: bool = False
    ) -> Started:
        self.number += 1
        place = self.place / f"attempt{self.number}"
        place.mkdir()
        environment = {**self.environment, "PERCENTMATCH_CACHE": str(self.cache_of(world, folder))}
        values = world.tokens(folder), str(place), environment, fault, machine
        process = self.context.Process(target=attempt, args=values, kwargs={"points": points})
        process.start()
        return Started(process, place, time.monotonic())

    def end(self, started: Started) -> Attempt:
        process, place = started.process, started.place
        process.join(PATIENCE)
        said, printed = ((place / name) for name in ("said", "printed"))
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"no end within {PATIENCE} seconds: {said.read_text()}")
        seconds = time.monotonic() - started.since
        texts = [file.read_text(errors="replace") if file.exists() else "" for file in (printed, said)]
        result = Attempt(process.exitcode, *texts, seconds, (place / "reached").exists())
        shutil.rmtree(place)
        return result

    def run(
        self,
        world: World,
        folder: Path,
        fault: Fault | None = None,
        *,
        kill: tuple[int, float] | None = None,
        machine: Machine | None = None,
    ) -> Attempt:
        """One attempt, with a fault or with a signal after so many seconds."""
        started = self.start(world, folder, fault, machine)
        if kill:
            started.process.join(kill[1])
            if started.process.exitcode is None:
                (started.place / "reached").touch()
                os.kill(started.process.pid, kill[0])
        return self.end(started)

    def begin(self, world: World) -> World:
        """Run it undisturbed, to know what it leaves."""
        folder = self.folder(world)
        started = self.start(world, folder, None, None, points=True)
        started.process.join(PATIENCE)
        points = started.place / "points"
        world.points = points.read_text().splitlines() if points.exists() else []
        first = self.end(started)
        assert first.code == 0, first.said
        world.expected, world.seconds = self.snapshot(world, folder, first), first.seconds
        world.size = pages_of(folder)
        shutil.rmtree(folder)
        return world

    def snapshot(self, world: World, folder: Path, last: Attempt) -> dict[str, str]:
        return snapshot(folder) | ({"printed": last.printed.replace(str(folder), ".")} if world.prints else {})

    def judge(self, world: World, folder: Path, last: Attempt) -> str:
        """What became of it after an attempt that nobody disturbed; "stopped" says nothing of what is left."""
        ended = world.has_ended(last)
        if ended:
            found, wanted = self.snapshot(world, folder, last).items(), world.expected.items()
            self.differs = ", ".join(sorted({name for name, _ in found ^ wanted}))
            if not self.differs:
                return "equal"
        if "Traceback" in last.said or (ended and not world.has_left_out(last)):
            return "different" if ended else "lost"
        return "stopped" if last.is_sentence or world.has_left_out(last) else "lost"


def pages_of(folder: Path) -> int:
    return sum(-(-file.stat().st_size // 4096) for file in folder.rglob("*") if file.is_file())


def snapshot(folder: Path, made_as: Path | None = None) -> dict[str, str]:
    """Every file with a hash of what it holds, apart from clocks, machines and its folder; and every folder."""
    here = os.fsencode(made_as or folder)
    return {str(path.relative_to(folder)): _hash(path, here) if path.is_file() else "" for path in _all_in(folder)}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in _all_in(folder) if file.is_file()}


def _all_in(folder: Path) -> list[Path]:
    """But for the lock of a killed process, which stays in a finished folder and keeps nobody out."""
    return [path for path in sorted(folder.rglob("*")) if path.name != LOCK]


def _hash(file: Path, folder: bytes) -> str:
    digest = hashlib.sha256()
    try:
        if file.suffix == ".pt":
            _add(digest, torch.load(file, weights_only=True), folder)
        elif file.suffix == ".json":
            _add(digest, json.loads(file.read_bytes()), folder)
        else:
            digest.update(file.read_bytes().replace(folder, b"."))
    except (ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        return f"damaged: {error!r:.80}"
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
    resume = ["train", "--resume", "--out", "{}"]
    return World(name, ["train", "--config", str(file), "--out", "{}"], resume, "config.yaml")


def pretraining(place: Path) -> World:
    names = ("data", "scenes_pool", "scenes_test", "validation", "labeled", "image_size", "backbone", "lr")
    names += ("log_every", "save_every")
    settings = {**{name: SMALL[name] for name in names}, "total_steps": 8, "batch": 8}
    file = place / "pretrained.yaml"
    file.write_text(yaml.safe_dump(PretrainSettings.from_dict(settings, source="pretrained").to_dict()))
    begin = ["pretrain", "--config", str(file), "--out", "{}"]
    return World("pretrain", begin, ["pretrain", "--resume", "--out", "{}"], "pretrain.yaml")


def grid(place: Path) -> World:
    """Two runs, one from a pretraining."""
    settings = {**SMALL, "total_steps": 4, "save_every": 2}
    pretrained = {"image_size": 32, "total_steps": 3, "batch": 8, "log_every": 1, "save_every": 2}
    runs = {"supervised": {"method": "supervised", "weights": "none"}, "pseudo": {"method": "pseudo_label"}}
    file = place / "grid.yaml"
    file.write_text(yaml.safe_dump({"settings": settings, "pretraining": pretrained, "runs": runs, "seeds": [0]}))
    return repeated("benchmark", "benchmark", str(file), "--out", "{}")


def repeated(name: str, *command: str, **more: Any) -> World:
    """A command that goes on when it is given again."""
    return World(name, [*command], [*command], **more)


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


def own_files(place: Path, images: Path, more: Mapping[str, Any] = MappingProxyType({})) -> World:
    own = {"data": "files", "labels": str(images / "labels.csv")}
    return training(place, "own files", {**PERCENTMATCH, **own, **more})


def streamed(place: Path, images: Path, shards: Path) -> World:
    """Unlabeled images from tar shards."""
    settings = {**PERCENTMATCH, "data": "files", "labels": str(images / "labels.csv"), "unlabeled": str(shards)}
    return training(place, "shards", settings)


def sharding(images: Path) -> World:
    return repeated("data shard", *("data", "shard"), *labels_of(images), *("--images-per-shard", "7", "--out", "{}"))


def labels_of(images: Path) -> tuple[str, str]:
    return "--labels", str(images / "labels.csv")


def finished(lab: Lab, files: World) -> Path:
    """A folder with a finished run, for the commands that read one."""
    start = lab.place / "finished"
    ended = lab.run(files, start / "run")
    assert ended.code == 0, ended.said
    return start


def after_training(start: Path, images: Path) -> list[World]:
    """The commands for a finished run, and those that look at data."""
    run, own = "{}/run", labels_of(images)
    again = "is there already"
    small = ("--labeled", "16")

    def world(name: str, *command: str, **more: Any) -> World:
        return repeated(name, *command, start=start, **more)

    return [
        world("predict", "predict", run, str(images), "--out", "{}/p.csv", partly="skipped "),
        world("predict to jsonl", "predict", run, str(images), "--out", "{}/p.jsonl", partly="skipped "),
        world("export", "export", run, "--out", "{}/exported", done=again),
        world("calibrate", "calibrate", run),
        world("evaluate", "evaluate", run, prints=True),
        world("evaluate --labels", "evaluate", run, *own, prints=True),
        world("report", "report", run, "--out", "{}/page.html", partly="without intervals and images"),
        world("compare", "compare", run, "--out", "{}/base", "--json", "{}/gains.json", prints=True),
        world("suggest", "suggest", run, "--out", "{}/next.csv", "--number", "5", done=again),
        world("data check", "data", "check", *own, "--out", "{}/found.json"),
        world("data split", "data", "split", *own, *small, "--out", "{}/split.json", done="is already there"),
    ]


def onnx(start: Path) -> World:
    """Apart, as it takes seconds."""
    return repeated("export to ONNX", "export", "{}/run", "--out", "{}/model.onnx", start=start)
