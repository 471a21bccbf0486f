"""Images in shards that are copies of others, by their bytes: what is validated or tested on must not be streamed."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from percentmatch.data.decode import MEMBER, BadImage, read
from percentmatch.data.memo import write_whole
from percentmatch.data.shards import READERS, Shards

VERSION = 1
PIECE = 1024  # bytes from the middle of an image, which tell most of the same length apart

Held = dict[tuple[int, bytes], list[Path]]  # length and piece -> images


def without_copies(shards: Shards, paths: Sequence[Path], *, cache: Path) -> Shards:
    """The shards without the images that have the content of one of these files, or members of shards.

    Only what has the length of one of them is looked at, and what was found is remembered in `cache`.
    """
    facts = [(os.fspath(path), *_length_and_time(path)) for path in paths]
    every = VERSION, shards.paths, shards.stamps, shards.counts.tolist(), sorted(facts)
    key = hashlib.blake2b(repr(every).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    place = cache / f"{key}.copies"
    try:
        copies = np.array(json.loads(place.read_bytes()), np.int64)
    except (OSError, ValueError, TypeError):
        copies = np.array(_find(shards, {path: length for path, (_, length, _) in zip(paths, facts, strict=True)}))
        with suppress(OSError):  # only speed is lost
            write_whole(place, json.dumps(copies.tolist()).encode())
    if not len(copies):
        return shards
    gone = np.bincount(_shard_of(shards, copies), minlength=len(shards.counts))
    return replace(shards, counts=shards.counts - gone, places=np.delete(shards.places, copies, axis=0))


def _find(shards: Shards, lengths: dict[Path, int]) -> list[int]:
    """The places of copies, sorted."""
    suspects = np.flatnonzero(np.isin(shards.places[:, 1], list(set(lengths.values()) - {0})))
    suspicious, held = set(shards.places[suspects, 1].tolist()), defaultdict(list)
    for path, length in lengths.items():
        if length in suspicious:
            with suppress(OSError):  # a file that is gone is said when it is decoded
                held[length, _piece(path, length)].append(path)
    in_shard = np.split(suspects, np.searchsorted(suspects, shards.firsts[1:]))
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(partial(_find_in, shards, held), range(len(shards.paths)), in_shard)
    return [place for places in found for place in places]


def _find_in(shards: Shards, held: Held, shard: int, suspects: np.ndarray) -> list[int]:
    if not len(suspects):
        return []
    found = []
    with suppress(OSError), open(shards.paths[shard], "rb") as file:  # said when it is streamed
        for place in suspects.tolist():
            offset, length = shards.places[place].tolist()
            piece = os.pread(file.fileno(), PIECE, offset + length // 2)
            alike = held.get((length, piece[: length - length // 2]), [])
            if alike and os.pread(file.fileno(), length, offset) in map(_content, alike):
                found.append(place)
    return found


def _shard_of(shards: Shards, places: np.ndarray) -> np.ndarray:
    return shards.firsts.searchsorted(places, side="right") - 1


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


def _content(path: Path) -> bytes:
    with suppress(BadImage):
        return read(path)
    return b""
