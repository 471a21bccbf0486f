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
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from percentmatch.data.pixels import cache_file
from percentmatch.data.pixels.decode import Frame, Row, cannot_read, decode_rows, digest_of
from percentmatch.errors import UserError

FEW = 64  # so many images are decoded before a second process has started
Progress = Callable[[int, int], None]  # done, of how many


@dataclass(frozen=True)
class Cached:
    """Decoded images."""

    pixels: Tensor  # (n, 3, size, size) uint8, mapped and read only: writing into it ends the program
    bad: dict[int, str]  # row -> why the image could not be read; its pixels are 0
    digests: Sequence[str | None] = ()  # n, of the image files when they were decoded
    decoded: int = 0  # how many images were decoded just now; 0 if the cache had them all
    changed: tuple[int, ...] = ()  # rows whose files no longer held what was cached, found by `verify`


def cache_folder() -> Path:
    """$PERCENTMATCH_CACHE, or percentmatch in $XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("PERCENTMATCH_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/percentmatch"
    try:
        return Path(named).expanduser()
    except RuntimeError:  # nobody of that name, or no home
        where = f"'{named}', where decoded images are kept, is in the home of an unknown user"
        raise UserError(f"{where}; set PERCENTMATCH_CACHE to another folder") from None


def key_of(facts: object) -> str:
    """A hash of facts, for the name of a file in the cache."""
    return hashlib.blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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
        rows = changed = _changed(dict(enumerate(names)), stored[1].digests, workers, progress)
    elif stored:  # a file that could not even be read may be readable by now, although its time stamp did not change
        unread = {row: names[row] for row, digest in enumerate(stored[1].digests) if digest is None}
        rows = _changed(unread, stored[1].digests, workers, lambda done, total: None)
    if not stored or rows:
        work = [(row, names[row]) for row in rows]
        stored = _build(target, stored and stored[1], shape, work, frame, workers, progress)
    pixels, facts = stored
    bad = {}
    for row, reason in sorted(facts.bad.items()):
        where = f"{sources[row]}: " if sources and not names[row].startswith(sources[row]) else ""
        bad[row] = where + cannot_read(names[row], reason)
    if bad and (not skip_bad or len(bad) == len(names)):
        hint = "check the paths" if len(bad) == len(names) else "replace them or leave them out by --skip-bad-images"
        raise UserError(f"{next(iter(bad.values()))} ({len(bad)} of {len(names)} images cannot be read); {hint}")
    with warnings.catch_warnings(action="ignore"):  # torch has no read-only tensors
        return Cached(torch.from_numpy(pixels), bad, facts.digests, len(rows), tuple(changed))


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@contextmanager
def threads(number: int) -> Generator[ThreadPoolExecutor]:
    """A pool of threads; when the block ends, even by an error, tasks that have not begun are cancelled."""
    pool = ThreadPoolExecutor(number)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _key(names: Sequence[str], size: int, frame: str) -> str:
    """A hash of what is asked for and of each file's path, size, time and permissions; no file is opened."""
    key = hashlib.blake2b(f"{cache_file.VERSION} {size} {frame}".encode(), digest_size=16)
    folders: dict[str, str] = {}  # resolved once: there are fewer of them than files, and it is slow
    for name in names:
        folder, file = os.path.split(name)
        try:
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            about = os.stat(name)
            facts = f"{about.st_size} {about.st_mtime_ns} {about.st_mode}"
        except (OSError, ValueError) as error:
            facts = type(error).__name__
        key.update(f"\0{folders.get(folder, folder)}\0{file}\0{facts}".encode("utf-8", "surrogatepass"))
    return key.hexdigest()


def _changed(names: dict[int, str], digests: Sequence[str | None], workers: int, progress: Progress) -> list[int]:
    """The rows whose files do not have these digests. Threads suffice, since reading and hashing release the GIL."""
    rows = []
    with threads(workers) as pool:
        for done, (row, now) in enumerate(zip(names, pool.map(digest_of, names.values()), strict=True), start=1):
            rows += [row] if now != digests[row] else []
            progress(done, len(names))
    return rows


def _build(
    target: Path,
    old: cache_file.Facts | None,
    shape: cache_file.Shape,
    work: list[tuple[int, str]],
    frame: Frame,
    workers: int,
    progress: Progress,
) -> tuple[np.ndarray, cache_file.Facts]:
    """Decode the rows of `work`, copy the others if there is an `old` file; keep the file if any image is good."""
    facts = old or cache_file.Facts([None] * shape[0])
    with cache_file.new_cache_file(target, "the decoded images", f" for {prod(shape) / 1e9:.2g} GB") as temporary:
        offset = cache_file.allocate(temporary, shape, target if old else None)
        job = {"target": str(temporary), "offset": offset, "size": shape[-1], "frame": frame}
        few = workers == 1 or len(work) < FEW
        with closing(decode_rows(work, **job) if few else _decode_in_processes(work, job, workers)) as results:
            for done, (row, digest, reason) in enumerate(results, start=1):
                facts.digests[row] = digest
                facts.bad.pop(row, None)
                facts.bad |= {row: reason} if reason else {}
                progress(done, len(work))
        cache_file.seal(temporary, offset, shape, facts)
        stored = cache_file.load(temporary, shape)  # stays mapped when it is renamed
        if not stored:
            raise OSError("it was changed by another program")
        if len(facts.bad) < shape[0]:
            os.replace(temporary, target)
        return stored


def _decode_in_processes(work: list[tuple[int, str]], job: dict, workers: int) -> Generator[Row]:
    """The same as `decode_rows` by several processes; their results come through one pipe, a line at a time."""
    workers = min(workers, len(work) // (FEW // 2))
    shares, missing = [work[first::workers] for first in range(workers)], dict(work)
    started: list[subprocess.Popen] = []
    with ExitStack() as stack:
        stack.callback(lambda: [process.wait() for process in started])
        stack.callback(lambda: [process.kill() for process in started])
        reader, writer = os.pipe()
        results = stack.enter_context(open(reader, encoding="utf-8"))
        with open(writer, "w", encoding="utf-8") as end:
            for rows in shares:
                task = stack.enter_context(tempfile.TemporaryFile(dir=Path(job["target"]).parent))
                task.write(json.dumps({**job, "rows": rows}).encode())
                task.seek(0)
                started.append(start_decoder(stdin=task, stdout=end))
        for row, digest, reason in map(json.loads, results):
            if row < 0:
                raise OSError(reason)
            missing.pop(row)
            yield row, digest, reason
        for process, rows in zip(started, shares, strict=True):
            if lost := [path for row, path in rows if row in missing]:
                raise UserError(f"decoding '{lost[0]}' ended its process ({process.wait()}); take it out of the data")


def start_decoder(*arguments: str, stdin: IO[bytes] | int, stdout: IO[str] | int) -> subprocess.Popen:
    """A new program, not a fork, so it needs neither torch nor the caller's main module. It has its own session, so
    that Ctrl-C reaches only this process, and ends when nobody reads its results."""
    paths = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("decode.py")), *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )
