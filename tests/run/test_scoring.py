"""evaluate and predict as a person meets them: the run's own data, moved or changed, other files, odd images."""

import json
import shutil
import sys
from pathlib import Path
from typing import IO

import pytest
import torch
from PIL import Image

from percentmatch.cli import main as cli
from percentmatch.data import Images
from percentmatch.data.labels import Labels
from percentmatch.data.scenes import draw_scenes
from percentmatch.errors import UserError
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.predictions import evaluate
from percentmatch.use import predict
from percentmatch.use.evaluate import score_files, score_run

FAST = {"--image-size": "32", "--backbone": "test_resnet", "--head": "linear", "--labeled-batch": "4"}
FAST |= {"--total-steps": "1"}
TRAIN = ["train", *(token for pair in FAST.items() for token in pair)]
CLASSES = ("disc", "triangle", "square")  # the first three of the scenes


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """labels.csv, photos (20 images, 5 for the test), more (4 without labels) and a run on them in run."""
    folder = tmp_path_factory.mktemp("scoring")
    scenes = draw_scenes(24, size=32)
    rows = ["image,labels,part"]
    for n, pixels in enumerate(scenes.pixels):
        file = folder / ("photos" if n < 20 else "more") / f"{n:02}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file)
        shown = [name for c, name in enumerate(CLASSES) if scenes.labels.targets.dense()[n, c]]
        rows += [f"{file.name},{';'.join(shown)},{'test' if n >= 15 else ''}"] if n < 20 else []
    (folder / "labels.csv").write_text("\n".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERCENTMATCH_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        data = ["--data", "files", "--labels", "labels.csv", "--images", "photos", "--unlabeled", "more"]
        cli.run([*TRAIN, *data, "--out", "run"])
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def moved(base: Path, tmp_path: Path) -> Path:
    """The same run, begun where nothing is any more."""
    shutil.copytree(base / "run", tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    file.write_text(file.read_text().replace(str(base), "/nowhere"))
    return tmp_path / "run"


def printed_by(capsys: pytest.CaptureFixture[str], *tokens: object) -> str:
    capsys.readouterr()
    cli.run([str(token) for token in tokens])
    return capsys.readouterr().out


def test_a_run_is_scored_from_any_folder(base: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    config = RunFolder(base / "run").read_config().to_dict()
    assert [config[name] for name in ("root", "labels", "images", "unlabeled")] == [
        "",
        *(str(base / name) for name in ("labels.csv", "photos", "more")),
    ]
    monkeypatch.chdir(base)
    here = printed_by(capsys, "evaluate", "run")
    count = len(json.loads((base / "run" / "split.json").read_text())["test"])
    assert here.splitlines()[-1] == f"On {count} test images"
    assert all(name in here for name in CLASSES)
    monkeypatch.chdir(tmp_path)
    assert printed_by(capsys, "evaluate", base / "run") == here


def test_images_that_were_learnt_from_are_told(base: Path, capsys) -> None:
    split, other = json.loads((base / "run" / "split.json").read_text()), ["--images", base / "photos"]
    files = ["--labels", base / "labels.csv", *other]
    cli.run([str(token) for token in ("evaluate", base / "run", *files)])
    learnt = len(split["labeled"])
    assert capsys.readouterr().err.startswith(f"{learnt} of these ")
    model = base / "run" / "model.safetensors"
    cli.run([str(token) for token in ("evaluate", model, *files)])  # which knows of no run
    assert capsys.readouterr().err == ""


def test_a_run_whose_data_was_moved(base: Path, moved: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    with pytest.raises(UserError, match=r"the run's labels, /nowhere/labels\.csv, is not there; .*--set labels=PATH"):
        cli.run(["evaluate", str(moved)])
    now = ["--set", f"labels={base / 'labels.csv'}", "--set", f"images={base / 'photos'}"]
    for part in ("test", "validation"):  # without the unlabeled images, which no score needs
        own = printed_by(capsys, "evaluate", base / "run", "--part", part)
        assert printed_by(capsys, "evaluate", moved, "--part", part, *now) == own
    with pytest.raises(UserError, match=r"the run's images, /nowhere/photos, is not there"):
        cli.run(["evaluate", str(moved), *now[:2]])
    with pytest.raises(UserError, match=r"by root, labels, images, not by 'lr'"):
        cli.run(["evaluate", str(moved), "--set", "lr=1"])
    with pytest.raises(UserError, match="--set takes NAME=VALUE, such as --set root=/data/coco, not 'labels'"):
        cli.run(["evaluate", str(moved), "--set", "labels"])
    (tmp_path / "2007").symlink_to(base / "photos")
    monkeypatch.chdir(tmp_path)
    assert printed_by(capsys, "evaluate", moved, *now[:2], "--set", "images=2007") == printed_by(
        capsys, "evaluate", base / "run"
    )


@pytest.mark.parametrize("more", [["--part", "test"], ["--part", "validation"], ["--set", "root=x"]])
def test_other_files_have_no_part(more: list[str], base: Path) -> None:
    with pytest.raises(UserError, match="--part and --set are for the run's own images"):
        cli.run(["evaluate", str(base / "run"), "--labels", str(base / "labels.csv"), *more])


def test_other_classes_than_the_model_s_are_refused(base: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.csv"
    renamed.write_text((base / "labels.csv").read_text().replace("disc", "ring"))
    with pytest.raises(UserError, match=r"model\.safetensors' and the run's data .* classes: disc, ring;"):
        score_run(base / "run", moved={"labels": str(renamed)})
    columns = tmp_path / "columns.csv"  # in another order than the sorted one
    rows = [f"{n:02}.png,1,1,1,{'test' if n >= 15 else ''}" for n in range(20)]
    columns.write_text("\n".join([f"image,{','.join(CLASSES)},part", *rows]))
    with pytest.raises(UserError, match="classes: their order;"):
        score_run(base / "run", moved={"labels": str(columns)})


def test_single_label_files(base: Path, tmp_path: Path) -> None:
    """Of three images the best class of the first is its label, the second's is not, the third has no labels: 1/2."""
    scores = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    targets = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.uint8)
    known = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 0, 0]], dtype=torch.uint8)
    images = Images(torch.zeros(3, 3, 2, 2, dtype=torch.uint8), Labels.of(targets, known), ("a", "b", "c"), CLASSES)
    assert evaluate(scores, images, "single-label").overall["accuracy"] == 0.5
    assert "accuracy" not in evaluate(scores, images, "multi-label").overall

    out = tmp_path / "single"
    cli.run([*TRAIN, "--task", "single-label", "--scenes-pool", "30", "--labeled", "10", "--out", str(out)])
    table = tmp_path / "labels.csv"
    table.write_text("image,labels\n00.png,disc\n01.png,disc;square")
    with pytest.raises(UserError, match=r"labels\.csv, line 3: image '01\.png' has 2 labels"):
        score_files(out, table, base / "photos")
    table.write_text("image,labels\n00.png,disc\n01.png,square")
    assert score_files(out, table, base / "photos").overall["accuracy"] in (0, 0.5, 1)


# predict


def test_nothing_is_printed_before_the_first_images_are_scored(base: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    bad, good = tmp_path / "bad.png", base / "photos" / "00.png"
    bad.write_text("hello")
    with pytest.raises(UserError, match="there is no file"):
        cli.run(["predict", str(base / "run"), str(tmp_path / "none.png"), str(good)])
    assert not capsys.readouterr().out
    with pytest.raises(UserError, match="none of the 1 images can be read"):
        cli.run(["predict", str(base / "run"), str(bad), "--skip-bad-images"])
    assert not capsys.readouterr().out
    monkeypatch.setattr(predict, "CHUNK", 1)
    more = base / "photos" / "01.png"
    lines = printed_by(capsys, "predict", base / "run", bad, good, more, "--skip-bad-images").splitlines()
    assert [line.split(",")[0] for line in lines] == ["image", str(good), str(more)]


def full_at_second(file: IO[str], *_: object, header: bool) -> None:
    if not header:
        raise OSError(28, "No space left on device")
    file.write("image\n")


def test_a_table_that_fails_leaves_no_folder(base: Path, tmp_path: Path, monkeypatch) -> None:
    """Also when the disk fills up after the first rows were written; a folder that was there stays."""
    monkeypatch.setattr(predict, "CHUNK", 1)
    (tmp_path / "old").mkdir()
    whole = predict.WRITERS["csv"]
    monkeypatch.setitem(predict.WRITERS, "csv", full_at_second)
    for name in ("none.png", "01.png"):
        folder = tmp_path if name == "none.png" else base / "photos"
        sources = [str(base / "photos" / "00.png"), str(folder / name)]
        for out in (tmp_path / "new" / "deep" / "x.csv", tmp_path / "old" / "x.csv"):
            with pytest.raises(UserError):
                cli.run(["predict", str(base / "run"), *sources, "--out", str(out)])
            assert not (tmp_path / "new").exists()
            assert not list((tmp_path / "old").iterdir())
    monkeypatch.setitem(predict.WRITERS, "csv", whole)
    cli.run(["predict", str(base / "run"), sources[0], "--out", str(tmp_path / "new" / "deep" / "x.csv")])
    assert (tmp_path / "new" / "deep" / "x.csv").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_an_image_under_several_paths_is_scored_once(base: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(base)
    link, folder_link = tmp_path / "link.png", tmp_path / "folder"
    link.symlink_to(base / "photos" / "03.png")
    folder_link.symlink_to(base / "photos")
    names = tmp_path / "names.txt"
    names.write_text(f"{base / 'photos' / '03.png'}\nlink.png\n")
    sources = ["photos/03.png", base / "photos" / "03.png", "./photos/../photos/03.png", link, names, folder_link]
    lines = printed_by(capsys, "predict", "run", *sources).splitlines()
    shown = [line.split(",")[0] for line in lines[1:]]
    assert shown[0] == "photos/03.png"
    assert shown[1:] == [str(folder_link / f"{n:02}.png") for n in range(20) if n != 3]
