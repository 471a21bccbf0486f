"""The page as a file: complete, sound, safe against the names in it, and made of whatever a run has."""

import base64
import json
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from hostile import CLASSES, CONFIG
from PIL import Image

from percentmatch import report as report_module
from percentmatch.cli.main import main
from percentmatch.data import Data, Images
from percentmatch.data.labels import Labels
from percentmatch.data.scenes import draw_scenes
from percentmatch.errors import UserError
from percentmatch.report import write_report
from percentmatch.report.collect import RunRecord, read_run, short_names
from percentmatch.report.compare import paired
from percentmatch.report.page import page_examples
from percentmatch.report.scoring import PageRun, ScoredRun, score_own_images
from percentmatch.training.start import train
from percentmatch.use.evaluate import score_run

VOID = {"meta", "input", "br", "img"}


class Tree(HTMLParser):
    """Every element with its attributes and text; refuses elements that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[tuple[str, list[str]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words: list[str] = []
        self.elements.append((tag, dict(attrs), words))
        if tag not in VOID:
            self.open.append((tag, words))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        name, words = self.open.pop()
        assert name == tag
        if self.open:
            self.open[-1][1].extend(words)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][1].append(data)

    def all(self, tag: str, **attributes: str) -> list[tuple[dict[str, str | None], str]]:
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [(a, "".join(t)) for name, a, t in self.elements if name == tag and wanted.items() <= a.items()]


def make(out: Path, *runs: Path, **options) -> Tree:
    write_report(runs, out / "report.html", **options)
    return Tree((out / "report.html").read_text(encoding="utf-8"))


def payload(tree: Tree) -> dict:
    ((_, text),) = tree.all("script", type="application/json")
    return json.loads(text)


@pytest.fixture(scope="module")
def tree(run: Path, data: Data, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return make(tmp_path_factory.mktemp("page"), run, data=data)


@pytest.fixture(scope="module")
def both(supervised: Path, run: Path, data: Data, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return make(tmp_path_factory.mktemp("page"), supervised, run, data=data)


def headings(tree: Tree) -> list[int]:
    return [int(name[1]) for name, _, _ in tree.elements if re.fullmatch("h[1-6]", name)]


@pytest.mark.parametrize("name", ["tree", "both"])
def test_the_page_is_sound_for_people_and_screen_readers(name: str, request: pytest.FixtureRequest) -> None:
    tree = request.getfixturevalue(name)
    levels = headings(tree)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = Counter(attributes["id"] for _, attributes, _ in tree.elements if "id" in attributes)
    assert not [key for key, number in ids.items() if number > 1]
    for _, attributes, _ in tree.elements:
        for key in (attributes.get("aria-labelledby") or "").split():
            assert key in ids
        if (attributes.get("href") or "").startswith("#"):
            assert attributes["href"][1:] in ids
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _, _ in tree.elements}
    assert tree.all("html", lang="en")
    assert tree.all("a", class_="skip", href="#content")
    assert len(tree.all("caption")) == len(tree.all("table"))
    assert all(a.get("scope") in ("col", "row") for a, _ in tree.all("th"))
    assert all(a.get("role") == "img" and a["aria-labelledby"] for a, _ in tree.all("svg", class_="chart"))


@pytest.mark.parametrize("name", ["tree", "both"])
def test_nothing_is_loaded_and_names_stay_text(name: str, request: pytest.FixtureRequest) -> None:
    tree = request.getfixturevalue(name)
    assert {tag for tag, _, _ in tree.elements} & {"img", "b", "i", "u", "link", "iframe", "object", "form"} == set()
    for _, attributes, _ in tree.elements:
        assert not {"src", "onerror", "onclick", "style", "srcset"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
    assert len(tree.all("script")) == 2
    assert payload(tree)["classes"] == list(CLASSES)
    assert CLASSES[1] in [text for _, text in tree.all("option")]
    (policy,) = [a["content"] for a, _ in tree.all("meta", http_equiv="Content-Security-Policy")]
    assert policy.startswith("default-src 'none';")
    for _, text in (*tree.all("style"), tree.all("script")[-1]):
        assert base64.b64encode(sha256(text.encode()).digest()).decode() in policy
        assert "@import" not in text
        assert "url(" not in text
        assert "//" not in re.sub(r"(^|\s)// .*", "", text)


def test_one_run_has_every_section_and_the_numbers_of_its_metrics(tree: Tree, run: Path) -> None:
    assert [text for _, text in tree.all("h2")] == [
        "Summary",
        "Classes",
        "Pseudo-labels",
        "Training",
        "Calibration",
        "Decisions",
        "Images",
    ]
    metrics = json.loads((run / "metrics.json").read_text())
    (lead,) = [text for _, text in tree.all("p", class_="lead")]
    assert f"mAP of {100 * metrics['test']['ema']['mAP']:.1f}% (95% interval" in lead
    assert "40 labeled and 40 unlabeled images" in lead
    rows = [text for a, text in tree.all("tr") if a.get("data-c") == "0"]
    positives, ap = (metrics["test"]["ema"]["classes"]["disc"][key] for key in ("positives", "AP"))
    assert any(row.startswith(f"disc{positives}") and f"{100 * ap:.1f}" in row for row in rows)
    titles = [text for _, text in tree.all("p", class_="figure-title")]
    for figure in ("2a", "2b", "2c", "3a", "3b", "3c"):
        assert any(f"(Fig. {figure})" in title for title in titles), figure
    for title in ("Precision of positive pseudo-labels", "Recall of positive pseudo-labels", "Loss", "Learning rate"):
        assert title in titles
    assert not tree.all("ul", class_="notes")


def test_the_intervals_are_those_of_the_run_that_evaluate_scores(tree: Tree, run: Path, data: Data) -> None:
    """The model scores as in `evaluate`, and each class's AP lies within its interval."""
    scores = score_run(run, "test", data=data)
    cells: dict[str, str] = {}
    for attributes, text in tree.all("tr"):
        cells.setdefault(attributes.get("data-c") or "", text)  # the test table comes first
    for place, name in enumerate(CLASSES):
        low, high = re.findall(r"\.\d(\d+\.\d) to (\d+\.\d)", cells[str(place)])[0]  # after the AP
        assert float(low) - 0.05 <= 100 * scores.classes[name].values["AP"] <= float(high) + 0.05


def test_the_gallery_shows_what_it_says(tree: Tree, data: Data, run: Path) -> None:
    found = payload(tree)
    gallery = found["galleries"]["run1"]
    assert gallery["part"] == "test"  # of which there are more than validation images
    rows = zip(data.test.ids, data.test.labels.targets.dense(), strict=True)
    truth = {name: set(row.nonzero().flatten().tolist()) for name, row in rows}
    for image in gallery["images"]:
        assert set(image["true"]) == truth[image["name"]]
        assert found["pictures"][image["picture"]].startswith("data:image/webp;base64,")
    for c, groups in gallery["classes"].items():
        surest = [score for _, score in groups["surest"]]
        assert surest == sorted(surest, reverse=True)
        for place, _ in groups["false"]:
            image = gallery["images"][place]
            assert int(c) not in image["true"]
            assert int(c) in image["predicted"]
        for place, _ in groups["missed"]:
            image = gallery["images"][place]
            assert int(c) in image["true"]
            assert int(c) not in image["predicted"]
    assert len(set(found["pictures"])) == len(found["pictures"])


def test_several_runs_are_compared_with_the_first(both: Tree, supervised: Path, run: Path) -> None:
    assert [text for _, text in both.all("h1")] == ["Comparison of 2 runs"]
    assert [text for _, text in both.all("h2")] == ["Comparison", "supervised", run.name]
    scores = [json.loads((path / "metrics.json").read_text())["test"]["ema"] for path in (supervised, run)]
    gain = 100 * (scores[1]["mAP"] - scores[0]["mAP"])
    (row,) = [text for _, text in both.all("tr") if text.startswith(run.name)]
    assert f"{gain:+.1f}" in row
    (figure,) = [words for a, words in both.all("svg") if a.get("id") == "compare-gains"]
    disc = 100 * (scores[1]["classes"]["disc"]["AP"] - scores[0]["classes"]["disc"]["AP"])
    assert f"disc: {disc:+.1f} (" in figure
    found = re.findall(r": ([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)", figure)
    enough = [row for row in scores[0]["classes"].values() if row["positives"] >= 10]
    assert 0 < len(found) == len(enough) < len(CLASSES)
    assert all(float(low) <= float(value) <= float(high) for value, low, high in found)
    titles = [text for _, text in both.all("p", class_="figure-title")]
    assert {"mAP on validation images", "AUC on validation images"} <= set(titles)
    assert len(set(payload(both)["pictures"])) == len(payload(both)["pictures"])


def test_a_run_without_labeler_has_the_sections_that_exist(supervised: Path, data: Data, tmp_path: Path) -> None:
    tree = make(tmp_path, supervised, data=data)
    assert "for 6 steps on 40 labeled images (" in next(text for _, text in tree.all("p", class_="lead"))
    titles = [text for _, text in tree.all("p", class_="figure-title")]
    assert "AUC on validation images (Fig. 2c)" in titles
    assert "Scores of unlabeled images (Fig. 2a)" in titles
    assert not [title for title in titles if "Threshold" in title or "Precision" in title]


def test_without_its_data_the_page_is_made_of_the_log_and_says_so(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    tree = make(tmp_path, run, say=said.append)
    ((_, note),) = tree.all("ul", class_="notes")
    assert "given in Python" in note
    assert "given in Python" in said[0]
    assert [text for _, text in tree.all("h2")] == ["Summary", "Classes", "Pseudo-labels", "Training"]
    assert payload(tree)["pictures"] == []


def test_an_unfinished_run_is_reported_as_far_as_it_went(unfinished: Path, tmp_path: Path) -> None:
    tree = make(tmp_path, unfinished)
    (lead,) = [text for _, text in tree.all("p", class_="lead")]
    assert "has not finished" in lead
    assert "of 6 steps" in lead
    assert "validation images" in lead


def test_a_run_that_has_just_begun_is_reported(unfinished: Path, tmp_path: Path) -> None:
    """No log, no environment and no split yet; then a log whose classes nothing names."""
    rows = [json.loads(line) for line in (unfinished / "log.jsonl").read_text().splitlines()[:-1]]
    for name in ("log.jsonl", "environment.json", "split.json"):
        (unfinished / name).unlink()
    make(tmp_path, unfinished)
    train = [row for row in rows if row["kind"] == "train"]
    (unfinished / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in train))
    tree = make(tmp_path, unfinished)
    assert payload(tree)["classes"] == [f"class {n + 1}" for n in range(len(CLASSES))]


def test_among_very_many_classes_each_run_shows_one_of_its_own(
    run: Path, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of 18 classes, the most and the least frequent of the first run's count: neither need be the second run's."""
    monkeypatch.setattr("percentmatch.report.MOST_CLASSES", 2)
    runs = [run]
    for mark in "ab":
        names = tuple(f"{name} {mark}" for name in CLASSES)
        other = Data(*(replace(each, class_names=names) for each in (data.pool, data.test)))
        train(replace(CONFIG, total_steps=1), tmp_path / mark, data=other)
        runs.append(tmp_path / mark)
    real = report_module.score_own_images

    def own(record: RunRecord, *_: object, **__: object) -> ScoredRun:
        names = record.class_names
        return real(record, "cpu", data=Data(*(replace(each, class_names=names) for each in (data.pool, data.test))))

    monkeypatch.setattr(report_module, "score_own_images", own)
    tree = make(tmp_path, *runs)
    shown = {text for attributes, text in tree.all("button") if attributes.get("class") == "pick"}
    assert len(shown) == 3
    assert {name[-2:] for name in shown} >= {" a", " b"}


def test_gains_are_paired_only_where_the_same_labels_are_known(run: Path, data: Data) -> None:
    record = read_run(run, "run")
    scored = score_own_images(record, "cpu", data=data)
    part = scored.subsets["test"]
    fewer = part.images.labels.known.dense().clone()
    fewer[0, part.images.labels.targets.dense()[0].argmin()] = 0  # a negative that is no longer known
    other = replace(part, images=replace(part.images, labels=Labels.of(part.images.labels.targets.dense(), fewer)))
    entries = [PageRun(record, replace(scored, subsets={"test": each}), None, CLASSES) for each in (part, other)]
    assert paired(entries[0], entries[0], "test")
    assert torch.equal(part.images.labels.targets.dense(), other.images.labels.targets.dense())
    assert not paired(entries[0], entries[1], "test")


def test_runs_of_different_classes_share_what_they_can(run: Path, unfinished: Path, tmp_path: Path) -> None:
    """The second knows no class names, so nothing is shared, and it has no final score."""
    tree = make(tmp_path, run, unfinished, images=False)
    assert next(text for _, text in tree.all("h2")) == "Comparison"
    assert not [a for a, _ in tree.all("svg") if a.get("id") == "compare-gains"]


def test_files_that_were_moved_are_found_and_unlabeled_ones_may_be_gone(tmp_path: Path, monkeypatch, capsys) -> None:
    """A run on files; then the folder of its photographs moves and that of the unlabeled ones goes."""
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    scenes = draw_scenes(60, size=32)
    rows = ["image,labels"]
    for n, name in enumerate(scenes.ids):
        folder = tmp_path / ("photos" if n < 40 else "more")
        folder.mkdir(exist_ok=True)
        Image.fromarray(scenes.pixels[n].permute(1, 2, 0).numpy()).save(folder / f"{name}.png")
        labels = ";".join(
            c for c, yes in zip(scenes.class_names, scenes.labels.targets[[n]][0].tolist(), strict=True) if yes
        )
        rows += [f"{name}.png,{labels}"] if n < 40 else []
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    places = {name: str(tmp_path / file) for name, file in (("images", "photos"), ("unlabeled", "more"))}
    config = replace(CONFIG, data="files", labels=str(tmp_path / "labels.csv"), labeled=10, validation=10, **places)
    train(config, tmp_path / "run")
    shutil.move(tmp_path / "photos", tmp_path / "moved")
    shutil.rmtree(tmp_path / "more")
    out = str(tmp_path / "page.html")
    code, _, errors = command(monkeypatch, capsys, str(tmp_path / "run"), "--out", out)
    assert code == 0
    assert "--set images=PATH" in errors
    code, _, errors = command(
        monkeypatch, capsys, str(tmp_path / "run"), "--out", out, "--set", f"images={tmp_path / 'moved'}"
    )
    assert (code, errors) == (0, "")
    tree = Tree((tmp_path / "page.html").read_text())
    assert any("of 20 of 40 images" in text for _, text in tree.all("figcaption"))


def test_scores_that_moved_are_told(run: Path, data: Data, tmp_path: Path) -> None:
    """The same names on pictures turned to noise: the page says that the scores are not those of metrics.json."""
    noise = torch.randint(0, 256, data.test.pixels.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tree = make(tmp_path, run, data=replace(data, test=replace(data.test, pixels=noise)))
    ((_, note),) = tree.all("ul", class_="notes")
    assert "away from metrics.json" in note


def test_pictures_are_small_and_a_page_of_twenty_classes_too(run: Path, tmp_path: Path) -> None:
    """Twenty classes, large photographs (here a gradient with noise), and a log of 7,000 steps: below 3 MB."""
    generator = torch.Generator().manual_seed(0)
    ramp = torch.linspace(0, 200, 128)[None, None, :, None].expand(90, 3, 128, 128)
    pixels = (ramp + 40 * torch.rand(90, 3, 128, 128, generator=generator)).to(torch.uint8)
    targets = (torch.rand(90, 20, generator=generator) < 0.3).to(torch.uint8)
    names, ids = tuple(f"class {n}" for n in range(20)), tuple(f"image {n}" for n in range(90))
    images = Images(pixels, Labels.of(targets), ids, names)
    data = Data(images, images.part(()))
    folder = tmp_path / "many"
    train(replace(CONFIG, validation=60, labeled=20, total_steps=2, eval_every=0), folder, data=data)
    row = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    with open(folder / "log.jsonl", "a") as file:
        file.writelines(json.dumps(row | {"step": 50 * n}) + "\n" for n in range(1, 141))
    tree = make(tmp_path, folder, data=data)
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    uri = payload(tree)["pictures"][0].partition(",")[2]
    (tmp_path / "x.webp").write_bytes(base64.b64decode(uri))
    assert Image.open(tmp_path / "x.webp").size == (96, 96)


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    assert short_names([tmp_path / "a/run", tmp_path / "b/run"]) == ["a/run", "b/run"]
    assert short_names([tmp_path / "a/run"]) == ["run"]


def test_examples_go_from_the_most_to_the_least_frequent() -> None:
    assert page_examples([5, 50, 1, 20, 9, 7, 8]) == [1, 4, 5, 2]
    assert page_examples([1, 2]) == [1, 0]


def damage(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.jsonl", '{"step": 1\n{"step": 2, "kind": "start"}\n', "log.jsonl', line 1, is damaged"),
        ("log.jsonl", '{"step": 1, "kind": "train", "classes": {"upper": ["x"]}}\n', "log.jsonl' is damaged"),
        ("log.jsonl", '{"step": 1, "kind": "train", "classes": {"a": [1], "b": [1, 2]}}\n', "log.jsonl' is damaged"),
        ("log.jsonl", '{"step": 1, "kind": "validation"}\n', "log.jsonl' is damaged"),
        ("log.jsonl", '{"step": 1}\n', "log.jsonl' is damaged"),
        ("metrics.json", "{}", "metrics.json' is damaged"),
        ("metrics.json", "[", "metrics.json' is missing or damaged"),
        ("metrics.json", '{"step": 1, "minutes": 1, "test": {"ema": 3}}', "metrics.json' is damaged"),
        ("split.json", "{}", "split.json' is damaged"),
        ("config.yaml", "lr: 3", "config.yaml' is damaged"),
    ],
)
def test_a_damaged_folder_is_one_sentence(run: Path, tmp_path: Path, name: str, text: str, words: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(run, folder)
    damage(folder, name, text)
    with pytest.raises(UserError, match=re.escape(words)):
        make(tmp_path, folder, images=False)
    assert not (tmp_path / "report.html").exists()


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *tokens: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["percentmatch", "report", *tokens])
    try:
        main()
        code = 0
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    return code, *capsys.readouterr()


def test_the_command_writes_the_page(run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "new folder" / "page.html"
    code, printed, _ = command(monkeypatch, capsys, str(run), "--out", str(out), "--no-images")
    assert code == 0
    assert printed == f"report  {out}\n"
    assert out.read_text().startswith("<!doctype html>")


def test_bad_input_is_one_sentence_and_loses_nothing(run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "page.html").mkdir()
    (tmp_path / "old.html").write_text("old")
    log = (run / "log.jsonl").read_text()
    for tokens, words in (
        ([str(tmp_path), "--out", str(tmp_path / "old.html")], "holds no run"),
        ([str(tmp_path / "nowhere"), "--out", str(tmp_path / "old.html")], "there is no run folder"),
        ([str(run / "log.jsonl"), "--out", str(tmp_path / "old.html")], "there is no run folder"),
        ([str(run), "--out", str(tmp_path / "page.html")], "is a folder"),
        ([str(run), "--out", str(run / "log.jsonl")], "must end in .html"),
        ([str(run), str(run), "--out", str(tmp_path / "old.html")], "is named twice"),
        (["--out", str(tmp_path / "old.html")], "name at least one run"),
        ([str(run), "--out", str(tmp_path / "old.html"), "--set", "lr=3"], "by root, labels, images, not by 'lr'"),
        ([str(run), "--out", str(tmp_path / "old.html"), "--device", "abacus"], "device 'abacus'"),
    ):
        code, _, errors = command(monkeypatch, capsys, *tokens)
        assert code == 2, tokens
        assert words in errors
        assert errors.count("\n") == 1
    assert (tmp_path / "old.html").read_text() == "old"
    assert (run / "log.jsonl").read_text() == log


def test_what_is_said_of_thresholds_and_scores_is_true_of_the_run(run: Path, data: Data, tmp_path: Path) -> None:
    """Of hard pseudo-labels and ASL, and of soft ones and cross-entropy, as on own data."""
    soft = tmp_path / "soft"
    shutil.copytree(run, soft)
    for folder in (run, soft):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        if folder == soft:
            config["given"] |= {"method": "priormatch", "options": {}}
            (soft / "config.yaml").write_text(yaml.safe_dump(config))
        write_report([folder], tmp_path / "page.html", data=data)
        text = (tmp_path / "page.html").read_text()
        assert ("below the dashed line negative" in text) == (folder == run)
        assert ("asymmetric loss makes scores too high" in text) == (folder == run)
        assert ("every pair is learnt" in text) == (folder == soft)


def test_settings_that_were_given_stand_apart_from_those_that_were_chosen(run: Path, tmp_path: Path) -> None:
    """Of a run from Python all that differs was given; then the file says so of two settings only."""

    def listed(folder: Path) -> dict[str, list[str]]:
        write_report([folder], tmp_path / "page.html", images=False)
        text = (tmp_path / "page.html").read_text()
        found = re.findall(r"<summary>(Settings that were [^(]*) \((\d+)\)</summary>(.*?)</details>", text, re.DOTALL)
        lists = {title: re.findall(r"<code>(.*?)</code>", body) for title, _, body in found}
        assert [len(names) for names in lists.values()] == [int(count) for _, count, _ in found]
        return lists

    given, chosen = "Settings that were given", "Settings that were chosen for data and machine"
    first, folder = listed(run), tmp_path / "copy"
    shutil.copytree(run, folder)
    values = yaml.safe_load((folder / "config.yaml").read_text())
    assert {"lr", "backbone"} <= {*first[given]}
    assert not {*first[chosen]} & {*first[given]}
    rest = {name: value for name, value in values["given"].items() if name not in ("lr", "backbone")}
    values = {"given": {name: values["given"][name] for name in ("lr", "backbone")}, "chosen": values["chosen"] | rest}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    second = listed(folder)
    assert sorted(second[given]) == ["backbone", "lr"]
    assert {*second[chosen]} == {*first[given], *first[chosen]} - {"backbone", "lr"}
    (folder / "config.yaml").write_text(yaml.safe_dump({**values["chosen"], **values["given"]}))  # an older version's
    assert {*listed(folder)[given]} == {*first[given], *first[chosen]}
