"""The cache of decoded images: built once, whole or not there, right whoever builds it and whatever interrupts it."""

import multiprocessing
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from percentmatch.data.pixels import cache, cache_file
from percentmatch.data.pixels import decode as decode_module
from percentmatch.data.pixels.cache import Cached, cache_folder, open_cache
from percentmatch.data.pixels.decode import cannot_read, decode
from percentmatch.errors import UserError

FEW, MANY = 9, 70  # decoded here, or by two processes
fork = multiprocessing.get_context("fork")
folder = pytest.fixture(lambda tmp_path: tmp_path / "deep" / "cache", name="folder")


def draw(path: Path, red: int) -> None:
    Image.new("RGB", (6, 4), (red, 2, 3)).save(path, "BMP")  # of one length whatever the colour


def pictures(folder: Path, number: int) -> list[Path]:
    """So many images; the red of each is its row."""
    paths = [folder.parents[1] / f"no. {row} é.bmp" for row in range(number)]
    for row, path in enumerate(paths):
        draw(path, row)
    return paths


def opened(paths: list[Path], folder: Path, **options) -> Cached:
    return open_cache(paths, **{"size": 5, "frame": "squash", "folder": folder, "workers": 2, **options})


def reds(cached: Cached) -> list[int]:
    assert (cached.pixels == cached.pixels[:, :, :1, :1]).all()
    return cached.pixels[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("number", [FEW, MANY])
def test_a_second_open_decodes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    paths, seen = pictures(folder, number), []
    first = opened(paths, folder, progress=lambda *numbers: seen.append(numbers))
    assert seen == [(done, number) for done in range(1, number + 1)]
    assert (first.decoded, first.bad, reds(first)) == (number, {}, list(range(number)))
    assert first.pixels[3].tolist() == decode(paths[3], 5, "squash").tolist()
    monkeypatch.setattr(cache, "_build", None)
    again = opened(paths, folder, verify=True)
    assert (again.decoded, again.changed) == (0, ())
    assert torch.equal(again.pixels, first.pixels)
    assert np.array_equal(np.load(*folder.iterdir()), first.pixels)  # one file, which others can read


def test_what_is_asked_for_and_time_stamps_make_another_cache(folder: Path, monkeypatch: pytest.MonkeyPatch):
    paths = pictures(folder, FEW)
    for change in ({}, {"frame": "center"}, {"size": 4}):
        assert opened(paths, folder, **change).decoded == FEW
    assert opened(paths, folder).decoded == 0
    draw(paths[2], 99)
    os.utime(paths[2], ns=(1, 10**18 + 1))
    changed = opened(paths, folder)
    assert (changed.decoded, reds(changed)[2]) == (FEW, 99)
    monkeypatch.chdir(paths[0].parent)
    assert opened([Path(path.name) for path in paths], folder).decoded == 0  # the same files by other names
    assert opened(paths[::-1], folder).decoded == FEW


def test_verify_finds_changes_that_keep_length_and_time(folder: Path):
    paths = pictures(folder, FEW)
    paths[7].write_bytes(b"x" * paths[4].stat().st_size)
    before, abouts = opened(paths, folder, skip_bad=True), {row: paths[row].stat() for row in (4, 7)}
    for row, about in abouts.items():
        draw(paths[row], 200)
        os.utime(paths[row], ns=(about.st_atime_ns, about.st_mtime_ns))
    assert reds(opened(paths, folder, skip_bad=True))[4] == 4
    after = opened(paths, folder, verify=True)
    assert (after.decoded, after.changed) == (2, (4, 7))
    assert reds(after) == [0, 1, 2, 3, 200, 5, 6, 200, 8]
    assert reds(before)[4] == 4  # a run that has the old file keeps it
    assert opened(paths, folder, verify=True).decoded == 0


@pytest.mark.parametrize("number", [FEW, MANY])
def test_bad_images(folder: Path, number: int):
    paths = pictures(folder, number)
    paths[5].write_text("no image")
    paths[2].unlink()
    message = f"cannot read image '{paths[2]}': there is no such file \\(2 of {number} .*--skip-bad-images"
    for _ in range(2):
        with pytest.raises(UserError, match=message):
            opened(paths, folder)
    cached = opened(paths, folder, skip_bad=True)
    reasons = {2: "there is no such file", 5: "it is text, not an image"}
    assert cached.bad == {row: cannot_read(paths[row], reason) for row, reason in reasons.items()}
    assert reds(cached) == [0 if row in (2, 5) else row for row in range(number)]
    draw(paths[2], 2)
    assert list(opened(paths, folder, skip_bad=True, workers=1).bad) == [5]


def test_a_file_that_could_not_be_read_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Permissions of another owner, or storage with hiccups: neither shows in the file's size, time or mode."""
    paths = pictures(folder, FEW)
    paths[4].write_bytes(b"damaged")
    whole = decode_module._read_file

    def refuse(path: str | Path) -> bytes:
        if str(path) == str(paths[2]):
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(decode_module, "_read_file", refuse)
    assert opened(paths, folder, skip_bad=True).bad.keys() == {2, 4}
    assert opened(paths, folder, skip_bad=True).decoded == 0
    monkeypatch.setattr(decode_module, "_read_file", whole)
    again = opened(paths, folder, skip_bad=True)
    assert (again.decoded, again.bad.keys(), again.changed) == (1, {4}, ())
    assert again.pixels[2, 0, 0, 0] == 2
    assert opened(paths, folder, skip_bad=True).decoded == 0


def test_nothing_is_kept_if_all_images_are_bad(folder: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"'.*/0': there is no such file \(3 of 3 images cannot be read\); check the"):
        opened([tmp_path / str(row) for row in range(3)], folder, skip_bad=True)
    assert not list(folder.iterdir())
    assert opened([], folder).pixels.shape == (0, 3, 5, 5)


@pytest.mark.parametrize(("length", "more"), [(-1, b""), (-1, b"?"), (200, b""), (0, b"")])
def test_a_damaged_cache_is_built_again(folder: Path, length: int, more: bytes):
    paths = pictures(folder, FEW)
    opened(paths, folder)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:length] + more)
    assert reds(opened(paths, folder)) == list(range(FEW))
    assert file.read_bytes() == content


@pytest.mark.parametrize("number", [FEW, MANY])
def test_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    """At once where room can be reserved; else, as on /dev/full, when pixels are written."""
    paths = pictures(folder, number)
    message = f"cannot write the decoded images to '{folder}': No space left on device; make room for .* GB or set PERC"
    with pytest.raises(UserError, match="cannot write the decoded images"):
        opened(paths, paths[0])
    reserve = os, "posix_fallocate", lambda *args: os.write(os.open("/dev/full", os.O_WRONLY), b" ")
    write = cache_file, "allocate", lambda part, *rest: part.symlink_to("/dev/full") or 0
    for patch in (reserve, write):
        monkeypatch.setattr(*patch)
        with pytest.raises(UserError, match=message):
            opened(paths, folder)
        assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [FEW, MANY])
def test_ctrl_c_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    paths, started, start = pictures(folder, number), [], cache.start_decoder
    monkeypatch.setattr(cache, "start_decoder", lambda **pipes: started.append(start(**pipes)) or started[-1])
    with pytest.raises(KeyboardInterrupt) as held:  # and with it what it went through
        opened(paths, folder, progress=lambda done, total: done == 5 and signal.raise_signal(signal.SIGINT))
    assert not list(folder.iterdir())
    assert [process.returncode is None for process in started] == [False] * (2 if number == MANY else 0), held


def test_a_worker_that_dies_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch):
    paths = pictures(folder, MANY)
    monkeypatch.setattr(cache, "start_decoder", lambda stdin, stdout: subprocess.Popen("false"))
    with pytest.raises(UserError, match=f"decoding '{paths[0]}' ended its process \\(1\\)"):
        opened(paths, folder)


@pytest.mark.parametrize("number", [FEW, MANY])
def test_two_processes_build_at_once(folder: Path, number: int):
    """Each waits for the other after its first image, so both build."""
    paths, barrier = pictures(folder, number), fork.Barrier(2)

    def build() -> None:
        cached = opened(paths, folder, progress=lambda done, total: done == 1 and barrier.wait(60))
        assert (cached.decoded, reds(cached)) == (number, list(range(number)))

    both = [fork.Process(target=build) for _ in range(2)]
    for process in both:
        process.start()
    assert [process.join(60) or process.exitcode for process in both] == [0, 0]
    assert [file.suffix for file in folder.iterdir()] == [".npy"]
    assert opened(paths, folder).decoded == 0


def test_a_killed_build_is_swept_away(folder: Path):
    """At once where the process is known to be gone; after a while where it may be at work on another machine."""
    paths = pictures(folder, FEW)
    die = {"progress": lambda done, total: done == 5 and os.kill(os.getpid(), signal.SIGKILL)}
    process = fork.Process(target=opened, args=(paths, folder), kwargs=die)
    process.start()
    process.join(60)
    (left,) = folder.glob(".*.part")
    theirs = [folder / f".x.{process.pid}.{machine}0123abcd.part" for machine in ("", "0000")]
    mine = folder / f".x.{os.getpid()}.0123abcd.part"
    for part in (*theirs, mine):
        part.touch()
    os.utime(left, (2e9, 2e9))  # the clock has jumped back since
    assert opened(paths, folder).decoded == FEW
    assert [part.exists() for part in (left, *theirs, mine)] == [False, True, True, True]
    for part in (*theirs, mine):
        os.utime(part, (0, 0))
    opened(paths, folder, frame="center")
    assert [part.exists() for part in (*theirs, mine)] == [False, False, True]


@pytest.mark.parametrize("name", ["PERCENTMATCH_CACHE", "XDG_CACHE_HOME"])
def test_the_folder_of_an_unknown_user_is_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PERCENTMATCH_CACHE", raising=False)
    monkeypatch.setenv(name, "~nobodyhere/x")
    sentence = r"'~nobodyhere/x.*' is in the home of an unknown user; set PERCENTMATCH_CACHE"
    with pytest.raises(UserError, match=sentence.replace("' is", "', where decoded images are kept, is")):
        cache_folder()


def test_the_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("PERCENTMATCH_CACHE", "~/mine")
    assert cache_folder() == Path("/home/me/mine")
    monkeypatch.delenv("PERCENTMATCH_CACHE")
    assert cache_folder() == Path("/x/percentmatch")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/me/.cache/percentmatch")
