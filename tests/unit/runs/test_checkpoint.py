"""A checkpoint is whole or refused, and the one before it is kept."""

import io
import random
import resource
from pathlib import Path

import pytest
import torch

from percentmatch import files
from percentmatch.errors import UserError
from percentmatch.files import write_atomic
from percentmatch.runs.checkpoint import load_checkpoint, save_checkpoint

CPU = torch.device("cpu")


def state(step: int) -> dict:
    return {
        "step": step,
        "log": [7, "ab"],
        "model": {"weight": torch.arange(300.0) * step, "count": torch.tensor(step)},
    }


def same(one: dict, other: dict) -> bool:
    tensors = all(torch.equal(one["model"][name], value) for name, value in other["model"].items())
    return tensors and (one["step"], one["log"]) == (other["step"], other["log"])


def test_a_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    """Some bits mean nothing: torch fills gaps between tensors. torch alone would load most of the others."""
    file, rng = tmp_path / "last.pt", random.Random(0)
    save_checkpoint(file, state(3))
    whole, found, missed_by_torch = file.read_bytes(), 0, 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        try:
            assert same(load_checkpoint(file, CPU), state(3))
        except UserError:
            found += 1
            try:
                missed_by_torch += not same(torch.load(io.BytesIO(damaged), weights_only=True), state(3))
            except Exception:  # noqa: BLE001  torch raises many kinds
                continue
    assert found > 75
    assert missed_by_torch > 40


@pytest.mark.parametrize("content", [b"", b"nothing", bytes(4000)], ids=["empty", "text", "zeros"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "last.pt").write_bytes(content)
    with pytest.raises(UserError, match="not a readable checkpoint"):
        load_checkpoint(tmp_path / "last.pt", CPU)


def test_a_checkpoint_cut_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    save_checkpoint(file, state(3))
    whole = file.read_bytes()
    for length in range(1, len(whole), 97):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match="not a readable checkpoint"):
            load_checkpoint(file, CPU)


def test_the_checkpoint_before_is_kept(tmp_path: Path) -> None:
    last, previous = tmp_path / "last.pt", tmp_path / "previous.pt"
    save_checkpoint(last, state(1), previous)
    assert not previous.exists()
    for step in (2, 3):
        save_checkpoint(last, state(step), previous)
        assert [load_checkpoint(file, CPU)["step"] for file in (last, previous)] == [step, step - 1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.pt", "previous.pt"]


def test_a_full_disk_is_named_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full takes no byte. torch would say: unexpected pos 832 vs 726."""
    last, previous = tmp_path / "last.pt", tmp_path / "previous.pt"
    for step in (1, 2):
        save_checkpoint(last, state(step), previous)
    for write in (lambda: save_checkpoint(last, state(3), previous), lambda: write_atomic(last, b"x" * 9)):
        with monkeypatch.context() as patch:
            patch.setattr(files, "open", lambda path, mode: open("/dev/full", "wb"), raising=False)  # noqa: SIM115
            with pytest.raises(UserError, match=r"cannot write '.*last\.pt': No space left on device; what was there"):
                write()
        assert [load_checkpoint(file, CPU)["step"] for file in (last, previous)] == [2, 1]
        assert len(list(tmp_path.iterdir())) == 2


def test_what_the_system_said_is_told_when_torch_gives_up(tmp_path: Path) -> None:
    """A file that may not grow further fails in the middle of a tensor."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write '.*last\.pt': File too large; what was there"):
            save_checkpoint(tmp_path / "last.pt", {"weight": torch.zeros(300_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
