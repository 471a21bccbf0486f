"""The quick start: its commands run as they stand, and its figures are those that were measured."""

import csv
import json
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from percentmatch.cli import main as cli

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import quickstart  # noqa: E402
import tables  # noqa: E402


def test_the_three_commands_lead_from_a_zip_to_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a smaller zip, with a smaller network and fewer steps."""
    for name, number in (("LABELED", 20), ("UNLABELED", 12), ("TEST", 6)):
        monkeypatch.setattr(quickstart, name, number)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("percentmatch.training.resolve.can_fetch", lambda name: False)
    quickstart.write_zip(tmp_path / "quickstart.zip")
    with zipfile.ZipFile("quickstart.zip") as archive:
        assert len(archive.namelist()) == 39
    unpack, train, predict = quickstart.commands()
    assert shlex.split(unpack)[0] == "unzip"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", "quickstart.zip", "."], check=True)
    small = ["--weights", "none", "--backbone", "test_resnet", "--total-steps", "2", "--labeled-batch", "4"]
    cli.run([*shlex.split(train)[1:], *small])
    cli.run(shlex.split(predict)[1:])
    with open("predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert {"image", "disc", "hourglass"} <= rows[0].keys()
    metrics = json.loads(Path("runs/first/metrics.json").read_text())
    assert (metrics["method"], metrics["test"]["ema"]["num_images"]) == ("priormatch", 6)


def test_the_figures_are_those_of_the_results() -> None:
    results = json.loads((ROOT / "results" / "quickstart.json").read_text())
    assert tables.read_block(ROOT / "docs" / "quickstart.md", "quickstart") == quickstart.figures(results)
    assert list(results["seconds"]) == quickstart.commands()
