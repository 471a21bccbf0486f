"""Every fault: how it is made, and what became of the run."""

import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from farm import KILLS, Fault
from lab import OUTCOMES, Lab, World, contents, snapshot

MOMENTS = 0.25  # of the kills come at any moment, the others at a point
Damage = Callable[[random.Random, bytes], bytes | None]
GROUPS = {
    "a round": ("the pool",),
    "scoring": ("scoring",),
    "a step": ("a step", "norm"),
    "a log row": (" row", "log.jsonl"),
    "a checkpoint's writing": ("last.pt", "previous.pt", "checkpoint"),
    "decoding": ("the cache",),
    "a shard's writing": ("shard.tar",),
}


class Tally:
    """What became of each kind of fault, and a description of each that went wrong."""

    def __init__(self) -> None:
        self.kinds: dict[str, Counter[str]] = {}
        self.wrong: list[str] = []

    def add(self, kind: str, outcome: str, about: str) -> None:
        row = self.kinds.setdefault(kind, Counter({name: 0 for name in ("tried", *OUTCOMES)}))
        row.update(("tried", outcome))
        if outcome in ("lost", "different"):
            self.wrong.append(f"{outcome} after {kind}: {about}")


def group_of(point: str) -> str:
    return next((name for name, parts in GROUPS.items() if any(part in point for part in parts)), "the start or end")


@dataclass(frozen=True)
class Kill:
    """A signal, at a point of `group` or, if none is named, at a moment in seconds."""

    signal: str
    group: str
    point: str = ""
    number: int = 1
    moment: float = 0.0


def draw_kill(world: World, rng: random.Random, turn: int) -> Kill:
    """The later the turn, the less is left of the run."""
    name = rng.choice(["SIGKILL", "SIGKILL", "SIGTERM"])
    if rng.random() < MOMENTS:
        return Kill(name, "a random moment", moment=rng.uniform(0.0, world.seconds / turn))
    points = Counter(world.points)
    group = rng.choice(sorted({group_of(point) for point in points}))
    point = rng.choice([point for point in sorted(points) if group_of(point) == group])
    return Kill(name, group, point, rng.randint(1, math.ceil(points[point] / turn)))


def kill(lab: Lab, world: World, tally: Tally, kills: Sequence[Kill]) -> None:
    """Kill one run again and again, and let it end."""
    folder, came, outcome, said = lab.folder(), [], "", ""
    for each in kills:
        number = KILLS[each.signal]
        if each.point:
            tried = lab.run(world.tokens(folder), Fault(each.signal, each.point, each.number))
        else:
            tried = lab.run(world.tokens(folder), kill=(number, each.moment))
        came += [each] if tried.disturbed else []
        if tried.code == 0:  # it ended first
            break
        how = ("continue with --out", "the same command goes on")  # of a grid that was between two runs
        stopped = tried.code == 128 + number and any(words in tried.said for words in how)
        if tried.code != -number and not stopped:
            outcome, said = "lost", tried.said
            break
    if not outcome:
        last = lab.run(world.tokens(folder))
        outcome, said = lab.judge(world, folder, last), last.said
    for each in came:
        outcome = "lost" if outcome == "stopped" else outcome
        tally.add(f"{each.signal}: {each.group}", outcome, f"{world.name}, {came}: {said[-300:]}")
    shutil.rmtree(folder, ignore_errors=True)


def prepare(lab: Lab, world: World, checkpoints: int = 2) -> Path:
    """A run that was killed after so many checkpoints."""
    folder = lab.folder()
    killed = lab.run(world.tokens(folder), Fault("SIGKILL", "after the move to last.pt", checkpoints))
    assert killed.code == -signal.SIGKILL, killed.said
    return folder


def truncated(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(1, len(content))]


def empty(rng: random.Random, content: bytes) -> bytes:
    return b""


def zeros(rng: random.Random, content: bytes) -> bytes:
    return bytes(len(content))


def one_bit(rng: random.Random, content: bytes, number: int = 1) -> bytes:
    flipped = bytearray(content)
    for _ in range(number):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def many_bits(rng: random.Random, content: bytes) -> bytes:
    return one_bit(rng, content, 64)


def a_block(rng: random.Random, content: bytes) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + rng.randbytes(min(4096, len(content) - start)) + content[start + 4096 :]


def removed(rng: random.Random, content: bytes) -> None:
    return None


HOW: dict[str, Damage] = {
    "cut short": truncated,
    "empty": empty,
    "zeros": zeros,
    "one bit flipped": one_bit,
    "64 bits flipped": many_bits,
    "a block overwritten": a_block,
    "removed": removed,
}


def put(file: Path, content: bytes | None) -> None:
    file.unlink(missing_ok=True) if content is None else file.write_bytes(content)


def damage(
    lab: Lab, world: World, tally: Tally, rng: random.Random, start: Path, files: Sequence[str], how: str
) -> None:
    """Damage files of a killed run; it goes on, or refuses and goes on once they are put back."""
    folder = lab.folder()
    shutil.copytree(start, folder)
    whole = {name: (folder / name).read_bytes() for name in files}
    for name, content in whole.items():
        put(folder / name, HOW[how](rng, content))
    before = contents(folder)
    last = lab.run(world.tokens(folder))
    outcome = lab.judge(world, folder, last)
    if outcome == "stopped":
        untouched = contents(folder) == before
        for name, content in whole.items():
            put(folder / name, content)
        again = lab.run(world.tokens(folder))
        outcome = "stopped" if untouched and lab.judge(world, folder, again) == "equal" else "lost"
    tally.add(f"{' and '.join(files)} damaged: {how}", outcome, f"{world.name}: {last.said[-300:]}")
    shutil.rmtree(folder)


def disturb(lab: Lab, world: World, tally: Tally, kind: str, fault: Fault, *, stops: bool) -> None:
    """A fault that goes away by itself: the attempt ends equal, or stops with a sentence and goes on afterwards."""
    folder = lab.folder()
    tried = lab.run(world.tokens(folder), fault)
    outcome = lab.judge(world, folder, tried)
    if outcome == "stopped":
        rest = [str(file) for file in folder.rglob(".*")]
        again = lab.run(world.tokens(folder))
        outcome = "stopped" if not rest and lab.judge(world, folder, again) == "equal" else "lost"
    outcome = "lost" if stops and outcome == "equal" else outcome  # then the fault never came
    tally.add(kind, outcome, f"{world.name}, {fault}: {tried.said[-300:]}")
    with suppress(FileNotFoundError):
        Path(f"{fault.file}.away").rename(fault.file)
    shutil.rmtree(folder)


def full_disk(lab: Lab, world: World, tally: Tally, file: str, number: int = 1) -> None:
    disturb(lab, world, tally, f"full disk: {file}", Fault("full", f"opening {file}", number), stops=True)


def not_finite(lab: Lab, world: World, tally: Tally) -> None:
    """A wrong number in the weights, before a step and between a step and its checkpoint."""
    disturb(lab, world, tally, "not finite: NaN in the weights", Fault("nan", "before a step", 5), stops=True)
    disturb(
        lab,
        world,
        tally,
        "not finite: infinity in the weights to be saved",
        Fault("inf", "after a step", 6),
        stops=True,
    )


def diverges(lab: Lab, world: World, tally: Tally) -> None:
    """A learning rate so large that nothing finite is left; what is saved is finite, and it says so again."""
    folder = lab.folder()
    first, second = lab.run(world.tokens(folder)), lab.run(world.tokens(folder))
    kept = folder / "last.pt"
    finite = not kept.exists() or all(
        tensor.isfinite().all() for tensor in torch.load(kept, weights_only=True)["model"].values()
    )
    outcome = "stopped" if first.is_sentence and second.is_sentence and finite else "lost"
    tally.add("not finite: a learning rate far too large", outcome, first.said[-300:] + second.said[-300:])
    shutil.rmtree(folder)


def cut_cache(lab: Lab, world: World, tally: Tally, rng: random.Random, start: Path, how: str) -> None:
    """Damage the decoded images between two attempts."""
    folder = lab.folder()
    shutil.copytree(start, folder)
    for file in lab.cache.glob("*.npy"):
        put(file, HOW[how](rng, file.read_bytes()))
    last = lab.run(world.tokens(folder))
    tally.add(f"decoded images damaged: {how}", lab.judge(world, folder, last), f"{world.name}: {last.said[-300:]}")
    shutil.rmtree(folder)


def cut_cache_in_use(lab: Lab, world: World, tally: Tally) -> None:
    """The system ends a process that reads what is no longer there; the next attempt decodes anew."""
    folder = lab.folder()
    for file in lab.cache.glob("*.npy"):
        tried = lab.run(world.tokens(folder), Fault("cut", "before a step", 5, str(file)))
        last = lab.run(world.tokens(folder)) if tried.code == -signal.SIGBUS else tried
        tally.add(
            "decoded images damaged: cut short while in use",
            lab.judge(world, folder, last),
            f"{world.name}: {tried.said[-300:]}",
        )
        shutil.rmtree(folder)


def remove_image(lab: Lab, world: World, tally: Tally, start: Path, image: Path) -> None:
    """In the middle of a run, which has it decoded; and between two attempts."""
    disturb(
        lab, world, tally, "image removed: in mid-run", Fault("remove", "before a step", 4, str(image)), stops=False
    )
    folder, away = lab.folder(), image.with_suffix(".away")
    shutil.copytree(start, folder)
    image.rename(away)
    last = lab.run(world.tokens(folder))
    outcome = lab.judge(world, folder, last)
    away.rename(image)
    if outcome == "stopped":
        outcome = "stopped" if lab.judge(world, folder, lab.run(world.tokens(folder))) == "equal" else "lost"
    tally.add("image removed: before a run goes on", outcome, f"{world.name}: {last.said[-300:]}")
    shutil.rmtree(folder)


def small_disk(lab: Lab, world: World, tally: Tally) -> bool:
    """The real command on a disk of 9 MB, which is then enlarged; False where the system lets nobody mount one."""
    if sys.platform != "linux" or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        return False
    disk, folder = lab.place / "disk", lab.folder()
    disk.mkdir()
    command = [sys.executable, "-m", "percentmatch"]
    begin = shlex.join([*command, *world.begin, "--out", str(disk / "run")])
    resume = shlex.join([*command, *world.resume, "--out", str(disk / "run")])
    script = f"""
        mount -t tmpfs -o size=9m none {disk} || exit 9
        {begin}; first=$?
        mount -o remount,size=99m {disk}
        {resume} && cp -r {disk}/run {folder}; exit $first
    """
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, env={**os.environ, **lab.environment}
    )
    sentence = re.search(r"^percentmatch: cannot write .*: No space left on device", done.stderr, re.MULTILINE)
    stopped = done.returncode == 2 and sentence and "Traceback" not in done.stderr
    equal = folder.exists() and snapshot(folder) == world.expected
    tally.add("full disk: one of 9 MB", "stopped" if stopped and equal else "lost", done.stderr[-600:])
    return True
