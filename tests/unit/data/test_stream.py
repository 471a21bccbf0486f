"""The series of streamed images: its order, its pixels, and what happens to it when shards fail."""

import io
import os
import random
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tarred import numbers_of, picture, write_pool, write_tar

from percentmatch.data import Data, Images, Split, Stream, open_shards
from percentmatch.data.labels import Labels
from percentmatch.data.pixels.decode import decode_bytes
from percentmatch.data.shards import index as shards
from percentmatch.data.shards import stream as stream_module
from percentmatch.data.shards.stream import OPEN_FILES, READERS, _permutation
from percentmatch.errors import UserError
from percentmatch.records import Batch
from percentmatch.settings.config import Config
from percentmatch.settings.views import View
from percentmatch.training.loader import Loader, Pixels

COUNTS = [7, 0, 12, 1, 30, 25]  # 75 images


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "WAITS", (0.001, 0.001))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pool(tmp_path_factory.mktemp("shards") / "pool", COUNTS)


def make(pool: Path, **options) -> Stream:
    found = open_shards(str(pool), cache=pool.parent / "cache")
    return Stream(found, **({"size": 8, "buffer": 20, "seed": 3, "workers": 2} | options))


def slow_order(seed: int, epoch: int, buffer: int) -> list[int]:
    """A pass as the words say it: shards in a random order, one after the other, then shuffled block by block."""
    firsts = np.cumsum([0, *COUNTS])
    line = []
    for shard in _permutation(len(COUNTS), seed, epoch).tolist():
        line += range(firsts[shard], firsts[shard] + COUNTS[shard])
    shuffled = []
    for block in range(-(-len(line) // buffer)):
        part = line[block * buffer : (block + 1) * buffer]
        shuffled += [part[place] for place in _permutation(len(part), seed, epoch, block).tolist()]
    return shuffled


@pytest.mark.parametrize("buffer", [1, 20, 25, 75, 1000])
def test_every_pass_is_a_permutation_shuffled_within_blocks(pool: Path, buffer: int) -> None:
    stream = make(pool, buffer=buffer)
    passes = stream.places(0, 4 * 75).reshape(4, 75)
    for epoch, order in enumerate(passes.tolist()):
        assert sorted(order) == list(range(75))
        assert order == slow_order(3, epoch, min(buffer, 75))
    assert len({tuple(order) for order in passes.tolist()}) == 4
    assert make(pool, buffer=buffer, seed=4).places(0, 75).tolist() != passes[0].tolist()
    dice = random.Random(0)
    for _ in range(50):  # any piece, asked for in any order
        start, count = dice.randrange(200), dice.randint(1, 100)
        assert stream.places(start, count).tolist() == passes.flatten()[start : start + count].tolist()


def test_an_image_moves_at_most_as_far_as_a_buffer_reaches(pool: Path) -> None:
    """With a buffer of 10, ten positions in a row from the start of a block come from at most four of the shards."""
    stream = make(pool, buffer=10)
    shard_of = np.repeat(np.arange(len(COUNTS)), COUNTS)
    for epoch in range(5):
        for block in range(7):
            places = stream.places(epoch * 75 + block * 10, 10)
            assert len(set(shard_of[places])) <= 4
    wide = {tuple(make(pool, buffer=75).places(start, 10)) for start in range(0, 70, 10)}
    assert max(len(set(shard_of[list(places)])) for places in wide) > 2


def test_the_pixels_are_those_of_the_files_whatever_is_fetched_ahead(tmp_path: Path) -> None:
    generator, files = np.random.default_rng(0), {}
    for number in range(40):
        file = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (30, 20 + number, 3), dtype=np.uint8)).save(file, "JPEG")
        files[f"{number:03d}.jpg"] = file.getvalue()
    write_tar(tmp_path / "pool" / "a.tar", files)
    stream = make(tmp_path / "pool", size=16, frame="center", buffer=10)
    expected = [decode_bytes(content, 16, "center") for content in files.values()]
    for start in (0, 6, 12, 18, 100, 3, 9):  # in order, a jump, back again
        rows = stream.rows(start, 6, ahead=[start + 6, start + 12])
        assert rows.dtype == torch.uint8
        assert torch.equal(rows, torch.from_numpy(np.stack([expected[place] for place in stream.places(start, 6)])))
        assert len(stream._pending) == 2
    assert torch.equal(make(tmp_path / "pool", size=16, frame="center", buffer=10).rows(9, 6), rows)


def test_two_readers_that_share_the_positions_see_every_image_once(pool: Path) -> None:
    """Each takes its half of every batch of 10, from a stream of its own; 15 batches are two passes."""
    ranks = [make(pool), make(pool)]
    seen = []
    for step in range(15):
        starts = [[(step + later) * 10 + 5 * rank for later in range(3)] for rank in range(2)]
        seen += [numbers_of(stream.rows(own[0], 5, ahead=own[1:])) for stream, own in zip(ranks, starts, strict=True)]
    seen = [number for part in seen for number in part]
    assert seen == numbers_of(make(pool).rows(0, 150))
    assert sorted(seen) == sorted([*range(75)] * 2)


def test_a_hiccup_of_the_storage_is_not_seen(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is an error, the second too short, the third good."""
    expected, said, real, turns = make(pool).rows(0, 75), [], os.pread, Counter()

    def moody(file: int, length: int, offset: int) -> bytes:
        which = threading.get_ident()
        turns[which] += 1
        if turns[which] % 3 == 1:
            raise OSError(116, "Stale file handle")
        return real(file, length, offset)[: 1 if turns[which] % 3 == 2 else None]

    stream = make(pool, say=said.append)
    monkeypatch.setattr(stream_module.os, "pread", moody)
    assert torch.equal(stream.rows(0, 75), expected)
    assert not said


def test_storage_that_answers_late_is_asked_for_several_images_at_a_time(
    pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 images of 20 ms each would take 1.2 s one after the other; one thread decodes."""
    real = os.pread

    def far(*where: int) -> bytes:
        time.sleep(0.02)
        return real(*where)

    monkeypatch.setattr(stream_module.os, "pread", far)
    began = time.monotonic()
    make(pool, workers=1).rows(0, 60)
    assert time.monotonic() - began < 0.8


def test_a_shard_that_changes_in_mid_run_stops_it_by_name(tmp_path: Path) -> None:
    """Open files stay readable when they are removed; a new reader, or a file cut short, is told."""
    pool = write_pool(tmp_path / "pool", COUNTS)
    stream, later = make(pool), make(pool)
    assert len(stream.rows(0, 75)) == 75
    victim = pool / "shard-004.tar"
    content = victim.read_bytes()
    victim.unlink()
    assert len(stream.rows(75, 75)) == 75
    with pytest.raises(UserError, match=r"shard '.*shard-004\.tar': cannot read at byte .*no such file.*--resume, or"):
        later.rows(0, 75)
    victim.write_bytes(content)  # another time stamp: perhaps other images
    with pytest.raises(UserError, match=r"shard-004\.tar': cannot read the image '000\d\d\.png': it was changed since"):
        later.rows(0, 75)
    fresh = make(pool)
    fresh.rows(0, 75)
    os.truncate(victim, 3000)
    with pytest.raises(UserError, match=r"shard-004\.tar'.*(cut short|changed)"):
        fresh.rows(75, 75)


def test_skipped_images_are_replaced_by_others_the_same_way_each_time(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", COUNTS)
    streams = [make(pool, skip_bad=True, say=(said := []).append) for _ in range(2)]
    clean = [numbers_of(make(pool).rows(start, 75)) for start in (0, 75)]
    (pool / "shard-004.tar").unlink()  # numbers 20 to 49
    for start, whole in zip((0, 75), clean, strict=True):
        first, second = (numbers_of(stream.rows(start, 75)) for stream in streams)
        assert first == second
        assert not set(first) & set(range(20, 50))
        for number, other in zip(whole, first, strict=True):
            assert number == other or number in range(20, 50)
        strangers = [other for number, other in zip(whole, first, strict=True) if number in range(20, 50)]
        assert len(set(strangers)) > 10  # not the same few again and again
    assert len(said) == 1
    assert "shard-004.tar" in said[0]
    assert "all its images are replaced" in said[0]


def test_bad_images_of_a_good_shard(tmp_path: Path) -> None:
    members = {f"{number}.png": picture(number) for number in range(12)} | {"5.png": b"no image at all", "7.png": b""}
    write_tar(tmp_path / "pool" / "a.tar", members)
    with pytest.raises(UserError, match=r"a\.tar': cannot read the image '(5|7)\.png': it is .*; repair it"):
        make(tmp_path / "pool").rows(0, 12)
    said = []
    stream = make(tmp_path / "pool", skip_bad=True, say=said.append)
    shown = numbers_of(stream.rows(0, 24))
    assert not {5, 7} & set(shown)
    assert {*range(12)} - {5, 7} <= set(shown)
    assert len(said) == 1
    write_tar(tmp_path / "hopeless" / "a.tar", {f"{number}.png": b"text" for number in range(3)})
    with pytest.raises(UserError, match="100 images of the shards in a row cannot be read"):
        make(tmp_path / "hopeless", skip_bad=True, say=said.append).rows(0, 2)


def test_after_an_error_nothing_is_left_to_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred shards that are gone: the first failure is told, the others are not tried again and again."""
    pool = write_pool(tmp_path / "pool", [2] * 100)
    others, stream = set(threading.enumerate()), make(pool)
    mine = lambda: [thread for thread in threading.enumerate() if thread not in others]  # noqa: E731
    monkeypatch.setattr(shards, "WAITS", (0.2,))
    for path in pool.iterdir():
        path.unlink()
    began = time.monotonic()
    with pytest.raises(UserError):
        stream.rows(0, 8, ahead=range(8, 192, 8))
    while (alive := mine()) and time.monotonic() - began < 3:
        time.sleep(0.01)
    assert not alive
    assert not stream._pending


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    stream = make(write_pool(tmp_path / "pool", [1] * (2 * OPEN_FILES)), buffer=1)
    before = len(os.listdir("/proc/self/fd"))
    for start in range(0, 2 * OPEN_FILES, 16):
        stream.rows(start, 16)
        assert len(os.listdir("/proc/self/fd")) <= before + OPEN_FILES + READERS


def streamed_loader(pool: Path, stream: bool, **changed) -> Loader:
    """Labeled images are grey; unlabeled ones of the pool, if they are used, black."""
    still = View(ops=0, flip=False, cutout_ratio=0.0)
    config = Config(
        image_size=8, labeled_batch=4, unlabeled_ratio=2, labeled_view=still, weak_view=still, total_steps=9
    )
    config = replace(config, **changed)
    pixels = torch.full((6, 3, 8, 8), 128, dtype=torch.uint8)
    targets = torch.ones(6, 1, dtype=torch.uint8)
    images = Images(pixels, Labels.of(targets), tuple("abcdef"), ("x",))
    data = Data(images, images.part(()), stream=make(pool) if stream else None)
    split = Split(("a", "b", "c"), () if stream else ("d", "e", "f"), (), ())
    pixels = Pixels(config, images.pixels, data.stream, (0.0,) * 3, (1 / 255,) * 3, torch.device("cpu"))
    return Loader(config, pixels, images, split, frozenset({"weak", "strong"}))


def batch_of(loader: Loader, step: int, micro: int) -> Batch:
    drawn = loader.draw(step)
    return loader.make(drawn, drawn, micro)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loader_shows_the_stream_in_its_order_and_in_one_form(pool: Path, accumulate: int) -> None:
    loader, plain = (streamed_loader(pool, stream, accumulate=accumulate) for stream in (True, False))
    expected = make(pool).places(0, 9 * 8).reshape(9, 8)
    form = lambda drawn: {name: (value.shape, value.dtype) for name, value in drawn.items()}  # noqa: E731
    assert form(loader.draw(0)) == form(loader.draw(8))
    for step in (0, 1, 2, 8, 3):
        parts = [batch_of(loader, step, micro) for micro in range(accumulate)]
        weak = torch.cat([part.weak for part in parts]).round().to(torch.uint8)
        assert numbers_of(weak) == expected[step].tolist()
        assert all(part.index is None for part in parts)
        for micro, part in enumerate(parts):
            other = batch_of(plain, step, micro)
            assert torch.equal(part.images, other.images)
            assert torch.equal(part.targets, other.targets)
            assert part.strong.shape == other.strong.shape
    waiting = loader.pixels.stream._pending
    assert not waiting or max(waiting)[0] < 9 * 8  # nothing after the last step


def test_a_pool_of_another_size_is_refused(pool: Path) -> None:
    ones = torch.ones(1, 1, dtype=torch.uint8)
    images = Images(torch.zeros(1, 3, 9, 8, dtype=torch.uint8), Labels.of(ones), ("a",), ("x",))
    with pytest.raises(UserError, match="the pool must have images of 8 x 8 as the stream has"):
        Data(images, images.part(()), stream=make(pool))


@pytest.mark.slow
def test_memory_stays_flat_over_three_passes(tmp_path: Path) -> None:
    """6,000 images, a buffer of 100: after the first pass resident memory grows by less than 4 MB in two more."""
    stream = make(write_pool(tmp_path / "pool", [200] * 30), buffer=100, size=64)
    resident = []
    for start in range(0, 3 * 6000, 50):
        stream.rows(start, 50, ahead=[start + 50 * later for later in range(1, 9)])
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert max(resident[120:]) - max(resident[:120]) < 4 << 20
