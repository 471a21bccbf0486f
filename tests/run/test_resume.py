"""A run that was stopped, killed, damaged or starved goes on exactly, or says why not."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from tiny import TINY, on_a_cpu, rows, weights

from percentmatch import __version__, files
from percentmatch.cli import main as cli
from percentmatch.console.signals import Stopped
from percentmatch.data import Data, Images, load_data, split_data
from percentmatch.data.labels import TABLES, Labels
from percentmatch.errors import UserError
from percentmatch.models import build_classifier
from percentmatch.runs import checkpoint
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config
from percentmatch.training import loop as train_module
from percentmatch.training.run import Run, labels_digest
from percentmatch.training.start import train

LONG = replace(TINY, total_steps=40, log_every=8, eval_every=20, save_every=7)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of many steps."""
    folder = tmp_path_factory.mktemp("runs") / "long"
    train(LONG, folder)
    return folder


def start(config: Config, folder: Path) -> subprocess.Popen:
    """The real command in a process of its own."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(config.to_dict()))
    command = [sys.executable, "-m", "percentmatch", "train", "--config", str(file), "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_stopped_run_resumes_to_the_same_weights_and_log(long: Path, tmp_path: Path) -> None:
    """Many steps so that the signal lands inside; the checkpoint may lie between log rows. SIGKILL: tests/faults."""
    folder = tmp_path / "killed"
    process = start(LONG, folder)
    deadline = time.monotonic() + 120
    while not (folder / "last.pt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "continue with --out" in errors
    assert not (folder / "metrics.json").exists(), "the signal came too late to test anything"

    cli.run(["train", "--config", str(folder.with_suffix(".yaml")), "--out", str(folder), "--resume"])
    assert (folder / "log.jsonl").read_bytes() == (long / "log.jsonl").read_bytes()
    whole = weights(long)
    for name, value in weights(folder).items():
        assert torch.equal(value, whole[name]), name
    scores = [json.loads((run / "metrics.json").read_text())["test"] for run in (folder, long)]
    assert scores[0] == scores[1]


def test_a_finished_run_is_not_trained_again(whole: Path) -> None:
    before = (whole / "last.pt").stat().st_mtime_ns
    assert train(TINY, whole, resume=True)["step"] == 12
    assert (whole / "last.pt").stat().st_mtime_ns == before


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a signal came in the middle of this step."""
    real = train_module.train_step

    def noisy(run: Run, number: int) -> None:
        real(run, number)
        if number + 1 == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train_module, "train_step", noisy)


def test_a_run_from_before_a_setting_was_there_is_read_and_resumed(whole: Path, tmp_path: Path, monkeypatch) -> None:
    """As if clip_grad and the cutout of the weak view were newer than the run: both have their defaults."""
    stop_at(7, monkeypatch)
    with pytest.raises(Stopped):
        train(TINY, tmp_path / "run")
    monkeypatch.undo()
    file = tmp_path / "run" / "config.yaml"
    values = yaml.safe_load(file.read_text())
    del values["chosen"]["clip_grad"], values["chosen"]["weak_view"]["cutout_ratio"]
    file.write_text(yaml.safe_dump(values))
    assert RunFolder(tmp_path / "run").read_config() == on_a_cpu(TINY)
    with pytest.raises(UserError, match=r"was begun with clip_grad=0\.0, not 1\.0; resume with the same settings"):
        train(replace(TINY, clip_grad=1.0), tmp_path / "run", resume=True)
    cli.run(["train", "--out", str(tmp_path / "run"), "--resume"])
    assert rows(tmp_path / "run") == rows(whole)
    assert cli.run(["evaluate", str(tmp_path / "run")]) is None


@pytest.mark.parametrize("place", ["brightness", "weak_view.brightness"])
def test_a_run_with_a_setting_of_a_newer_version_names_the_version(whole: Path, tmp_path: Path, place: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    values = yaml.safe_load((run / "config.yaml").read_text())
    (values["chosen"]["weak_view"] if "." in place else values["chosen"])["brightness"] = 3
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    (run / "environment.json").write_text('{"percentmatch": "7.8.9"}')
    sentence = rf"config\.yaml' has the setting '{place}', which percentmatch {__version__} does not know; the run"
    for verb in (["evaluate", run], ["train", "--out", run, "--resume"], ["report", run, "--out", run / "a.html"]):
        with pytest.raises(
            UserError, match=sentence + r" was made by percentmatch 7\.8\.9, so use that version or a newer one"
        ):
            cli.run([str(token) for token in verb])


def test_every_kind_of_training_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW, clipping, accumulation, teacher scores, an ML-Decoder with dropout, a file's weights, frozen BatchNorm."""
    start_from = tmp_path / "start.pt"
    torch.save(build_classifier("test_resnet", num_classes=10, image_size=32).state_dict(), start_from)
    config = replace(
        TINY,
        total_steps=8,
        save_every=100,
        optimizer="adamw",
        clip_grad=0.5,
        accumulate=2,
        head="ml-decoder",
        dropout=0.0,
        weights=str(start_from),
        freeze_batch_norm=True,
        options={**TINY.options, "scores": "teacher", "bins": "logit", "bias_correction": True},
    )
    train(config, tmp_path / "whole")
    stop_at(6, monkeypatch)
    with pytest.raises(Stopped, match="stopped at step 6 of 8"):
        train(config, tmp_path / "again")
    monkeypatch.undo()
    start_from.unlink()  # a resumed run does not need it
    train(config, tmp_path / "again", resume=True)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "again")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert rows(tmp_path / "whole") == rows(tmp_path / "again")


def test_a_lost_checkpoint_is_not_a_silent_restart(tmp_path: Path) -> None:
    train(TINY, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    (tmp_path / "run" / "last.pt").unlink()
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    with pytest.raises(UserError, match="missing though the log reaches step 12"):  # of 12, saved after each 5th
        train(TINY, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    calls = []

    def full(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2].startswith(".last.pt."):
            calls.append(descriptor)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*last\.pt.*No space left on device.*--resume"):
        train(TINY, tmp_path / "run")
    monkeypatch.undo()
    assert torch.load(tmp_path / "run" / "last.pt", weights_only=True)["step"] == 5
    assert not list((tmp_path / "run").glob(".*"))
    assert train(TINY, tmp_path / "run", resume=True)["step"] == 12


def test_the_checkpoint_of_another_model_is_refused(whole: Path, tmp_path: Path) -> None:
    config = replace(TINY, backbone="test_efficientnet")
    folder = tmp_path / "run"
    train(config, folder)
    (folder / "metrics.json").unlink()
    state = torch.load(folder / "last.pt", weights_only=True)
    torch.save({**state, "model": weights(whole)}, folder / "last.pt")
    with pytest.raises(UserError, match="checkpoint of another model"):
        train(config, folder, resume=True)
    strange = (whole / "last.pt").read_bytes()
    (folder / "last.pt").write_bytes(strange)
    with pytest.raises(UserError, match=r"log\.jsonl' does not begin as it did when .*last\.pt' was written"):
        train(config, folder, resume=True)
    (folder / "last.pt").write_bytes(strange[:1000])
    with pytest.raises(UserError, match="not a readable checkpoint"):
        train(config, folder, resume=True)
    assert (folder / "last.pt").read_bytes() == strange[:1000]


def test_a_torn_log_row_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(TINY, folder)
    (folder / "metrics.json").unlink()
    log = (folder / "log.jsonl").read_text()
    (folder / "log.jsonl").write_text(log + '{"step": 12, "ki')
    train(TINY, folder, resume=True)
    assert (folder / "log.jsonl").read_text() == log


def flipped(images: Images, name: str) -> Images:
    """The last label of the fifth image turned round: in targets, known or difficult."""
    tables = {each: getattr(images.labels, each).dense() for each in TABLES}
    tables[name][4, -1] ^= 1
    return replace(images, labels=Labels.of(**tables))


def renamed(data: Data) -> Data:
    names = data.pool.class_names[::-1]
    return Data(replace(data.pool, class_names=names), replace(data.test, class_names=names))


def test_every_change_of_labels_is_seen() -> None:
    """But not what stands where a label is unknown, nor the order of the images."""
    data = load_data(TINY)
    split = split_data(TINY, data)
    kinds = ("targets", "known", "difficult")
    pools = [Data(flipped(data.pool, kind), data.test) for kind in kinds]
    tests = [Data(data.pool, flipped(data.test, kind)) for kind in kinds]
    assert len({labels_digest(each, split) for each in (data, *pools, *tests, renamed(data))}) == 8
    unknown = flipped(data.pool, "known")
    same = [Data(pool, data.test) for pool in (unknown, flipped(unknown, "targets"), unknown.part(unknown.ids[::-1]))]
    assert len({labels_digest(each, split) for each in same}) == 1


def test_a_run_does_not_go_on_with_other_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data(TINY)
    stop_at(7, monkeypatch)
    with pytest.raises(Stopped):
        train(TINY, tmp_path / "run", data=data)
    monkeypatch.undo()
    kept = (tmp_path / "run" / "last.pt").read_bytes()
    for other in (Data(flipped(data.pool, "targets"), data.test), renamed(data)):
        with pytest.raises(UserError, match=r"class names or labels in 'the data' have changed since .*run' was begun"):
            train(TINY, tmp_path / "run", resume=True, data=other)
    assert (tmp_path / "run" / "last.pt").read_bytes() == kept
    assert train(TINY, tmp_path / "run", resume=True, data=data)["step"] == 12


@pytest.mark.gpu
def test_a_gpu_run_resumes_exactly_when_deterministic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(TINY, device="cuda", deterministic=True)
    train(config, tmp_path / "whole")
    stop_at(7, monkeypatch)
    with pytest.raises(Stopped):
        train(config, tmp_path / "again")
    monkeypatch.undo()
    train(config, tmp_path / "again", resume=True)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "again")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert rows(tmp_path / "whole") == rows(tmp_path / "again")


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of the first checkpoint waits for a later step; what it then writes is the state of its own step."""
    later, written, expected = threading.Event(), {}, {}
    real_save, real_step = torch.save, train_module.train_step

    def slow(state: dict, place: Path) -> None:
        if state["step"] == 5:
            assert later.wait(60)
            written.update(copy.deepcopy(state["model"]))
        real_save(state, place)

    def step(run: Run, number: int) -> None:
        real_step(run, number)
        if number == 4:
            expected.update(copy.deepcopy(run.model.state_dict()))
        if number == 6:
            later.set()

    monkeypatch.setattr(checkpoint.torch, "save", slow)
    monkeypatch.setattr(train_module, "train_step", step)
    train(replace(TINY, total_steps=8), tmp_path / "run")
    torch.testing.assert_close(written, expected, rtol=0, atol=0)
    assert torch.load(tmp_path / "run" / "last.pt", weights_only=True)["step"] == 8


def test_the_time_before_a_resume_counts(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(TINY, out)
    state = torch.load(out / "last.pt", weights_only=True)
    torch.save({**state, "seconds": state["seconds"] + 6000}, out / "last.pt")
    (out / "metrics.json").unlink()
    assert train(TINY, out, resume=True)["minutes"] >= 100
