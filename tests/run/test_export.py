"""Exported models say what the run's own model says: ONNX under onnxruntime, and a folder by two ways of loading."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from saved_model import CARD as LINEAR
from saved_model import CLASSES, DECISIONS, save_model, save_photos

from percentmatch import Predictor
from percentmatch.cli import main as cli
from percentmatch.errors import UserError
from percentmatch.use import export
from percentmatch.use.export import ImageClassifier

onnxruntime = pytest.importorskip("onnxruntime")
CARD = replace(LINEAR, head="ml-decoder")  # attention has a way of its own in eval mode


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run/model.safetensors and run/metrics.json, model.onnx and folder made of it, five images in photos."""
    path = tmp_path_factory.mktemp("export")
    save_model(path / "run" / "model.safetensors", CARD)
    save_photos(path / "photos", 5)
    scores = {"mAP": 0.4321, "AUC": 0.5, "num_images": 7, "classes": {}}
    metrics = {"step": 1, "minutes": 0.1, "seed": 0, "test": {"ema": scores, "model": scores}}
    metrics["calibration"] = {"ece_before": 0.2, "ece_after": 0.1}
    (path / "run" / "metrics.json").write_text(json.dumps(metrics))
    for out in ("model.onnx", "folder"):
        cli.run(["export", str(path / "run"), "--out", str(path / out)])
    return path


def squares(folder: Path) -> np.ndarray:
    """As the documents say: (n, 37, 37, 3)."""
    images = [Image.open(file).convert("RGB") for file in sorted(folder.iterdir())]
    return np.stack([np.asarray(image.resize((37, 37), Image.Resampling.BILINEAR)) for image in images])


def test_onnx_gives_the_probabilities_of_the_predictor_for_any_number_of_images(base: Path) -> None:
    session = onnxruntime.InferenceSession(base / "model.onnx")
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape[1:]) == ("pixels", "tensor(uint8)", [37, 37, 3])
    pixels, wanted = squares(base / "photos"), Predictor(base / "run").predict_proba(base / "photos")
    for n in (1, 2, 5):
        (found,) = session.run(["probabilities"], {"pixels": pixels[:n]})
        np.testing.assert_allclose(found, wanted[:n], atol=1e-5)
    raw = Predictor(base / "run").predict_proba(base / "photos", raw=True)
    assert np.abs(raw - wanted).max() > 0.05


def test_onnx_knows_classes_thresholds_and_sizes(base: Path) -> None:
    known = onnxruntime.InferenceSession(base / "model.onnx").get_modelmeta().custom_metadata_map
    facts = {name: json.loads(value) for name, value in known.items()}
    assert facts["class_names"] == list(CLASSES)
    assert facts["thresholds"] == list(DECISIONS.thresholds)
    assert (facts["image_size"], facts["decode_size"], facts["frame"], facts["task"]) == (32, 37, "squash", CARD.task)


def test_one_label_an_image_and_nothing_to_resize(tmp_path: Path) -> None:
    """What is exported, before the export."""
    decisions = replace(DECISIONS, scale=(0.5,) * 3, shift=(0.0,) * 3, thresholds=(), aim="best class")
    card = replace(LINEAR, task="single-label", decode_size=32, frame="center", decisions=decisions)
    predictor = Predictor(save_model(tmp_path / "model.safetensors", card))
    pixels = torch.randint(256, (4, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    model = export.with_preprocessing(predictor)
    with torch.inference_mode():
        found = model(pixels)
    np.testing.assert_allclose(found, predictor.predict_proba(pixels), atol=1e-6)
    np.testing.assert_allclose(found.sum(dim=1), 1, atol=1e-6)
    assert export.onnx_facts(card)["thresholds"] is None


def test_an_onnx_file_that_disagrees_is_not_written(base: Path, tmp_path: Path, monkeypatch) -> None:
    class Off:
        def __init__(self, *_: object, **__: object) -> None: ...

        def run(self, _: None, given: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [Predictor(base / "run").predict_proba(given["pixels"]).astype(np.float32) + 2e-4]

    class Program:
        from onnx import ModelProto

        model_proto = ModelProto()

    monkeypatch.setattr(onnxruntime, "InferenceSession", Off)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: Program)
    with pytest.raises(UserError, match=r"differ from torch's by 2\.0e-04, more than 1e-04; nothing is written"):
        cli.run(["export", str(base / "run"), "--out", str(tmp_path / "new" / "m.onnx")])
    assert not list(tmp_path.iterdir())


def test_without_the_packages_a_sentence_says_how_to_get_them(base: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r'needs onnxscript, .* pip install "percentmatch\[export\]"'):
        cli.run(["export", str(base / "run"), "--out", str(tmp_path / "m.onnx")])
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_exported_or_is_too_large(base: Path, tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no such operator\nmore")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(UserError, match=r"cannot export test_resnet as ONNX \(ValueError: no such operator\)$"):
        cli.run(["export", str(base / "run"), "--out", str(tmp_path / "m.onnx")])
    monkeypatch.setattr(export, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="do not fit into an ONNX file; export a folder"):
        cli.run(["export", str(base / "run"), "--out", str(tmp_path / "m.onnx")])


def test_a_folder_is_loaded_by_the_predictor_and_by_the_hub_s_mixin(base: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert {file.name for file in (base / "folder").iterdir()} == {"model.safetensors", "config.json", "README.md"}
    wanted = Predictor(base / "run").predict_proba(base / "photos")
    np.testing.assert_array_equal(Predictor(base / "folder").predict_proba(base / "photos"), wanted)
    model = ImageClassifier.from_pretrained(base / "folder")
    assert not model.training
    assert model.card == CARD
    with torch.inference_mode():
        found = model(torch.from_numpy(squares(base / "photos")))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    model.save_pretrained(tmp_path / "again")  # what would be pushed
    np.testing.assert_array_equal(Predictor(tmp_path / "again").predict_proba(base / "photos"), wanted)
    assert ImageClassifier.from_pretrained(tmp_path / "again").card == CARD


def test_the_card_of_a_folder_names_classes_scores_and_preprocessing(base: Path) -> None:
    text = (base / "folder" / "README.md").read_text()
    assert re.match(r"---\nlibrary_name: percentmatch\n", text)
    for words in ("test mAP 43.21 on 7 images", "0.2000 raw, 0.1000", "| big square | 0.4000 |", "37 x 37", "32 x 32"):
        assert words in text
    hostile = replace(CARD, class_names=("<img src=x>", "a|b", "c\nd"))
    text = export.model_card(hostile, {})
    assert "<img" not in text
    assert "| a&#124;b | 0.4000 |" in text
    assert "| c d | 0.5000 |" in text
    assert "tags: [image-classification, multi-label," in text
    single = replace(CARD, task="single-label", decisions=None)
    assert "tags: [image-classification, single-label," in export.model_card(single, {})


def test_nothing_is_overwritten_or_half_written(base: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for name, sentence in (
        ("../full", "is there already; name a new folder"),
        ("../folder.onnx", "is no file; name a new one"),
        (".", "--out . is there already; name a new folder"),
        ("../full/mine.txt/a.onnx", "cannot write '../full/mine.txt/a.onnx'.*; .* kept: check the path"),
        ("../full/mine.txt/a", "cannot write '../full/mine.txt/a'"),
    ):
        with pytest.raises(UserError, match=sentence):
            cli.run(["export", str(base / "run"), "--out", name])
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    (tmp_path / "empty").rmdir()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "write_json", full)
    with pytest.raises(UserError, match="No space left"):
        cli.run(["export", str(base / "run"), "--out", str(tmp_path / "new")])
    assert {path.name for path in tmp_path.iterdir()} == {"full", "folder.onnx"}


def test_the_code_in_the_documents_runs_and_says_what_the_predictor_says(
    base: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base / "run", "runs/mine")
    shutil.copytree(base / "photos", "more")
    shutil.copytree(base / "folder", "exported")
    shutil.copy(base / "model.onnx", "model.onnx")
    for n, name in enumerate(("a.jpg", "b.jpg", "photo.jpg")):
        Image.open(f"more/00{n}.png").save(name)
    page = Path(__file__).parents[2] / "docs/predict-and-export.md"
    known: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(block, known)
    wanted = known["predictor"].predict_proba("photo.jpg")
    np.testing.assert_allclose(known["probabilities"], wanted, atol=1e-5)
    decided = known["predictor"].predict("photo.jpg")[0]
    assert known["labels"] == [name for name, yes in zip(CLASSES, decided, strict=True) if yes]
    assert isinstance(known["model"], ImageClassifier)
