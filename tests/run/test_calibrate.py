"""A finished run knows calibrated probabilities and thresholds; `calibrate` fits them anew."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import TINY

from percentmatch import Predictor
from percentmatch.cli import main as cli
from percentmatch.data.scenes import draw_scenes
from percentmatch.errors import UserError
from percentmatch.models import classifier_bytes, load_classifier
from percentmatch.scoring.calibration import decide
from percentmatch.scoring.predictions import logits
from percentmatch.training.start import train
from percentmatch.use.evaluate import open_run

CPU = torch.device("cpu")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def metrics_of(run: Path) -> dict:
    return json.loads((run / "metrics.json").read_text())


def test_a_run_ends_with_decisions_from_its_validation_images(whole: Path) -> None:
    model, card, images, _ = open_run(whole, "validation", "cpu")
    found = logits(model, images.pixels, card, CPU)
    wanted = decide(
        found,
        images.labels.targets.dense(),
        images.labels.known.dense(),
        task="multi-label",
        class_names=card.class_names,
    )
    assert wanted
    assert card.decisions
    for name in ("scale", "shift", "thresholds"):  # the training model orders its sums in another way
        assert getattr(card.decisions, name) == pytest.approx(getattr(wanted[0], name), abs=1e-3)
    metrics = metrics_of(whole)
    assert metrics["calibration"] == pytest.approx(wanted[1]["calibration"], abs=1e-3)
    for name, row in wanted[1]["decisions"]["classes"].items():
        assert metrics["decisions"]["classes"][name]["threshold"] == pytest.approx(row["threshold"], abs=1e-3)
    assert metrics["calibration"]["num_images"] == TINY.validation
    assert metrics["calibration"]["ece_after"] < metrics["calibration"]["ece_before"]  # 12 steps leave all near 0.5


def test_without_validation_images_nothing_is_fitted(tmp_path: Path) -> None:
    config = replace(TINY, validation=0, total_steps=1, save_every=1, method="supervised", options={})
    metrics = train(config, tmp_path / "run")
    assert not {"calibration", "decisions"} & metrics.keys()
    predictor = Predictor(tmp_path / "run")
    assert predictor.card.decisions is None
    pixels = [np.zeros((40, 40, 3), np.uint8)]
    np.testing.assert_array_equal(predictor.predict_proba(pixels), predictor.predict_proba(pixels, raw=True))
    with pytest.raises(UserError, match="has no validation images; give labeled ones by --labels"):
        cli.run(["calibrate", str(tmp_path / "run")])


def test_a_model_that_has_diverged_is_told_as_that(copy: Path) -> None:
    model, card = load_classifier(copy / "model.safetensors", CPU)
    torch.nn.init.constant_(next(iter(model.head.parameters())), torch.nan)
    content = classifier_bytes(model, card)
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="not finite numbers: training has diverged"):
        cli.run(["calibrate", str(copy)])
    assert (copy / "model.safetensors").read_bytes() == content


def test_calibrating_again_changes_nothing_and_another_aim_only_the_decisions(whole: Path, copy: Path, capsys) -> None:
    cli.run(["calibrate", str(copy)])
    before, file = metrics_of(copy), copy / "model.safetensors"
    content = file.read_bytes()
    cli.run(["calibrate", str(copy)])
    assert file.read_bytes() == content
    assert metrics_of(copy) == before
    capsys.readouterr()
    cli.run(["calibrate", str(copy), "--recall", "0.9"])
    shown = capsys.readouterr().out
    assert "calibration error (ECE)" in shown
    assert "Thresholds for recall 0.9" in shown
    (old, _), (new, card) = (load_classifier(each, CPU) for each in (whole / file.name, file))
    assert all(torch.equal(value, new.state_dict()[name]) for name, value in old.state_dict().items())
    assert card.decisions
    assert card.decisions.aim == "recall 0.9"
    after = metrics_of(copy)
    assert {name: after[name] for name in before if name != "decisions"} == {
        name: before[name] for name in before if name != "decisions"
    }
    assert after["decisions"]["shared_threshold"] < before["decisions"]["shared_threshold"]
    assert f"{after['decisions']['shared_threshold']:.4f} for those with fewer than 100 images" in shown


def test_an_exported_model_is_not_calibrated_by_halves(whole: Path, tmp_path: Path) -> None:
    """Its config.json says the same again, for programs that read that."""
    cli.run(["export", str(whole), "--out", str(tmp_path / "hub")])
    before = {file.name: file.read_bytes() for file in (tmp_path / "hub").iterdir()}
    with pytest.raises(UserError, match="hub' is an exported model; calibrate the run it comes from"):
        cli.run(["calibrate", str(tmp_path / "hub"), "--labels", "x.csv"])
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "hub").iterdir()}


def test_other_labeled_files_may_be_used(copy: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    scenes = draw_scenes(12, size=32)
    rows = ["image,labels"]
    for n, pixels in enumerate(scenes.pixels):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"{n}.png")
        rows.append(
            f"{n}.png,"
            + ";".join(c for c, yes in zip(scenes.class_names, scenes.labels.targets[[n]][0], strict=True) if yes)
        )
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    cli.run(["calibrate", str(copy), "--labels", str(tmp_path / "labels.csv")])
    assert metrics_of(copy)["calibration"]["num_images"] == 12


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--precision", "0.9", "--recall", "0.9"], "not for both"),
        (["--precision", "2"], "--precision 2 must be above 0"),
        (["--images", "x"], "--images goes with --labels"),
        (["--labels", "x.csv", "--set", "root=x"], "leave out what does not fit"),
    ],
)
def test_what_makes_no_sense_changes_nothing(more: list[str], sentence: str, copy: Path) -> None:
    content = (copy / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match=sentence):
        cli.run(["calibrate", str(copy), *more])
    assert (copy / "model.safetensors").read_bytes() == content
