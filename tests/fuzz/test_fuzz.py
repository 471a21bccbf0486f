"""Thousands of damaged and hostile files: each is read, or refused in one sentence, in seconds, and that is all.

`pytest` reads a few of each kind. `pytest -m fuzz` reads 100,000 and writes results/fuzz.json; with FILES=10000 in the
environment about so many, and writes nothing. An input that fails is made again by `make_input(reader, seed, number)`.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from worlds import Count, Guard, Reader, feed, make_input, make_world, memory

from percentmatch.runs.run_folder import environment

ROOT = Path(__file__).parents[2]
SEED, LONG_SEEDS = 1, (2, 3)
FEW, MANY = 14, 1450  # inputs of a reader and seed whose share is 1
ALL = 100_000
FILES = int(os.environ.get("FILES", ALL))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def world(base: Path) -> tuple[list[Reader], Guard]:
    """Everything that is imported late is imported by the valid files, before anybody watches."""
    readers = make_world(base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERCENTMATCH_CACHE", str(base / "cache"))
        for reader in readers:
            for seed in reversed(reader.seeds):
                reader.file.write_bytes(seed)
                reader.read(reader.file)
    return readers, Guard(base)


def fuzz(readers: Sequence[Reader], guard: Guard, seeds: Sequence[int], number: int) -> dict[str, Count]:
    counts = {reader.name: Count() for reader in readers}
    failures = []
    for reader in readers:
        for seed in seeds:
            for n in range(max(round(number * reader.share), len(reader.seeds) + 2)):
                data = make_input(reader, seed, n)
                try:
                    feed(reader, data, guard, counts[reader.name])
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    failures.append(
                        f"{reader.name}, seed {seed}, input {n}: {type(error).__name__}: {error!s:.300}\n{data[:300]!r}"
                    )
        reader.file.write_bytes(reader.seeds[0])
    assert not failures, f"{len(failures)} inputs failed\n" + "\n".join(failures[:20])
    return counts


@pytest.fixture
def _quiet(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(base / "cache"))
    monkeypatch.chdir(base)


@pytest.mark.usefixtures("_quiet")
def test_damaged_files_are_read_or_refused_in_one_sentence(world: tuple[list[Reader], Guard], base: Path) -> None:
    counts = fuzz(*world, (SEED,), FEW)
    assert all(count.accepted for count in counts.values())
    assert sum(count.refused for count in counts.values()) > 200
    assert not list(base.rglob("hacked"))


@pytest.mark.fuzz
@pytest.mark.usefixtures("_quiet")
def test_a_hundred_thousand_damaged_files(world: tuple[list[Reader], Guard], base: Path) -> None:
    start = time.monotonic()
    counts = fuzz(*world, LONG_SEEDS, MANY * FILES // ALL)
    assert sum(count.inputs for count in counts.values()) >= FILES
    assert not list(base.rglob("hacked"))
    about = environment(torch.device("cpu"))
    results = {
        "seeds": LONG_SEEDS,
        "inputs": sum(count.inputs for count in counts.values()),
        "minutes": round((time.monotonic() - start) / 60, 1),
        "most_memory_mib": round(memory()),
        **{name: about[name] for name in ("commit", "device", "platform", "python", "torch")},
        "readers": {name: asdict(count) for name, count in counts.items()},
    }
    print(results)
    if FILES == ALL:
        (ROOT / "results" / "fuzz.json").write_text(json.dumps(results, indent=1) + "\n")
