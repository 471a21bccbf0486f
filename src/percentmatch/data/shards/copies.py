"""Images in shards that are copies of others, by their bytes: what the labels name is not to be streamed too."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from percentmatch.data.pixels.cache_file import key_of
from percentmatch.data.pixels.decode import MEMBER, BadImage, fingerprint, read
from percentmatch.data.pixels.load import Say
from percentmatch.data.shards import index as storage
from percentmatch.data.shards.index import READERS, Shards
from percentmatch.errors import UserError
from percentmatch.files import write_atomic

VERSION = 2
PIECE = 1024  # bytes from the middle of an image, which tell most of the same length apart
MANY = 100_000  # images to look at, which takes a while

Held = dict[tuple[int, bytes], list[Path]]  # length and piece -> images
Digests = dict[tuple[int, bytes], set[str]]  # the same -> their digests


def without_copies(shards: Shards, paths: Sequence[Path], *, cache: Path, say: Say = lambda sentence: None) -> Shards:
    """The shards without the images that have the content of one of these files, or members of shards.

    Only what has the length of one of them is looked at, and what was found is remembered in `cache`, unless something
    could not be read. `say` hears of work that takes long.
    """
    lengths = {path: _length_and_time(path) for path in paths}
    facts = sorted((os.path.abspath(path), *about) for path, about in lengths.items())
    every = VERSION, [*map(os.path.abspath, shards.paths)], shards.stamps, shards.counts.tolist(), facts
    target = cache / f"{key_of(every)}.copies"
    try:
        copies = np.array(json.loads(target.read_bytes()), np.int64)
    except (OSError, ValueError, TypeError):
        found, whole = _find(shards, {path: length for path, (length, _) in lengths.items()}, say)
        copies = np.array(found, np.int64)
        with suppress(OSError, UserError):  # only speed is lost
            if whole:
                write_atomic(target, json.dumps(found).encode())
    if not len(copies):
        return shards
    gone = np.bincount(shards.shard_of(copies), minlength=len(shards.counts))
    return replace(shards, counts=shards.counts - gone, places=np.delete(shards.places, copies, axis=0))


def _find(shards: Shards, lengths: dict[Path, int], say: Say) -> tuple[list[int], bool]:
    """The positions of copies, sorted, and whether all could be read."""
    suspects = np.flatnonzero(np.isin(shards.places[:, 1], list(set(lengths.values()) - {0})))
    suspicious, held = set(shards.places[suspects, 1].tolist()), defaultdict(list)
    if len(suspects) > MANY:
        say(f"comparing {len(suspects):,} images in the shards with those that the labels name")
    for path, length in lengths.items():
        if length in suspicious:
            with suppress(OSError):  # a file that is gone is said when it is decoded
                held[length, _piece(path, length)].append(path)
    in_shard = np.split(suspects, np.searchsorted(suspects, shards.firsts[1:]))
    pool = ThreadPoolExecutor(READERS)
    try:
        found = list(pool.map(partial(_find_in, shards, held, {}), range(len(shards.paths)), in_shard))
    finally:
        pool.shutdown(cancel_futures=True)
    return [position for places in found for position in places or ()], None not in found


def _find_in(shards: Shards, held: Held, digests: Digests, shard: int, suspects: np.ndarray) -> list[int] | None:
    """Those of one shard, or None if it cannot be read; `digests` are of the images held that were looked at so far."""
    for wait in (0, *storage.WAITS) if len(suspects) else ():
        time.sleep(wait)
        found = []
        with suppress(OSError), open(shards.paths[shard], "rb") as file:
            for position in suspects.tolist():
                offset, length = shards.places[position].tolist()
                piece = os.pread(file.fileno(), PIECE, offset + length // 2)
                alike = length, piece[: length - length // 2]
                if alike in held and alike not in digests:
                    digests[alike] = {_digest(path) for path in held[alike]}
                if alike in held and fingerprint(os.pread(file.fileno(), length, offset)) in digests[alike]:
                    found.append(position)
            return found
    return None if len(suspects) else []


def _length_and_time(path: Path) -> tuple[int, int]:
    """Of a file, or of a member of a shard; zeros for one that is not there."""
    if member := MEMBER.match(os.fspath(path)):
        return int(member[3]), int(member[4])
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return 0, 0
    return about.st_size, about.st_mtime_ns


def _piece(path: Path, length: int) -> bytes:
    member = MEMBER.match(os.fspath(path))
    start = int(member[2]) if member else 0
    with open(member[1] if member else path, "rb") as file:
        return os.pread(file.fileno(), min(PIECE, length - length // 2), start + length // 2)


def _digest(path: Path) -> str:
    with suppress(BadImage):
        return fingerprint(read(path))
    return "cannot be read"
