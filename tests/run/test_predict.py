"""Images in, labels and probabilities out: the command, the file it writes, and the same in Python."""

import csv
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from saved_model import CARD, CLASSES, DECISIONS, save_model, save_photos

import percentmatch
from percentmatch import Predictor
from percentmatch.cli import main as cli
from percentmatch.data import load_images, read_labels, read_table, unlabeled_manifest
from percentmatch.errors import UserError
from percentmatch.models import classifier_bytes, load_classifier
from percentmatch.scoring.predictions import logits
from percentmatch.use import predict as predict_module


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run/model.safetensors, and 70 images in photos: more than one chunk."""
    folder = tmp_path_factory.mktemp("predict")
    save_model(folder / "run" / "model.safetensors")
    save_photos(folder / "photos", 70)
    return folder


def run(*tokens: object) -> int:
    """The exit code; bad input is raised."""
    try:
        cli.run([str(token) for token in tokens])
    except SystemExit as exit_:
        return int(exit_.code or 0)
    return 0


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def expected(base: Path) -> torch.Tensor:
    """Logits by the way of `evaluate`: from the cache, all at once."""
    model, card = load_classifier(base / "run" / "model.safetensors", torch.device("cpu"))
    images = load_images(
        unlabeled_manifest(base / "photos", CLASSES), size=card.decode_size, folder=base / "cache", frame=card.frame
    )
    return logits(model, images.pixels, card, torch.device("cpu")).double()


def test_the_table_holds_calibrated_probabilities_and_the_labels_they_decide(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    assert run("predict", base / "run", base / "photos", "--out", out) == 0
    rows = rows_of(out)
    assert list(rows[0]) == ["image", "labels", "disc", "big square", "'=risky"]
    assert [row["image"] for row in rows] == sorted(str(file) for file in (base / "photos").iterdir())
    scale, shift, thresholds = (
        torch.tensor(each, dtype=torch.float64) for each in (DECISIONS.scale, DECISIONS.shift, DECISIONS.thresholds)
    )
    wanted = (expected(base) * scale + shift).sigmoid()
    found = torch.tensor([[float(row[name]) for name in list(row)[2:]] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)
    assert 0 < (wanted >= thresholds).double().mean() < 1
    for row, decided in zip(rows, (wanted >= thresholds).tolist(), strict=True):
        names = [name for name, yes in zip(("disc", "big square", "'=risky"), decided, strict=True) if yes]
        assert [name for name in row["labels"].split(";") if name] == names


def test_raw_changes_the_probabilities_and_no_label(base: Path, tmp_path: Path) -> None:
    for name, more in (("a.csv", []), ("b.csv", ["--raw"])):
        assert run("predict", base / "run", base / "photos", "--out", tmp_path / name, *more) == 0
    mine, raw = (rows_of(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert [row["labels"] for row in mine] == [row["labels"] for row in raw]
    found = torch.tensor([[float(row[name]) for name in list(row)[2:]] for row in raw], dtype=torch.float64)
    torch.testing.assert_close(found, expected(base).sigmoid(), atol=2e-6, rtol=0)


def test_json_lines_say_the_same_and_how_sure(base: Path, tmp_path: Path, capsys) -> None:
    assert run("predict", base / "run", base / "photos", "--out", tmp_path / "p.csv") == 0
    assert run("predict", base / "run", base / "photos", "--out", tmp_path / "p.jsonl") == 0
    assert run("predict", base / "run", base / "photos", "--out", tmp_path / "p.txt", "--format", "jsonl") == 0
    assert (tmp_path / "p.txt").read_bytes() == (tmp_path / "p.jsonl").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    for line, row in zip(lines, rows_of(tmp_path / "p.csv"), strict=True):
        assert line["image"] == row["image"]
        assert list(line["probability"]) == list(line["decision"]) == list(line["confidence"]) == list(CLASSES)
        assert line["labels"] == [name for name, yes in line["decision"].items() if yes]
        cells = [float(row[name]) for name in list(row)[2:]]
        assert list(line["probability"].values()) == pytest.approx(cells, abs=1e-9)
        for name, p in line["probability"].items():
            assert line["confidence"][name] == pytest.approx(p if line["decision"][name] else 1 - p, abs=2e-6)
    capsys.readouterr()
    assert run("predict", base / "run", base / "photos" / "000.png", "--format", "jsonl") == 0
    assert json.loads(capsys.readouterr().out)["labels"] == lines[0]["labels"]


def test_labeling_programs_get_the_same_predictions(base: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """Written in chunks of 3; what is written for FiftyOne is read as labels again. Predictions may be replaced."""
    monkeypatch.setattr("percentmatch.use.predict.CHUNK", 3)
    assert run("predict", base / "run", base / "photos", "--out", tmp_path / "p.jsonl") == 0
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    for form in ("fiftyone", "label-studio"):
        out = ("--out", tmp_path / f"{form}.json", "--format", form)
        assert [run("predict", base / "run", base / "photos", *out) for _ in range(2)] == [0, 0]
    samples = json.loads((tmp_path / "fiftyone.json").read_text())["samples"]
    tasks = json.loads((tmp_path / "label-studio.json").read_text())
    for line, sample, task in zip(lines, samples, tasks, strict=True):
        assert sample["filepath"] == line["image"]
        found = {each["label"]: each["confidence"] for each in sample["predictions"]["classifications"]}
        assert found == {name: line["probability"][name] for name in line["labels"]}
        (answer,) = task["predictions"]
        assert answer["result"][0]["value"] == {"choices": line["labels"]}
        assert answer["score"] == pytest.approx(min(max(p, 1 - p) for p in line["probability"].values()), abs=2e-6)
        assert task["data"]["image"] == f"/data/local-files/?d={line['image'][1:]}"
    manifest = read_labels(tmp_path / "fiftyone.json", base / "photos")
    targets = manifest.labels.targets.dense().tolist()
    shown = [{name for name, one in zip(manifest.class_names, row, strict=True) if one} for row in targets]
    assert shown == [set(line["labels"]) for line in lines]
    with pytest.raises(UserError, match=r"name a file that ends in .* --format csv, jsonl, fiftyone, label-studio$"):
        run("predict", base / "run", base / "photos", "--out", tmp_path / "p.json")
    own = tmp_path / "samples.json"
    own.write_text('{"samples": []}')
    with pytest.raises(UserError, match="holds no predictions of this model"):
        run("predict", base / "run", base / "photos", "--out", own, "--format", "fiftyone")


def test_every_file_is_opened_once(base: Path, tmp_path: Path) -> None:
    opened: Counter[str] = Counter()
    listening = [True]  # a hook cannot be taken off

    def listen(event: str, args: tuple[object, ...]) -> None:
        if listening and event == "open" and str(args[0]).endswith(".png"):
            opened[str(args[0])] += 1

    sys.addaudithook(listen)
    assert run("predict", base / "run", base / "photos", "--out", tmp_path / "p.csv") == 0
    listening.clear()
    assert opened == {str(file): 1 for file in (base / "photos").iterdir()}


def test_bad_images_are_named_and_the_others_done(base: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(predict_module, "CHUNK", 4)
    files = save_photos(tmp_path / "photos", 9)
    for n, content in ((0, b"hello"), (5, files[5].read_bytes()[:100])):
        files[n].write_bytes(content)
    shown: list[tuple[int, int]] = []
    done = predict_module.predict(
        base / "run", [tmp_path / "photos"], tmp_path / "a.csv", progress=lambda *each: shown.append(each)
    )
    assert done == (7, 2)
    assert shown == [(4, 9), (8, 9), (9, 9)]
    capsys.readouterr()
    for more, code in (([], 1), (["--skip-bad-images"], 0)):
        out = tmp_path / f"{code}.csv"
        assert run("predict", base / "run", tmp_path / "photos", "--out", out, *more) == code
        assert [Path(row["image"]).name for row in rows_of(out)] == [f"00{n}.png" for n in (1, 2, 3, 4, 6, 7, 8)]
        said = capsys.readouterr()
        assert "7 images" in said.out
        assert "000.png': it is text" in said.err
        assert "005.png': it is cut short" in said.err
        assert "skipped 2 of 9 images" in said.err
    with pytest.raises(UserError, match="none of the 1 images can be read"):
        run("predict", base / "run", files[0], "--out", tmp_path / "none.csv")
    assert not list(tmp_path.glob("*none.csv*"))


def test_a_file_that_is_neither_image_nor_list_is_told_as_what_it_was_read(base: Path, tmp_path: Path) -> None:
    shutil.copy(base / "photos" / "000.png", tmp_path / "photo.heic")
    with pytest.raises(UserError, match=r"heic is read as a list of paths, as it is not named like an image: .*UTF-8"):
        run("predict", base / "run", tmp_path / "photo.heic")
    with pytest.raises(UserError, match=r"^there is no file .*gone; check the path$"):
        run("predict", base / "run", tmp_path / "gone")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_no_text_is_a_bad_image(base: Path, tmp_path: Path, capsys) -> None:
    files = save_photos(tmp_path / "photos", 2)
    os.rename(files[0], os.fsencode(tmp_path / "photos") + b"/\xff.png")
    assert run("predict", base / "run", tmp_path / "photos", "--out", tmp_path / "p.csv") == 1
    assert "its name is not valid UTF-8" in capsys.readouterr().err
    assert len(rows_of(tmp_path / "p.csv")) == 1


# what a spreadsheet would run, and what the reader of labels would misread


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\uff1d"])
def test_no_cell_begins_like_a_formula_and_the_table_is_read_back(start: str, base: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = (f"{start}a", "b c", f"'{start}a", "part", "Label", "[d", "?", "x,y")
    always = replace(DECISIONS, scale=(1,) * 8, shift=(0,) * 8, thresholds=(0, 1, 0, 1, 1, 1, 1, 1))
    save_model(tmp_path / "m" / "model.safetensors", replace(CARD, class_names=names, decisions=always))
    files = [f"{start}x.png", "y.png"]
    for name, pixels in zip(files, (0, 255), strict=True):
        Image.new("RGB", (40, 40), (pixels,) * 3).save(name)
    assert run("predict", "m", ".", "--out", "p.csv") == 0
    with open("p.csv", newline="", encoding="utf-8") as opened:
        rows = list(csv.reader(opened))
    assert len(rows) == 3
    assert not [cell for row in rows for cell in row if cell.startswith(start)]
    assert not [piece for row in rows for piece in row[1].split(";") if piece.startswith(start)]
    for classes in (names, None):
        manifest = read_table(Path("p.csv"), classes=classes)
        assert manifest.ids == tuple(sorted(files))
        shown = [
            [c for c, yes in zip(manifest.class_names, row, strict=True) if yes]
            for row in manifest.labels.targets.dense()
        ]
        assert [sorted(each) for each in shown] == [sorted([f"{start}a", f"'{start}a"])] * 2


@pytest.mark.parametrize("name", ["b c", "[d", "?", "x,y", "x|y", "{e}", "plain"])
def test_a_single_label_of_any_name_is_read_back(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = replace(DECISIONS, scale=(1, 1), shift=(0, 0), thresholds=(0, 1))
    save_model(tmp_path / "m" / "model.safetensors", replace(CARD, class_names=(name, "other"), decisions=one))
    save_photos(tmp_path / "photos", 2)
    assert run("predict", "m", "photos", "--out", "p.csv") == 0
    manifest = read_table(Path("p.csv"))
    assert manifest.class_names == (name,)
    assert manifest.labels.targets.dense().tolist() == manifest.labels.known.dense().tolist() == [[1], [1]]


def test_a_class_that_divides_labels_goes_into_json_lines_only(tmp_path: Path, capsys) -> None:
    file = save_model(tmp_path / "model.safetensors", replace(CARD, class_names=("a;b", "c", "d")))
    (photo,) = save_photos(tmp_path / "photos", 1)
    with pytest.raises(UserError, match=r"class 'a;b' holds a ';'.*--format jsonl"):
        run("predict", file, photo)
    assert run("predict", file, photo, "--format", "jsonl") == 0
    assert "a;b" in json.loads(capsys.readouterr().out)["probability"]


def test_predictions_serve_as_labels(base: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(base)
    assert run("predict", "run", "photos", "--out", base / "again.csv") == 0
    manifest = read_table(base / "again.csv", classes=CLASSES)
    assert manifest.ids[0] == "photos/000.png"
    assert torch.equal(manifest.labels.targets.dense(), torch.from_numpy(Predictor("run").predict("photos")))


# Python


def test_python_has_the_numbers_of_the_command(base: Path, tmp_path: Path) -> None:
    assert run("predict", base / "run", base / "photos", "--out", tmp_path / "p.csv") == 0
    rows = rows_of(tmp_path / "p.csv")
    wanted = np.array([[float(row[name]) for name in list(row)[2:]] for row in rows])
    predictor = Predictor(base / "run")
    assert list(predictor.classes_) == list(CLASSES)
    paths = sorted((base / "photos").iterdir())
    opened = [Image.open(path) for path in paths]
    arrays = [np.asarray(image) for image in opened]
    for images in (base / "photos", str(base / "photos"), paths, map(str, paths), opened, arrays):
        np.testing.assert_allclose(predictor.predict_proba(images), wanted, atol=2e-6)
    np.testing.assert_allclose(predictor.predict_proba([torch.tensor(a) for a in arrays]), wanted, atol=2e-6)
    for one in (paths[3], opened[3], arrays[3]):
        np.testing.assert_allclose(predictor.predict_proba(one), wanted[3:4], atol=2e-6)
    assert predictor.predict_proba([paths[3]] * 2).shape == (2, 3)
    assert predictor.predict_proba(np.stack([arrays[20], arrays[40]])).shape == (2, 3)
    assert predictor.predict_proba([]).shape == (0, 3)
    np.testing.assert_allclose(predictor.predict_proba(paths, raw=True), expected(base).sigmoid().numpy(), atol=2e-6)
    decided = predictor.predict(paths)
    assert decided.shape == wanted.shape
    names = [[name for name, yes in zip(("disc", "big square", "'=risky"), row, strict=True) if yes] for row in decided]
    assert names == [[name for name in row["labels"].split(";") if name] for row in rows]


def test_pillow_images_are_turned_made_opaque_and_left_alone(base: Path, tmp_path: Path) -> None:
    """As files are; a palette image with transparency, and a JPEG that its EXIF data turns."""
    predictor = Predictor(base / "run")
    pixels = (np.arange(48 * 32 * 3) % 251).astype(np.uint8).reshape(48, 32, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=exif)
    Image.fromarray(np.dstack([pixels, pixels[..., :1]])).save(tmp_path / "clear.png")
    for name in ("turned.jpg", "clear.png"):
        image = Image.open(tmp_path / name)
        np.testing.assert_array_equal(predictor.predict_proba(image), predictor.predict_proba(tmp_path / name))
        assert image.size == (32, 48)
        assert image.mode == Image.open(tmp_path / name).mode
    Image.fromarray(pixels).resize((400, 600)).save(tmp_path / "large.jpg")  # a file is decoded at a fraction of this
    image = Image.open(tmp_path / "large.jpg")
    file = predictor.predict_proba(tmp_path / "large.jpg")
    np.testing.assert_allclose(predictor.predict_proba(image), file, atol=0.01)
    assert image.size == (400, 600)


def test_what_is_no_image_is_told(base: Path, tmp_path: Path) -> None:
    predictor = Predictor(base / "run")
    (tmp_path / "bad.png").write_text("hello")
    cut = tmp_path / "cut.png"
    cut.write_bytes((base / "photos" / "000.png").read_bytes()[:200])
    for images, sentence in (
        ([np.zeros((3, 40, 40), np.uint8)], r"uint8 of shape \(3, 40, 40\); give uint8 \(height, width, 3\)"),
        ([np.zeros((40, 40, 3), np.float32)], "an image is float32"),
        (torch.zeros(40, 40, 4, dtype=torch.uint8), r"shape \(40, 40, 4\)"),
        ([tmp_path / "bad.png"], r"bad\.png': it is text"),
        ([tmp_path / "none.png"], "there is no such file"),
        ([Image.open(cut)], "cannot read a Pillow image"),
    ):
        with pytest.raises(UserError, match=sentence):
            predictor.predict_proba(images)


def test_one_label_an_image(tmp_path: Path) -> None:
    decisions = replace(DECISIONS, scale=(0.5,) * 3, shift=(0.0,) * 3, thresholds=(), aim="best class")
    file = save_model(tmp_path / "model.safetensors", replace(CARD, task="single-label", decisions=decisions))
    save_photos(tmp_path / "photos", 5)
    predictor = Predictor(file)
    p = predictor.predict_proba(tmp_path / "photos")
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert predictor.predict(tmp_path / "photos").tolist() == [CLASSES[best] for best in p.argmax(axis=1)]
    for number in (0, 1):
        assert predictor.predict([np.zeros((9, 9, 3), np.uint8)] * number).shape == (number,)
    assert run("predict", file, tmp_path / "photos", "--out", tmp_path / "p.jsonl") == 0
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["labels"] for line in lines] == [[CLASSES[best]] for best in p.argmax(axis=1)]


def test_a_model_that_has_diverged_is_refused_and_writes_nothing(base: Path, tmp_path: Path) -> None:
    model, card = load_classifier(base / "run" / "model.safetensors", torch.device("cpu"))
    for out, value in (("a.csv", torch.nan), ("a.jsonl", torch.inf)):
        torch.nn.init.constant_(list(model.head.parameters())[-1], value)
        (tmp_path / "model.safetensors").write_bytes(classifier_bytes(model, card))
        with pytest.raises(UserError, match="scores that are not finite numbers: its training has diverged"):
            run("predict", tmp_path / "model.safetensors", base / "photos", "--out", tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_package_is_light_until_the_predictor_is_asked_for() -> None:
    program = "import sys, percentmatch.cli.main; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
    assert percentmatch.Predictor is predict_module.Predictor
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        percentmatch.Nothing  # noqa: B018


def test_a_card_that_does_not_fit_is_refused_and_an_old_one_read(base: Path, tmp_path: Path) -> None:
    assert Predictor(base / "run").card == CARD
    for wrong in (
        replace(DECISIONS, thresholds=(0.5,)),
        replace(DECISIONS, scale=(0.5, 1.0, -1.0)),
        replace(DECISIONS, shift=()),
    ):
        with pytest.raises(ValueError, match="do not fit the classes"):
            replace(CARD, decisions=wrong)
    content = (base / "run" / "model.safetensors").read_bytes()
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(content.replace(b'thresholds\\": [0.6, 0.4,', b'thresholds\\": [0.6,     '))
    with pytest.raises(UserError, match="is not a model saved by percentmatch"):
        Predictor(broken)
    old = save_model(tmp_path / "old.safetensors", replace(CARD, decisions=None))
    old.write_bytes(old.read_bytes().replace(b', \\"decisions\\": null', b" " * len(b', \\"decisions\\": null')))
    assert b"decisions" not in old.read_bytes()
    assert Predictor(old).card.decisions is None


def test_lines_of_somebody_else_are_not_replaced(base: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    for text in (
        '{"image": "a.jpg", "caption": "my work"}\n',
        '{"image": "a.jpg", "decision": {"cat": 1}}\n',
        '{"image": ',
    ):
        mine.write_text(text)
        with pytest.raises(UserError, match="holds no predictions of this model"):
            run("predict", base / "run", base / "photos", "--out", mine)
        assert mine.read_text() == text
    mine.unlink()
    for _ in range(2):
        run("predict", base / "run", base / "photos", "--out", mine)


def test_nothing_but_predictions_is_replaced(base: Path, tmp_path: Path) -> None:
    """Neither labels that took days, nor the model itself; a pipe and a link stay what they are."""
    source, mine = base / "photos", tmp_path / "labels.csv"
    mine.write_text("image,labels\n00.png,cat\n")
    model = tmp_path / "model.safetensors"
    model.write_bytes((base / "run" / "model.safetensors").read_bytes())
    for out, words in (
        (mine, "is there already and holds no predictions of this model; name a new file"),
        (model, "name a file that ends in .csv or .jsonl, or say --format"),
        (tmp_path / "new.xlsx", "name a file that ends in .csv or .jsonl, or say --format"),
    ):
        with pytest.raises(UserError, match=words):
            run("predict", model, source, "--out", out)
    assert mine.read_text() == "image,labels\n00.png,cat\n"
    for name in ("p.csv", "p.jsonl"):
        file, link = tmp_path / name, tmp_path / f"link-{name}"
        for _ in range(2):
            run("predict", model, source, "--out", file)
        wanted = file.read_text()
        link.symlink_to(file)
        file.write_text("")
        run("predict", model, source, "--out", link)
        assert link.is_symlink()
        assert file.read_text() == wanted
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    run("predict", model, source, "--out", pipe)
    reader.join(9)
    assert got == [(tmp_path / "p.csv").read_text()]
    assert pipe.is_fifo()
    names = {"labels.csv", "model.safetensors", "p.csv", "p.jsonl", "link-p.csv", "link-p.jsonl", "pipe"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_links_to_one_file_in_a_folder_have_a_row_each(base: Path, tmp_path: Path) -> None:
    for name, target in (("a.png", "003.png"), ("b.png", "003.png"), ("c.png", "004.png")):
        (tmp_path / name).symlink_to(base / "photos" / target)
    rows = Predictor(base / "run").predict_proba(tmp_path)
    assert rows.shape == (3, len(CLASSES))
    np.testing.assert_array_equal(rows[0], rows[1])


def test_the_programs_own_warnings_stay(base: Path, tmp_path: Path) -> None:
    """Pillow's, of an image with many pixels, are not shown; what ignores them is not left behind by a thread."""
    Image.new("1", (10_000, 9_500)).save(tmp_path / "large.png")
    predictor = Predictor(base / "run")
    with warnings.catch_warnings(record=True, action="always") as seen:
        for _ in range(3):
            predictor.predict_proba([tmp_path / "large.png", *sorted((base / "photos").iterdir())])
        assert not seen
        warnings.warn("mine", stacklevel=1)
        assert [str(each.message) for each in seen] == ["mine"]
