"""A run that is killed, starved or damaged goes on and ends equal, or stops with one sentence and loses nothing.

`pytest` tries a few kills and faults. `pytest -n0 -m faults` tries 1,000 kills of all commands and three hundred other
faults and writes results/faults.json; with KILLS=100 in the environment so many, and writes nothing. Points and
moments are drawn from a seed, so that a failure comes again.
"""

import json
import math
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from cases import (
    HOW,
    Fault,
    Kill,
    Tally,
    clock_jumps,
    cut_cache,
    cut_cache_in_use,
    damage,
    data_vanish,
    disturb,
    diverges,
    full_disk,
    group_of,
    kill,
    kill_often,
    not_finite,
    prepare,
    remove_image,
    small_disk,
    two_machines,
)
from lab import (
    PERCENTMATCH,
    SMALL,
    Lab,
    World,
    after_training,
    draw_images,
    finished,
    grid,
    onnx,
    own_files,
    pretraining,
    sharding,
    streamed,
    training,
)

from percentmatch.runs.run_folder import environment

ROOT = Path(__file__).parents[2]
SEED, MANY = 2, 1000
KILLS = int(os.environ.get("KILLS", MANY))
NAMES = ("config.yaml", "environment.json", "split.json", "last.pt", "model.safetensors", "metrics.json")
FEW = {
    "predict": ["reading an image", "creating p.csv", "before fsync of p.csv"],
    "export": ["creating model.safetensors", "before the move to exported", "after the move to exported"],
    "calibrate": [
        "before the move to model.safetensors",
        "after the move to model.safetensors",
        "creating metrics.json",
    ],
    "suggest": ["before the move to the cache", "creating next.csv", "after the move to next.csv"],
    "report": ["before fsync of the cache", "before the move to page.html", "after the move to page.html"],
    "data split": ["before the move to split.json"],
}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_run_that_is_killed_again_and_again(lab: Lab) -> None:
    tally, world = Tally(), lab.begin(training(lab.place, "percentmatch", {**PERCENTMATCH, "total_steps": 7}))
    points = [("SIGKILL", "half a checkpoint", 2), ("SIGTERM", "before scoring", 1), ("SIGKILL", "half a row", 1)]
    kill(lab, world, tally, [Kill(name, group_of(point), point, number) for name, point, number in points])
    assert not tally.wrong, "\n".join(tally.wrong)
    assert sum(row["tried"] for row in tally.kinds.values()) == 3


def test_a_second_signal_ends_it_at_once(lab: Lab) -> None:
    world = lab.begin(training(lab.place, "percentmatch", {**PERCENTMATCH, "total_steps": 7}))
    folder = lab.folder()
    tried = lab.run(world, folder, Fault("SIGTERM twice", "before a step", 5))
    assert tried.code == -signal.SIGTERM
    assert lab.judge(world, folder, lab.run(world, folder)) == "equal"


def test_what_is_moved_into_place_is_on_the_disk_first_and_its_move_afterwards(lab: Lab) -> None:
    """So a power cut finds the old file or the new one. Checkpoints are written while the log is."""
    for world in (training(lab.place, "percentmatch", {**SMALL, "total_steps": 4}), pretraining(lab.place)):
        points = lab.begin(world).points
        moves = [(at, point.split()[-1]) for at, point in enumerate(points) if point.startswith("before the move to")]
        assert len(moves) > 5
        for at, name in (move for move in moves if move[1] != "previous.pt"):
            written = max(n for n in range(at) if points[n] == f"creating {name}")
            assert f"after fsync of {name}" in points[written:at]
            assert "after fsync of the folder" in points[at:]
        rows = [at for at, point in enumerate(points) if point == "before a row"]
        assert all("after fsync of log.jsonl" in points[at : points.index("after a row", at)] for at in rows)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, dict[str, World]]:
    """A training on own files, the commands for a finished run, and those that look at data."""
    lab = Lab(tmp_path_factory.mktemp("commands"))
    images = draw_images(lab.place)
    small = {"total_steps": 2, "save_every": 2, "eval_every": 0, "log_every": 1}
    files = own_files(lab.place, images, small)
    return lab, {world.name: world for world in [files, *after_training(finished(lab, files), images)]}


@pytest.mark.parametrize(("name", "points"), FEW.items(), ids=FEW)
def test_a_command_that_is_killed_again_and_again(commands: tuple[Lab, dict], name: str, points: list[str]) -> None:
    """While it decodes, while it writes, and before and after its work is moved into place."""
    lab, worlds = commands
    tally, world = Tally(), lab.begin(worlds[name])
    kill(lab, world, tally, [Kill("SIGKILL", group_of(point), point) for point in points])
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.kills[name] == len(points)


@pytest.mark.parametrize(
    ("name", "point", "outcome"),
    [
        ("own files", "before a step", "equal"),
        ("evaluate", "reading an image", "stopped"),
        ("predict", "reading an image", "stopped"),
        ("report", "reading an image", "stopped"),
    ],
)
def test_a_folder_of_images_that_vanishes(commands: tuple[Lab, dict], name: str, point: str, outcome: str) -> None:
    """Training has the images decoded; the others say so in one sentence, and do their work once it is back."""
    lab, worlds = commands
    tally = Tally()
    data_vanish(lab, lab.begin(worlds[name]), tally, lab.place / "mine", point, 2)
    assert not tally.wrong, tally.wrong
    assert [row[outcome] for row in tally.kinds.values()] == [1]


def test_a_clock_that_is_set_back(lab: Lab) -> None:
    tally, world = Tally(), lab.begin(training(lab.place, "percentmatch", {**PERCENTMATCH, "total_steps": 7}))
    clock_jumps(lab, world, tally, "half a checkpoint", 2)
    assert not tally.wrong, "\n".join(tally.wrong)


def test_two_hosts_with_one_folder(lab: Lab) -> None:
    tally, world = Tally(), lab.begin(training(lab.place, "percentmatch", {**PERCENTMATCH, "total_steps": 7}))
    two_machines(lab, world, tally, "half a checkpoint")
    assert not tally.wrong, "\n".join(tally.wrong)


@pytest.mark.faults
def test_every_fault(lab: Lab) -> None:
    started, tally, rng = time.monotonic(), Tally(), random.Random(SEED)
    images = draw_images(lab.place)
    shards = lab.place / "shards"
    assert lab.run(sharding(images), shards).code == 0
    plain = training(lab.place, "percentmatch", PERCENTMATCH)
    methods = {
        "supervised": {},
        "mixmatch": {},
        "curriculum_labeling": {"options": {"share_step": 0.5}},
        "cap": {"options": {"warmup_steps": 2, "refresh_steps": 3}},
    }
    trained = [training(lab.place, name, {**SMALL, "method": name, **more}) for name, more in methods.items()]
    files, stream, pretrained = (
        own_files(lab.place, images),
        streamed(lab.place, images, shards),
        pretraining(lab.place),
    )
    start = finished(lab, files)
    runs = [(plain, 150), *((world, 60) for world in trained), (files, 70), (stream, 50), (pretrained, 70)]
    gridded, sharding_ = grid(lab.place), sharding(images)
    runs += [(gridded, 70), (sharding_, 50), (onnx(start), 8)]
    once = after_training(start, images)
    runs += [(world, 40 if world.name == "compare" else 26) for world in once]
    for world, number in runs:
        kill_often(lab, lab.begin(world), tally, rng, math.ceil(number * KILLS / MANY))

    start, first, warmed = prepare(lab, plain), prepare(lab, plain, 1), prepare(lab, pretrained)
    for how in HOW:
        for _ in range(3):
            damage(lab, plain, tally, rng, start, ["last.pt"], how)
        damage(lab, pretrained, tally, rng, warmed, ["last.pt"], how)
        damage(lab, plain, tally, rng, start, ["last.pt", "previous.pt"], how)
        damage(lab, plain, tally, rng, start, ["log.jsonl"], how)
        damage(lab, plain, tally, rng, start, ["config.yaml"], how)
        damage(lab, plain, tally, rng, start, ["split.json"], how)
    damage(lab, plain, tally, rng, first, ["last.pt"], "cut short")
    for _ in range(4):
        damage(lab, plain, tally, rng, start, ["log.jsonl"], "cut short")

    for name in NAMES:
        full_disk(lab, plain, tally, name)
    for number in (2, 3, 4):
        full_disk(lab, plain, tally, "last.pt", number)
    for number in (1, 4):
        disturb(lab, plain, tally, "full disk: log.jsonl", Fault("full", "before a row", number), stops=True)
    disturb(lab, plain, tally, "full disk: limit of file sizes", Fault("limit", "before a step", 4), stops=True)
    full_disk(lab, pretrained, tally, "last.pt", 2)
    full_disk(lab, pretrained, tally, "backbone.safetensors")
    has_small = [small_disk(lab, world, tally) for world in (plain, pretrained, sharding_, gridded, *once)]

    not_finite(lab, plain, tally)
    not_finite(lab, pretrained, tally)
    far_too_large = {"backbone": "test_vit", "lr": 1000.0, "save_every": 1}
    diverges(lab, training(lab.place, "diverging", {**PERCENTMATCH, **far_too_large}), tally)

    started_files = prepare(lab, files)
    for how in ("cut short", "empty", "zeros", "removed"):
        cut_cache(lab, files, tally, rng, started_files, how)
    cut_cache_in_use(lab, files, tally)
    remove_image(lab, files, tally, started_files, images / "030.png")

    for world in (plain, pretrained):
        clock_jumps(lab, world, tally, "half a checkpoint", 2)
        two_machines(lab, world, tally, "half a checkpoint")
    for world in (files, *once):
        for number in (1, 30) if "reading an image" in world.points else ():
            data_vanish(lab, world, tally, images, "reading an image", number)
    for world, folder in ((files, images), (stream, shards)):
        data_vanish(lab, world, tally, folder, "before a step", 4)

    kills = sum(row["tried"] for kind, row in tally.kinds.items() if kind.startswith("SIG"))
    about = environment(torch.device("cpu"))
    results = {
        "seed": SEED,
        "kills": kills,
        "faults": sum(row["tried"] for row in tally.kinds.values()),
        "commands": dict(tally.kills),
        "small_disks": sum(has_small),
        "minutes": round((time.monotonic() - started) / 60, 1),
        **{name: about[name] for name in ("commit", "device", "platform", "python", "torch")},
        "kinds": {kind: dict(row) for kind, row in sorted(tally.kinds.items())},
    }
    if KILLS == MANY:
        (ROOT / "results" / "faults.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"{results['faults']} faults, {kills} kills, {results['minutes']} minutes: {results['commands']}")
    assert not tally.wrong, "\n".join(tally.wrong)
    assert kills >= KILLS
