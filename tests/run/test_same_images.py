"""A run is not resumed on other images than those it began with, whatever their names, sizes and times are."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny import TINY, rows, save_scenes

from percentmatch.data import load_data
from percentmatch.data.shards.write import write_shards
from percentmatch.data.source import read_manifest
from percentmatch.errors import UserError
from percentmatch.settings.config import Config, PretrainSettings
from percentmatch.training import loop
from percentmatch.training.run import Run
from percentmatch.training.start import pretrain, train


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images with labels, the last 8 for the test, and 30 without."""
    folder = tmp_path_factory.mktemp("files")
    found = save_scenes(folder, 40, 30)
    lines = [
        f"{name},{';'.join(kind for kind, yes in zip('xyz', labels, strict=True) if yes)},{'test' * (number >= 32)}\n"
        for number, (name, labels) in enumerate(found)
    ]
    (folder / "labels.csv").write_text("image,labels,part\n" + "".join(lines))
    return folder


@pytest.fixture(autouse=True)
def _cache(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(files / "cache"))


def config(files: Path) -> Config:
    places = {"labels": str(files / "labels.csv"), "images": str(files / "photos"), "unlabeled": str(files / "more")}
    return replace(TINY, data="files", labeled=0, validation=6, **places)


class Crash(Exception):
    """As if the power went."""


def crash_once(patch: pytest.MonkeyPatch) -> None:
    """In the next run, after its first checkpoint."""
    real = loop.train_step

    def step(run: Run, number: int) -> None:
        if number == 7:
            patch.setattr(loop, "train_step", real)
            raise Crash
        real(run, number)

    patch.setattr(loop, "train_step", step)


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> None:
    crash_once(monkeypatch)


@pytest.fixture(scope="module")
def crashed(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERCENTMATCH_CACHE", str(files / "cache"))
        crash_once(patch)
        with pytest.raises(Crash):
            train(config(files), folder)
    return folder


def blacken(file: Path) -> bytes:
    before = file.read_bytes()
    Image.new("RGB", (32, 32)).save(file)
    return before


@pytest.mark.parametrize("part", ["labeled", "unlabeled", "validation", "test"])
def test_a_changed_image_of_each_part_is_named(part: str, files: Path, crashed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(crashed, folder)
    name = json.loads((folder / "split.json").read_text())[part][2]
    file = next(path for path in (files / "photos" / name, files / "more" / name, Path(name)) if path.exists())
    kept = {each.name: each.read_bytes() for each in folder.iterdir()}
    before = blacken(file)
    try:
        with pytest.raises(
            UserError, match=r"^the images .* have changed since '.*run' was begun; put them back"
        ) as found:
            train(config(files), folder, resume=True)
    finally:
        file.write_bytes(before)
    assert str(found.value).startswith(f"the images {name} have")
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == kept


def test_the_first_of_many_are_named_and_with_the_images_put_back_it_goes_on(
    files: Path, crashed: Path, tmp_path: Path
) -> None:
    """A copy of an image with another time is the same image, and another cache."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    shutil.copytree(crashed, folder)
    before = {file: blacken(file) for file in (files / "photos").iterdir()}
    with pytest.raises(UserError, match=r"^the images \S+, \S+, \S+ and 37 more have changed since"):
        train(config(files), folder, resume=True)
    for file, content in before.items():
        file.write_bytes(content)
        os.utime(file, (1, 1))
    train(config(files), folder, resume=True)
    train(config(files), whole)
    assert rows(folder) == rows(whole)


def test_a_checkpoint_of_an_older_version_goes_on_and_one_that_lies_does_not(
    files: Path, crashed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(crashed, folder)
    (folder / "previous.pt").unlink(missing_ok=True)
    state = torch.load(folder / "last.pt", weights_only=True)
    images = state["images"]
    for wrong in (images[:3], images.float(), "x", images.expand(10**6, *images.shape)):
        torch.save({**state, "images": wrong}, folder / "last.pt")
        with pytest.raises(UserError, match="is the checkpoint of another model or method"):
            train(config(files), folder, resume=True)
    del state["images"], state["shards"]
    torch.save(state, folder / "last.pt")
    train(config(files), folder, resume=True)


@pytest.mark.usefixtures("crashing")
def test_images_given_in_python_are_compared_by_their_pixels(files: Path, tmp_path: Path) -> None:
    data = load_data(config(files))
    given = replace(data, pool=replace(data.pool, digests=None), test=replace(data.test, digests=None))
    with pytest.raises(Crash):
        train(config(files), tmp_path / "run", data=given)
    pixels = given.pool.pixels.clone()
    pixels[4, 0, 0, 0] ^= 1
    with pytest.raises(UserError, match=rf"^the images {given.pool.ids[4]} have changed"):
        train(
            config(files), tmp_path / "run", data=replace(given, pool=replace(given.pool, pixels=pixels)), resume=True
        )
    train(config(files), tmp_path / "run", data=given, resume=True)


@pytest.mark.usefixtures("crashing")
def test_shards_with_other_content_of_the_same_size_are_named(files: Path, tmp_path: Path) -> None:
    """As far as three images of each tell, which are looked at."""
    shards = tmp_path / "shards"
    unlabeled = read_manifest(config(files))
    rest = [not known for known in unlabeled.labels.known.in_rows().tolist()]
    write_shards(unlabeled.select(rest), shards, images_per_shard=10)
    settings = replace(config(files), unlabeled=str(shards))
    with pytest.raises(Crash):
        train(settings, tmp_path / "run")
    shard = shards / "shard-000001.tar"
    before = shard.read_bytes()
    start = before.index(b"\x89PNG")
    shard.write_bytes(
        before[: start + 8] + bytes(before[start + 8 :].index(b"IEND")) + before[before.index(b"IEND", start) :]
    )
    assert len(shard.read_bytes()) == len(before)
    with pytest.raises(UserError, match=r"^the shards .*shard-000001\.tar have changed since"):
        train(settings, tmp_path / "run", resume=True)
    shard.write_bytes(before)
    train(settings, tmp_path / "run", resume=True)


@pytest.mark.usefixtures("crashing")
def test_a_pretraining_is_not_resumed_on_other_images(files: Path, tmp_path: Path) -> None:
    settings = PretrainSettings(
        **{name: getattr(config(files), name) for name in ("data", "labels", "images", "unlabeled", "backbone")},
        **{"image_size": 32, "batch": 8, "total_steps": 12, "save_every": 5, "log_every": 4},
    )
    with pytest.raises(Crash):
        pretrain(settings, tmp_path / "out")
    file = files / "photos" / "03.png"
    before = blacken(file)
    try:
        with pytest.raises(UserError, match=r"^the images 03\.png have changed since '.*out' was begun"):
            pretrain(settings, tmp_path / "out", resume=True)
    finally:
        file.write_bytes(before)
    pretrain(settings, tmp_path / "out", resume=True)
