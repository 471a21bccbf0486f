"""More classes than a log or a page can tell of in full: the ten of the scenes, where that is many."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import TINY, rows

from percentmatch import report
from percentmatch.console import tables as show
from percentmatch.data import read_table
from percentmatch.data.manifest import describe
from percentmatch.report import write_report
from percentmatch.scoring.table import ScoreTable
from percentmatch.training.start import train
from percentmatch.use.evaluate import show_scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("many") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("percentmatch.training.results.MANY", 3)
        train(replace(TINY, log_every=1, total_steps=10), out)
    return out


def test_the_log_tells_of_each_class_in_some_rows_only(folder: Path) -> None:
    """Ten classes of which three are many: every fourth row, and the last."""
    told = [row["step"] for row in rows(folder) if row["kind"] == "train" and row["classes"]]
    assert told == [4, 8, 10]
    validated = [row for row in rows(folder) if row["kind"] == "validation"]
    assert [row["step"] for row in validated] == [6]
    assert all(each.keys() == {"AP", "AUC", "positives"} for row in validated for each in row["classes"].values())


def test_the_same_run_with_few_classes_tells_all_and_learns_the_same(folder: Path, tmp_path: Path) -> None:
    train(replace(TINY, log_every=1, total_steps=10), tmp_path / "few")
    mine, theirs = rows(folder), rows(tmp_path / "few")
    assert [row["step"] for row in theirs if row["kind"] == "train" and row["classes"]] == list(range(1, 11))
    assert [row.get("loss") for row in mine] == [row.get("loss") for row in theirs]
    assert [row["classes"] for row in mine if row["kind"] == "train"][3::4] == [
        row["classes"] for row in theirs if row["kind"] == "train"
    ][3::4]


def test_a_page_shows_some_classes_and_means_of_all(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, some = tmp_path / "whole.html", tmp_path / "some.html"
    write_report([folder], whole)
    monkeypatch.setattr(report, "MOST_CLASSES", 3)
    write_report([folder], some)
    texts = [file.read_text() for file in (whole, some)]
    counts = [len(re.findall(r'<option value="\d', text)) for text in texts]
    assert counts == [10, 3]
    assert "show 3 of the 10 classes" in texts[1]
    assert "of the 10 classes" not in texts[0]
    shown = [set(re.findall(r'data-c="(\d+)"', text)) for text in texts]
    assert [len(each) for each in shown] == [10, 3]
    lead = [re.search(r'class="lead">(.*?)</p>', text)[1] for text in texts]
    assert lead[0] == lead[1]
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', texts[1], re.DOTALL)[1])
    assert len(data["classes"]) == 10  # images may show any
    assert {str(each) for each in data["examples"]} == shown[1]
    assert set(data["galleries"]["run1"]["classes"]) == shown[1]
    shutil.copytree(folder, tmp_path / "other")
    write_report([folder, tmp_path / "other"], some, images=False)
    assert set(re.findall(r'data-c="(\d+)"', some.read_text())) == shown[1]


def test_tables_in_the_terminal_end(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "MOST_ROWS", 4)
    scores = json.loads((folder / "metrics.json").read_text())["test"]["ema"]
    show_scores(ScoreTable.from_dict(scores))
    out = capsys.readouterr().out
    assert "the first 4 of 10 classes" in out
    lines = [line.split()[0] for line in out.splitlines() if line.split()]
    assert [name.split()[0] in lines for name in scores["classes"]] == [True] * 4 + [False] * 6


def test_pairs_of_very_many_classes_are_not_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "labels.csv").write_text("image,labels\na.jpg,x;y;z")
    manifest = read_table(tmp_path / "labels.csv")
    assert describe(manifest)["co_occurrence"] == [[1] * 3] * 3
    monkeypatch.setattr("percentmatch.data.manifest.MOST_PAIRED", 2)
    facts = describe(manifest)
    assert facts["co_occurrence"] is None
    show.show_stats(facts)
    assert "together" not in capsys.readouterr().out
