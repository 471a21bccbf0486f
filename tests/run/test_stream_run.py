"""Runs whose unlabeled images are streamed from shards: exact, resumable, and refused where that cannot be."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny import TINY, rows, weights

from percentmatch.cli.main import run as command
from percentmatch.data import Stream, load_data, split_data
from percentmatch.data.scenes import draw_scenes
from percentmatch.data.shards import index as shards
from percentmatch.errors import UserError
from percentmatch.report import write_report
from percentmatch.settings.config import Config, PretrainSettings
from percentmatch.training import loop as train_module
from percentmatch.training.pretraining import Pretraining
from percentmatch.training.run import Run
from percentmatch.training.start import pretrain, train
from percentmatch.use.compare import compare
from percentmatch.use.evaluate import score_run
from percentmatch.use.suggest import suggest

REAL_STEP = train_module.train_step


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 labeled scenes and 70 without labels; the latter in shards, too."""
    folder, scenes = tmp_path_factory.mktemp("files"), draw_scenes(120, size=32)
    lines = ["image,labels,part"]
    for number, name in enumerate(scenes.ids):
        path = folder / ("photos" if number < 50 else "more") / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(scenes.pixels[number].permute(1, 2, 0).numpy()).save(path)
        shown = zip(scenes.class_names, scenes.labels.targets.dense()[number].tolist(), strict=True)
        lines += [f"{name}.png,{';'.join(c for c, yes in shown if yes)},{'test' if number < 10 else ''}"] * (
            number < 50
        )
    (folder / "labels.csv").write_text("\n".join(lines))
    command(
        ["data", "shard", "--unlabeled", str(folder / "more"), "--out", str(folder / "pool"), "--images-per-shard", "9"]
    )
    return folder


@pytest.fixture(autouse=True)
def cache(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(files / "cache"))
    monkeypatch.setattr(shards, "WAITS", (0.001,))


def streamed(files: Path, **changed) -> Config:
    places = {"labels": str(files / "labels.csv"), "images": str(files / "photos"), "unlabeled": str(files / "pool")}
    return replace(TINY, data="files", labeled=0, validation=5, shuffle_buffer=20, **places, **changed)


@pytest.fixture(scope="module")
def whole(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERCENTMATCH_CACHE", str(files / "cache"))
        train(streamed(files), folder)
    return folder


def break_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the power failed before this step."""

    def frail(run: Run, number: int) -> None:
        if number == step:
            raise ConnectionError("the power fails")
        REAL_STEP(run, number)

    monkeypatch.setattr(train_module, "train_step", frail)


def test_a_broken_run_on_a_stream_resumes_to_the_same_weights_and_log(
    files: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off before step 8, saved after step 5; it goes on with the shards at another place."""
    break_at(8, monkeypatch)
    with pytest.raises(ConnectionError):
        train(streamed(files), tmp_path / "run")
    break_at(-1, monkeypatch)
    shutil.copytree(files / "pool", tmp_path / "elsewhere")
    train(replace(streamed(files), unlabeled=str(tmp_path / "elsewhere")), tmp_path / "run", resume=True)
    first, second = weights(whole), weights(tmp_path / "run")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert rows(whole) == rows(tmp_path / "run")


def test_the_log_has_thresholds_but_no_truth(whole: Path) -> None:
    last = [row for row in rows(whole) if row["kind"] == "train"][-1]
    assert {"upper", "lower", "weights", "positive_rate"} <= set(last["classes"])
    assert not [name for name in last["classes"] if "precision" in name or "true" in name]
    split = json.loads((whole / "split.json").read_text())
    assert (len(split["labeled"]), split["unlabeled"], len(split["validation"])) == (35, [], 5)


def test_a_run_does_not_go_on_with_other_shards(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(files / "pool", tmp_path / "pool")
    config = replace(streamed(files), unlabeled=str(tmp_path / "pool"))
    break_at(7, monkeypatch)
    with pytest.raises(ConnectionError):
        train(config, tmp_path / "run")
    break_at(-1, monkeypatch)
    (tmp_path / "pool" / "shard-000003.tar").unlink()
    with pytest.raises(UserError, match=r"--unlabeled: shard '.*shard-000003\.tar': there is no such file"):
        train(config, tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="names other images than the run's settings"):
        train(replace(config, skip_bad_images=True), tmp_path / "run", resume=True)
    shutil.copy(files / "pool" / "shard-000003.tar", tmp_path / "pool")
    assert train(replace(config, skip_bad_images=True), tmp_path / "run", resume=True)["step"] == 12


@pytest.mark.parametrize("method", ["temporal_ensembling", "flexmatch", "ups", "cap", "curriculum_labeling", "dash"])
def test_methods_with_a_row_for_each_image_refuse_a_stream(files: Path, tmp_path: Path, method: str) -> None:
    with pytest.raises(UserError, match=r"stream"):
        train(streamed(files, method=method, options={}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["supervised", "fixmatch", "mixmatch", "mean_teacher"])
def test_other_methods_train_on_a_stream(files: Path, tmp_path: Path, method: str) -> None:
    config = streamed(files, method=method, options={}, accumulate=2)
    assert train(replace(config, total_steps=2), tmp_path / "run")["step"] == 2


@pytest.mark.parametrize("method", ["mat", "dicap"])
def test_methods_fitted_on_the_labeled_images_must_be_told_how_often(files: Path, tmp_path: Path, method: str) -> None:
    with pytest.raises(UserError, match="refresh_steps must be given for a stream"):
        train(streamed(files, method=method, options={}), tmp_path / "run")
    config = streamed(files, method=method, options={"refresh_steps": 1, "warmup_steps": 0})
    train(replace(config, total_steps=2, log_every=1), tmp_path / "run")
    assert [row["unlabeled"] > 0 for row in rows(tmp_path / "run") if row["kind"] == "train"] == [False, True]


def test_unlabeled_images_of_the_labels_give_way_to_the_stream(files: Path, capsys: pytest.CaptureFixture) -> None:
    config = replace(streamed(files), labeled=20)
    data = load_data(config)
    split = split_data(config, data)
    assert (len(split.labeled), split.unlabeled) == (20, ())
    assert "15 unlabeled images outside the shards are not used" in capsys.readouterr().err


def test_a_streamed_run_is_compared_with_its_baseline_and_reported(whole: Path, tmp_path: Path, capsys) -> None:
    """The supervised baseline reads no shard; it is trained once."""
    shutil.copytree(whole, tmp_path / "run")
    for _ in range(2):
        found = compare(tmp_path / "run")
        assert (found["part"], found["differ"]) == ("test", ["method"])
    assert capsys.readouterr().err.count("training the supervised baseline") == 1
    write_report([whole], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "35 labeled, streamed unlabeled, 5 validation, 10 test" in text


def test_a_finished_run_needs_its_shards_no_more(files: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    config = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "0.tar").write_text("text")
    for place in (tmp_path / "gone", tmp_path / "gone" / "{0..9}.tar", tmp_path / "broken"):
        (tmp_path / "run" / "config.yaml").write_text(config.replace(str(files / "pool"), str(place)))
        assert score_run(tmp_path / "run").num_images == 10
    with pytest.raises(UserError, match="streamed its unlabeled images"):
        suggest(whole, 5, tmp_path / "next.csv")


def test_a_pretraining_learns_from_a_stream_and_resumes_exactly(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"backbone": "test_resnet", "image_size": 16, "batch": 8, "total_steps": 6, "save_every": 2, "log_every": 2}
    places = {name: getattr(streamed(files), name) for name in ("data", "labels", "images", "unlabeled")}
    settings = PretrainSettings(**places, **small, shuffle_buffer=20)
    rows, starts = Stream.rows, []
    monkeypatch.setattr(
        Stream, "rows", lambda self, start, *more, **ahead: starts.append(start) or rows(self, start, *more, **ahead)
    )
    assert pretrain(settings, tmp_path / "whole")["images"] == 70
    assert starts == [0, 8, 16, 24, 32, 40]

    def frail(pretrained: Pretraining, step: int) -> None:
        if step == 5:
            raise ConnectionError
        REAL_STEP(pretrained, step)

    monkeypatch.setattr(train_module, "train_step", frail)
    with pytest.raises(ConnectionError):
        pretrain(settings, tmp_path / "again")
    monkeypatch.setattr(train_module, "train_step", REAL_STEP)
    pretrain(settings, tmp_path / "again", resume=True)
    backbones = [(tmp_path / name / "backbone.safetensors").read_bytes() for name in ("whole", "again")]
    assert backbones[0] == backbones[1]


def test_the_commands_say_what_a_person_needs(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A shard is cut short: training stops with one sentence, and goes on without it if told so."""
    shutil.copytree(files / "pool", tmp_path / "pool")
    cut = tmp_path / "pool" / "shard-000002.tar"
    cut.write_bytes(cut.read_bytes()[:4000])
    flags = ["--labels", str(files / "labels.csv"), "--images", str(files / "photos"), "--out", str(tmp_path / "run")]
    flags += ["--unlabeled", str(tmp_path / "pool"), "--backbone", "test_resnet", "--weights", "none"]
    flags += ["--image-size", "32", "--total-steps", "3"]
    with pytest.raises(UserError, match=r"^--unlabeled: shard '.*shard-000002\.tar': it is cut short within .*\.png"):
        command(["train", *flags])
    assert not (tmp_path / "run").exists()
    command(["train", *flags, "--skip-bad-images"])
    said = capsys.readouterr().err
    assert said.count("skipped: shard") == 1
    assert "priormatch: there are 6" in said
    command(["data", "stats", *flags[:4], "--unlabeled", str(files / "pool")])
    assert "70 unlabeled images in shards are not counted" in capsys.readouterr().err
    with pytest.raises(UserError, match="are shards already"):
        command(["data", "shard", "--unlabeled", str(files / "pool"), "--out", str(tmp_path / "again")])
