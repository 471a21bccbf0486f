"""A folder of images that goes away while it is read is said, and nothing that was whole is lost."""

import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from saved_model import save_model, save_photos
from tiny import TINY, save_scenes

from percentmatch.cli import main as cli
from percentmatch.data.shards import write as shards
from percentmatch.errors import UserError
from percentmatch.settings.config import Config
from percentmatch.training import loop
from percentmatch.training.run import Run
from percentmatch.training.start import train
from percentmatch.use import predict as prediction


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))


def test_predict_says_which_images_are_gone_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    model, photos = save_model(tmp_path / "model.safetensors"), tmp_path / "photos"
    save_photos(photos, 6)
    monkeypatch.setattr(prediction, "CHUNK", 2)
    real = prediction.logits

    def last(*args: object) -> object:
        shutil.rmtree(photos, ignore_errors=True)
        return real(*args)

    monkeypatch.setattr(prediction, "logits", last)
    with pytest.raises(SystemExit) as ended:
        cli.run(["predict", str(model), str(photos), "--out", str(tmp_path / "out.csv"), "--device", "cpu"])
    assert ended.value.code == 1
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 2
    assert "002.png': there is no such file" in (said := capsys.readouterr().err)
    assert "skipped 4 of 6 images" in said
    with pytest.raises(UserError, match=r"there is no file .*photos; check the path"):
        cli.run(["predict", str(model), str(photos), "--out", str(tmp_path / "out.csv")])
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 2


@pytest.mark.parametrize("skip", [[], ["--skip-bad-images"]], ids=["strict", "skipping"])
def test_shards_are_not_written_without_the_images_of_a_folder_that_is_gone(
    skip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving out bad images is not to leave out all that are left, for good, as whole shards are kept."""
    photos, kept, out, real = tmp_path / "photos", tmp_path / "kept", tmp_path / "out", shards.read
    save_photos(photos, 8)
    command = ["data", "shard", "--unlabeled", str(photos), "--out", str(out), "--images-per-shard", "2", *skip]
    reads = []

    def read(path: Path) -> bytes:
        reads.append(path)
        if len(reads) == 4:
            photos.rename(kept)
        return real(path)

    monkeypatch.setattr(shards, "cores", lambda: 1)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "read", read)
        with pytest.raises(UserError, match=r"photos.*there is no such|'.*photos' is gone"):
            cli.run(command)
    kept.rename(photos)
    cli.run(command)
    files = sorted(out.iterdir())
    assert [file.name for file in files] == [*(f"shard-{n:06d}.tar" for n in range(4)), "shards.json"]
    written = []
    for file in files[:4]:
        with tarfile.open(file) as tar:
            written += tar.getnames()
    assert sorted(written) == [f"{n:03}.png" for n in range(8)]


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    found = save_scenes(tmp_path, 24, 16)
    lines = [f"{name},{'x' if labels[0] else 'y'},{'test' * (n >= 20)}\n" for n, (name, labels) in enumerate(found)]
    (tmp_path / "labels.csv").write_text("image,labels,part\n" + "".join(lines))
    places = {"labels": str(tmp_path / "labels.csv"), "images": str(tmp_path / "photos")}
    return replace(TINY, data="files", labeled=0, validation=4, unlabeled=str(tmp_path / "more"), **places)


def before_step(number: int, do: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    real = loop.train_step

    def step(run: Run, now: int) -> None:
        if now == number:
            do()
        real(run, now)

    patch.setattr(loop, "train_step", step)


def test_a_run_ends_without_the_folders_of_its_images(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are decoded and mapped; even the file they are mapped from may be removed."""
    gone = [tmp_path / name for name in ("photos", "more", "cache")]
    before_step(3, lambda: [shutil.rmtree(folder) for folder in gone], monkeypatch)
    assert train(settings, tmp_path / "run")["step"] == TINY.total_steps


def test_a_run_is_not_resumed_without_the_folder_of_its_images(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, photos, kept = tmp_path / "run", tmp_path / "photos", tmp_path / "kept"
    with monkeypatch.context() as patch:
        before_step(7, lambda: photos.rename(kept) / 1, patch)
        with pytest.raises(TypeError):
            train(settings, run)
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    with pytest.raises(UserError, match=r"^there is no folder .*photos; give the folder"):
        train(settings, run, resume=True)
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before
    kept.rename(photos)
    assert train(settings, run, resume=True)["step"] == TINY.total_steps


def test_a_run_folder_that_is_gone_is_said(settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before_step(3, lambda: shutil.rmtree(tmp_path / "run"), monkeypatch)
    with pytest.raises(UserError, match=r"cannot write '.*log\.jsonl': No such file or directory"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
