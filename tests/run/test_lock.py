"""A folder belongs to one process at a time, from before its data is read until its last file is written."""

import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import yaml
from tiny import TINY

from forked import exit_code, start_copy
from percentmatch.cli.main import main
from percentmatch.errors import UserError
from percentmatch.files import boot_id
from percentmatch.runs import lock
from percentmatch.runs.lock import Lock
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config, PretrainSettings
from percentmatch.training.start import pretrain, train
from percentmatch.use.grid import read_grid, run_grid

SMALL = replace(
    TINY, scenes_pool=24, scenes_test=4, validation=4, labeled=8, labeled_batch=2, total_steps=2, log_every=2
)
SMALL = replace(SMALL, eval_every=0, save_every=2)
PRETRAIN = PretrainSettings(
    data="scenes", scenes_pool=24, scenes_test=4, image_size=32, backbone="test_resnet", batch=4, total_steps=2
)


def wait_in(place: str, go_on: Path, reached: Path, tokens: list[str]) -> None:
    """A command that waits in the function that `place` names until a file is there."""
    module, _, owner = place.partition(":")
    owner, name = owner.rpartition(".")[::2]
    owner = getattr(import_module(module), owner) if owner else import_module(module)
    real = getattr(owner, name)

    def wait(*args, **options):
        reached.touch()
        while not go_on.exists():
            time.sleep(0.01)
        return real(*args, **options)

    setattr(owner, name, wait)
    sys.argv = ["percentmatch", *tokens]
    main()


DECODING = "percentmatch.training.start:_load"
BEFORE_THE_LOCK = "percentmatch.runs.lock:Lock.take"


@dataclass
class Started:
    process: BaseProcess
    said: Path

    def end(self) -> tuple[int | None, str]:
        """Its exit code, and what it said."""
        return exit_code(self.process), self.said.read_text()


def started(place: str, go_on: Path, out: Path) -> Started:
    """A run in a process of its own that has come to this function and waits there for the file `go_on`."""
    config, reached, said = (go_on.with_suffix(suffix) for suffix in (".yaml", ".reached", ".said"))
    config.write_text(yaml.safe_dump(SMALL.to_dict()))
    tokens = ["train", "--config", str(config), "--out", str(out)]
    process = start_copy(wait_in, place, go_on, reached, tokens, said=said)
    until = time.monotonic() + 120
    while not reached.exists() and process.is_alive() and time.monotonic() < until:
        time.sleep(0.02)
    assert reached.exists(), said.read_text()
    return Started(process, said)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_second_process_is_refused_while_the_first_reads_its_images(tmp_path: Path) -> None:
    """In one folder, and in one grid, whose run the first process makes."""
    out, go_on, grid = tmp_path / "grid" / "one-seed0", tmp_path / "go", tmp_path / "grid.yaml"
    values = {name: value for name, value in SMALL.to_dict().items() if name not in ("seed", "split_seed")}
    grid.write_text(yaml.safe_dump({"settings": values, "runs": {"one": {}}}))
    first = started(DECODING, go_on, out)
    sentence = r"another process is at work in '.*one-seed0'; wait until it ends, or end it"
    with pytest.raises(UserError, match=f"^{sentence}$"):
        train(SMALL, out)
    with pytest.raises(UserError, match=f"^{sentence}$"):
        pretrain(PRETRAIN, out)
    with pytest.raises(UserError, match=f"run 'one-seed0': {sentence}$"):
        run_grid(read_grid(grid), tmp_path / "grid")
    go_on.touch()
    code, said = first.end()
    assert code == 0, said
    assert (out / "metrics.json").exists()
    assert not (out / lock.NAME).exists()


def test_a_run_that_was_finished_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """The second looked at the folder before the first made it."""
    out, go_on = tmp_path / "out", tmp_path / "go"
    second = started(BEFORE_THE_LOCK, go_on, out)
    train(SMALL, out)
    before = contents(out)
    go_on.touch()
    code, said = second.end()
    sentence = f"percentmatch: '{out}' already holds a run; continue it with --resume or choose another --out\n"
    assert (code, said.splitlines(keepends=True)[-1]) == (2, sentence)
    assert contents(out) == before


def test_nothing_is_left_of_a_command_that_fails_before_its_first_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        train(Config(data="files", labels=str(tmp_path / "labels.csv")), tmp_path / "runs" / "mine")
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_killed_process_is_taken(tmp_path: Path) -> None:
    """Its folder is still new, since it has written nothing but that."""
    out = tmp_path / "out"
    killed = started(DECODING, tmp_path / "go", out)
    killed.process.kill()
    assert killed.end()[0] == -signal.SIGKILL
    assert [file.name for file in out.iterdir()] == [lock.NAME]
    train(SMALL, out)
    assert (out / "metrics.json").exists()
    assert not (out / lock.NAME).exists()


def on_another_machine(monkeypatch: pytest.MonkeyPatch, *, host: str = "other", boot: str = "4711") -> None:
    monkeypatch.setattr(lock.platform, "node", lambda: host)
    monkeypatch.setattr(lock, "boot_id", lambda: boot)


@pytest.mark.parametrize("no_locks", [False, True], ids=["locks stay on the machine", "no locks"])
def test_two_machines_on_a_network_disk_are_told_apart(
    no_locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's lock says nothing there, so the note does, and it names what to do when its writer is dead."""
    import fcntl

    def flock(*_: object) -> None:
        if no_locks:
            raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with RunFolder(tmp_path / "run") as mine:
        mine.hold()
        host = os.uname().nodename
        with monkeypatch.context() as patch:
            on_another_machine(patch)
            sentence = (
                rf"^process {os.getpid()} on the machine '{host}' is at work in '.*run', or was killed there; "
                r"if it has ended, remove '.*run/\.lock' and run the command again$"
            )
            for _ in range(2):
                with pytest.raises(UserError, match=sentence):
                    train(SMALL, tmp_path / "run")
            (tmp_path / "run" / lock.NAME).unlink()
            train(SMALL, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize("same", ["host", "boot"])
def test_a_rebooted_machine_and_a_new_container_on_this_one_take_the_lock(
    same: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if same == "boot" and not boot_id():
        pytest.skip("this system does not number its boots")
    (tmp_path / lock.NAME).write_text(f"12\n{os.uname().nodename}\n{boot_id()}")
    on_another_machine(monkeypatch, **{same: os.uname().nodename if same == "host" else boot_id()})
    found = Lock(tmp_path)
    found.take()
    assert found.file is not None
    found.free()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_what_stands_in_place_of_a_lock_is_not_written_to(kind: str, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run"
    folder.mkdir()
    victim.write_text("mine")
    place = folder / lock.NAME
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(victim if kind == "link" else tmp_path / "new")
    with pytest.raises(UserError, match=r"run/\.lock'"):
        train(SMALL, folder)
    assert victim.read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "victim"]


def test_a_lock_is_not_shared_by_one_that_opened_it_before_it_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that the second has open is gone when the first ends, and the third makes another."""
    import fcntl

    first, second, third = (Lock(tmp_path) for _ in range(3))
    first.take()
    real = fcntl.flock

    def late(file: int, how: int) -> None:
        monkeypatch.undo()
        first.free()
        third.take()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(UserError, match="another process is at work"):
        second.take()
    assert second.file is None
    third.free()
