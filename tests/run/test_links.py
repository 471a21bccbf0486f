"""No writer follows a link that stands in a folder: what it leads to stays as it was."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from saved_model import save_model
from tiny import TINY, save_scenes

from percentmatch.console.signals import Stopped
from percentmatch.data import Split, read_labels
from percentmatch.data.pixels.cache import open_cache
from percentmatch.data.shards.copies import without_copies
from percentmatch.data.shards.index import open_shards
from percentmatch.data.shards.write import write_shards
from percentmatch.errors import UserError
from percentmatch.files import write_json
from percentmatch.runs.checkpoint import save_checkpoint
from percentmatch.runs.log import Log
from percentmatch.runs.run_folder import RunFolder
from percentmatch.training import loop
from percentmatch.training.loggers import TensorBoard, Wandb
from percentmatch.training.run import Run
from percentmatch.training.start import train
from percentmatch.use.demo import run_demo
from percentmatch.use.evaluate import recalibrate
from percentmatch.use.export import export
from percentmatch.use.grid import read_grid, run_grid
from percentmatch.use.predict import predict

MINE = "nobody writes here\n"
SPLIT = Split(("a",), ("b",), ("c",), ("d",))
CPU = torch.device("cpu")


def link(place: Path, victims: Path) -> None:
    """A link in this place to a new file of the folder `victims`, or to a folder of it with a file."""
    is_folder = place.is_dir()
    if is_folder:
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()
    victim = victims / str(len(list(victims.iterdir())))
    if is_folder:
        victim.mkdir()
    (victim / "kept" if is_folder else victim).write_text(MINE)
    place.symlink_to(victim)


def untouched(victims: Path) -> bool:
    """Every file is as it was, and no folder has another one."""
    found = [path for path in victims.rglob("*") if path.is_file()]
    folders = [path for path in victims.iterdir() if path.is_dir()]
    return (
        bool(found)
        and all(path.read_text() == MINE for path in found)
        and all(len(list(folder.iterdir())) == 1 for folder in folders)
    )


def log(folder: Path, base: Path) -> None:
    Log(folder / "log.jsonl").append({"step": 1})


def log_cut_to_a_mark(folder: Path, base: Path) -> None:
    Log(folder / "log.jsonl").cut([0, "x"], 0)


def log_cut_to_a_step(folder: Path, base: Path) -> None:
    (folder / "log.jsonl").exists() and Log(folder / "log.jsonl").cut(None, 0)
    log(folder, base)


def checkpoint(folder: Path, base: Path) -> None:
    for step in (1, 2):
        save_checkpoint(folder / "last.pt", {"step": step}, folder / "previous.pt")


def settings(folder: Path, base: Path) -> None:
    RunFolder(folder).create(TINY, {}, SPLIT, CPU)


def pixels(folder: Path, base: Path) -> None:
    open_cache(read_labels(base / "labels.csv").paths, size=8, frame="squash", folder=folder, workers=1)


def shards(folder: Path, base: Path) -> None:
    write_shards(read_labels(base / "labels.csv"), folder, images_per_shard=3, workers=1)


def index_and_copies(folder: Path, base: Path) -> None:
    found = open_shards(str(base / "shards"), cache=folder)
    without_copies(found, [*(base / "photos").iterdir()], cache=folder)


def tensorboard(folder: Path, base: Path) -> None:
    pytest.importorskip("tensorboard")
    logger = TensorBoard()
    logger.begin(RunFolder(folder), TINY)
    logger.end(failed=False)


def wandb(folder: Path, base: Path) -> None:
    """It makes the folder `wandb` itself."""

    def init(**options: object) -> SimpleNamespace:
        place = folder / "wandb"
        place.mkdir(exist_ok=True)
        (place / "written").write_text("")
        return SimpleNamespace(step=0, finish=lambda exit_code: None)

    logger = object.__new__(Wandb)
    logger.wandb = SimpleNamespace(init=init, Settings=dict, errors=SimpleNamespace(Error=OSError))
    logger.begin(RunFolder(folder), TINY)


def exported_folder(folder: Path, base: Path) -> None:
    export(base / "model.safetensors", folder / "exported")


def results(folder: Path, base: Path) -> None:
    write_json(folder / "results.json", {})


WRITERS = (
    *(log, log_cut_to_a_mark, log_cut_to_a_step, checkpoint, settings, pixels, shards),
    *(index_and_copies, tensorboard, wandb, exported_folder, results),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("base")
    names = [name for name, _ in save_scenes(base, 6, 0)]
    (base / "labels.csv").write_text("image,labels\n" + "".join(f"photos/{name},a\n" for name in names))
    shards(base / "shards", base)
    save_model(base / "model.safetensors")
    return base


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_no_writer_follows_a_link(write: Callable[[Path, Path], None], base: Path, tmp_path: Path) -> None:
    """For each name that the writer makes, a link of that name in the folder as it left it, and in an empty one.

    Beside it links of the names that a temporary file might have. The lock is in test_lock.
    """
    plain, victims = tmp_path / "plain", tmp_path / "victims"
    plain.mkdir()
    victims.mkdir()
    write(plain, base)
    made = sorted(plain.iterdir())
    assert made
    tried = 0
    for name in (path.name for path in made):
        for start in ("whole", "empty"):
            tried += 1
            folder = tmp_path / f"{tried}"
            shutil.copytree(plain, folder)
            link(folder / name, victims)
            for left in [] if start == "whole" else [path for path in folder.iterdir() if path.name != name]:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            for other in (f".{name}.part", f"{name}.part", f"{name}.tmp"):
                link(folder / other, victims)
            try:
                write(folder, base)
            except UserError as error:
                assert str(folder) in str(error)  # noqa: PT017  one that is refused names what is in the way
            assert untouched(victims), name


def test_a_run_folder_of_links_is_gone_on_with_and_nothing_outside_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its files lie elsewhere, as one may send them. The log, which is appended to, is refused."""
    folder, elsewhere, real = tmp_path / "run", tmp_path / "elsewhere", loop.train_step

    def stopped(run: Run, number: int) -> None:
        if number == 7:
            raise Stopped("", 2)
        real(run, number)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", stopped)
        with pytest.raises(Stopped):
            train(TINY, folder)
    elsewhere.mkdir()
    for file in list(folder.iterdir()):
        (folder / f".{file.name}.part").symlink_to(elsewhere / file.name)
        file.rename(elsewhere / file.name).touch()
        file.symlink_to(elsewhere / file.name)
    for name in ("model.safetensors", "metrics.json"):  # which it has yet to write
        (elsewhere / name).write_text(MINE)
    (folder / "model.safetensors").symlink_to(elsewhere / "model.safetensors")
    before = {file.name: file.read_bytes() for file in elsewhere.iterdir()}
    with pytest.raises(UserError, match=r"cannot write '.*log\.jsonl'"):
        train(TINY, folder, resume=True)
    assert {file.name: file.read_bytes() for file in elsewhere.iterdir()} == before
    (folder / "log.jsonl").unlink()
    shutil.copy(elsewhere / "log.jsonl", folder / "log.jsonl")
    train(TINY, folder, resume=True)
    for name in ("model.safetensors", "metrics.json"):  # `calibrate` replaces both
        content = (folder / name).read_bytes()
        (elsewhere / name).write_bytes(content)
        before[name] = content
        (folder / name).unlink()
        (folder / name).symlink_to(elsewhere / name)
    recalibrate(folder)
    assert {file.name: file.read_bytes() for file in elsewhere.iterdir()} == before
    assert not (folder / "model.safetensors").is_symlink()
    assert not (folder / "metrics.json").is_symlink()


def test_folders_of_runs_that_are_links_are_refused(tmp_path: Path) -> None:
    victim, grid, out = tmp_path / "victim", tmp_path / "grid.yaml", tmp_path / "out"
    victim.mkdir()
    out.mkdir()
    values = {name: value for name, value in TINY.to_dict().items() if name not in ("seed", "split_seed")}
    grid.write_text(yaml.safe_dump({"settings": values, "runs": {"one": {}}}))
    for name in ("one-seed0", "supervised-seed0"):
        (out / name).symlink_to(victim)
    with pytest.raises(UserError, match=r"one-seed0' is a link, .*; remove it and run the command again"):
        run_grid(read_grid(grid), out)
    with pytest.raises(UserError, match="supervised-seed0' is a link"):
        run_demo(out)
    assert not list(victim.iterdir())


def test_a_path_that_a_person_names_may_be_a_link(base: Path, tmp_path: Path) -> None:
    real, named = tmp_path / "real", tmp_path / "named"
    real.mkdir()
    named.symlink_to(real)
    train(replace(TINY, total_steps=1, log_every=1, eval_every=0, save_every=1), named)
    assert (real / "metrics.json").exists()
    (tmp_path / "table.csv").symlink_to(real / "table.csv")
    predict(base / "model.safetensors", [base / "photos"], tmp_path / "table.csv", device="cpu")
    assert (tmp_path / "table.csv").is_symlink()
    assert (real / "table.csv").read_text().startswith("image,labels")


@pytest.mark.parametrize("kind", ["link", "text"])
def test_a_secret_that_stands_where_the_name_of_a_logged_run_stood_is_not_sent(kind: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123abcd" if kind == "link" else "a password")
    run = tmp_path / "run"
    run.mkdir()
    if kind == "link":
        (run / "wandb_id").symlink_to(tmp_path / "secret")
    else:
        shutil.copy(tmp_path / "secret", run / "wandb_id")
    with pytest.raises(UserError, match=r"wandb_id' is damaged; remove it"):
        wandb(run, tmp_path)
