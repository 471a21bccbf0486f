"""What a killed command left beside its output is gone after the next one, and nothing else is."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from saved_model import save_model, save_photos

from percentmatch import files
from percentmatch.use.export import export
from percentmatch.use.predict import predict

fork = multiprocessing.get_context("fork")


def table(base: Path, out: Path) -> None:
    predict(base / "model.safetensors", [base / "photos"], out / "table.csv", device="cpu")


def folder(base: Path, out: Path) -> None:
    export(base / "model.safetensors", out / "exported")


def numbers(base: Path, out: Path) -> None:
    files.write_json(out / "numbers.json", {"a": 1})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("base")
    save_model(base / "model.safetensors")
    save_photos(base / "photos", 3)
    return base


def killed_before_the_move(do: Callable[[Path, Path], None], base: Path, out: Path) -> None:
    real = os.replace

    def replace(old: Path, new: Path) -> None:
        if Path(new).parent == out:
            os.kill(os.getpid(), signal.SIGKILL)
        real(old, new)

    os.replace = replace
    do(base, out)


@pytest.mark.parametrize("do", [table, folder, numbers], ids=lambda do: do.__name__)
def test_a_killed_command_leaves_nothing_for_good(do: Callable[[Path, Path], None], base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    process = fork.Process(target=killed_before_the_move, args=(do, base, out))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    (left,) = out.iterdir()
    assert files.is_part(left)
    others = [out / f".other.{process.pid}{left.name[-18:]}", out / ".mine.part"]
    for other in others:
        other.touch()
    do(base, out)
    assert not left.exists()
    assert all(other.exists() for other in others)
    assert len(list(out.iterdir())) == 3


def test_a_folder_that_only_looks_like_it_is_not_followed(base: Path, tmp_path: Path) -> None:
    """A link to a folder is removed, not what is in it."""
    kept, out = tmp_path / "kept", tmp_path / "out"
    for made in (kept, out):
        made.mkdir()
    (kept / "mine").touch()
    name = files.beside(out / "numbers.json").name.replace(str(os.getpid()), str(2**22 + 1), 1)  # above every process
    (out / name).symlink_to(kept)
    numbers(base, out)
    assert [path.name for path in out.iterdir()] == ["numbers.json"]
    assert (kept / "mine").exists()
