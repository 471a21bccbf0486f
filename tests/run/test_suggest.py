"""What to label next: the rule on numbers done by hand, the list in the user's own columns, and back into training."""

import csv
import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TINY, save_scenes

from percentmatch.cli import main as cli
from percentmatch.data import load_data, read_table
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError
from percentmatch.models import load_classifier
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.calibration import probabilities_of
from percentmatch.scoring.predictions import logits
from percentmatch.training.start import train
from percentmatch.use.suggest import embed, pick, suggest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

ONE = torch.ones(1)


def run(*tokens: object) -> None:
    cli.run([str(token) for token in tokens])


def test_the_least_certain_comes_first_and_what_is_certain_last() -> None:
    """p (1 - p): 0.09, 0.25, 0.0099, 0.24."""
    p = torch.tensor([[0.9], [0.5], [0.01], [0.6]])
    assert pick(p, ONE, ONE, 4).tolist() == [1, 3, 0, 2]
    assert pick(p, ONE, ONE, 9).tolist() == [1, 3, 0, 2]


def test_a_weak_class_and_a_rare_one_come_first() -> None:
    """The same probabilities for another class each: weakness 0.2 and 0.6; then 10 labeled positives and 2."""
    p = torch.tensor([[0.5, 0.0], [0.0, 0.5]])
    assert pick(p, torch.tensor([4.0, 4.0]), torch.tensor([0.2, 0.6]), 1).tolist() == [1]
    assert pick(p, torch.tensor([2.0, 10.0]), torch.tensor([0.5, 0.5]), 1).tolist() == [0]
    assert pick(p, torch.tensor([0.0, 0.0]), torch.tensor([0.5, 0.5]), 2).tolist() == [0, 1]  # no division by 0


def test_classes_take_turns() -> None:
    """One positive labeled of each class; rows 0 to 2 bring class a 0.25, rows 3 to 5 bring b 0.24.

    Use of a and b: 0.25/1 > 0.24/1, take 0; 0.25/1.25 = 0.2 < 0.24, take 3; 0.2 > 0.24/1.24 = 0.194, take 1; and on.
    """
    p = torch.tensor([[0.5, 0.0]] * 3 + [[0.0, 0.6]] * 3)
    assert pick(p, torch.ones(2), torch.ones(2), 6).tolist() == [0, 3, 1, 4, 2, 5]


def test_of_two_that_look_alike_one_is_taken() -> None:
    """Rows 0 and 1 are the same picture, row 2 is another and row 3 a picture that is labeled already."""
    p = torch.tensor([[0.5], [0.5], [0.3], [0.5]])
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    near = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert pick(p, ONE, ONE, 2, vectors=vectors).tolist() == [0, 3]
    assert pick(p, ONE, ONE, 2, vectors=vectors, near=near).tolist() == [0, 2]
    assert pick(p, ONE, ONE, 2).tolist() == [0, 1]


@pytest.mark.parametrize("head", ["linear", "ml-decoder"])
def test_vectors_are_what_the_head_sees(whole: Path, head: str) -> None:
    from percentmatch.models import build_classifier

    model, card = load_classifier(RunFolder(whole).model, torch.device("cpu"))
    pixels = load_data(TINY).test.pixels[:5]
    if head == "ml-decoder":
        model = build_classifier("test_resnet", num_classes=10, head=head, image_size=32).eval()
    vectors = embed(model, pixels, torch.tensor([4, 0, 1]), card, torch.device("cpu"))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (card.mean, card.std))
    with torch.inference_mode():
        pooled = model.backbone.forward_features((pixels[[4, 0, 1]] / 255 - mean) / std).mean((2, 3))
    torch.testing.assert_close(vectors, torch.nn.functional.normalize(pooled), atol=1e-4, rtol=1e-3)
    assert not model.head._forward_pre_hooks


def test_a_list_for_scenes_repeats_and_says_what_it_expects(whole: Path, tmp_path: Path, capsys) -> None:
    """50 unlabeled scenes of 120, less 40 labeled and 30 for validation."""
    run("suggest", whole, "--number", 10, "--out", tmp_path / "a.csv")
    printed, said = capsys.readouterr()
    assert "this run still ranks poorly (validation AUC" in said
    seen: list[tuple[int, int]] = []
    summary = suggest(whole, 10, tmp_path / "b.csv", progress=lambda *each: seen.append(each))
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert seen[-1] == (50, 50)
    rows = [line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines()]
    assert rows[0] == ["image", "labels"]
    assert [row[0] for row in rows[1:]] == summary["images"]
    assert {row[1] for row in rows[1:]} == {"?"}
    split = RunFolder(whole).read_split()
    assert len(set(summary["images"])) == 10
    assert set(summary["images"]) <= set(split.unlabeled)
    assert f"10 images to label  {tmp_path / 'a.csv'}" in printed
    pool, metrics = load_data(TINY).pool, json.loads((whole / "metrics.json").read_text())
    model, card = load_classifier(RunFolder(whole).model, pick_device("cpu"))
    p = probabilities_of(logits(model, pool.part(split.unlabeled).pixels, card, torch.device("cpu")), card)
    listed = p[[split.unlabeled.index(name) for name in summary["images"]]]
    for c, (name, row) in enumerate(summary["classes"].items()):
        assert row["AP"] == metrics["validation"]["ema"]["classes"][name]["AP"]
        assert row["labeled"] == int(pool.part(split.labeled).labels.targets.dense()[:, c].sum())
        assert row["expected"] == pytest.approx(float(listed[:, c].sum()), abs=1e-3)
        assert row["at_random"] == pytest.approx(10 * float(p[:, c].mean()), abs=1e-3)
    assert len(suggest(whole, 1000, tmp_path / "all.csv")["images"]) == 50


def test_a_run_without_validation_images_can_ask_too(tmp_path: Path, capsys) -> None:
    train(replace(TINY, validation=0, eval_every=0, total_steps=1), tmp_path / "run")
    capsys.readouterr()
    summary = suggest(tmp_path / "run", 5, tmp_path / "a.csv")
    assert len(summary["images"]) == 5
    assert {row["AP"] for row in summary["classes"].values()} == {None}
    assert capsys.readouterr().err == ""


CLASSES = ("disc", "triangle", "square")
SMALL = {"--image-size": "32", "--backbone": "test_resnet", "--head": "linear", "--lr": "0.001"}
FAST = [each for pair in (SMALL | {"--labeled-batch": "4", "--total-steps": "1"}).items() for each in pair]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """photos: 24 images that can be labeled; more: 12 that are not. Returns the first ones and their labels."""
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("percentmatch.training.resolve.can_fetch", lambda name: False)
    monkeypatch.chdir(tmp_path)
    return save_scenes(tmp_path, 24, 12)


def labels_file(style: str, photos: list[tuple[str, list[int]]]) -> str:
    if style == "column":
        rows = [
            f"{name};{'|'.join(c for c, y in zip(CLASSES, yes, strict=True) if y)};train;me" for name, yes in photos
        ]
        return "\n".join(["File;Tags;part;by", *rows, ""])
    words = {0: "", 1: "x"} if style == "marks" else {0: "0", 1: "1"}
    rows = [",".join([str(n), name, *map(words.__getitem__, yes)]) for n, (name, yes) in enumerate(photos)]
    return "\n".join([f",image,{','.join(CLASSES)}", *rows, ""])


@pytest.mark.parametrize("style", ["column", "columns", "marks", "folder"])
def test_the_list_has_the_users_columns_and_its_rows_can_be_added(style: str, photos, tmp_path: Path, capsys) -> None:
    own = tmp_path / "labels" / "labels.csv"
    own.parent.mkdir()
    place, style = (own.parent, "column") if style == "folder" else (own, style)
    (own.parent / "notes.csv").write_text("image,labels\nx.png,y\n")
    own.write_text(labels_file(style, photos))
    given = ["--labels", place, "--images", "photos", "--unlabeled", "more", *FAST]
    run("train", "--out", "run", *given)
    run("suggest", "run", "--number", 6, "--out", "to_label.csv")
    lines = Path("to_label.csv").read_text().splitlines()
    assert lines[0] == own.read_text().splitlines()[0]
    names = [line.replace(";", ",").split(",")[0 if style == "column" else 1] for line in lines[1:]]
    assert all(Path("photos", name).is_file() for name in names)
    assert {Path(name).parent for name in names} == {Path("../more")}
    empties = {"column": (";?;", ";disc|square;"), "columns": (",,,", ",1,0,1"), "marks": (",?,?,?", ",x,,x")}
    empty, full = empties[style]
    assert lines[1] == (f"{names[0]};?;;" if style == "column" else f",{names[0]}{empty}")
    filled = [line.replace(empty, full) for line in lines[1:4]]
    own.write_text(own.read_text() + "\n".join([*filled, *lines[4:], ""]))  # half of it
    manifest = read_table(own, Path("photos"))
    rows = manifest.rows(names)
    assert manifest.labels.known.dense()[rows].any(1).tolist() == [True] * 3 + [False] * 3
    shown = {name: manifest.labels.targets.dense()[rows[0], c].item() for c, name in enumerate(manifest.class_names)}
    assert shown == {"disc": 1, "square": 1, "triangle": 0}
    capsys.readouterr()
    run("suggest", "run", "--number", 6, "--out", "next.csv")  # of the same run: images that have no row yet
    assert "left out 6 unlabeled images that the file of labels lists by now" in capsys.readouterr().err
    assert not {*names} & {*read_table(Path("next.csv"), Path("photos"), classes=CLASSES).ids}
    run("train", "--out", "again", *given)
    split = RunFolder(Path("again")).read_split()
    assert {*names[:3]} <= {*split.labeled, *split.validation}
    assert {*names[3:]} <= {*split.unlabeled}
    assert len(split.unlabeled) == 9  # none is there twice


def test_a_file_whose_header_reads_with_two_marks_keeps_its_own(photos, tmp_path: Path) -> None:
    """Three columns by either: image;a,b;c,d."""
    rows = [f"{name};{yes[0]};{yes[1]}" for name, yes in photos]
    (tmp_path / "labels.csv").write_text("\n".join(["image;a,b;c,d", *rows, ""]))
    run("train", "--labels", "labels.csv", "--images", "photos", "--unlabeled", "more", "--out", "run", *FAST)
    run("suggest", "run", "--number", 2, "--out", "to_label.csv")
    lines = Path("to_label.csv").read_text().splitlines()
    assert lines[0] == "image;a,b;c,d"
    assert [line.count(";") for line in lines] == [2, 2, 2]


def test_rows_are_added_for_images_that_have_a_row_without_labels(photos, tmp_path: Path, capsys) -> None:
    """Four of the images say ?; three of them are suggested, and filled in below."""
    text = labels_file("column", photos).splitlines()
    text[-4:] = [f"{line.split(';')[0]};?;;" for line in text[-4:]]
    (tmp_path / "labels.csv").write_text("\n".join([*text, ""]))
    given = ["--labels", "labels.csv", "--images", "photos", *FAST]
    run("train", "--out", "run", *given)
    run("suggest", "run", "--number", 3, "--out", "to_label.csv")
    lines = Path("to_label.csv").read_text().splitlines()[1:]
    names = [line.split(";")[0] for line in lines]
    assert {*names} <= {f"{n}.png" for n in range(20, 24)}
    with open("labels.csv", "a") as file:
        file.write("\n".join([*(line.replace(";?;", ";disc;") for line in lines[:2]), lines[2], ""]))
    run("suggest", "run", "--number", 3, "--out", "next.csv")
    (asked,) = {f"{n}.png" for n in range(20, 24)} - {*names}
    assert {line.split(";")[0] for line in Path("next.csv").read_text().splitlines()[1:]} == {names[2], asked}
    run("train", "--out", "again", *given)
    split = RunFolder(Path("again")).read_split()
    assert {*names[:2]} <= {*split.labeled, *split.validation}
    assert names[2] in split.unlabeled


def test_a_run_whose_images_all_have_labels_by_now(photos, tmp_path: Path) -> None:
    text = labels_file("column", photos).splitlines()
    whole, text[-1] = "\n".join([*text, ""]), f"{text[-1].split(';')[0]};?;;"
    (tmp_path / "labels.csv").write_text("\n".join([*text, ""]))
    run("train", "--labels", "labels.csv", "--images", "photos", "--out", "run", *FAST)
    (tmp_path / "labels.csv").write_text(whole)
    with pytest.raises(
        UserError, match="every unlabeled image of the run in 'run' has labels by now, or is gone; train"
    ):
        run("suggest", "run", "--number", 1, "--out", "to_label.csv")


@pytest.mark.skipif(sys.platform == "win32", reason="no such names there")
def test_no_name_divides_a_row_or_becomes_a_formula(photos, tmp_path: Path) -> None:
    odd = ("x;=1+1.png", "cr\rx.png")
    for name in odd:
        (tmp_path / "odd" / name).parent.mkdir(exist_ok=True)
        shutil.copy(next((tmp_path / "photos").iterdir()), tmp_path / "odd" / name)
    (tmp_path / "labels.csv").write_text(labels_file("column", photos).replace(";", ",").replace("|", ";"))
    run("train", "--labels", "labels.csv", "--images", "photos", "--unlabeled", "odd", "--out", "run", *FAST)
    run("suggest", "run", "--number", 2, "--out", "to_label.csv")
    text = (tmp_path / "to_label.csv").read_bytes().decode()
    assert {row[0] for row in list(csv.reader(io.StringIO(text, newline="")))[1:]} == {f"../odd/{name}" for name in odd}
    for name in odd:
        assert f'"../odd/{name}"' in text


def test_labels_of_another_format_get_a_plain_list(photos, tmp_path: Path) -> None:
    """metadata.jsonl in the folder that --labels names; the list is found from there."""
    lines = [
        json.dumps({"file_name": name, "labels": [c for c, y in zip(CLASSES, yes, strict=True) if y]})
        for name, yes in photos
    ]
    (tmp_path / "photos" / "metadata.jsonl").write_text("\n".join(lines))
    run("train", "--labels", "photos", "--unlabeled", "more", "--out", "run", *FAST)
    run("suggest", "run", "--number", 2, "--out", "to_label.csv")
    rows = [line.split(",") for line in Path("to_label.csv").read_text().splitlines()]
    assert rows[0] == ["image", "labels"]
    assert [row[1] for row in rows[1:]] == ["?", "?"]
    assert read_table(Path("to_label.csv"), Path("photos"), classes=CLASSES).ids == (rows[1][0], rows[2][0])


def test_images_of_labeled_shards_have_the_names_they_have_there(photos, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(labels_file("columns", photos))
    run("data", "shard", "--labels", "labels.csv", "--images", "photos", "--out", "shards")
    run("train", "--root", "shards", "--labeled", 12, "--validation", 4, "--out", "run", *FAST)
    run("suggest", "run", "--number", 3, "--out", "to_label.csv")
    rows = [line.split(",") for line in Path("to_label.csv").read_text().splitlines()]
    assert rows[0] == ["image", "labels"]
    assert len(rows) == 4
    assert {row[0] for row in rows[1:]} <= set(RunFolder(tmp_path / "run").read_split().unlabeled)


def test_data_given_in_python_is_given_again(tmp_path: Path) -> None:
    data = load_data(TINY)
    train(replace(TINY, total_steps=1), tmp_path / "run", data=data)
    with pytest.raises(UserError, match="data was given in Python"):
        suggest(tmp_path / "run", 3, tmp_path / "a.csv")
    assert len(suggest(tmp_path / "run", 3, tmp_path / "a.csv", data=data)["images"]) == 3


def test_bad_input_is_one_sentence_and_nothing_is_written(whole: Path, photos, tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "labels.csv").write_text(labels_file("columns", photos))
    given = ["--labels", "labels.csv", "--images", "photos", "--method", "supervised", *FAST]
    run("train", "--out", "labeled_only", *given)
    refused = {
        (whole, "--number", 0, "--out", "x.csv"): "--number must be at least 1, not 0",
        (whole, "--number", -3, "--out", "x.csv"): "--number must be at least 1, not -3",
        (whole, "--out", "there.csv"): "there.csv is there already",
        (whole, "--out", "x.csv", "--set", "lr=1"): "--set says where the run's data is now",
        ("nowhere", "--out", "x.csv"): "holds no run",
        ("labeled_only", "--out", "x.csv"): "has no unlabeled images to choose from",
    }
    for tokens, sentence in refused.items():
        with pytest.raises(UserError, match=sentence):
            run("suggest", *tokens)
    (tmp_path / "labeled_only" / "metrics.json").unlink()
    with pytest.raises(UserError, match="has not finished; continue it by train --out"):
        run("suggest", "labeled_only", "--out", "x.csv")
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert not [*tmp_path.glob("*x.csv*")]


def test_the_table_in_the_docs_is_that_of_the_results() -> None:
    import suggest as benchmark
    import tables

    results = json.loads((tables.ROOT / "results" / "suggest.json").read_text())
    assert tables.read_block(tables.ROOT / "docs/compare-and-suggest.md", "suggest") == benchmark.suggest_table(results)
