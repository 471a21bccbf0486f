"""What a run's loggers show is its log, also of a run that was broken off and went on."""

import copy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import TINY, rows, weights

from percentmatch.cli import main as cli
from percentmatch.errors import UserError
from percentmatch.runs.run_folder import Folder, RunFolder
from percentmatch.settings.config import Config
from percentmatch.training.loggers import Logger, TensorBoard, Wandb, scalars
from percentmatch.training.start import train


class Breaks(Logger):
    """Ends the run when it sees a step: after the checkpoint of step 5, before that of step 10."""

    def begin(self, folder: Folder, config: Config) -> None: ...

    def row(self, row: dict[str, Any]) -> None:
        if row["step"] == 8:
            raise KeyboardInterrupt

    def end(self, *, failed: bool) -> None: ...


class FakeWandb:
    """Keeps what it is told. Online it knows the steps of a run that goes on."""

    errors = SimpleNamespace(Error=type("Error", (Exception,), {}))
    Settings = dict

    def __init__(self) -> None:
        self.mode, self.logins, self.inits, self.codes = "online", 0, [], []
        self.logged: list[tuple[int, dict[str, float]]] = []

    def setup(self) -> SimpleNamespace:
        return SimpleNamespace(settings=SimpleNamespace(mode=self.mode))

    def login(self) -> None:
        self.logins += 1

    def init(self, **options: Any) -> SimpleNamespace:
        self.inits.append(options)
        reached = max((step for step, _ in self.logged), default=-1) + 1 if self.mode == "online" else 0
        log = lambda values, step: self.logged.append((step, values))  # noqa: E731
        return SimpleNamespace(step=reached, log=log, finish=lambda exit_code: self.codes.append(exit_code))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # ty: ignore[invalid-argument-type]
    return fake


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeWandb]:
    """A run that was broken off after its checkpoint, and what it told wandb."""
    folder, fake = tmp_path_factory.mktemp("runs") / "my run", FakeWandb()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", fake)  # ty: ignore[invalid-argument-type]
        with pytest.raises(KeyboardInterrupt):
            train(TINY, folder, loggers=[TensorBoard(), Wandb(), Breaks()])
    assert max(row["step"] for row in rows(folder)) == 8
    return folder, fake


@pytest.fixture
def folder(cut: tuple[Path, FakeWandb], tmp_path: Path) -> Path:
    return shutil.copytree(cut[0], tmp_path / "my run")


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By hand from the log: losses, rate and scores as they are, lists as their means."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows(folder):
        names = ("lr", "loss", "supervised", "unlabeled") if row["kind"] == "train" else ("mAP", "AUC", "mAP_11point")
        values = {name: row[name] for name in names if name in row}
        for name in ("upper", "lower", "gap", "weights", "positive_rate", "negative_rate"):
            if row["kind"] == "train":
                known = [value for value in row["classes"][name] if value is not None]
                values[f"mean_{name}"] = sum(known) / len(known)
        for name, value in values.items():
            found.setdefault(f"{row['kind']}/{name}", []).append((row["step"], value))
    return found


def test_the_numbers_of_a_row() -> None:
    classes = {"upper": [0.5, None, 1.0], "lower": [None, None, None], "positives_right": [1.0, 2.0, 3.0]}
    row = {"step": 4, "kind": "train", "lr": 0.25, "loss": 1.5, "classes": classes}
    assert scalars(row) == {"train/lr": 0.25, "train/loss": 1.5, "train/mean_upper": 0.75}
    score = {"step": 4, "kind": "validation", "mAP": 0.5, "AUC": None, "num_images": 3, "classes": {"a": {"AP": 0.5}}}
    assert scalars(score) == {"validation/mAP": 0.5}
    assert scalars({"step": 0, "kind": "start", "unseen_classes": []}) == {}
    assert scalars({"step": 5, "kind": "refresh", "restarted": True}) == {}


def test_tensorboard_shows_the_log_once_though_the_run_was_broken_off(whole: Path, folder: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(TINY, folder, resume=True, loggers=[TensorBoard()])
    shown = accumulator.EventAccumulator(str(folder / "tensorboard"))
    shown.Reload()
    found = {tag: [(each.step, each.value) for each in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}
    wanted = expected(folder)
    assert found.keys() == wanted.keys()
    for tag, values in wanted.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in values]
        assert [value for _, value in found[tag]] == pytest.approx([value for _, value in values], rel=1e-6)
    assert rows(folder) == rows(whole)  # and changes nothing
    mine, theirs = weights(folder), weights(whole)
    assert all((mine[name] == theirs[name]).all() for name in theirs)


def test_wandb_goes_on_with_the_same_run_at_the_right_step(
    cut: tuple[Path, FakeWandb], folder: Path, wandb: FakeWandb
) -> None:
    vars(wandb).update(copy.deepcopy(vars(cut[1])))
    train(TINY, folder, resume=True, loggers=[Wandb()])
    assert wandb.logins == 2
    first, second = wandb.inits
    assert first.pop("dir") == str(cut[0])
    assert second.pop("dir") == str(folder)
    assert first == second
    assert (first["name"], first["project"], first["resume"]) == ("my run", "percentmatch", "allow")
    assert first["id"] == (folder / "wandb_id").read_text()
    assert len(first["id"]) == 8
    assert first["config"]["labeled"] == TINY.labeled
    assert wandb.codes == [1, 0]
    assert wandb.logged == [(row["step"], scalars(row)) for row in rows(folder) if scalars(row)]


def test_wandb_offline_is_not_told_again_what_it_was_told(folder: Path, wandb: FakeWandb) -> None:
    """Offline it does not know how far it got."""
    wandb.mode = "offline"
    Wandb().begin(RunFolder(folder), TINY)
    assert len(wandb.inits) == 1
    assert wandb.logged == []


def test_wandb_asked_for_later_gets_the_whole_log(
    folder: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "wandb_id").unlink()
    wandb.mode = "offline"
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    train(TINY, folder, resume=True, loggers=[Wandb()])
    assert wandb.logins == 0
    assert wandb.inits[0]["project"] == "mine"
    assert wandb.logged == [(row["step"], scalars(row)) for row in rows(folder) if scalars(row)]


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    folder = tmp_path / "run"
    train(TINY, folder, loggers=[Wandb()])
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert file.stem == f"run-{(folder / 'wandb_id').read_text()}"
    content = file.read_bytes()
    for name in expected(folder):
        assert name.encode() in content
    assert str(rows(folder)[-1]["mAP"]).encode() in content


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_said_before_anything_begins(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    sentence = rf'^--{package} needs {package}, which is not installed; run pip install "percentmatch\[{package}\]"$'
    with pytest.raises(UserError, match=sentence):
        cli.run(["train", "--preset", "demo", "--out", str(tmp_path / "run"), f"--{package}"])
    assert not (tmp_path / "run").exists()


def test_who_is_not_logged_in_to_wandb_is_told_before_anything_begins(
    wandb: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def login() -> None:
        raise wandb.errors.Error("No API key configured. Use this or that.")

    monkeypatch.setattr(wandb, "login", login)
    sentence = r"^wandb: No API key configured; run 'wandb login', or set WANDB_MODE=offline$"
    with pytest.raises(UserError, match=sentence):
        cli.run(["train", "--preset", "demo", "--out", str(tmp_path / "run"), "--wandb"])
    assert not (tmp_path / "run").exists()
