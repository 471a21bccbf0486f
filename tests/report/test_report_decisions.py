"""What the page calls predicted is what `predict` decides, with the probabilities that it gives."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hostile import CLASSES
from sklearn.metrics import f1_score
from torchmetrics.functional.classification import binary_calibration_error

from percentmatch import Predictor
from percentmatch.data import Data, Images
from percentmatch.data.labels import Labels
from percentmatch.models import Card, Decisions, classifier_bytes, load_classifier
from percentmatch.report import write_report
from percentmatch.report.collect import read_run
from percentmatch.report.decisions import few_positives
from percentmatch.report.scoring import PageRun, _score_subset, gallery, score_own_images
from percentmatch.use.export import export

CPU = torch.device("cpu")


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    """The run, to be changed."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def page(out: Path, folder: Path, data: Data) -> tuple[str, dict]:
    """The words of the page and what its script shows."""
    write_report([folder], out / "report.html", data=data)
    text = (out / "report.html").read_text(encoding="utf-8")
    (found,) = re.findall('<script type="application/json" id="data">(.*?)</script>', text)
    return text, json.loads(found)["galleries"]["run1"]


def set_decisions(folder: Path, **changes: object) -> None:
    model, card = load_classifier(folder / "model.safetensors", CPU)
    (folder / "model.safetensors").write_bytes(classifier_bytes(model, replace(card, **changes)))


def test_labels_and_probabilities_of_images_are_those_of_predict(folder: Path, data: Data, tmp_path: Path) -> None:
    """With the thresholds that training chose, then with made-up ones and a made-up calibration."""
    strict, counts = Decisions((0.5,) * 6, (1.0,) * 6, (0.6, 0.7, 0.8, 0.7, 0.6, 0.9), "precision 0.9"), []
    for decisions, words in ((None, "chosen for the best F1."), (strict, "chosen for precision 0.9.")):
        if decisions:
            set_decisions(folder, decisions=decisions)
        text, gallery = page(tmp_path, folder, data)
        assert f"from the threshold on that the model keeps for the class, {words}" in text
        predictor = Predictor(folder, "cpu")
        rows = data.test.rows([image["name"] for image in gallery["images"]])  # of which there are more
        arrays = [*data.test.pixels[rows].permute(0, 2, 3, 1).numpy()]
        labels, probabilities = predictor.predict(arrays), predictor.predict_proba(arrays)
        assert [image["predicted"] for image in gallery["images"]] == [row.nonzero()[0].tolist() for row in labels]
        for c, groups in gallery["classes"].items():
            for place, probability in (pair for pairs in groups.values() for pair in pairs):
                assert probability == pytest.approx(probabilities[place, int(c)], abs=1e-4)
        counts.append(int(predictor.predict([*data.pool.pixels.permute(0, 2, 3, 1).numpy()]).sum()))
    assert counts[0] != counts[1]


def test_what_nobody_knows_is_not_shown_as_a_mistake(folder: Path, data: Data) -> None:
    """Nor is an object marked difficult, which is there."""
    record = read_run(folder, "run")
    scored = score_own_images(record, "cpu", data=data)
    part, old = scored.subsets["validation"], scored.subsets["validation"].images
    known, hard = old.labels.known.dense(), torch.zeros(old.labels.shape, dtype=torch.uint8)
    known[:, 0], hard[:, 1] = 0, 1
    new = replace(old, labels=Labels.of(old.labels.targets.dense() * known * (1 - hard), known, hard))
    everything = replace(part, images=new, decided=torch.ones_like(part.decided))
    scored, numbers = replace(scored, subsets={"validation": everything}, gallery_subset="validation"), tuple(range(6))
    shown = gallery(PageRun(record, scored, None, CLASSES, numbers, shown=numbers), {}, 1)
    assert shown["images"]
    assert {tuple(image["predicted"]) for image in shown["images"]} == {(2, 3, 4, 5)}


def test_a_model_without_thresholds_gets_those_of_the_images_shown(folder: Path, data: Data, tmp_path: Path) -> None:
    """The F1 of each class is the best that any threshold has on the test images, of which there are more."""
    set_decisions(folder, decisions=None)
    scored = score_own_images(read_run(folder, "run"), "cpu", data=data)
    part = scored.subsets["test"]
    assert (scored.aim, part.calibrated) == (None, None)
    arrays = [*part.images.pixels.permute(0, 2, 3, 1).numpy()]
    assert part.probabilities.numpy() == pytest.approx(Predictor(folder, "cpu").predict_proba(arrays), abs=1e-6)
    for c in range(len(CLASSES)):
        truth, scores = part.images.labels.targets.dense()[:, c], part.probabilities[:, c]
        best = max(f1_score(truth, scores >= t) for t in scores)
        assert f1_score(truth, part.decided[:, c]) == pytest.approx(best)
    assert "from the score on that has the best F1 on these test images" in page(tmp_path, folder, data)[0]


def test_calibrated_probabilities_are_judged_beside_the_scores(run: Path, data: Data, tmp_path: Path) -> None:
    scored = score_own_images(read_run(run, "run"), "cpu", data=data)
    part = scored.subsets["test"]
    arrays = [*part.images.pixels.permute(0, 2, 3, 1).numpy()]
    truth = part.images.labels.targets.dense().flatten().long()
    found = [
        float(binary_calibration_error(torch.from_numpy(each).flatten(), truth, n_bins=10))
        for each in (Predictor(run, "cpu").predict_proba(arrays, raw=raw) for raw in (True, False))
    ]
    words = f"ECE of all pairs: {100 * found[0]:.1f}%, calibrated (dashed, with dots) {100 * found[1]:.1f}%."
    assert words in page(tmp_path, run, data)[0]


def test_a_calibration_that_was_not_kept_is_not_claimed(folder: Path, data: Data, tmp_path: Path) -> None:
    """Scale 1 and shift 0: the probabilities are the network's own, in the report and in an exported README."""
    words = "percentmatch predict gives calibrated probabilities"
    assert words in page(tmp_path, folder, data)[0]
    _, card = load_classifier(folder / "model.safetensors", CPU)
    assert card.decisions
    set_decisions(folder, decisions=replace(card.decisions, scale=(1.0,) * 6, shift=(0.0,) * 6))
    text = page(tmp_path, folder, data)[0]
    assert words not in text
    assert "all pairs, calibrated" not in text
    export(folder, tmp_path / "hub")
    readme = (tmp_path / "hub/README.md").read_text()
    assert "Probabilities are those of the network, not calibrated" in readme
    assert "calibration error" not in readme


def test_few_validation_images_are_told(folder: Path, data: Data, tmp_path: Path) -> None:
    """30 validation images, 40 test images: pictures and figures are of these, and thresholds are called rough."""
    record = read_run(folder, "run")
    scored = score_own_images(record, "cpu", data=data)
    assert (scored.gallery_subset, len(scored.subsets["test"].images)) == ("test", 40)
    few = few_positives(scored)
    assert few
    text = page(tmp_path, folder, data)[0]
    assert "rough where fewer than 20 of the validation images that chose them show the class" in text
    assert "Decisions on the 40 test images, with 95% intervals" in text
    export(folder, tmp_path / "hub")
    assert f"thresholds are rough: {len(few)} of 6 classes" in (tmp_path / "hub/README.md").read_text()


def test_of_one_label_an_image_the_most_probable_is_predicted() -> None:
    """The doubt is the distance to the best other class: 1/2 against 1/4 is ln 2, 0.8 against 0.1 is ln 8."""
    about = ("test_resnet", "linear", 0.0, 32, 32, "squash", "single-label", ("a", "b", "c"), (0.5,) * 3, (0.5,) * 3)
    card = Card(*about, "0.1.0", Decisions((1.0,) * 3, (0.0,) * 3, (), "best class"))
    images = Images(torch.zeros(2, 3, 1, 1).byte(), Labels.of(torch.eye(3)[:2].byte()), ("x", "y"), card.class_names)
    part = _score_subset(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log(), images, card, card)
    assert part.decided.tolist() == [[True, False, False], [False, False, True]]
    expected = torch.tensor([[2.0, 2, 2], [8, 8, 8]]).log().double()
    torch.testing.assert_close(part.doubt, expected, atol=1e-6, rtol=0)
