"""An endless series of images from tar shards, in constant memory: read, decoded and shuffled while training goes on.

A pass takes the shards in a random order and shuffles their images within blocks, as a buffer of that size would. Which
image stands at a position is a function of seed and position alone: nothing needs to be saved, and several readers may
share the positions among them.
"""

import hashlib
import os
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from percentmatch.console.notices import print_to_stderr
from percentmatch.data.pixels.cache import cores, threads
from percentmatch.data.pixels.decode import BadImage, Frame, as_number, decode_in_thread, fingerprint
from percentmatch.data.pixels.images import Say
from percentmatch.data.shards import index as storage
from percentmatch.data.shards.index import Shards
from percentmatch.data.shards.tar import name_at
from percentmatch.errors import UserError

Pending = tuple[np.ndarray, list[Future]]  # pixels, and the tasks that fill them

CHUNK = 4  # images that a thread takes at a time
READERS = 16  # threads that read, of which `workers` decode at a time: storage that is far away answers late
OPEN_FILES = 64
MOST_BYTES = 1 << 27  # of an image
LOOKED_AT, PIECE = 256, 1024  # shards of which a fingerprint is taken, and bytes of each of three images
MOST_BAD = 100  # images in a row that are replaced before it is an error after all


class Stream:
    """The images of shards as squares of `size` pixels, shuffled within blocks of `buffer` images.

    A shard that cannot be read is tried again for some seconds. Then it is an error, and so is a bad image; with
    `skip_bad` another image is taken instead, one block further on, and `say` gets one sentence for each shard. As many
    `workers` decode at a time, or one for each core.
    """

    def __init__(
        self,
        shards: Shards,
        *,
        size: int,
        frame: Frame = "squash",
        seed: int = 0,
        buffer: int = 10_000,
        skip_bad: bool = False,
        workers: int | None = None,
        say: Say = print_to_stderr,
    ) -> None:
        if not len(shards):
            raise UserError("the shards hold no image to stream; name others")
        self.shards, self.size, self.frame, self.seed = shards, size, frame, seed
        self.buffer, self.skip_bad, self.say = min(buffer, len(shards)), skip_bad, say
        # a thread for each core, of this process's share of them where several train on one machine
        self.workers = workers or max(cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)), 1)
        self._pool: ThreadPoolExecutor | None = None
        self._decoding = threading.Semaphore(self.workers)
        self._pending: dict[tuple[int, int], Pending] = {}  # by start and count
        self._reported: set[tuple[int, bool]] = set()  # shards that `say` was told of, and whether they were lost
        self._lost: set[int] = set()  # shards that could not be read
        self._lock = threading.Lock()
        self._open = lru_cache(OPEN_FILES)(lambda shard: _File(shards.paths[shard], shards.stamps[shard]))
        self._shard_order = lru_cache(2)(self._order_of_pass)
        self._block = lru_cache(4)(self._places_of_block)

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def digest(self) -> str:
        return self.shards.digest

    def fingerprints(self) -> Tensor:
        """A number for each shard that changes with what it holds, as far as a look at three of its images tells: (s,).

        It is 0 for a shard that cannot be read or has no image, and, so that nobody waits, for all but `LOOKED_AT`.
        """
        found = torch.zeros(len(self.shards.paths), dtype=torch.int64)
        chosen = np.unique(np.linspace(0, len(found) - 1, min(len(found), LOOKED_AT)).astype(int)).tolist()
        with threads(READERS) as pool:
            found[chosen] = torch.tensor([*pool.map(self._look_at, chosen)])
        return found

    def _look_at(self, shard: int) -> int:
        first, count = int(self.shards.firsts[shard]), int(self.shards.counts[shard])
        if not count:
            return 0
        pieces = [self.shards.places[first : first + count].tobytes()]
        with suppress(OSError), open(self.shards.paths[shard], "rb") as file:
            for row in (first, first + count // 2, first + count - 1):
                offset, length = self.shards.places[row].tolist()
                pieces.append(os.pread(file.fileno(), PIECE, offset + length // 2))
            return as_number(fingerprint(b"".join(pieces)))
        return 0

    def rows(self, start: int, count: int, ahead: Sequence[int] = ()) -> Tensor:
        """The images at positions `start` to `start + count`: (count, 3, size, size) uint8.

        `ahead` are the starts of the calls that will follow, with the same count. Their images are decoded meanwhile;
        what was asked for earlier and is neither is forgotten.
        """
        wanted = {(first, count): None for first in (start, *ahead)}
        for key in [key for key in self._pending if key not in wanted]:
            for future in self._pending.pop(key)[1]:
                future.cancel()
        self._pending |= {key: self._request(*key) for key in wanted if key not in self._pending}
        pixels, futures = self._pending.pop((start, count))
        try:
            for future in futures:
                future.result()
        except BaseException:
            self.close()
            raise
        return torch.from_numpy(pixels)

    def close(self) -> None:
        """Cancel what is being decoded. `rows` may be called again."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
        self._pending.clear()

    def places(self, start: int, count: int) -> np.ndarray:
        """Which of the shards' N images stand at these positions: (count,)."""
        found, position, end = [], start, start + count
        while position < end:
            epoch, within = divmod(position, len(self))
            block, first = divmod(within, self.buffer)
            found.append(self._block(epoch, block)[first : first + end - position])
            position += len(found[-1])
        return np.concatenate(found)

    def _order_of_pass(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards in the order of this pass, and where each ends in it: (s,), (s,)."""
        order = _permutation(len(self.shards.counts), self.seed, epoch)
        return order, self.shards.counts[order].cumsum()

    def _places_of_block(self, epoch: int, block: int) -> np.ndarray:
        first = block * self.buffer
        length = min(self.buffer, len(self) - first)
        positions = first + _permutation(length, self.seed, epoch, block)  # (length,) in the shards of the pass
        order, ends = self._shard_order(epoch)
        turn = ends.searchsorted(positions, side="right")
        shard = order[turn]
        return self.shards.firsts[shard] + positions - (ends[turn] - self.shards.counts[shard])

    def _request(self, start: int, count: int) -> Pending:
        if self._pool is None:
            warnings.filterwarnings("ignore", module=r"PIL\.")  # of single images; no filter can be set in a thread
            self._pool = ThreadPoolExecutor(max(READERS, self.workers), thread_name_prefix="stream")
        pixels, images = np.empty((count, 3, self.size, self.size), np.uint8), self.places(start, count)
        chunks = [slice(first, first + CHUNK) for first in range(0, count, CHUNK)]
        fill = partial(self._pool.submit, self._fill)
        return pixels, [fill(pixels[rows], images[rows], start + rows.start) for rows in chunks]

    def _fill(self, pixels: np.ndarray, images: np.ndarray, position: int) -> None:
        for row, image in enumerate(images.tolist()):
            pixels[row] = self._image(image, position + row)

    def _image(self, image: int, position: int) -> np.ndarray:
        """This one of the shards' images; if it is bad, the next good one a block further on in the pass."""
        for attempt in range(1, MOST_BAD + 1):
            shard = int(self.shards.shard_of(image))
            offset, length = self.shards.places[image].tolist()
            try:
                content = self._read(shard, offset, length)
                with self._decoding:
                    return decode_in_thread(content, self.size, self.frame)
            except BadImage as error:
                self._bad(shard, offset, str(error))
            image = int(self.places(position + attempt * self.buffer, 1)[0])
        raise UserError(f"{MOST_BAD} images of the shards in a row cannot be read; see that the storage is there")

    def _read(self, shard: int, offset: int, length: int) -> bytes:
        if length > MOST_BYTES or not length:
            raise BadImage(f"its {length:,} bytes are too many for an image" if length else "it is empty")
        if shard in self._lost:
            raise BadImage("its shard cannot be read")
        reason = ""
        for wait in (*storage.WAITS, 0):
            try:
                file = self._open(shard)  # stays open while this name refers to it
                content = os.pread(file.number, length, offset)
                if len(content) == length:
                    return content
                reason = "it is cut short"
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
            self._open.cache_clear()
            time.sleep(wait)
        if self.skip_bad:
            self._lost.add(shard)
        raise BadImage(reason)

    def _bad(self, shard: int, offset: int, reason: str) -> None:
        """Raise an error or, with `skip_bad`, say once for each shard that images are replaced."""
        path, lost = self.shards.paths[shard], shard in self._lost
        with self._lock:
            known = (shard, lost) in self._reported
            self._reported.add((shard, lost))
        if self.skip_bad and known:
            return
        name = name_at(path, offset)
        what = f"shard '{path}': cannot read {f'the image {name!r}' if name else f'at byte {offset:,}'}: {reason}"
        if not self.skip_bad:
            raise UserError(f"{what}; repair it and go on by --resume, or leave it out by --skip-bad-images")
        all_bad = "all its images are" if lost else "it, and any other bad image of this shard, is"
        self.say(f"skipped: {what}; {all_bad} replaced by others")


class _File:
    """An open shard, closed when nothing refers to it. Refused if it is not the one that was indexed.

    The file descriptor alone would not do: if another thread closes the file, the next one opened gets the same number.
    """

    number = -1  # the file descriptor

    def __init__(self, path: str, stamp: tuple[int, int]) -> None:
        self.number = os.open(path, os.O_RDONLY)
        about = os.fstat(self.number)
        if (about.st_size, about.st_mtime_ns) != stamp:
            raise OSError("it was changed since this run began")

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _permutation(number: int, *seeds: int) -> np.ndarray:
    """The numbers below `number` in an order that depends on the seeds alone."""
    seed = hashlib.blake2b(repr(seeds).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(seed) >> 1)
    return torch.randperm(number, generator=generator).numpy()
