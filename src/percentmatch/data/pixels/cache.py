"""Images decoded once, on all cores, into a file that is mapped into memory."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from percentmatch.data.pixels import cache_file
from percentmatch.data.pixels.decode import BadImage, Frame, Row, cannot_read, decode_rows, fingerprint, read
from percentmatch.errors import UserError
from percentmatch.files import new_part, sweep

FEW = 64  # so many images are decoded before a second process has started
Progress = Callable[[int, int], None]  # done, of how many


@dataclass(frozen=True)
class Cached:
    """Decoded images."""

    pixels: Tensor  # (n, 3, size, size) uint8, mapped and read only: writing into it ends the program
    bad: dict[int, str]  # row -> why the image could not be read; its pixels are 0
    decoded: int = 0  # how many images were decoded just now; 0 if the cache had them all
    changed: tuple[int, ...] = ()  # rows whose files no longer held what was cached, found by `verify`


def cache_folder() -> Path:
    """$PERCENTMATCH_CACHE, or percentmatch in $XDG_CACHE_HOME or ~/.cache."""
    if mine := os.environ.get("PERCENTMATCH_CACHE"):
        return Path(mine).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "percentmatch"


def open_cache(
    paths: Sequence[Path],
    *,
    size: int,
    frame: Frame,
    folder: Path,
    sources: Sequence[str] | None = None,
    verify: bool = False,
    skip_bad: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Cached:
    """The decoded images, from the cache in `folder` if it has them.

    A changed size or time stamp of an image makes a new cache; `verify` compares the content of all files, too.
    A bad image is an error unless `skip_bad`; `sources` say where each image was named. `progress` gets the number of
    images done and of those to be done.
    """
    names, shape = [os.fspath(path) for path in paths], (len(paths), 3, size, size)
    if not names:
        return Cached(torch.zeros(shape, dtype=torch.uint8), {})
    workers, progress = workers or cores(), progress or (lambda done, total: None)
    target = folder / f"{_key(names, size, frame)}.npy"
    stored, changed, rows = cache_file.load(target, shape), [], list(range(len(names)))
    if stored and verify:
        rows = changed = _changed(names, stored.facts.digests, workers, progress)
    elif stored:  # a file that could not even be read may be there by now, unchanged itself
        unread = [row for row, digest in enumerate(stored.facts.digests) if digest is None]
        readable = _changed([names[row] for row in unread], [None] * len(unread), workers, lambda done, total: None)
        rows = [unread[number] for number in readable]
    if not stored or rows:
        work = [(row, names[row]) for row in rows]
        stored = _build(target, stored, shape, work, frame, workers, progress)
    bad = {}
    for row, reason in sorted(stored.facts.bad.items()):
        where = f"{sources[row]}: " if sources and not names[row].startswith(sources[row]) else ""
        bad[row] = where + cannot_read(names[row], reason)
    if bad and (not skip_bad or len(bad) == len(names)):
        hint = "check the paths" if len(bad) == len(names) else "replace them or leave them out by --skip-bad-images"
        raise UserError(f"{next(iter(bad.values()))} ({len(bad)} of {len(names)} images cannot be read); {hint}")
    with warnings.catch_warnings(action="ignore"):  # torch has no tensors that must not be written to
        return Cached(torch.from_numpy(stored.pixels), bad, len(rows), tuple(changed))


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _key(names: Sequence[str], size: int, frame: str) -> str:
    """A hash of what is asked for and of each file's place, length, time and permissions; no file is opened."""
    key = hashlib.blake2b(f"{cache_file.VERSION} {size} {frame}".encode(), digest_size=16)
    folders: dict[str, str] = {}  # resolved once: there are fewer of them than files, and it is slow
    for name in names:
        folder, last = os.path.split(name)
        try:
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            about = os.stat(name)
            facts = f"{about.st_size} {about.st_mtime_ns} {about.st_mode}"
        except (OSError, ValueError) as error:
            facts = type(error).__name__
        key.update(f"\0{folders.get(folder, folder)}\0{last}\0{facts}".encode("utf-8", "surrogatepass"))
    return key.hexdigest()


def _changed(names: Sequence[str], digests: Sequence[str | None], workers: int, progress: Progress) -> list[int]:
    """The rows whose files do not have these digests. Threads do: reading and hashing let others run."""

    def digest(name: str) -> str | None:
        try:
            return fingerprint(read(name))
        except BadImage:
            return None

    rows, pool = [], ThreadPoolExecutor(workers)
    try:
        for row, now in enumerate(pool.map(digest, names)):
            rows += [row] if now != digests[row] else []
            progress(row + 1, len(names))
    finally:
        pool.shutdown(cancel_futures=True)
    return rows


def _build(
    target: Path,
    old: cache_file.Stored | None,
    shape: cache_file.Shape,
    work: list[tuple[int, str]],
    frame: Frame,
    workers: int,
    progress: Progress,
) -> cache_file.Stored:
    """Decode the rows of `work`, take the others from `old`, put the file in its place if any image is good."""
    facts = old.facts if old else cache_file.Facts([None] * shape[0])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        with new_part(target) as part:
            offset = cache_file.allocate(part, shape, target if old else None)
            job = {"target": str(part), "offset": offset, "size": shape[-1], "frame": frame}
            few = workers == 1 or len(work) < FEW
            with closing(decode_rows(work, **job) if few else _apart(work, job, workers)) as results:
                for done, (row, digest, reason) in enumerate(results, start=1):
                    facts.digests[row] = digest
                    facts.bad.pop(row, None)
                    facts.bad |= {row: reason} if reason else {}
                    progress(done, len(work))
            cache_file.seal(part, offset, shape, facts)
            stored = cache_file.load(part, shape)  # stays mapped under any name
            if not stored:
                raise OSError("it was changed by another program")
            if len(facts.bad) < shape[0]:
                os.replace(part, target)
            return stored
    except OSError as error:
        raise UserError(
            f"cannot write the decoded images to '{target.parent}': {error.strerror or error}; make room for "
            f"{prod(shape) / 1e9:.2g} GB or set PERCENTMATCH_CACHE to another folder"
        ) from error


def _apart(work: list[tuple[int, str]], job: dict, workers: int) -> Generator[Row]:
    """The same as `decode_rows` by several processes; their results come through one pipe, a line at a time."""
    workers = min(workers, len(work) // (FEW // 2))
    shares, missing = [work[first::workers] for first in range(workers)], dict(work)
    started: list[subprocess.Popen] = []
    with ExitStack() as stack:
        stack.callback(lambda: [process.wait() for process in started])
        stack.callback(lambda: [process.kill() for process in started])
        reader, writer = os.pipe()
        results = stack.enter_context(open(reader))
        with open(writer, "w") as end:
            for share in shares:
                task = stack.enter_context(tempfile.TemporaryFile(dir=Path(job["target"]).parent))
                task.write(json.dumps({**job, "rows": share}).encode())
                task.seek(0)
                started.append(_start(task, end))
        for row, digest, reason in map(json.loads, results):
            if row < 0:
                raise OSError(reason)
            missing.pop(row)
            yield row, digest, reason
        for process, share in zip(started, shares, strict=True):
            if lost := [path for row, path in share if row in missing]:
                raise UserError(f"decoding '{lost[0]}' ended its process ({process.wait()}); take it out of the data")


def _start(task: IO[bytes], results: IO[str]) -> subprocess.Popen:
    """A program of its own, not a copy of this one, so it needs neither torch nor the caller's main module. It is in
    a session of its own, as Ctrl-C is for this process, and ends when nobody reads its results."""
    paths = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("decode.py"))],
        stdin=task,
        stdout=results,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )
