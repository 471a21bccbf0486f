"""The documents are true: README's code runs, tables equal their results files, links and commands exist."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from percentmatch.cli import app

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import tables  # noqa: E402

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def results(name: str) -> dict:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def test_the_loop_in_the_readme_runs_and_is_short() -> None:
    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    assert len(block.strip().splitlines()) <= 15
    model = nn.Linear(6, 4)
    before = model.weight.clone()
    draw = lambda n: torch.rand(n, 6)  # noqa: E731
    batches = [(draw(5), torch.ones(5, 4), draw(7), draw(7)) for _ in range(3)]
    names = {
        "train_targets": (torch.rand(30, 4) < 0.5).long(),
        "model": model,
        "batches": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    exec(block, names)
    assert names["loss"].isfinite()
    assert not torch.equal(before, model.weight)


@pytest.mark.parametrize(
    ("page", "block", "table"),
    [
        ("README.md", "demo", lambda: tables.demo_table(results("demo"))),
        ("docs/demo.md", "demo", lambda: tables.demo_table(results("demo"))),
        ("docs/benchmarks.md", "labeler", lambda: tables.labeler_table(results("labeler"))),
        ("docs/experiments.md", "tuning", lambda: tables.tuning_table(results("demo_tuning"), ("7", "8"))),
    ],
)
def test_tables_are_those_of_the_results(page: str, block: str, table) -> None:
    assert tables.read_block(ROOT / page, block) == table()


def test_percentmatch_beats_supervised_on_the_mean_of_the_demo() -> None:
    runs = results("demo")["runs"]
    mean = {m: sum(r["mAP"] for r in runs if r["method"] == m) / 3 for m in ("supervised", "percentmatch")}
    assert mean["percentmatch"] > mean["supervised"]
    assert not set(results("demo")["seeds"]) & {r["seed"] for b in results("demo_tuning")["batches"] for r in b["runs"]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_commands_in_the_readme_exist() -> None:
    verbs = re.findall(
        r"percentmatch (\w+)", "\n".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    )
    assert verbs
    for verb in set(verbs):
        assert verb in app
