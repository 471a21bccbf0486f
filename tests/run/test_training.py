"""Short real trainings: what a run leaves behind, exact resume after a kill, and faults on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from percentmatch import checkpoint
from percentmatch import run as run_module
from percentmatch import train as train_module
from percentmatch.config import Config
from percentmatch.errors import UserError
from percentmatch.evaluate import score_run
from percentmatch.models import build_classifier
from percentmatch.optim import build_optimizer
from percentmatch.signals import Stopped
from percentmatch.train import train

TINY = Config(
    scenes_pool=120,
    scenes_test=40,
    validation=30,
    labeled=40,
    image_size=32,
    backbone="test_resnet",
    head="linear",
    dropout=0.2,
    labeled_batch=8,
    total_steps=12,
    lr=1e-3,
    log_every=4,
    eval_every=6,
    save_every=5,
    options={"warmup_steps": 3, "gap_start": 0.0, "gap_full": 0.1},
)


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(TINY, folder)
    return folder


def test_a_run_leaves_the_files_that_the_contract_names(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names == {
        "config.yaml",
        "split.json",
        "environment.json",
        "log.jsonl",
        "last.pt",
        "model.safetensors",
        "metrics.json",
    }
    assert Config.from_dict(yaml.safe_load((whole / "config.yaml").read_text())) == TINY
    kinds = [(row["step"], row["kind"]) for row in rows(whole)]
    assert kinds == [
        (0, "start"),
        (4, "train"),
        (6, "validation"),
        (8, "train"),
        (12, "train"),
        (12, "validation"),
    ]
    classes = rows(whole)[-2]["classes"]
    wanted = {
        "upper",
        "lower",
        "gap",
        "weights",
        "positive_rate",
        "negative_rate",
        "positives_right",
        "negatives_right",
    }
    assert wanted <= classes.keys()
    assert all(len(values) == 10 for values in classes.values())


def test_the_saved_model_scores_what_the_run_reported(whole: Path) -> None:
    metrics = json.loads((whole / "metrics.json").read_text())
    assert score_run(whole, "test")["mAP"] == metrics["test"]["ema"]["mAP"]
    assert score_run(whole, "validation")["AUC"] == metrics["validation"]["ema"]["AUC"]
    assert metrics["test"]["ema"] != metrics["test"]["model"]


def test_another_seed_is_another_run(whole: Path, tmp_path: Path) -> None:
    train(replace(TINY, seed=1, total_steps=4, save_every=4), tmp_path / "other")
    assert rows(tmp_path / "other")[1]["loss"] != rows(whole)[1]["loss"]


def start(config: Config, folder: Path, *more: str) -> subprocess.Popen:
    """The real command in a process of its own."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(config.to_dict()))
    command = [sys.executable, "-m", "percentmatch", "train", "--config", str(file), "--out", str(folder), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


LONG = replace(TINY, total_steps=60, log_every=8, eval_every=20, save_every=7)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of many steps."""
    folder = tmp_path_factory.mktemp("runs") / "long"
    train(LONG, folder)
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_resumes_to_the_same_weights_and_log(long: Path, tmp_path: Path, number: int) -> None:
    """Many steps so that the signal lands inside; the checkpoint may lie between log rows."""
    folder = tmp_path / "killed"
    process = start(LONG, folder)
    deadline = time.monotonic() + 120
    while not (folder / "last.pt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), errors
    if number != signal.SIGKILL:
        assert "continue with --out" in errors
    assert not (folder / "metrics.json").exists(), "the signal came too late to test anything"

    again = start(LONG, folder, "--resume")
    _, errors = again.communicate(timeout=180)
    assert again.returncode == 0, errors
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

    def noisy(run: run_module.Run, number: int) -> None:
        real(run, number)
        if number + 1 == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train_module, "train_step", noisy)


def test_every_kind_of_training_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW, clipping, accumulation, teacher scores, an ML-Decoder with dropout, weights from a file."""
    start_from = tmp_path / "start.pt"
    torch.save(build_classifier("test_resnet", num_classes=10, image_size=32).state_dict(), start_from)
    config = replace(
        TINY,
        optimizer="adamw",
        clip_grad=0.5,
        accumulate=2,
        head="ml-decoder",
        dropout=0.0,
        weights=str(start_from),
        options={**TINY.options, "scores": "teacher", "bins": "logit", "bias_correction": True},
    )
    train(config, tmp_path / "whole")
    stop_at(7, monkeypatch)
    with pytest.raises(Stopped, match="stopped at step 7 of 12"):
        train(config, tmp_path / "again")
    monkeypatch.undo()
    start_from.unlink()  # a resumed run does not need it
    train(config, tmp_path / "again", resume=True)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "again")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert rows(tmp_path / "whole") == rows(tmp_path / "again")


def test_bfloat16_training_is_finite(tmp_path: Path) -> None:
    """One step on a CPU, where it is slow; float32 gives almost the same loss."""
    config = replace(TINY, total_steps=1, labeled_batch=2, save_every=1, log_every=1, method="supervised", options={})
    for precision in ("float32", "bfloat16"):
        train(replace(config, precision=precision), tmp_path / precision)
    losses = [rows(tmp_path / precision)[1]["loss"] for precision in ("float32", "bfloat16")]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


def test_weight_decay_spares_biases() -> None:
    """AdamW without gradient: a weight of 1 shrinks by lr * decay = .05, a bias does not."""
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(1.0), layer.bias.fill_(1.0)
    config = replace(TINY, optimizer="adamw", weight_decay=0.1, lr=0.5)
    optimizer = build_optimizer(layer, config, torch.device("cpu"))
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert layer.weight.flatten().tolist() == pytest.approx([0.95] * 4)
    assert layer.bias.tolist() == [1.0, 1.0]


def test_clip_grad_reaches_the_gradients(tmp_path: Path) -> None:
    """The gradients a step leaves behind have at most the norm asked for; without clipping they have more."""
    norms = {}
    for clip in (0.0, 0.01):
        run = run_module.Run(
            replace(TINY, clip_grad=clip),
            run_module.RunFolder(tmp_path / "none"),
            train_module.load_data(TINY),
            torch.device("cpu"),
        )
        train_module.train_step(run, 0)
        norms[clip] = torch.nn.utils.get_total_norm([p.grad for p in run.trained]).item()
    assert norms[0.01] <= 0.0101 < norms[0.0]


def test_a_lost_checkpoint_is_not_a_silent_restart(tmp_path: Path) -> None:
    train(TINY, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    (tmp_path / "run" / "last.pt").unlink()
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    with pytest.raises(UserError, match="missing though the log reaches step 12"):
        train(TINY, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log


def test_data_given_in_python(tmp_path: Path) -> None:
    data = train_module.load_data(TINY)
    metrics = train(TINY, tmp_path / "run", data=data)
    assert score_run(tmp_path / "run", data=data)["mAP"] == metrics["test"]["ema"]["mAP"]
    with pytest.raises(UserError, match="given in Python"):
        score_run(tmp_path / "run")


def test_accumulation_sees_the_same_images_and_about_the_same_gradient(tmp_path: Path) -> None:
    """A backbone without BatchNorm and dropout: two halves of the batch give the step of the whole one."""
    config = replace(
        TINY,
        method="supervised",
        options={},
        backbone="test_vit",
        dropout=0.0,
        total_steps=3,
        save_every=3,
        image_size=160,
    )
    for accumulate in (1, 2):
        train(replace(config, accumulate=accumulate), tmp_path / str(accumulate))
    one, two = weights(tmp_path / "1"), weights(tmp_path / "2")
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-2, atol=2e-4)


def test_single_label_training_runs_through_the_same_labelers(tmp_path: Path) -> None:
    metrics = train(replace(TINY, task="single-label"), tmp_path / "single")
    assert 0 <= metrics["test"]["ema"]["accuracy"] <= 1
    assert rows(tmp_path / "single")[-2]["unlabeled"] >= 0


def test_training_learns(tmp_path: Path) -> None:
    """Sixty supervised steps on 450 labels lift validation mAP well above the mean prevalence of 0.2."""
    config = replace(
        TINY,
        method="supervised",
        options={},
        scenes_pool=600,
        labeled=450,
        validation=150,
        labeled_batch=64,
        total_steps=60,
        lr=1e-2,
        dropout=0.0,
        ema_decay=0.9,
    )
    config = replace(config, labeled_view=replace(config.labeled_view, ops=0, cutout_ratio=0.0))
    assert train(config, tmp_path / "learn")["validation"]["ema"]["mAP"] > 0.3


def test_a_loss_that_is_not_finite_stops_with_step_and_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(run_module.Loader):
        def batch(self, step: int, micro: int = 0):
            batch = super().batch(step, micro)
            return replace(batch, images=batch.images * torch.nan) if step == 7 else batch

    monkeypatch.setattr(run_module, "Loader", Broken)
    with pytest.raises(UserError, match=r"supervised loss.* not finite in step 8; .*last\.pt' holds"):
        train(TINY, tmp_path / "run")
    kept = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert kept["step"] == 5
    assert all(value.isfinite().all() for value in kept["model"].values())


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 13:  # the files of a new run, two log rows and the first checkpoint went well
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", full)
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
    strange = (whole / "last.pt").read_bytes()
    (folder / "last.pt").write_bytes(strange)
    with pytest.raises(UserError, match="checkpoint of another model"):
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


@pytest.mark.gpu
def test_a_training_step_on_a_gpu_never_waits(tmp_path: Path) -> None:
    """Steps between log rows run with synchronisation forbidden."""
    config = replace(TINY, device="cuda", total_steps=30, log_every=30, eval_every=0, save_every=30)
    run = train_module.Run(
        config,
        train_module.RunFolder(tmp_path / "run"),
        train_module.load_data(config),
        torch.device("cuda"),
    )
    for step in range(8):
        if step == 3:
            torch.cuda.set_sync_debug_mode("error")
        try:
            train_module.train_step(run, step)
        except RuntimeError:
            torch.cuda.set_sync_debug_mode("default")
            raise
    torch.cuda.set_sync_debug_mode("default")
    run.meter.check()


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
