"""The literature's way of scoring, measured beside ours: difficult objects count as absent, the best epoch is told."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import yaml
from sklearn.metrics import average_precision_score
from tiny import TINY

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import field

from percentmatch.data import Images
from percentmatch.data.labels import Labels


def test_difficult_pairs_count_as_absent() -> None:
    """Scores .9 (difficult), .8 (positive), .1: AP is 1/2. Without the difficult one it is 1."""
    scores = torch.tensor([[0.9], [0.8], [0.1]])
    targets, difficult = (torch.tensor(rows, dtype=torch.uint8) for rows in ([[0], [1], [0]], [[1], [0], [0]]))
    labels = Labels.of(targets, None, difficult)
    images = Images(torch.zeros(3, 3, 4, 4, dtype=torch.uint8), labels, ("a", "b", "c"), ("x",))
    table = field.with_difficult_absent(scores, images, "multi-label")
    assert table.means["mAP"] == 1
    assert table.means[field.LITERATURE] == pytest.approx(0.5)
    assert table.means[field.LITERATURE] == pytest.approx(average_precision_score(targets[:, 0], scores[:, 0]))


def test_a_grid_tells_the_last_and_the_best_epoch(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    settings = replace(TINY, eval_every=3, options={}).to_dict()
    shared = {
        name: value for name, value in settings.items() if name not in ("seed", "split_seed", "options", "method")
    }
    grid = {"settings": shared, "runs": {"a": {"method": "dicap", "options": {"refresh_steps": 4}}}, "seeds": [1]}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    asked = ["field.py", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "out"), "--photographs", "drawn"]
    with patch.object(sys, "argv", [*asked, "--results", str(tmp_path / "field.json")]):
        field.main()
    assert "a, seed 1: " in capsys.readouterr().out
    (run,) = json.loads((tmp_path / "field.json").read_text())["runs"]
    rows = [json.loads(line) for line in (tmp_path / "out/a-seed1/log.jsonl").read_text().splitlines()]
    seen = {row["step"]: row[field.LITERATURE] for row in rows if row["kind"] == "validation"}
    assert list(seen) == [3, 6, 9, 12]
    last = run["validation"]["ema"][field.LITERATURE]
    assert run["literature"]["last"] == last == run["validation"]["ema"]["mAP"]  # no scene is difficult
    assert last != seen[12]  # the head was fitted after that epoch
    assert run["literature"]["best"] == max(*seen.values(), last)
    assert ({**seen, 12: last} if run["literature"]["best"] == last else seen)[run["literature"]["best_step"]] == run[
        "literature"
    ]["best"]
