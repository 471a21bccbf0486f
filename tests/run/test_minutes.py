"""`--minutes`: as many steps as fit are timed, said, chosen and kept."""

from pathlib import Path

import pytest
import torch
import yaml
from tiny import TINY, save_scenes

from percentmatch import fit
from percentmatch.cli import main as cli
from percentmatch.data import load_data
from percentmatch.errors import UserError
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import DataSettings
from percentmatch.training import plan as module
from percentmatch.training.plan import Pace, measure, plan
from percentmatch.training.resolve import Amount, Machine, Seen

SEEN = Seen(DataSettings(data="scenes"), Machine("cpu", 2, "none"), 1000, Amount(200, 1000, 20, 500))
CPU = torch.device("cpu")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags for 24 labeled images of 32 pixels and a network of a moment."""
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    lines = [f"{name},{'cat' if sum(shown) else 'dog'}" for name, shown in save_scenes(tmp_path, 24, 0)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,labels", *lines]))
    flags = {
        "labels": tmp_path / "labels.csv",
        "images": tmp_path / "photos",
        "backbone": "test_resnet",
        "device": "cpu",
    }
    return [f"--{name}={value}" for name, value in {**flags, "weights": "none"}.items()]


def planned(monkeypatch: pytest.MonkeyPatch, minutes: float, *paces: Pace, **given: object) -> tuple[int, dict, str]:
    """Steps, what was given, and the line, where a run takes these paces in turn."""
    left = list(paces)
    monkeypatch.setattr(module, "measure", lambda *_: left.pop(0))
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    resolved, line = plan(given, SEEN, None, None, CPU, minutes=minutes, began=70.0)  # ty: ignore[invalid-argument-type]
    assert not left
    return resolved.config.total_steps, resolved.given, line


def test_the_steps_are_those_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 minutes 30 seconds are over: 0.9 x 570 - 10 - 53 = 450 seconds, 900 steps of half a second.

    They take 450 + 63 + 30 seconds in all, 9.05 minutes. What depends on the number of steps is chosen for it: strong
    views have 3 operations below 1,000 steps.
    """
    steps, given, line = planned(monkeypatch, 10, Pace(10.0, 0.5, 53.0), lr=0.002)
    assert (steps, given) == (900, {"lr": 0.002})
    assert line == "plan: 900 steps of 0.5 s, about 9.1 of 10 minutes in all"


def test_another_number_of_steps_is_timed_again_where_it_changes_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 steps of 0.225 s fit at first; but such a long run has dearer views, with which only 900 fit."""
    assert planned(monkeypatch, 10, Pace(10.0, 0.225, 53.0), Pace(10.0, 0.5, 53.0))[0] == 900
    assert planned(monkeypatch, 10, Pace(10.0, 0.225, 53.0), Pace(10.0, 0.3, 53.0))[0] == 1500


def test_no_more_steps_are_planned_than_are_of_use_and_too_few_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 steps of 6 s, 60 s besides and 30 s already over are 150 s, a tenth more to spare: 2.8 minutes."""
    fast = Pace(10.0, 0.01, 53.0)
    steps, _, line = planned(monkeypatch, 100, fast, fast)
    assert (steps, line) == (
        10_000,
        "plan: 10,000 steps of 0.01 s, the most that is planned, about 3.2 of 100 minutes in all",
    )
    with pytest.raises(UserError, match=r"^--minutes 2: 10 steps would take about 2\.8 minutes; give more, a smaller"):
        planned(monkeypatch, 2, Pace(10.0, 6.0, 50.0))


def test_the_pace_is_of_the_run_itself_and_writes_nothing(tmp_path: Path) -> None:
    data = load_data(TINY)
    pace = measure(TINY, {}, data, RunFolder(tmp_path / "run"), CPU)
    assert min(pace.start, pace.step, pace.scores) > 0
    every = measure(TINY, {"eval_every": 1}, data, RunFolder(tmp_path / "run"), CPU)
    assert every.step > 0
    assert not (tmp_path / "run").exists()
    assert Pace(1.0, 0.5, 3.0).steps(10.0) == 10  # 0.9 x 10 - 4 seconds are left


def test_a_planned_run_keeps_its_number_of_steps(photos: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    real = module.measure
    monkeypatch.setattr(module, "measure", lambda *about: real(*about) and Pace(0.0, 1.0, 0.0))
    cli.run(["train", *photos, "--minutes", "1", "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert "timing a few steps for the plan\nchosen for 22 labeled images of 2 classes" in said
    steps = RunFolder(tmp_path / "run").read_config().total_steps
    assert 20 <= steps <= 54
    assert f"plan: {steps} steps of 1 s" in said
    values = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (values["chosen"]["total_steps"], "total_steps" in values["given"]) == (steps, False)
    assert RunFolder(tmp_path / "run").read_metrics()["step"] == steps
    (tmp_path / "run" / "metrics.json").unlink()
    cli.run(["train", "--out", str(tmp_path / "run"), "--resume"])
    assert RunFolder(tmp_path / "run").read_metrics()["step"] == steps


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--minutes", "0"], "--minutes must be above 0, for a new run; one to --resume keeps its number of steps"),
        (["--minutes", "nan"], "--minutes must be above 0"),
        (["--minutes", "inf"], "--minutes must be above 0"),
        (["--minutes", "5", "--method", "probe"], "--minutes plans steps, and --method probe takes none; leave one"),
        (["--minutes", "5", "--total-steps", "10"], "--minutes and --total-steps: both a number of steps and minutes"),
    ],
)
def test_minutes_that_make_no_plan_are_refused(
    flags: list[str], sentence: str, photos: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        cli.run(["train", *photos, *flags, "--out", str(tmp_path / "run")])
    assert str(refused.value).startswith(sentence)
    assert not (tmp_path / "run").exists()


def test_fit_takes_minutes_or_steps(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="both a number of steps and minutes are given"):
        fit(labels="labels.csv", out=tmp_path / "run", minutes=5, total_steps=3)
