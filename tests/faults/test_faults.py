"""A run that is killed, starved or damaged goes on and ends equal, or stops with one sentence and loses nothing.

`pytest` kills one run three times. `pytest -m faults` tries more than two hundred faults of several methods and
commands, and writes results/faults.json. Points and moments are drawn from a seed, so that a failure comes again.
"""

import json
import random
import time
from pathlib import Path

import pytest
import torch
from cases import (
    HOW,
    Fault,
    Kill,
    Tally,
    cut_cache,
    cut_cache_in_use,
    damage,
    disturb,
    diverges,
    draw_kill,
    full_disk,
    group_of,
    kill,
    not_finite,
    prepare,
    remove_image,
    small_disk,
)
from lab import PERCENTMATCH, SMALL, Lab, draw_images, grid, own_files, sharding, streamed, training, warm_start

from percentmatch.runs.run_folder import environment

ROOT = Path(__file__).parents[2]
SEED = 2
NAMES = ("config.yaml", "environment.json", "split.json", "last.pt", "model.safetensors", "metrics.json")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_run_that_is_killed_again_and_again(lab: Lab) -> None:
    tally, world = Tally(), lab.begin(training(lab.place, "percentmatch", {**PERCENTMATCH, "total_steps": 7}))
    points = [("SIGKILL", "half a checkpoint", 2), ("SIGTERM", "before scoring", 1), ("SIGKILL", "half a row", 1)]
    kill(lab, world, tally, [Kill(name, group_of(point), point, number) for name, point, number in points])
    assert not tally.wrong, "\n".join(tally.wrong)
    assert sum(row["tried"] for row in tally.kinds.values()) == 3


@pytest.mark.faults
def test_every_fault(lab: Lab) -> None:
    started, tally, rng = time.monotonic(), Tally(), random.Random(SEED)
    images = draw_images(lab.place)
    shards = lab.place / "shards"
    assert lab.run([*sharding(images).begin, "--out", str(shards)]).code == 0
    plain = training(lab.place, "percentmatch", PERCENTMATCH)
    rounds = training(
        lab.place, "curriculum_labeling", {**SMALL, "method": "curriculum_labeling", "options": {"share_step": 0.5}}
    )
    passes = training(lab.place, "cap", {**SMALL, "method": "cap", "options": {"warmup_steps": 2, "refresh_steps": 3}})
    files, stream, warm = own_files(lab.place, images), streamed(lab.place, images, shards), warm_start(lab.place)
    runs = [(plain, 16), (rounds, 9), (passes, 9), (files, 4), (stream, 4), (warm, 6)]
    runs += [(grid(lab.place), 6), (sharding(images), 4)]
    for world, number in runs:
        lab.begin(world)
        for _ in range(number):
            kill(lab, world, tally, [draw_kill(world, rng, turn) for turn in range(1, 5)])

    start, first, warmed = prepare(lab, plain), prepare(lab, plain, 1), prepare(lab, warm)
    for how in HOW:
        for _ in range(3):
            damage(lab, plain, tally, rng, start, ["last.pt"], how)
        damage(lab, warm, tally, rng, warmed, ["last.pt"], how)
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
    full_disk(lab, warm, tally, "last.pt", 2)
    full_disk(lab, warm, tally, "backbone.safetensors")
    small_disk(lab, plain, tally)

    not_finite(lab, plain, tally)
    not_finite(lab, warm, tally)
    far_too_large = {"backbone": "test_vit", "lr": 1000.0, "save_every": 1}
    diverges(lab, training(lab.place, "diverging", {**PERCENTMATCH, **far_too_large}), tally)

    started_files = prepare(lab, files)
    for how in ("cut short", "empty", "zeros", "removed"):
        cut_cache(lab, files, tally, rng, started_files, how)
    cut_cache_in_use(lab, files, tally)
    remove_image(lab, files, tally, started_files, images / "030.png")

    kills = sum(row["tried"] for kind, row in tally.kinds.items() if kind.startswith("SIG"))
    about = environment(torch.device("cpu"))
    results = {
        "seed": SEED,
        "kills": kills,
        "faults": sum(row["tried"] for row in tally.kinds.values()),
        "commands": [world.name for world, _ in runs],
        "minutes": round((time.monotonic() - started) / 60, 1),
        **{name: about[name] for name in ("commit", "device", "platform", "python", "torch")},
        "kinds": {kind: dict(row) for kind, row in sorted(tally.kinds.items())},
    }
    (ROOT / "results" / "faults.json").write_text(json.dumps(results, indent=1) + "\n")
    assert not tally.wrong, "\n".join(tally.wrong)
    assert kills >= 100
