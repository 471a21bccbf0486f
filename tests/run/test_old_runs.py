"""Runs and settings of earlier versions: read under the names of today, scored, reported, exported and resumed.

The text files in old_runs were written by the version before priormatch had a name: `priormatch` by percentmatch with
selection=all, targets=soft and gate=none, `percentmatch` by the paper's rule. The weights are made here.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from saved_model import save_model
from tiny import TINY

from percentmatch import __version__
from percentmatch.cli import main as cli
from percentmatch.errors import UserError
from percentmatch.methods import all_options, build_method
from percentmatch.models import Card
from percentmatch.records import Facts
from percentmatch.report import write_report
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config
from percentmatch.settings.renamed import TABLE, renamed
from percentmatch.training import loop
from percentmatch.training.start import train
from percentmatch.use.compare import compare
from percentmatch.use.evaluate import score_run
from percentmatch.use.grid import read_grid
from percentmatch.use.grid_results import summary

OLD = Path(__file__).parent / "old_runs"
SOFT = {
    "selection": "all",
    "targets": "soft",
    "gate": "none",
    "bins": "logit",
    "num_bins": 256,
    "bias_correction": True,
}


@pytest.fixture(params=["priormatch", "percentmatch"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> RunFolder:
    """A finished run of the earlier version, with weights."""
    folder = RunFolder(tmp_path / request.param)
    shutil.copytree(OLD / request.param, folder.path)
    config, scores = folder.read_config(), json.loads(folder.metrics.read_text())["test"]["ema"]
    card = Card(
        backbone=config.backbone,
        head=config.head,
        dropout=config.dropout,
        image_size=config.image_size,
        decode_size=config.decode_size,
        frame=config.frame,
        task=config.task,
        class_names=tuple(scores["classes"]),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        version=__version__,
    )
    save_model(folder.model, card)
    return folder


def test_the_files_are_those_of_the_earlier_version_and_name_no_place() -> None:
    for folder in OLD.iterdir():
        assert yaml.safe_load((folder / "config.yaml").read_text())["method"] == "percentmatch"
        assert json.loads((folder / "metrics.json").read_text())["method"] == "percentmatch"
        for file in folder.iterdir():
            assert not any(word in file.read_text() for word in ("/home", "/work", "/tmp", "/root")), file


def test_an_old_run_is_scored_reported_exported_and_predicted_from(old: RunFolder, tmp_path: Path) -> None:
    config = old.read_config()
    assert config.method == old.path.name
    assert score_run(old.path, "test").num_images == config.scenes_test
    cli.run(["evaluate", str(old.path)])
    write_report([old.path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"The method {old.path.name} trained the network" in page
    assert ("every pair is learnt" in page) == (config.method == "priormatch")
    assert ("Shaded: the gate" in page) == (config.method == "percentmatch")
    Image.new("RGB", (40, 30), (9, 99, 199)).save(tmp_path / "photo.png")
    cli.run(["predict", str(old.path), str(tmp_path / "photo.png"), "--out", str(tmp_path / "p.csv")])
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 2
    cli.run(["export", str(old.path), "--out", str(tmp_path / "exported")])
    assert (tmp_path / "exported").is_dir()
    kept = summary(old, "group")
    assert kept["method"] == kept["settings"]["method"] == config.method
    with pytest.raises(UserError, match="was begun with"):
        train(replace(config, seed=1), old.path, resume=True)
    assert train(config, old.path, resume=True)["step"] == 12  # it is finished


def test_an_old_run_has_a_baseline(old: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(old.path)["runs"][0]["method"] == old.path.name


def test_an_old_run_on_its_way_is_resumed_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of today whose settings are put back into the words of then, in its file and in its checkpoint."""
    options = {"warmup_steps": 2, "momentum": 0.9}
    config = replace(TINY, method="priormatch", options=options)
    whole = train(config, tmp_path / "whole")
    step = loop.train_step

    def broken(run, at: int) -> None:
        if at == TINY.save_every + 1:
            raise KeyboardInterrupt
        step(run, at)

    monkeypatch.setattr(loop, "train_step", broken)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run")
    monkeypatch.undo()
    folder = RunFolder(tmp_path / "run")
    then = {"method": "percentmatch", "options": {**SOFT, "loss": "bce", "scores": "teacher", **options}}
    folder.config.write_text(yaml.safe_dump(folder.read_config().to_dict() | then))  # it had no sections
    state = torch.load(folder.checkpoints.last, weights_only=True)
    state["settings"] |= then
    torch.save(state, folder.checkpoints.last)
    cli.run(["train", "--out", str(folder.path), "--resume"])
    found = folder.read_metrics()
    assert (found["method"], found["test"]) == ("priormatch", whole["test"])
    assert folder.model.read_bytes() == RunFolder(tmp_path / "whole").model.read_bytes()


def test_what_was_an_option_is_a_method_with_the_same_defaults_as_then() -> None:
    """What was not said was percentmatch's: uniform bins, ASL, the student's scores; what had no effect is left out."""
    then = {"options": {"selection": "all", "gate": "none", "upper_percentile": 0.9, "schedule": "curriculum"}}
    found = Config.from_dict(then)
    assert (found.method, found.options) == ("priormatch", dict(TABLE[0].defaults))
    assert found.options["targets"] == "hard"
    usual = {name: value for name, value in all_options("percentmatch", {}).items() if name in found.options}
    assert {**found.options, "targets": usual.get("targets", "hard")} == {**usual, "targets": "hard"}
    soft = Config.from_dict({"method": "percentmatch", "options": {**SOFT, "loss": "bce", "scores": "teacher"}})
    assert all_options(soft.method, soft.options) == all_options("priormatch", {})


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "priormatch", "options": {"targets": "hard"}},
        {"method": "percentmatch", "options": {"selection": "soft", "gate": "auc"}},
        {"method": "percentmatch", "options": {"selection": "all", "targets": "soft", "gate": "gap"}},
        {"method": "uda", "options": {"selection": "all", "gate": "none"}},
        {"options": {"targets": "hard"}},
        {"options": 3},
        {"lr": 0.1},
        {},
    ],
)
def test_everything_else_is_left_as_it_is(settings: dict) -> None:
    assert renamed(settings) == settings


def test_hard_targets_go_without_saying() -> None:
    then = {"method": "percentmatch", "options": {"targets": "hard", "selection": "hard", "gate": "gap"}}
    assert renamed(then)["options"] == {"selection": "hard", "gate": "gap"}


@pytest.mark.parametrize("option", ["selection=all", "targets=soft", "targets=hard"])
def test_options_that_are_gone_are_refused_and_say_which_method_has_them(option: str, tmp_path: Path) -> None:
    name, _, value = option.partition("=")
    facts = Facts.from_targets(torch.eye(3), total_steps=10)
    with pytest.raises(UserError, match=f"'{option}' is not one of percentmatch any more: .* --method priormatch"):
        build_method("percentmatch", facts, options={name: value})
    with pytest.raises(UserError, match="--method priormatch"):
        cli.run(["train", "--preset", "demo", "--out", str(tmp_path / "run"), "--option", option])
    assert not (tmp_path / "run").exists()


def test_a_grid_of_then_is_planned_under_the_names_of_today(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump({"preset": "demo", "runs": {"soft": {"options": SOFT}, "hard": {}}}))
    assert {planned.name: planned.config.method for planned in read_grid(file)} == {
        "soft-seed0": "priormatch",
        "hard-seed0": "percentmatch",
    }
