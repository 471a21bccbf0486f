"""Images in shards that are copies of others, by their bytes: what the labels name is not to be streamed too."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from percentmatch.data.pixels.cache import key_of, threads
from percentmatch.data.pixels.decode import MEMBER, digest_of, fingerprint
from percentmatch.data.pixels.images import Say
from percentmatch.data.shards import index as storage
from percentmatch.data.shards.index import READERS, Shards
from percentmatch.errors import UserError
from percentmatch.files import write_atomic

VERSION = 2
PIECE = 1024  # bytes from the middle of an image, which tell most of the same length apart
MANY = 100_000  # images to look at, which takes a while

Location = tuple[str, int, int, int]  # file, offset, length, time of the last change
Held = dict[tuple[int, bytes], list[Path]]  # length and piece -> images
Digests = dict[tuple[int, bytes], set[str | None]]  # the same -> their digests, None of those that cannot be read


def without_copies(shards: Shards, paths: Sequence[Path], *, cache: Path, say: Say = lambda sentence: None) -> Shards:
    """The shards without the images that have the content of one of these files, or members of shards.

    Only what has the length of one of them is looked at, and what was found is remembered in `cache`, unless something
    could not be read. `say` hears of work that takes long.
    """
    found_at = {path: _locate(path) for path in paths}
    facts = sorted((os.path.abspath(path), length, time) for path, (_, _, length, time) in found_at.items())
    key = key_of((VERSION, [*map(os.path.abspath, shards.paths)], shards.stamps, shards.counts.tolist(), facts))
    file = cache / f"{key}.copies"
    try:
        copies = np.array(json.loads(file.read_bytes()), np.int64)
    except (OSError, ValueError, TypeError):
        found, whole = _find(shards, found_at, say)
        copies = np.array(found, np.int64)
        with suppress(OSError, UserError):  # only speed is lost
            if whole:
                write_atomic(file, json.dumps(found).encode())
    if not len(copies):
        return shards
    gone = np.bincount(shards.shard_of(copies), minlength=len(shards.counts))
    return replace(shards, counts=shards.counts - gone, places=np.delete(shards.places, copies, axis=0))


def _find(shards: Shards, found_at: dict[Path, Location], say: Say) -> tuple[list[int], bool]:
    """The rows of copies in `shards.places`, sorted, and whether all could be read."""
    lengths = {length for _, _, length, _ in found_at.values()} - {0}
    suspects = np.flatnonzero(np.isin(shards.places[:, 1], list(lengths)))
    suspicious, held = set(shards.places[suspects, 1].tolist()), defaultdict(list)
    if len(suspects) > MANY:
        say(f"comparing {len(suspects):,} images in the shards with those that the labels name")
    for path, (name, offset, length, _) in found_at.items():
        if length in suspicious:
            with suppress(OSError), open(name, "rb") as file:  # decoding reports a missing file
                middle = length // 2
                held[length, os.pread(file.fileno(), min(PIECE, length - middle), offset + middle)].append(path)
    in_shard = np.split(suspects, np.searchsorted(suspects, shards.firsts[1:]))
    with threads(READERS) as pool:
        found = list(pool.map(partial(_find_in, shards, held, {}), range(len(shards.paths)), in_shard))
    return [row for rows in found for row in rows or ()], None not in found


def _find_in(shards: Shards, held: Held, digests: Digests, shard: int, suspects: np.ndarray) -> list[int] | None:
    """The copies in one shard, None if it cannot be read; `digests` are those of the held images computed so far."""
    for wait in (0, *storage.WAITS) if len(suspects) else ():
        time.sleep(wait)
        found = []
        with suppress(OSError), open(shards.paths[shard], "rb") as file:
            for row in suspects.tolist():
                offset, length = shards.places[row].tolist()
                piece = os.pread(file.fileno(), PIECE, offset + length // 2)
                alike = length, piece[: length - length // 2]
                if alike in held and alike not in digests:
                    digests[alike] = {digest_of(path) for path in held[alike]}
                if alike in held and fingerprint(os.pread(file.fileno(), length, offset)) in digests[alike]:
                    found.append(row)
            return found
    return None if len(suspects) else []


def _locate(path: Path) -> Location:
    """Where a file, or a member of a shard, is; of length 0 if it is not there."""
    if member := MEMBER.match(os.fspath(path)):
        return member[1], int(member[2]), int(member[3]), int(member[4])
    with suppress(OSError, ValueError):
        about = os.stat(path)
        return os.fspath(path), 0, about.st_size, about.st_mtime_ns
    return os.fspath(path), 0, 0, 0
