"""The table of scores is written and read without loss, old files too, and a damaged one is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from percentmatch.files import DAMAGE
from percentmatch.scoring.intervals import plain
from percentmatch.scoring.metrics import resampled_metrics
from percentmatch.scoring.table import ScoreTable, final_scores, score

RESULTS = Path(__file__).parents[3] / "results"


def made_up(n: int = 60, c: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores with ties, labels with a class that has no positive, and some pairs unknown."""
    draw = torch.Generator().manual_seed(0)
    targets = (torch.rand(n, c, generator=draw) < torch.linspace(0, 0.9, c)).long()
    scores = ((torch.rand(n, c, generator=draw) + targets) * 10).round() / 20
    return scores, targets, (torch.rand(n, c, generator=draw) < 0.9).long()


def written() -> dict[str, Any]:
    """As it comes out of a file."""
    return json.loads(json.dumps(score(*made_up(), list("abcde"), task="multi-label").to_dict(), allow_nan=False))


def test_what_is_written_is_read_again() -> None:
    values = written()
    assert ScoreTable.from_dict(values).to_dict() == values
    assert list(values) == [
        *("mAP", "AUC", "mAP_11point", "num_images", "num_pairs_ignored", "left_out_AP", "left_out_AUC", "classes")
    ]
    assert list(values["classes"]["a"]) == ["AP", "AUC", "AP_11point", "positives", "negatives"]
    counted = values | {"difficult_as_positive": {"mAP": 0.5, "AUC": 0.5, "mAP_11point": 0.5}, "accuracy": None}
    assert ScoreTable.from_dict(counted).to_dict() == counted


def test_a_short_row_and_an_old_file_are_read() -> None:
    table = score(*made_up(), list("abcde"))
    short = ScoreTable.from_dict(table.to_dict(short=True))
    assert short.to_dict() == table.to_dict(short=True)
    assert short.of_classes("AP") == table.of_classes("AP")
    assert short.of_classes("AP_11point") == [None] * 5
    old = {"mAP": 0.5, "AUC": None, "num_images": 3, "classes": {"a": {"AP": 0.5, "AUC": None, "positives": 2}}}
    assert ScoreTable.from_dict(old).headline() == {"mAP": 0.5, "AUC": None}
    assert ScoreTable.from_dict(old).left_out("AUC") == ["a"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name in ("mAP", "AUC", "mAP_11point", "num_images", "accuracy", "classes")),
        ("num_images", None),
        ("mAP", True),
        ("mAP", float("nan")),
        ("classes", {"a": {"AP": 0.5, "positives": 1}}),
        ("classes", {"a": {"AP": [], "AUC": 0.5, "positives": 1}}),
        ("classes", {"a": {"AP": 0.5, "AUC": 0.5, "positives": None}}),
        ("difficult_as_positive", {"mAP": "x"}),
        ("difficult_as_positive", 3),
    ],
)
def test_a_damaged_one_is_told(name: str, value: object) -> None:
    with pytest.raises(DAMAGE):
        ScoreTable.from_dict(written() | {name: value})


@pytest.mark.parametrize("name", ["mAP", "AUC", "num_images", "classes"])
def test_what_is_missing_is_told(name: str) -> None:
    values = written()
    del values[name]
    with pytest.raises(KeyError):
        ScoreTable.from_dict(values)


def runs_in(value: Any) -> Iterator[dict[str, Any]]:
    """The runs of a results file, wherever in it they are."""
    if isinstance(value, dict):
        if any(isinstance(value.get(subset), dict) and "ema" in value[subset] for subset in ("test", "validation")):
            yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from runs_in(each)


def test_committed_results_are_read_without_loss() -> None:
    found = [run for file in sorted(RESULTS.rglob("*.json")) for run in runs_in(json.loads(file.read_text()))]
    assert len(found) > 200
    for run in found:
        for subset, table in final_scores(run).items():
            values = table.to_dict()
            assert {name: values[name] for name in run[subset]["ema"]} == run[subset]["ema"]


def test_weights_of_one_give_the_same_scores() -> None:
    """The two ways to a ranking, of several classes and of one class with weights, agree."""
    table, resampled = score(*made_up(), list("abcde")), plain(*made_up())
    for name in resampled_metrics():
        expected = [float("nan") if value is None else value for value in table.of_classes(name)]
        assert resampled.classes[name][0].tolist() == pytest.approx(expected, abs=1e-12, nan_ok=True)
