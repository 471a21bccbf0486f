"""Thresholds chosen by hand: the file, and everything that takes it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from percentmatch import Predictor
from percentmatch.cli import main as cli
from percentmatch.data.scenes import CLASSES, draw_scenes
from percentmatch.errors import UserError
from percentmatch.models import load_classifier
from percentmatch.use.thresholds import read_thresholds, with_thresholds


def file_of(folder: Path, content: object) -> Path:
    file = folder / "thresholds.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_they_take_the_place_of_the_model_s_own(whole: Path, tmp_path: Path, capsys) -> None:
    """In Python, in predict and in evaluate, whatever their order in the file; probabilities stay."""
    chosen = {name: value for name, value in zip(CLASSES, np.linspace(0, 1, len(CLASSES)), strict=True)}
    file = file_of(tmp_path, {"thresholds": dict(reversed(chosen.items()))})
    usual, mine = Predictor(whole, "cpu"), Predictor(whole, "cpu", thresholds=file)
    pixels = [*draw_scenes(12, size=32).pixels.permute(0, 2, 3, 1).numpy()]
    np.testing.assert_array_equal(mine.predict_proba(pixels), usual.predict_proba(pixels))
    np.testing.assert_array_equal(mine.predict(pixels), mine.predict_proba(pixels) >= [*chosen.values()])
    assert mine.card.decisions
    assert mine.card.decisions.aim == "by hand"
    assert (mine.predict(pixels)[:, 0] == 1).all()

    capsys.readouterr()
    cli.run(["evaluate", str(whole), "--thresholds", str(file), "--json", "-"])
    found = json.loads(capsys.readouterr().out)["decisions"]
    assert {name: row["threshold"] for name, row in found["classes"].items()} == chosen
    assert found["classes"][CLASSES[0]]["recall"] == 1
    cli.run(["evaluate", str(whole), "--json", str(tmp_path / "scores.json")])
    shown, own = capsys.readouterr().out, json.loads((tmp_path / "scores.json").read_text())["decisions"]
    assert [row["threshold"] for row in own["classes"].values()] == list(usual.card.decisions.thresholds)
    assert f"exact match): {100 * own['exact_match']:.1f} (" in shown
    assert "all pairs (micro)" in shown

    from PIL import Image

    for n, image in enumerate(pixels[:3]):
        Image.fromarray(image).save(tmp_path / f"{n}.png")
    cli.run(["predict", str(whole), *(str(tmp_path / f"{n}.png") for n in range(3)), "--thresholds", str(file)])
    lines = capsys.readouterr().out.splitlines()[1:]
    decided = mine.predict(pixels[:3])
    assert [line.split(",")[1].lstrip("'").split(";") for line in lines] == [
        [name for name, yes in zip(CLASSES, row, strict=True) if yes] for row in decided
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"thresholds": {"cat": 0.5, "dig": 0.5}}, r"the model has no class 'dig'; did you mean 'dog'\?"),
        ({"thresholds": {"cat": 0.5}}, "has no threshold for dog; give one for each class"),
        ({"thresholds": {"cat": 0.5, "dog": 1.5}}, "the threshold of 'dog' must be from 0 to 1, not 1.5"),
        ({"thresholds": {"cat": 0.5, "dog": True}}, "the threshold of 'dog' must be from 0 to 1, not True"),
        ({"thresholds": {"cat": 0.5, "dog": "half"}}, "must be from 0 to 1, not 'half'"),
        ({"thresholds": [0.5, 0.5]}, r"does not hold thresholds; write JSON such as {\"thresholds\": {\"cat\": 0.42"),
        ([1], "does not hold thresholds"),
        ("[" * 100_000, "does not hold thresholds"),
        ('{"thresholds": {"cat": NaN, "dog": 0}}', "does not hold thresholds"),
        ("cat,0.5", "does not hold thresholds"),
    ],
)
def test_a_file_that_does_not_fit_is_told_in_a_sentence(content: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        read_thresholds(file_of(tmp_path, content), ("cat", "dog"))


def test_a_file_that_is_not_there_and_a_model_without_thresholds(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--thresholds .*none\.json: No such file"):
        cli.run(["evaluate", str(whole), "--thresholds", str(tmp_path / "none.json")])
    _, card = load_classifier(whole / "model.safetensors", torch.device("cpu"))
    with pytest.raises(UserError, match="is for multi-label models"):
        with_thresholds(type(card)(**{**vars(card), "task": "single-label", "decisions": None}), tmp_path / "x")
    thresholds = dict.fromkeys(card.class_names, 0.25)
    bare = type(card)(**{**vars(card), "decisions": None})
    found = with_thresholds(bare, file_of(tmp_path, {"thresholds": thresholds})).decisions
    assert found
    assert (set(found.thresholds), set(found.scale), set(found.shift)) == ({0.25}, {1.0}, {0.0})
