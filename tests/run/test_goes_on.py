"""After a fault a run goes on from what is whole and ends equal, or it says what is not. See also tests/faults."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TINY

from percentmatch.errors import UserError
from percentmatch.models import build_classifier
from percentmatch.runs import checkpoint
from percentmatch.runs.log import Log
from percentmatch.runs.run_folder import RunFolder, refuse_other
from percentmatch.settings.config import Config
from percentmatch.training import loop as train_module
from percentmatch.training.run import Run
from percentmatch.training.start import train

QUICK = replace(
    TINY, scenes_pool=48, scenes_test=16, validation=12, labeled=16, labeled_batch=4, total_steps=8, log_every=2
)
QUICK = replace(QUICK, eval_every=4, save_every=2)


class Crash(Exception):
    """As if the power went."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(QUICK, folder)
    return folder


def crash_before(step: int, folder: Path, monkeypatch: pytest.MonkeyPatch, config: Config = QUICK) -> None:
    """Train until this step begins, and let the checkpoint on its way arrive."""
    real = train_module.train_step

    def step_or_crash(run: Run, number: int) -> None:
        if number == step:
            raise Crash
        real(run, number)

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "train_step", step_or_crash)
        with pytest.raises(Crash):
            train(config, folder)


def ends_equal(folder: Path, undisturbed: Path) -> bool:
    train(QUICK, folder, resume=True)
    states = [torch.load(run / "last.pt", weights_only=True) for run in (folder, undisturbed)]
    for part in ("model", "ema"):
        assert all(torch.equal(value, states[1][part][name]) for name, value in states[0][part].items())
    files = [{file.name for file in run.iterdir()} for run in (folder, undisturbed)]
    logs = [(run / "log.jsonl").read_bytes() for run in (folder, undisturbed)]
    return files[0] == files[1] and logs[0] == logs[1]


def flip(file: Path, place: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 16
    file.write_bytes(content)


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "run"
    crash_before(7, folder, monkeypatch)
    flip(folder / "last.pt", 0.5)
    assert ends_equal(folder, undisturbed)
    assert "last.pt' is not a readable checkpoint (ValueError); going on from" in capsys.readouterr().err
    assert not (folder / "previous.pt").exists()


def test_a_kill_between_the_two_moves_costs_the_steps_since_the_one_before(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "run"
    crash_before(5, folder, monkeypatch)
    (folder / "last.pt").replace(folder / "previous.pt")
    assert ends_equal(folder, undisturbed)
    assert "last.pt' is missing; going on from" in capsys.readouterr().err


def test_weights_are_not_asked_for_again_where_only_the_checkpoint_before_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, start = tmp_path / "run", tmp_path / "start.pt"
    torch.save(build_classifier("test_resnet", num_classes=10, head="linear", image_size=32).state_dict(), start)
    config = replace(QUICK, weights=str(start), total_steps=4)
    crash_before(3, folder, monkeypatch, config)
    (folder / "last.pt").replace(folder / "previous.pt")
    start.unlink()
    assert train(config, folder, resume=True)["step"] == 4


def test_the_good_checkpoint_is_not_given_up_for_the_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next save, which moves last.pt to previous.pt, last.pt is the good one again."""
    folder = tmp_path / "run"
    crash_before(5, folder, monkeypatch)
    good = (folder / "previous.pt").read_bytes()
    flip(folder / "last.pt", 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(Log, "append", None)
        with pytest.raises(TypeError):
            train(QUICK, folder, resume=True)
    assert (folder / "last.pt").read_bytes() == good


def test_two_damaged_checkpoints_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    crash_before(5, folder, monkeypatch)
    for name in ("last.pt", "previous.pt"):
        (folder / name).write_bytes(b"")
    log = (folder / "log.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"last\.pt' is not .* and .*previous\.pt' is not .*; put a copy of it back"):
        train(QUICK, folder, resume=True)
    assert (folder / "log.jsonl").read_bytes() == log


def test_a_log_with_a_hole_is_not_gone_on_with(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Saved after steps 2, 4 and 6: rows of step 6 may be lost, those of step 4 may not; a digit changed is a loss."""
    folder = tmp_path / "run"
    crash_before(7, folder, monkeypatch)
    log = folder / "log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b'"step": 2', b'"step": 3'))
    with pytest.raises(UserError, match=r"log\.jsonl' does not begin as it did when .*; put a copy of it back"):
        train(QUICK, folder, resume=True)
    log.write_bytes(whole[:-40])
    assert ends_equal(folder, undisturbed)
    assert "log.jsonl' does not begin as it did when" in capsys.readouterr().err


@pytest.mark.parametrize("torn", ["", '{"step": 0, "kind": "start"}'])
def test_a_run_killed_at_its_first_row_writes_it_again(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    """The last one is whole but for its end: the next row would have gone on in the same line."""
    folder = tmp_path / "run"
    crash_before(0, folder, monkeypatch)
    (folder / "log.jsonl").write_text(torn)
    assert ends_equal(folder, undisturbed)


def test_a_run_stopped_before_its_first_row_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    checkpoint.save_checkpoint(folder.checkpoints.last, {"step": 1, "log": folder.log.mark()})
    state, why = folder.checkpoints.newest(torch.device("cpu"), save_every=3)
    assert why == ""
    folder.checkpoints.go_on_from(state, why)
    assert folder.log.path.read_bytes() == b""


def test_a_folder_with_the_rest_of_a_first_write_is_new(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.4711.0123abcd.part").write_text("data: sc")
    RunFolder(tmp_path).check_new()
    (tmp_path / ".hidden").touch()
    with pytest.raises(UserError, match="not empty"):
        RunFolder(tmp_path).check_new()


def test_weights_that_are_not_finite_are_not_saved(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last step before a checkpoint, whose loss and gradient were fine."""
    folder, real = tmp_path / "run", train_module.train_step

    def spoilt(run: Run, number: int) -> None:
        real(run, number)
        if number == 5:
            with torch.no_grad():
                next(run.model.parameters()).fill_(torch.inf)

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "train_step", spoilt)
        with pytest.raises(UserError, match=r"weights not finite after step 6; .*last\.pt' holds the last good state"):
            train(QUICK, folder)
    assert torch.load(folder / "last.pt", weights_only=True)["step"] == 4
    assert ends_equal(folder, undisturbed)


def test_a_run_is_finished_when_its_last_checkpoint_is_there(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = tmp_path / "run", checkpoint.save_checkpoint

    def fail_at_last(path: Path, state: dict, previous: Path) -> None:
        if state["step"] == 8:
            raise UserError("no room")
        real(path, state, previous)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_checkpoint", fail_at_last)
        with pytest.raises(UserError, match="no room"):
            train(QUICK, folder)
    assert not (folder / "metrics.json").exists()
    assert ends_equal(folder, undisturbed)


def test_two_processes_do_not_write_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock belongs to what opened the folder, so one process will do."""
    folder = tmp_path / "run"
    crash_before(3, folder, monkeypatch)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with RunFolder(folder) as other:
        other.hold()
        with pytest.raises(UserError, match=r"another process is at work in '.*run'; wait until it ends, or end it"):
            train(QUICK, folder, resume=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert train(QUICK, folder, resume=True)["step"] == 8


def test_settings_that_changed_in_the_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    crash_before(3, folder, monkeypatch)
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace("lr: 0.001", "lr: 0.003"))
    with pytest.raises(UserError, match=r"was begun with lr=0\.001, not 0\.003; resume with the same settings"):
        train(replace(QUICK, lr=0.003), folder, resume=True)


def test_the_file_of_the_weights_may_be_moved_but_not_another_one(tmp_path: Path) -> None:
    """Nor may the split be drawn in another way; what `auto` stood for may be written out."""
    folder, (old, new) = tmp_path / "run", (tmp_path / "old.pt", tmp_path / "new.pt")
    for file in (old, new):
        file.touch()
    then = Config(data="files", weights=str(old))
    refuse_other(folder, then, replace(then, split_kind="every-class"))
    with pytest.raises(UserError, match=r"begun with weights=.*old\.pt, not .*new\.pt"):
        refuse_other(folder, then, replace(then, weights=str(new)))
    with pytest.raises(UserError, match="begun with split_kind=every-class, not random"):
        refuse_other(folder, then, replace(then, split_kind="random"))
    with pytest.raises(UserError, match="begun with split_kind=random, not every-class"):
        refuse_other(folder, replace(then, data="voc"), replace(then, data="voc", split_kind="every-class"))
    with pytest.raises(UserError, match="begun with precision=bfloat16, not float32"):
        refuse_other(folder, replace(then, precision="bfloat16"), replace(then, precision="float32"))
    refuse_other(folder, replace(then, precision="bfloat16"), then)  # which this machine decides
    old.unlink()
    refuse_other(folder, then, replace(then, weights=str(new)))
    with pytest.raises(UserError, match="not none"):
        refuse_other(folder, then, replace(then, weights="none"))
