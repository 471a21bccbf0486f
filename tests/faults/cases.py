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
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from farm import KILLS, Fault, Machine
from lab import OUTCOMES, Lab, World, contents, pages_of, snapshot

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
    "reading an image": ("an image",),
    "a result's writing": ("p.csv", "p.jsonl", "page.html", "next.csv", "gains.json", "found.json", "results.json"),
    "an export's writing": ("exported", "model.onnx", "README.md", "config.json"),
    "the model's writing": ("model.safetensors", "backbone.safetensors"),
}
IS_WRITE = re.compile("creating|opening|fsync|move")  # of points


class Tally:
    """What became of each kind of fault, and a description of each that went wrong."""

    def __init__(self) -> None:
        self.kinds: dict[str, Counter[str]] = {}
        self.wrong: list[str] = []
        self.kills: Counter[str] = Counter()  # of each command

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
    """The later the turn, the less is left of a run that goes on where it was."""
    name, left = draw_signal(rng), 1 if world.start else turn
    if rng.random() < MOMENTS:
        return Kill(name, "a random moment", moment=rng.uniform(0.0, world.seconds / left))
    points = Counter(world.points)
    group = rng.choice(sorted({group_of(point) for point in points}))
    point = rng.choice([point for point in sorted(points) if group_of(point) == group])
    return Kill(name, group, point, rng.randint(1, math.ceil(points[point] / left)))


def draw_signal(rng: random.Random) -> str:
    return rng.choice(["SIGKILL", "SIGKILL", "SIGTERM"])


def kills_of(world: World, rng: random.Random) -> Iterator[list[Kill]]:
    """Up to four kills for a run: first one at every write, then drawn ones, without end."""
    writes = sorted({point for point in world.points if IS_WRITE.search(point)})
    rng.shuffle(writes)
    for point in writes:
        first = Kill(draw_signal(rng), group_of(point), point)
        yield [first, *(draw_kill(world, rng, turn) for turn in range(2, 5))]
    while True:
        yield [draw_kill(world, rng, turn) for turn in range(1, 5)]


def kill_often(lab: Lab, world: World, tally: Tally, rng: random.Random, number: int) -> None:
    for kills in kills_of(world, rng):
        if tally.kills[world.name] >= number:
            break
        kill(lab, world, tally, kills)


def kill(lab: Lab, world: World, tally: Tally, kills: Sequence[Kill]) -> None:
    """Kill one run again and again, and let it end."""
    folder, came, outcome, said = lab.folder(world), [], "", ""
    for each in kills:
        number = KILLS[each.signal]
        if each.point:
            tried = lab.run(world, folder, Fault(each.signal, each.point, each.number))
        else:
            tried = lab.run(world, folder, kill=(number, each.moment))
        came += [each] if tried.disturbed else []
        if world.has_ended(tried):  # it ended first, or the one before did
            break
        if tried.code != -number and (tried.code != 128 + number or "Traceback" in tried.said):
            outcome, said = "lost", tried.said
            break
    if not outcome:
        last = lab.run(world, folder)
        outcome, said = lab.judge(world, folder, last), last.said
    for each in came:
        outcome = "lost" if outcome == "stopped" else outcome
        about = f"{world.name}, {', '.join(map(str, came))}: {said[-300:]} {lab.differs}"
        tally.add(f"{each.signal}: {each.group}", outcome, about)
        tally.kills[world.name] += 1
    shutil.rmtree(folder, ignore_errors=True)


def prepare(lab: Lab, world: World, checkpoints: int = 2, point: str = "after the move to last.pt") -> Path:
    """A run that was killed after so many checkpoints."""
    folder = lab.folder()
    killed = lab.run(world, folder, Fault("SIGKILL", point, checkpoints))
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
    last = lab.run(world, folder)
    outcome = lab.judge(world, folder, last)
    if outcome == "stopped":
        untouched = contents(folder) == before
        for name, content in whole.items():
            put(folder / name, content)
        again = lab.run(world, folder)
        outcome = "stopped" if untouched and lab.judge(world, folder, again) == "equal" else "lost"
    tally.add(f"{' and '.join(files)} damaged: {how}", outcome, f"{world.name}: {last.said[-300:]}")
    shutil.rmtree(folder)


def disturb(lab: Lab, world: World, tally: Tally, kind: str, fault: Fault, *, stops: bool | None) -> None:
    """A fault that goes away: the attempt ends equal, or stops with a sentence and goes on afterwards.

    If `stops` is False, nothing may come of it.
    """
    folder = lab.folder(world)
    tried = lab.run(world, folder, fault)
    outcome = lab.judge(world, folder, tried)
    with suppress(FileNotFoundError):
        Path(f"{fault.file}.away").rename(fault.file)
    if outcome == "stopped":
        rest = [str(file) for file in folder.rglob(".*.part")]
        again = lab.run(world, folder)
        outcome = "stopped" if not rest and lab.judge(world, folder, again) == "equal" else "lost"
    wrong = not tried.disturbed or stops is not (None if stops is None else outcome == "stopped")
    tally.add(kind, "lost" if wrong else outcome, f"{world.name}, {fault}: {outcome} {tried.said[-300:]} {lab.differs}")
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
    first, second = lab.run(world, folder), lab.run(world, folder)
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
    last = lab.run(world, folder)
    tally.add(f"decoded images damaged: {how}", lab.judge(world, folder, last), f"{world.name}: {last.said[-300:]}")
    shutil.rmtree(folder)


def cut_cache_in_use(lab: Lab, world: World, tally: Tally) -> None:
    """The system ends a process that reads what is no longer there; the next attempt decodes anew."""
    folder = lab.folder()
    for file in lab.cache.glob("*.npy"):
        tried = lab.run(world, folder, Fault("cut", "before a step", 5, str(file)))
        last = lab.run(world, folder) if tried.code == -signal.SIGBUS else tried
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
    last = lab.run(world, folder)
    outcome = lab.judge(world, folder, last)
    away.rename(image)
    if outcome == "stopped":
        outcome = "stopped" if lab.judge(world, folder, lab.run(world, folder)) == "equal" else "lost"
    tally.add("image removed: before a run goes on", outcome, f"{world.name}: {last.said[-300:]}")
    shutil.rmtree(folder)


def data_vanish(lab: Lab, world: World, tally: Tally, images: Path, point: str, number: int) -> None:
    """The folder of the images is renamed while the command reads or uses them."""
    fault = Fault("remove", point, number, str(images))
    disturb(lab, world, tally, f"folder of images removed: {world.name}", fault, stops=None)


def clock_jumps(lab: Lab, world: World, tally: Tally, place: str, number: int) -> None:
    """Back by a year: in mid-run, and between an attempt that is killed and the one that goes on."""
    year = 365 * 24 * 3600.0
    kind = "clock set back"
    disturb(lab, world, tally, f"{kind}: in mid-run", Fault("clock", place, number, str(-year)), stops=False)
    folder = lab.folder(world)
    killed = lab.run(world, folder, Fault("SIGKILL", place, number), machine=Machine(ahead=year))
    for path in folder.rglob("*"):
        os.utime(path, (time.time() + year, time.time() + year))
    last = lab.run(world, folder)
    outcome = lab.judge(world, folder, last) if killed.disturbed else "lost"
    tally.add(f"{kind}: between two attempts", outcome, f"{world.name}: {last.said[-300:]} {lab.differs}")
    shutil.rmtree(folder)


def two_machines(lab: Lab, world: World, tally: Tally, point: str) -> None:
    """Two hosts with one folder: at the same time one is refused; and one goes on where the other was killed."""
    folder = lab.folder(world)
    both = [lab.start(world, folder, None, Machine(host)) for host in ("one", "two")]
    ends = sorted((lab.end(each) for each in both), key=lambda each: each.code)
    refused = ends[1].is_sentence and ("another process" in ends[1].said or "already holds" in ends[1].said)
    outcome = lab.judge(world, folder, ends[0])
    said = " | ".join(each.said[-300:] for each in ends)
    tally.add("two hosts: at the same time", outcome if refused else "lost", f"{world.name}: {said}")
    shutil.rmtree(folder)
    killed = lab.run(world, folder, Fault("SIGKILL", point, 2), machine=Machine("one"))
    last = lab.run(world, folder, machine=Machine("two", ahead=-60))
    outcome = lab.judge(world, folder, last) if killed.disturbed else "lost"
    tally.add("two hosts: one after the other", outcome, f"{world.name}: {last.said[-300:]} {lab.differs}")
    shutil.rmtree(folder)


def small_disk(lab: Lab, world: World, tally: Tally, share: float = 0.6) -> bool:
    """The real command on a disk with room for a share of what it leaves, which is then enlarged.

    False where the system lets nobody mount one.
    """
    if sys.platform != "linux" or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        return False
    lab.number += 1
    disk, copy = lab.place / f"disk{lab.number}", lab.folder()
    run = disk / "run"
    disk.mkdir()
    command = [sys.executable, "-m", "percentmatch"]
    before = pages_of(world.start) if world.start else 0
    room = 4 * (before + int(share * (world.size - before)))  # KiB
    begin = shlex.join([*command, *(token.replace("{}", str(run)) for token in world.begin)])
    resume = shlex.join([*command, *(token.replace("{}", str(run)) for token in world.resume)])
    script = f"""
        mount -t tmpfs -o size={room}k none {disk} || exit 9
        {f"cp -r {world.start} {run} || exit 7" if world.start else ":"}
        {begin} >/dev/null; first=$?
        find {disk} -name '.*.part' | grep . && exit 8
        mount -o remount,size=99m {disk}
        {resume} >/dev/null && cp -r {disk}/run {copy}; exit $first
    """
    environment = {**os.environ, **lab.environment, "PERCENTMATCH_CACHE": str(lab.cache_of(world, run))}
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, env=environment)
    sentence = re.search(r"^percentmatch: .*: No space left on device", done.stderr, re.MULTILINE)
    stopped = done.returncode == 2 and sentence and "Traceback" not in done.stderr
    found = snapshot(copy, run).items() ^ {(k, v) for k, v in world.expected.items() if k != "printed"}
    differs = ", ".join(sorted({name for name, _ in found}))
    tally.add(
        f"full disk: a small one, {world.name}",
        "stopped" if stopped and not differs else "lost",
        f"{done.returncode} {done.stderr[-600:]} {differs}",
    )
    return True
