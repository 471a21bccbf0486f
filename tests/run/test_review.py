"""Labels that are probably wrong: found, listed, answered and corrected, in files of their own."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TINY, save_scenes

from percentmatch.cli import main as cli
from percentmatch.data import read_labels
from percentmatch.data.scenes import CLASSES
from percentmatch.errors import UserError
from percentmatch.training.start import train
from percentmatch.use.review import COLUMNS, doubts, usual_number

FAST = ["--image-size", "32", "--backbone", "test_resnet", "--head", "linear", "--labeled-batch", "4"]
FAST += ["--total-steps", "2", "--method", "supervised"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """labels.csv with 24 photos, four of them for the test, and a run on them."""
    folder = tmp_path_factory.mktemp("review")
    rows = [f"image,{','.join(['=disc', *CLASSES[1:3]])},part"]
    for n, (name, shown) in enumerate(save_scenes(folder, 24, 1)):
        rows.append(
            f"{name},{','.join('?' if (n, c) == (3, 2) else str(v) for c, v in enumerate(shown))},{'test' * (n > 19)}"
        )
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERCENTMATCH_CACHE", str(folder / "cache"))
        cli.run(
            [
                "train",
                *FAST,
                "--labels",
                str(folder / "labels.csv"),
                "--images",
                str(folder / "photos"),
                "--out",
                str(folder / "run"),
            ]
        )
    return folder


@pytest.fixture(autouse=True)
def own_cache(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(base / "cache"))


def spoiled() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, labels with errors, and the errors: 400 images, 5 classes, of each 3 labels removed and 3 made up."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 30, generator=generator)
    truth = (x[:, :5] * 3 - 2 + torch.randn(400, 5, generator=generator) * 0.3 > 0).long()
    given = truth.clone()
    for c in range(5):
        for value in (0, 1):
            rows = (truth[:, c] == value).nonzero()[:, 0]
            given[rows[torch.randperm(len(rows), generator=generator)[:3]], c] = 1 - value
    return x, given, given != truth


def test_labels_that_others_contradict_come_first() -> None:
    """Of 30 errors among 2,000 labels, most of the first 30 in the list; an unknown label is never in it."""
    x, given, wrong = spoiled()
    known = torch.ones_like(given)
    known[:, 4] = 0
    _, doubt = doubts(x, given, known)
    assert (doubt[:, 4] == -torch.inf).all()
    first = doubt.flatten().topk(24).indices
    assert wrong.flatten()[first].sum() >= 18
    missing = given.flatten()[first] == 0
    assert 6 <= missing.sum() <= 18  # both kinds
    shuffled = wrong.flatten()[torch.randperm(2000, generator=torch.Generator().manual_seed(1))[:24]]
    assert shuffled.sum() < 5


def test_a_label_is_judged_by_heads_that_have_not_seen_it() -> None:
    """Labels that features do not explain, but tell apart by heart: more features than images. Nothing is confirmed."""
    generator = torch.Generator().manual_seed(0)
    x, given = torch.randn(60, 200, generator=generator), (torch.rand(60, 2, generator=generator) < 0.5).long()
    probabilities, _ = doubts(x, given, torch.ones_like(given))
    assert ((probabilities > 0.5) == (given > 0)).double().mean() < 0.65


def test_doubt_is_a_distance_from_the_prevalence_or_from_a_half() -> None:
    """Without a feature, each probability is about the prevalence: a given 1 is then not doubtful at all."""
    given = (torch.arange(100) < 10).long()[:, None]
    probabilities, doubt = doubts(torch.zeros(100, 3), given, torch.ones_like(given))
    assert probabilities[:, 0].tolist() == pytest.approx([0.1] * 100, abs=0.04)
    assert doubt[:10, 0].tolist() == pytest.approx([0] * 10, abs=0.5)
    assert (doubt[10:, 0] < -1.5).all()


def test_with_one_label_an_image_the_distance_to_the_given_class_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(90) % 3
    x = torch.nn.functional.one_hot(label, 3).float() * 4 + torch.randn(90, 3, generator=generator) * 0.3
    given = torch.nn.functional.one_hot(label, 3)
    given[5] = torch.tensor([1, 0, 0])  # it is of class 2
    probabilities, doubt = doubts(x, given, torch.ones_like(given), "single-label")
    assert divmod(int(doubt.argmax()), 3) == (5, 2)
    assert (doubt[given > 0] == -torch.inf).all()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(90), atol=1e-5, rtol=0)


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as content:
        return list(csv.DictReader(content))


def answered(file: Path, out: Path, answers: dict[int, str]) -> Path:
    rows = rows_of(file)
    with open(out, "w", encoding="utf-8", newline="") as content:
        writer = csv.DictWriter(content, COLUMNS)
        writer.writeheader()
        writer.writerows(row | {"answer": answers.get(n, "")} for n, row in enumerate(rows))
    return out


def test_from_the_list_to_corrected_labels(base: Path, tmp_path: Path, capsys) -> None:
    out, page, fixed = (tmp_path / name for name in ("review.csv", "review.html", "labels-corrected.csv"))
    before = (base / "labels.csv").read_bytes()
    cli.run(["review", str(base / "run"), "--out", str(out), "--html", str(page), "--number", "12"])
    printed, rows = capsys.readouterr(), rows_of(out)
    assert "began from random weights" in printed.err
    assert "The 12 most doubtful of 71 labels of 24 images" in printed.out  # one of 72 is unknown
    assert list(rows[0]) == list(COLUMNS)
    assert {row["label of"] for row in rows} <= {"'=disc", *CLASSES[1:3]}
    manifest = read_labels(base / "labels.csv", base / "photos")
    place = {name: n for n, name in enumerate(manifest.ids)}
    targets = manifest.labels.targets.dense()
    column = {"'=disc": 0, CLASSES[1]: 1, CLASSES[2]: 2}
    for row in rows:
        assert targets[place[row["image"]], column[row["label of"]]] == int(row["given"])
        assert row["finding"] == ("wrong" if row["given"] == "1" else "missing")
    assert re.findall("<img", page.read_text()) == ["<img"] * 12
    assert "=disc" in page.read_text()

    cli.run(
        [
            "review",
            str(base / "run"),
            "--apply",
            str(answered(out, tmp_path / "a.csv", {0: "accept", 1: " Reject"})),
            "--out",
            str(fixed),
        ]
    )
    assert "1 of 12 listed labels corrected" in capsys.readouterr().out
    again = read_labels(fixed, base / "photos")
    assert (again.ids, again.class_names, again.parts) == (manifest.ids, manifest.class_names, manifest.parts)
    targets[place[rows[0]["image"]], column[rows[0]["label of"]]] = 1 - int(rows[0]["given"])
    assert torch.equal(again.labels.targets.dense(), targets)
    assert torch.equal(again.labels.known.dense(), manifest.labels.known.dense())
    assert (base / "labels.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("answer", "perhaps"), r"a\.csv, line 2: the answer is 'perhaps'; write accept or reject"),
        (("image", "none.png"), r"a\.csv, line 2: the run's labels have no image 'none.png'"),
        (("label of", "triangel"), r"a\.csv, line 2: the run has no class 'triangel'; did you mean 'triangle'\?"),
        (("given", "turned"), r"a\.csv, line 2: the label of '.*' is not \d any more; review the run's labels again"),
    ],
)
def test_an_answer_that_does_not_fit_changes_nothing(base: Path, tmp_path: Path, change: tuple, sentence: str) -> None:
    out, file = tmp_path / "review.csv", tmp_path / "a.csv"
    cli.run(["review", str(base / "run"), "--out", str(out), "--number", "2"])
    rows = rows_of(out)
    column, value = change
    rows[0] |= {"answer": "accept"} | {column: str(1 - int(rows[0]["given"])) if value == "turned" else value}
    with open(file, "w", encoding="utf-8", newline="") as content:
        writer = csv.DictWriter(content, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(UserError, match=sentence):
        cli.run(["review", str(base / "run"), "--apply", str(file), "--out", str(tmp_path / "new.csv")])
    assert not (tmp_path / "new.csv").exists()


def test_the_list_is_as_long_as_the_data_is_large(base: Path, tmp_path: Path, capsys) -> None:
    cli.run(["review", str(base / "run"), "--out", str(tmp_path / "review.csv")])
    assert "The 10 most doubtful of 71 labels" in capsys.readouterr().out
    assert [usual_number(labels) for labels in (5, 2000, 4000, 20_000, 99_613)] == [10, 10, 20, 100, 100]


def test_nothing_of_the_user_s_is_overwritten(base: Path, tmp_path: Path) -> None:
    before = (base / "labels.csv").read_bytes()
    with pytest.raises(UserError, match=r"--out .*labels\.csv is there already"):
        cli.run(["review", str(base / "run"), "--out", str(base / "labels.csv")])
    with pytest.raises(UserError, match=r"--apply .*labels\.csv has no column 'label of'; give the file that review"):
        cli.run(["review", str(base / "run"), "--apply", str(base / "labels.csv"), "--out", str(tmp_path / "new.csv")])
    with pytest.raises(UserError, match="--number must be at least 1"):
        cli.run(["review", str(base / "run"), "--out", str(tmp_path / "new.csv"), "--number", "0"])
    with pytest.raises(UserError, match=r"--html page\.pdf: name a file that ends in \.html"):
        cli.run(["review", str(base / "run"), "--out", str(tmp_path / "new.csv"), "--html", "page.pdf"])
    assert (base / "labels.csv").read_bytes() == before


def test_labels_that_are_in_no_file_are_listed_but_not_corrected(tmp_path: Path) -> None:
    train(replace(TINY, method="supervised", options={}, total_steps=1, save_every=1), tmp_path / "run")
    cli.run(["review", str(tmp_path / "run"), "--out", str(tmp_path / "review.csv"), "--number", "5"])
    assert len(rows_of(tmp_path / "review.csv")) == 5
    file = str(tmp_path / "review.csv")
    with pytest.raises(UserError, match="the labels of this run are in no file of yours"):
        cli.run(["review", str(tmp_path / "run"), "--apply", file, "--out", str(tmp_path / "new.csv")])


def test_the_features_are_those_from_before_the_labels_were_learnt(tmp_path: Path, monkeypatch) -> None:
    """Where the run began from weights: the backbone of that file, not the one that was trained."""
    from percentmatch.use import review as module

    config = replace(TINY, method="supervised", options={}, total_steps=2, save_every=2)
    train(config, tmp_path / "first")
    began = tmp_path / "first/model.safetensors"
    seen = []
    monkeypatch.setattr(
        module, "remembered_features", lambda model, images, *_: seen.append(model) or torch.randn(len(images), 4)
    )
    from safetensors.torch import load_file, save_file

    state = {
        name.removeprefix("backbone."): value
        for name, value in load_file(began).items()
        if name.startswith("backbone.")
    }
    save_file(state, tmp_path / "backbone.safetensors")
    train(replace(config, weights=str(tmp_path / "backbone.safetensors"), lr=0.1), tmp_path / "run")
    module.review(tmp_path / "run", device="cpu")
    found = seen[0].backbone.state_dict()
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_the_list_and_its_page_are_two_files(base: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "same.html")
    with pytest.raises(UserError, match=r"--out and --html both name .*same\.html; name two files"):
        cli.run(["review", str(base / "run"), "--out", out, "--html", out])
    assert not list(tmp_path.iterdir())


def test_an_image_with_one_label_keeps_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    names = [name for name, _ in save_scenes(tmp_path, 24, 1)]
    rows = ["image,label", *(f"{name},{'cat' if n % 3 else 'dog' if n % 2 else 'owl'}" for n, name in enumerate(names))]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    run, out = str(tmp_path / "run"), tmp_path / "new.csv"
    given = ["--labels", str(tmp_path / "labels.csv"), "--images", str(tmp_path / "photos"), "--out", run]
    cli.run(["train", *FAST, *given, "--task", "single-label"])
    head, answers = ",".join(COLUMNS), tmp_path / "answers.csv"
    for lines, words in (
        (
            [f"{names[1]},dog,0,0.9,missing,accept", f"{names[1]},owl,0,0.8,missing,accept"],
            "line 2 is accepted as well",
        ),
        ([f"{names[1]},cat,1,0.1,wrong,accept"], "would show no class; accept the class that it shows"),
    ):
        answers.write_text("\n".join([head, *lines]))
        with pytest.raises(UserError, match=words):
            cli.run(["review", run, "--apply", str(answers), "--out", str(out)])
        assert not out.exists()
    answers.write_text("\n".join([head, f"{names[1]},dog,0,0.9,missing,accept"]))
    cli.run(["review", run, "--apply", str(answers), "--out", str(out)])
    row = next(each for each in csv.DictReader(out.open()) if each["image"] == names[1])
    assert (row["cat"], row["dog"], row["owl"]) == ("0", "1", "0")
