"""Files in, answers out, as a person meets it: train, evaluate, predict and data on CSV, VOC and COCO."""

import csv
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from percentmatch.cli.main import main
from percentmatch.data import Split
from percentmatch.data.pixels import cache
from percentmatch.data.scenes import draw_scenes

FAST = {
    "--image-size": "32",
    "--backbone": "test_resnet",
    "--head": "linear",
    "--labeled": "10",
    "--labeled-batch": "4",
    "--total-steps": "2",
}
CLASSES = ("disc", "square", "triangle")  # sorted, as a CSV file gives them
COLUMN = (0, 2, 1)  # where the scenes have them


def run(*tokens: object) -> int:
    sys.argv = ["percentmatch", *map(str, tokens)]
    try:
        main()
    except SystemExit as exit_:
        return int(exit_.code or 0)
    return 0


def fast(**changed: object) -> list[str]:
    settings = FAST | {f"--{name.replace('_', '-')}": str(value) for name, value in changed.items()}
    return [token for pair in settings.items() for token in pair]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr("percentmatch.training.resolve.can_fetch", lambda name: False)  # no download


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """labels.csv and photos: 30 labeled images, the last 6 of them for the test; 8 unlabeled ones in more."""
    scenes = draw_scenes(38, size=32)
    rows = ["image,labels,part"]
    for n, pixels in enumerate(scenes.pixels):
        file = tmp_path / ("photos" if n < 30 else "more") / f"{n:02}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, compress_level=0)  # so all have the same size
        shown = [name for c, name in zip(COLUMN, CLASSES, strict=True) if scenes.labels.targets.dense()[n, c]]
        rows += [f"{n:02}.png,{';'.join(shown)},{'test' if n >= 24 else ''}"] if n < 30 else []
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    return tmp_path


def files(folder: Path, **changed: object) -> list[str]:
    return fast(**{"data": "files", "labels": folder / "labels.csv", "images": folder / "photos", **changed})


def scores_in(printed: str) -> dict[str, list[str]]:
    lines = (line.split() for line in printed.splitlines())
    return {cells[0]: cells[1:] for cells in lines if len(cells) > 3 and cells[1][0] in "0123456789n"}


def test_files_from_training_to_prediction(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """24 images to learn from: 2 for validation (a tenth), 22 labeled, 8 unlabeled, 6 for the test."""
    out = photos / "run"
    assert run("train", "--out", out, *files(photos, labeled=0, unlabeled=photos / "more")) == 0
    split = json.loads((out / "split.json").read_text())
    assert [len(split[part]) for part in ("labeled", "unlabeled", "validation", "test")] == [22, 8, 2, 6]
    assert all(name.startswith("3") for name in split["unlabeled"])
    metrics = json.loads((out / "metrics.json").read_text())
    capsys.readouterr()

    assert run("evaluate", out) == 0
    shown = scores_in(capsys.readouterr().out)
    assert set(CLASSES) <= shown.keys()
    assert shown["mean"][0] == f"{100 * metrics['test']['ema']['mAP']:.2f}"

    table = photos / "predictions.csv"
    assert run("predict", out, photos / "photos", "--out", table) == 0
    assert "30 images" in capsys.readouterr().out
    with open(table) as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["image", "labels", *CLASSES]
    assert [Path(row[0]).name for row in rows[1:]] == [f"{n:02}.png" for n in range(30)]
    assert all(0 < float(p) < 1 for row in rows[1:] for p in row[2:])

    # the same labels, as files of their own: evaluate must find what training found
    test = photos / "test.csv"
    lines = (photos / "labels.csv").read_text().splitlines()
    test.write_text("\n".join(["image,labels", *(line.rpartition(",")[0] for line in lines[25:])]))
    assert run("evaluate", out, "--labels", test, "--images", photos / "photos") == 0
    assert scores_in(capsys.readouterr().out)["mean"] == shown["mean"]

    # one image alone, printed: the same numbers as in the table
    assert run("predict", out / "model.safetensors", photos / "photos" / "07.png") == 0
    printed = capsys.readouterr().out.splitlines()[1].split(",")
    assert [float(p) for p in printed[2:]] == pytest.approx([float(p) for p in rows[8][2:]], abs=2e-6)


def test_predictions_are_the_scores_that_evaluation_ranks(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache larger than the model's input, so that every image is resized twice on both ways."""
    from percentmatch.use import evaluate

    seen: list[torch.Tensor] = []
    keep = evaluate.evaluate
    out = photos / "run"
    assert run("train", "--out", out, *files(photos, cache_size=48)) == 0
    monkeypatch.setattr(evaluate, "evaluate", lambda scores, *rest: seen.append(scores) or keep(scores, *rest))
    assert run("evaluate", out) == 0
    assert run("predict", out, photos / "photos", "--out", photos / "p.csv", "--raw") == 0
    rows = (photos / "p.csv").read_text().splitlines()[25:]
    found = torch.tensor([[float(p) for p in row.split(",")[2:]] for row in rows])
    torch.testing.assert_close(found, seen[0], atol=2e-6, rtol=0)


def test_a_second_start_decodes_nothing_and_verify_finds_what_changed(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded: list[int] = []
    build = cache._build
    monkeypatch.setattr(cache, "_build", lambda *args: decoded.append(len(args[3])) or build(*args))
    assert run("train", "--out", photos / "a", *files(photos)) == 0
    assert decoded == [24, 6]
    assert run("train", "--out", photos / "b", *files(photos)) == 0
    assert decoded == [24, 6]
    image = photos / "photos" / "03.png"
    about = image.stat()
    image.write_bytes((photos / "photos" / "04.png").read_bytes())
    os.utime(image, ns=(about.st_atime_ns, about.st_mtime_ns))
    capsys.readouterr()
    assert run("train", "--out", photos / "c", *files(photos), "--verify-cache") == 0
    assert re.search(r"1 of 24 images had changed: .*03\.png", capsys.readouterr().err)
    assert decoded == [24, 6, 1]


def test_split_files_are_made_and_taken_up_again(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ["--data", "files", "--labels", photos / "labels.csv", "--images", photos / "photos"]
    split = photos / "splits" / "one.json"
    assert (
        run("data", "split", *source, "--labeled", "5", "--validation", "6", "--split-seed", "3", "--out", split) == 0
    )
    assert "labeled 5  unlabeled 13  validation 6  test 6" in capsys.readouterr().out
    assert run("data", "split", *source, "--out", split) == 2
    assert "already there" in capsys.readouterr().err
    assert run("train", "--out", photos / "run", *files(photos), "--split-file", split) == 0
    assert (photos / "run" / "split.json").read_text() == split.read_text()
    values = json.loads(split.read_text())
    broken = photos / "broken.json"
    broken.write_text(json.dumps(values | {"labeled": values["labeled"][1:]}))
    assert run("train", "--out", photos / "other", *files(photos), "--split-file", broken) == 2
    assert "was changed" in capsys.readouterr().err
    assert run("data", "check", *source, "--split-file", broken) == 1  # a finding
    assert run("data", "check", *source, "--split-file", "nowhere.json") == 2
    assert "there is no file nowhere.json" in capsys.readouterr().err
    (photos / "photos" / values["labeled"][0]).rename(photos / "gone.png")
    rows = (photos / "labels.csv").read_text().splitlines()
    (photos / "labels.csv").write_text("\n".join(row for row in rows if not row.startswith(values["labeled"][0])))
    assert run("train", "--out", photos / "other", *files(photos), "--split-file", split) == 2
    assert f"labeled image '{values['labeled'][0]}' is not in the data (1 of 5" in capsys.readouterr().err
    assert not (photos / "other").exists()


def test_rows_marked_validation_are_the_validation_part(photos: Path) -> None:
    text = (photos / "labels.csv").read_text().splitlines()
    marked = [f"{line}validation" if line.startswith(("00", "05", "11")) else line for line in text]
    (photos / "labels.csv").write_text("\n".join(marked))
    assert run("train", "--out", photos / "run", *files(photos, labeled=10)) == 0
    split = json.loads((photos / "run" / "split.json").read_text())
    assert split["validation"] == ["00.png", "05.png", "11.png"]
    assert (len(split["labeled"]), len(split["unlabeled"])) == (10, 11)


def test_stats(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = draw_scenes(30, size=32)
    source = ["--data", "files", "--labels", photos / "labels.csv", "--images", photos / "photos"]
    assert run("data", "stats", *source, "--out", photos / "stats.json") == 0
    shown = scores_in(capsys.readouterr().out)
    stats = json.loads((photos / "stats.json").read_text())
    for c, name in zip(COLUMN, CLASSES, strict=True):
        positives = int(scenes.labels.targets.dense()[:, c].sum())
        assert shown[name][1] == str(positives)
        assert stats["classes"][name]["prevalence"] == pytest.approx(positives / 30)


def test_stats_are_written_into_a_new_folder_and_never_over_one(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ["--data", "files", "--labels", photos / "labels.csv", "--images", photos / "photos"]
    assert run("data", "stats", *source, "--out", photos / "new" / "deep" / "stats.json") == 0
    assert json.loads((photos / "new" / "deep" / "stats.json").read_text())["images"] == 30
    capsys.readouterr()
    monkeypatch.chdir(photos)
    for out, sentence in ((".", "--out '.' is a folder"), ("labels.csv/x.json", "cannot make the folder 'labels.csv'")):
        assert run("data", "stats", *source, "--out", out) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"percentmatch: {sentence}")
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize("verb", ["stats", "split"])
def test_the_task_is_checked_before_training(verb: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ["--data", "files", "--labels", photos / "labels.csv", "--images", photos / "photos"]
    assert run("data", verb, *source, "--task", "single-label", "--out", photos / "x.json") == 2
    assert re.search(r"labels\.csv, line \d+: image '\d+\.png' has \d labels", capsys.readouterr().err)
    assert not (photos / "x.json").exists()


def test_a_run_from_a_split_file_is_resumed_without_it(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of four, then the split file is gone: the rest gives what an undisturbed run gives."""
    names = [f"{n:02}.png" for n in range(30)]
    split = photos / "split.json"
    split.write_text(Split(tuple(names[:10]), tuple(names[10:20]), (), tuple(names[24:27])).to_json())
    settings = [*files(photos, total_steps=4, split_seed=5), "--save-every", "2", "--split-file", split]
    assert run("train", "--out", photos / "whole", *settings) == 0
    said = capsys.readouterr().err
    assert f"the split comes from '{split}', without regard to --labeled, --split-seed" in said
    assert f"left out 7 of 30 images, which '{split}' does not name" in said

    from percentmatch.training import loop as train_module
    from percentmatch.training.run import Run

    step = train_module.train_step

    def fail_at_two(state: Run, number: int) -> None:
        if number == 2:
            raise OSError
        step(state, number)

    monkeypatch.setattr(train_module, "train_step", fail_at_two)
    assert run("train", "--out", photos / "cut", *settings) == 2
    monkeypatch.setattr(train_module, "train_step", step)
    split.unlink()
    capsys.readouterr()
    assert run("train", "--out", photos / "cut", "--resume") == 0
    said = capsys.readouterr().err
    assert f"the split comes from '{photos / 'cut' / 'split.json'}', without regard to --split-file" in said
    assert "left out" not in said
    whole, cut = (json.loads((photos / name / "metrics.json").read_text()) for name in ("whole", "cut"))
    assert {**whole, "minutes": 0} == {**cut, "minutes": 0}


# bad input: a change of the files or flags, and what the one sentence must say


def write(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def relabel(folder: Path, *rows: str) -> None:
    write(folder, "labels.csv", "\n".join(["image,labels", *rows]))


def bomb(folder: Path) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )
    write(folder / "photos", "07.png", png)


BAD = {
    "missing image": (lambda f: (f / "photos/07.png").unlink(), r"labels\.csv, line 9: the image '07\.png' is not in"),
    "truncated image": (
        lambda f: write(f / "photos", "07.png", (f / "photos/07.png").read_bytes()[:500]),
        r"07\.png.*(truncated|cut short).*1 of 24 images",
    ),
    "text named as an image": (lambda f: write(f / "photos", "07.png", "hello"), r"07\.png.*it is text, not an image"),
    "decompression bomb": (bomb, r"07\.png.*pixels"),
    "empty file": (lambda f: write(f, "labels.csv", ""), r"labels\.csv is empty"),
    "row without image": (lambda f: relabel(f, "00.png,disc", ",disc"), r"labels\.csv, line 3: a row without an image"),
    "twice with different labels": (
        lambda f: relabel(f, "00.png,disc", "01.png,square", "00.png,square"),
        r"line 2 and .*labels\.csv, line 4 give '00\.png' different labels",
    ),
    "not there": (lambda f: (f / "labels.csv").unlink(), r"there is no file .*labels\.csv"),
}
FLAGS = {
    "more labels than images": ({"labeled": 99}, r"labeled=99 .*ask for 99 \+ 2 of 24 images with labels"),
    "unknown class": ({"classes": "disc,triangel,square"}, r"labels\.csv, line \d+: unknown class 'triangle'.*mean"),
    "class without positives": ({"classes": "disc,triangle,square,cow"}, r"labels\.csv: no image .* shows 'cow'"),
    "flag of other data": ({"root": "x"}, r"--root is for --data voc or coco or shards, not --data files"),
    "no such folder": ({"images": "nowhere"}, r"there is no folder nowhere"),
    "split of nothing": ({"split_file": "nowhere.json"}, r"there is no file nowhere\.json"),
    "several labels for one": ({"task": "single-label"}, r"labels\.csv, line \d+: image '\d+\.png' has \d labels"),
    "nothing left to learn from": (
        {"labeled": 0, "validation": 99},
        r"validation=99 leaves none of the 24 images with labels",
    ),
    "no class": ({"classes": ","}, r"--classes ',' names no class"),
    "unlabeled nowhere": ({"unlabeled": "nowhere"}, r"--unlabeled: there is no file or folder nowhere"),
    "nothing unlabeled": (
        {"labeled": 0, "method": "percentmatch"},
        r"method 'percentmatch' needs unlabeled images; .*--unlabeled",
    ),
}


@pytest.mark.parametrize("kind", [*BAD, *FLAGS])
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(
    kind: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, sentence = FLAGS.get(kind, ({}, ""))
    if kind in BAD:
        change, sentence = BAD[kind]
        change(photos)
    assert run("train", "--out", photos / "run", *files(photos, **flags)) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    printed = [line for line in printed if not line.startswith(("chosen for", "  "))]  # what was chosen before
    assert len(printed) == 1
    assert re.match(rf"percentmatch: .*{sentence}", printed[0])
    assert not (photos / "run").exists()
    assert not list((photos / "cache").glob("*.part"))


def test_an_unreadable_folder(photos: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As for a user who may not read it; whoever runs the tests may be allowed everything."""
    look = os.scandir

    def closed(path: str = ".") -> object:
        if Path(path).name == "more":
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert run("train", "--out", photos / "run", *files(photos, unlabeled=photos / "more")) == 2
    assert re.search(r"cannot read the folder .*more \(Permission denied\)", capsys.readouterr().err)
    assert not (photos / "run").exists()


def test_a_full_disk_while_decoding(photos: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.cache_file, "allocate", full)
    assert run("train", "--out", photos / "run", *files(photos)) == 2
    assert re.search(r"cannot write the decoded images to .*cache': No space left", capsys.readouterr().err)
    assert not list((photos / "cache").iterdir())
    assert not (photos / "run").exists()


def test_bad_images_are_listed_and_skipped_only_when_asked(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(photos / "photos", "07.png", "hello")
    write(photos / "photos", "25.png", "hello")
    out = photos / "run"
    assert run("train", "--out", out, *files(photos), "--skip-bad-images") == 0
    said = capsys.readouterr().err
    assert re.search(r"skipped: .*07\.png", said)
    assert re.search(r"skipped: .*25\.png", said)
    split = json.loads((out / "split.json").read_text())
    assert sum(len(split[part]) for part in ("labeled", "unlabeled", "validation")) == 23
    assert len(split["test"]) == 5
    for more, code in (((), 1), (("--skip-bad-images",), 0)):  # to predict, the others are done in any case
        assert run("predict", out, photos / "photos", "--out", photos / f"{code}.csv", *more) == code
        assert len((photos / f"{code}.csv").read_text().splitlines()) == 29


# Pascal VOC and MS-COCO


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """12 train, 8 val and 6 test images of three classes; triangle is difficult in the first test image."""
    scenes = draw_scenes(26, size=32)
    base = tmp_path / "VOCdevkit" / "VOC2007"
    (base / "JPEGImages").mkdir(parents=True)
    (base / "ImageSets" / "Main").mkdir(parents=True)
    parts = {"train": range(12), "val": range(12, 20), "test": range(20, 26)}
    for n, pixels in enumerate(scenes.pixels):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(base / "JPEGImages" / f"{n:06}.png")
    for part, numbers in parts.items():
        for c, name in enumerate(CLASSES):
            code = {
                n: 0 if (n, name) == (20, "triangle") else 1 if scenes.labels.targets.dense()[n, c] else -1
                for n in numbers
            }
            lines = [f"{n:06} {code[n]:2}" for n in numbers]
            (base / "ImageSets" / "Main" / f"{name}_{part}.txt").write_text("\n".join(lines))
    return tmp_path


def test_voc_with_its_own_validation_part_and_difficult_pairs(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = voc / "run"
    source = ["--preset", "voc2007-paper", "--root", voc]
    assert run("train", "--out", out, *source, "--official-validation", *fast(labeled=6)) == 0
    split = json.loads((out / "split.json").read_text())
    assert [len(split[part]) for part in ("labeled", "unlabeled", "validation", "test")] == [6, 6, 8, 6]
    assert split["validation"][0] == "000012"
    test = json.loads((out / "metrics.json").read_text())["test"]["ema"]
    assert test["num_pairs_ignored"] == 1
    assert test["difficult_as_positive"].keys() == {"mAP", "AUC", "mAP_11point"}
    capsys.readouterr()
    assert run("evaluate", out) == 0
    assert "With difficult pairs counted as positive" in capsys.readouterr().out
    assert run("data", "split", "--preset", "voc2007-paper", "--root", voc, "--labeled", "6", "--out", voc / "s") == 0
    assert "labeled 6  unlabeled 14  validation 0  test 6" in capsys.readouterr().out
    assert run("train", "--out", voc / "again", *source, "--split-file", voc / "s", *fast()) == 0
    assert (voc / "again" / "split.json").read_text() == (voc / "s").read_text()
    capsys.readouterr()
    assert run("data", "stats", "--data", "voc", "--root", voc / "VOCdevkit/VOC2007", "--year", "2012") == 2
    assert "VOC2007 is VOC2007, not VOC2012; give the folder of that year" in capsys.readouterr().err
    assert run("data", "stats", "--data", "voc", "--root", voc / "VOCdevkit/VOC2007", "--year", "2007") == 0
    assert run("train", "--out", voc / "x", "--data", "voc", *fast()) == 2
    assert "--data voc needs --root" in capsys.readouterr().err


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """20 train and 6 val images; category ids with a hole; two train images have no annotation."""
    scenes = draw_scenes(26, size=32)
    (tmp_path / "annotations").mkdir()
    categories = [{"id": i, "name": name} for i, name in zip((1, 3, 90), CLASSES, strict=True)]
    for part, numbers in (("train2014", range(20)), ("val2014", range(20, 26))):
        (tmp_path / part).mkdir()
        images, annotations = [], []
        for n in numbers:
            name = f"COCO_{part}_{n:012}.jpg"
            Image.fromarray(scenes.pixels[n].permute(1, 2, 0).numpy()).save(tmp_path / part / name)
            images.append({"id": n, "file_name": name, "height": 32, "width": 32})
            if n not in (3, 4):
                annotations += [
                    {"id": 10 * n + c, "image_id": n, "category_id": categories[c]["id"], "iscrowd": c % 2}
                    for c in range(3)
                    if scenes.labels.targets.dense()[n, c]
                ]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return tmp_path


def test_coco_reads_its_file_once(coco: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    from percentmatch.data.readers import coco as source

    calls: list[str] = []
    read = source.read_coco
    monkeypatch.setattr(
        source, "read_coco", lambda file, *rest, **more: calls.append(file.name) or read(file, *rest, **more)
    )
    settings = ["--preset", "coco2014-paper", "--root", coco, *fast(labeled=8)]
    assert run("train", "--out", coco / "a", *settings) == 0
    assert calls == ["instances_train2014.json", "instances_val2014.json"]
    assert run("train", "--out", coco / "b", *settings) == 0
    assert len(calls) == 2
    scores = [json.loads((coco / name / "metrics.json").read_text())["test"] for name in "ab"]
    assert scores[0] == scores[1]
    split = json.loads((coco / "a" / "split.json").read_text())
    shown = draw_scenes(26, size=32).labels.targets.dense()[:, :3].any(1)
    shown[3:5] = False
    assert len(split["labeled"]) + len(split["unlabeled"]) == int(
        shown[:20].sum()
    )  # those without annotation are left out
    assert run("evaluate", coco / "a") == 0
    image = coco / "train2014" / "COCO_train2014_000000000007.jpg"
    content = image.read_bytes()
    image.unlink()
    capsys.readouterr()
    assert run("data", "stats", "--data", "coco", "--root", coco) == 2
    assert re.search(r"image id 7: the image .*000007\.jpg' is not in", capsys.readouterr().err)
    image.write_bytes(content)
    file = coco / "annotations" / "instances_train2014.json"
    file.write_text(file.read_text() + " ")
    assert run("data", "stats", "--data", "coco", "--root", coco) == 0
    assert calls[-2:] == ["instances_train2014.json", "instances_val2014.json"]
    file.write_text('{"info": {}}')
    capsys.readouterr()
    assert run("train", "--out", coco / "c", *settings) == 2
    assert re.search(r"instances_train2014\.json is not a COCO instances file", capsys.readouterr().err)
    assert not (coco / "c").exists()


def test_the_grid_for_table_2_plans_the_paper_s_runs(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from percentmatch.use.grid import read_grid

    file = Path(__file__).parents[2] / "benchmarks" / "coco2014_table2.yaml"
    plan = read_grid(file, {"root": str(coco)})
    assert {(p.config.method, p.config.labeled, p.config.image_size, p.config.total_steps) for p in plan} == {
        (method, labeled, 192, 32000)
        for method in ("percentmatch", "fixmatch", "supervised")
        for labeled in (1640, 8200)
    }
    assert len({planned.name for planned in plan}) == len(plan) == 6
    small = coco / "grid.yaml"
    small.write_text(
        "preset: coco2014-paper\n"
        "settings: {backbone: test_resnet, head: linear, labeled_batch: 4, total_steps: 2, image_size: 32}\n"
        "runs: {sup: {method: supervised}, pm: {method: percentmatch}}\n"
        "grid: {labeled: [6, 8]}\nseeds: [0, 1]\n"
    )
    command = ["benchmark", small, "--set", f"root={coco}", "--out", coco / "grid"]
    assert run(*command, "--minutes", "0.001") == 0  # the first run begins at once, and takes longer
    assert "7 of 8 runs are left" in capsys.readouterr().out
    assert run(*command) == 0
    printed = capsys.readouterr().out
    assert "pm-labeled=8" in printed
    runs = json.loads((coco / "grid" / "results.json").read_text())["runs"]
    assert [(r["group"], r["seed"]) for r in runs[:2]] == [("sup-labeled=6", 0), ("pm-labeled=6", 0)]
    assert len(runs) == 8
    for wrong in (
        "runs: [a, b]",
        "runs: {a: 1}",
        "grid: 3\nruns: {a: {}}",
        "grid: {lr: 3}\nruns: {a: {}}",
        "seeds: [x]",
    ):
        small.write_text(wrong if "runs" in wrong else f"{wrong}\nruns: {{a: {{}}}}")
        assert run("benchmark", small, "--out", coco / "x") == 2
        assert re.match(r"percentmatch: .*grid\.yaml: (runs|grid|seeds) must", capsys.readouterr().err)
    small.write_text("runs: {a: {methud: supervised}}")
    assert run("benchmark", small, "--out", coco / "x") == 2
    assert "unknown setting 'methud'; did you mean 'method'" in capsys.readouterr().err


def test_data_without_a_test_part_is_validated_only(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (photos / "labels.csv").read_text().splitlines()
    (photos / "labels.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows))
    assert run("train", "--out", photos / "run", *files(photos)) == 0
    assert json.loads((photos / "run" / "metrics.json").read_text()).keys() & {"validation", "test"} == {"validation"}
    capsys.readouterr()
    assert run("evaluate", photos / "run") == 2
    assert "has no test images; try --part validation" in capsys.readouterr().err
    assert run("evaluate", photos / "run", "--part", "validation") == 0


def test_a_split_file_with_fewer_test_images_is_scored_on_those(photos: Path) -> None:
    names = [f"{n:02}.png" for n in range(30)]
    split = Split(tuple(names[:10]), tuple(names[10:24]), (), tuple(names[24:27]))
    (photos / "split.json").write_text(split.to_json())
    assert run("train", "--out", photos / "run", *files(photos), "--split-file", photos / "split.json") == 0
    assert json.loads((photos / "run" / "metrics.json").read_text())["test"]["ema"]["num_images"] == 3
