"""The documents are true: README's code runs, tables equal their results files, links and commands exist."""

import contextlib
import json
import re
import sys
from pathlib import Path

import markdown
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

from percentmatch import methods
from percentmatch.cli.main import app
from percentmatch.data.readers import detect
from percentmatch.data.scenes import draw_scenes
from percentmatch.errors import UserError
from percentmatch.models import HEADS, MLDecoder, load_classifier
from percentmatch.report import write_report
from percentmatch.scoring import metrics
from percentmatch.scoring.table import ScoreTable, score
from percentmatch.settings.config import Config
from percentmatch.settings.presets import PRESETS
from percentmatch.training.start import train
from percentmatch.use.compare import compare, show_comparison
from percentmatch.use.evaluate import score_run, show_scores

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import api_page  # noqa: E402
import settings_tables  # noqa: E402
import tables  # noqa: E402
import voc_tables  # noqa: E402
from tables import read as results  # noqa: E402

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def test_the_loop_in_the_readme_runs_and_is_short() -> None:
    _, block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
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


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scenes written out as ordinary files, a few labeled, a few not."""
    scenes = draw_scenes(90, size=64)
    rows = ["image,labels,part"]
    for n, name in enumerate(scenes.ids):
        folder = tmp_path / ("photos" if n < 70 else "more")
        folder.mkdir(exist_ok=True)
        Image.fromarray(scenes.pixels[n].permute(1, 2, 0).numpy()).save(folder / f"{name}.png")
        labels = ";".join(
            c for c, yes in zip(scenes.class_names, scenes.labels.targets[[n]][0].tolist(), strict=True) if yes
        )
        rows += [f"{name}.png,{labels},{'test' if n < 10 else ''}"] if n < 70 else []
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(
    ("page", "given", "smaller"),
    [
        ("README.md", 'out="runs/mine"', 'out="runs/mine", total_steps=2, backbone="test_resnet", labeled_batch=4'),
        ("docs/your-data.md", "total_steps=2000", "total_steps=2, labeled_batch=4"),
    ],
)
def test_the_code_for_your_own_files_runs(own_files: Path, page: str, given: str, smaller: str) -> None:
    block = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[0]
    assert given in block
    names: dict = {}
    exec(block.replace(given, smaller).replace("resnet18", "test_resnet"), names)
    assert names["metrics"]["test"]["ema"]["num_images"] == 10
    split = json.loads((own_files / "runs/mine/split.json").read_text())
    assert (len(split["labeled"]), len(split["validation"]), len(split["unlabeled"])) == (54, 6, 20)


SMALL = {
    "scenes_pool": 60,
    "scenes_test": 20,
    "validation": 10,
    "labeled": 30,
    "image_size": 32,
    "backbone": "test_resnet",
    "head": "linear",
    "labeled_batch": 8,
    "total_steps": 4,
    "log_every": 2,
    "eval_every": 0,
    "save_every": 4,
}


def test_the_method_in_add_a_method_is_short_trains_by_name_and_works_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labeler, by_name, alone = re.findall(r"```python\n(.*?)```", (ROOT / "docs/add-a-method.md").read_text(), re.DOTALL)
    lines = labeler[labeler.index("class ") :].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 20
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("percentmatch.settings.presets.PRESETS", {"demo": SMALL})
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))  # the row is gone after the test
    model = nn.Linear(6, 4)
    names: dict = {
        "train_targets": (torch.rand(30, 4) < 0.5).long(),
        "model": model,
        "batches": [(torch.rand(7, 6), torch.rand(7, 6)) for _ in range(3)],
    }
    for block in (labeler, by_name, alone):
        exec(block, names)
    assert {name: option.default for name, option in methods.options_of("mean_threshold").items()} == {
        "margin": 0.2,
        "momentum": 0.9,
        "loss": "asl",
        "scores": "student",
    }
    folder = tmp_path / "runs/mean_threshold"
    assert names["metrics"]["test"]["ema"]["num_images"] == 20
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert any(row.get("unlabeled", 0) > 0 for row in log)
    assert "labeler.mean" in torch.load(folder / "last.pt", weights_only=True)["method"]
    assert names["loss"].isfinite()
    assert not torch.equal(names["labeler"].mean, names["train_targets"].float().mean(dim=0))  # it learns


def test_the_head_in_add_a_head_trains_by_name_is_saved_and_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two places, logits (1, 4) and (3, 0): means 2 and 2, strongest 3 and 4, a fifth of it more: 2.6 and 2.8."""
    head, by_name = re.findall(r"```python\n(.*?)```", (ROOT / "docs/add-a-head.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("percentmatch.settings.presets.PRESETS", {"demo": {**SMALL, "method": "supervised"}})
    monkeypatch.setitem(HEADS, "residual-attention", MLDecoder)  # the row is gone after the test
    names: dict = {}
    exec(head, names)
    small = names["ResidualAttention"](2, 2)
    small.linear.weight.data.copy_(torch.eye(2))
    small.offset.data.fill_(0.5)
    torch.testing.assert_close(small(torch.tensor([[[1.0, 4.0], [3.0, 0.0]]])), torch.tensor([[3.1, 3.3]]))
    exec(by_name, names)
    folder = tmp_path / "runs/residual-attention"
    assert names["metrics"]["test"]["ema"]["num_images"] == 20
    model, card = load_classifier(folder / "model.safetensors", torch.device("cpu"))
    assert card.head == "residual-attention"
    assert type(model.head) is names["ResidualAttention"] is HEADS[card.head]


def test_the_format_in_add_a_format_is_short_and_is_read_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four scenes: labels, none of the classes, nobody has looked, and a line without a colon; another is missing."""
    reader, row, used = re.findall(r"```python\n(.*?)```", (ROOT / "docs/add-a-format.md").read_text(), re.DOTALL)
    assert sum(bool(line.strip()) for line in reader[reader.index("def ") :].splitlines()) <= 20
    scenes = draw_scenes(4, size=64)
    for n in range(4):
        Image.fromarray(scenes.pixels[n].permute(1, 2, 0).numpy()).save(tmp_path / f"{n}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(detect, "READERS", dict(detect.READERS))  # the row is gone after the test
    good = "0.png: cat, dog\n1.png:\n2.png: ?\n3.png: dog\n"
    Path("animals.lst").write_text(good)
    names: dict = {}
    for block in (reader, row, used):
        exec(block, names)
    manifest = names["manifest"]
    assert manifest.class_names == ("cat", "dog")
    assert manifest.labels.targets.dense().tolist() == [[1, 1], [0, 0], [0, 0], [0, 1]]
    assert manifest.labels.known.dense().tolist() == [[1, 1], [1, 1], [0, 0], [1, 1]]
    assert "bad row" not in {finding["check"] for finding in names["found"]["findings"]}
    Path("animals.lst").write_text(f"{good}9.png: cat\n3.png cat\n")
    with pytest.raises(UserError, match=r"animals\.lst, line 6: there is no colon; write"):
        detect.read_labels(Path("animals.lst"))
    exec(used.partition("found = ")[0].partition("manifest = ")[0] + "found = " + used.partition("found = ")[2], names)
    found = {finding["check"]: finding["items"][0]["text"] for finding in names["found"]["findings"]}
    assert found["bad row"] == "animals.lst, line 6: there is no colon; write the image, a colon and its classes"
    assert found["missing image"] == "animals.lst, line 5: 9.png"


def test_the_metrics_in_add_a_metric_are_in_everything_that_shows_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that was trained before, which has no values of them, and of one that is trained with them.

    Ranked + - + -, as 0.9 0.8 0.7 0.6: the third threshold takes in both positives and one negative, 2 x 2 / (3 + 2)
    is the best F1, 0.8. All scores are above 0.5, so exactly the images with label 1 are right: 1/2.
    """
    config = Config.from_dict(SMALL | {"eval_every": 2, "method": "supervised"})
    train(config, tmp_path / "before")
    for rows, name in ((metrics.CLASS_METRICS, "F1"), (metrics.OVERALL_METRICS, "exact_match")):
        monkeypatch.setitem(rows, name, next(iter(rows.values())))  # the row is gone after the test
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/add-a-metric.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(block, names)
    scores, targets = torch.tensor([[0.9], [0.8], [0.7], [0.6]]), torch.tensor([[1], [0], [1], [0]])
    found = score(scores, targets, None, ["cat"], task="multi-label")
    assert found.classes["cat"].values["F1"] == found.means["mF1"] == pytest.approx(0.8)
    assert found.overall == {"exact_match": 0.5}
    written = train(config, tmp_path / "after")["test"]["ema"]
    assert written["mF1"] > 0
    assert all("F1" in row for row in written["classes"].values())
    assert ScoreTable.from_dict(written).to_dict() == written
    log = [json.loads(line) for line in (tmp_path / "after/log.jsonl").read_text().splitlines()]
    assert [row["mF1"] > 0 and "exact_match" in row for row in log if row["kind"] == "validation"] == [True, True]
    capsys.readouterr()
    show_scores(score_run(tmp_path / "after"))
    printed = capsys.readouterr().out
    assert "best F1" in printed
    assert f"Exact match {100 * written['exact_match']:.2f}" in printed
    for runs in (["after"], ["before", "after"]):
        write_report([tmp_path / run for run in runs], tmp_path / "page.html", device="cpu")
        page = (tmp_path / "page.html").read_text()
        assert all(words in page for words in ("95% interval of best F1", "mean best F1", "test exact match"))
    assert "gain in mean best F1" in page
    gained = compare(tmp_path / "before", tmp_path / "after", device="cpu")
    assert gained["mF1"]["gain"] == 0
    show_comparison(gained)
    assert "mean best F1" in capsys.readouterr().out


def option_rows(name: str) -> dict[str, str]:
    """The rows of the table of options on a method's page: names and defaults."""
    page = (ROOT / "docs/methods" / f"{name}.md").read_text()
    table = re.search(r"^\| option \| default \|.*\n\|[-| :]+\|\n((?:\|.*\n)*)", page, re.MULTILINE)
    rows = [line.split("|")[1:3] for line in table[1].splitlines()] if table else []
    return {option.strip(" `"): default.strip(" `") for option, default in rows}


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_has_a_page_with_its_options_and_is_in_the_index(name: str) -> None:
    rows, options = option_rows(name), methods.options_of(name)
    assert rows.keys() == options.keys()
    assert {key: options[key].parse(text) for key, text in rows.items()} == {k: o.default for k, o in options.items()}
    assert f"- [{name}]({name}.md): " in (ROOT / "docs/methods/README.md").read_text()


def test_there_is_no_page_without_a_method() -> None:
    pages = {page.stem for page in (ROOT / "docs/methods").glob("*.md")} - {"README"}
    assert pages == set(methods.METHODS)


@pytest.mark.parametrize(
    ("page", "block", "table"),
    [
        ("README.md", "headline", voc_tables.headline_table),
        ("docs/index.md", "headline", voc_tables.headline_table),
        ("docs/demo.md", "demo", lambda: tables.demo_table(results("demo"))),
        ("docs/demo.md", "demo_threads", lambda: tables.demo_threads_line(results("demo"), results("demo_one_thread"))),
        ("docs/settings.md", "presets", settings_tables.presets_table),
        ("docs/settings.md", "settings", settings_tables.settings_tables),
        ("docs/experiments.md", "tuning", lambda: tables.tuning_table(results("demo_tuning"), ("7", "8"))),
        ("docs/experiments.md", "scenes_tuning", lambda: tables.scenes_tuning_table(results("scenes_tuning"))),
        ("docs/methods/README.md", "scenes", lambda: tables.scenes_table(results("scenes"))),
        ("docs/predict-and-export.md", "thresholds", lambda: tables.thresholds_table(results("voc2007/thresholds"))),
        ("docs/review.md", "review", lambda: tables.review_table(results("voc2007/review"))),
        ("docs/backbones.md", "backbones", lambda: tables.backbones_table(results("voc2007/backbones"))),
        ("docs/experiments.md", "other_pool", lambda: tables.other_pool_table(results("other_pool"))),
        ("docs/shards.md", "stream", lambda: tables.stream_table(results("stream"))),
        ("docs/many-classes.md", "classes", lambda: tables.classes_table(results("classes"))),
        ("SECURITY.md", "fuzz", lambda: tables.fuzz_table(results("fuzz"))),
        ("docs/reliability.md", "faults", lambda: tables.faults_table(results("faults"))),
    ],
)
def test_tables_are_those_of_the_results(page: str, block: str, table) -> None:
    assert tables.read_block(ROOT / page, block) == table()


@pytest.mark.parametrize(("page", "block", "table", "name"), voc_tables.BLOCKS)
def test_tables_of_photographs_are_those_of_the_results(page: str, block: str, table, name: str) -> None:
    assert tables.read_block(ROOT / page, block) == voc_tables.text_of(table, name)


def test_seeds_that_chose_options_are_not_those_of_the_comparison() -> None:
    assert not set(results("scenes")["seeds"]) & {run["seed"] for run in results("scenes_tuning")["runs"]}


def test_percentmatch_beats_supervised_on_the_mean_of_the_demo() -> None:
    runs = results("demo")["runs"]
    mean = {m: sum(r["mAP"] for r in runs if r["method"] == m) / 3 for m in ("supervised", "percentmatch")}
    assert mean["percentmatch"] > mean["supervised"]
    assert not set(results("demo")["seeds"]) & {r["seed"] for b in results("demo_tuning")["batches"] for r in b["runs"]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_pages_of_the_site_link_to_no_file_that_is_not_on_it() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).resolve().is_relative_to(ROOT / "docs"), (page, target)


def test_the_site_draws_formulas_and_examples() -> None:
    """With the extensions that it is built with: no formula and no fence is left as it was typed."""
    extensions = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["markdown_extensions"]
    formulas = 0
    for page in (ROOT / "docs").rglob("*.md"):
        drawn = markdown.markdown(page.read_text(), extensions=extensions)
        words = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", drawn, flags=re.DOTALL)
        assert "$$" not in words, page
        assert "```" not in drawn, page
        formulas += drawn.count("<math")
    assert formulas >= 15


def test_presets_are_all_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command, left_out in (("train", set()), ("data stats", {"demo"})):
        with contextlib.suppress(SystemExit):
            app([*command.split(), "--help"])
        shown = " ".join(re.sub(r"[^\w-]+", " ", capsys.readouterr().out).split())
        assert all(re.search(rf"(?<![\w-]){name}(?![\w-])", shown) for name in PRESETS.keys() - left_out), command


def test_commands_in_the_readme_exist() -> None:
    verbs = re.findall(
        r"percentmatch (\w+)", "\n".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    )
    assert verbs
    for verb in set(verbs):
        assert verb in app


def test_the_site_shows_every_page() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        return [page for each in inner for page in pages(each)]

    shown = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    methods = {f"methods/{file.name}" for file in (ROOT / "docs/methods").glob("*.md")}  # reached from their own list
    there = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    assert len(set(shown)) == len(shown)
    assert set(shown) == there - methods | {"methods/README.md"}


def test_the_reference_is_that_of_the_code() -> None:
    """Every name of the package's face and of the lists in `api_page` has its docstring there."""
    assert (ROOT / "docs/api.md").read_text() == api_page.page(), "run: uv run python benchmarks/api_page.py"


def test_a_reference_without_docstrings_or_of_no_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no percentmatch\.records\.Nothing"):
        api_page.entry("percentmatch.records.Nothing")
    with pytest.raises(ValueError, match="train has no docstring"):
        api_page.prose(None, "train")


def test_the_reference_shows_signatures_fields_and_what_is_said_of_them() -> None:
    shown = api_page.entry("percentmatch.records.PseudoLabels")
    assert "| `gap` | `Tensor \\| None` | `None` | (c,) Delta-tau; of the scores'" in shown
    shown = api_page.entry("percentmatch.labelers.FixedThreshold", came="percentmatch")
    assert "from percentmatch import FixedThreshold\n\nFixedThreshold(\n    facts: Facts,\n    *,\n" in shown
    assert "\n- `threshold`: scores above it are positives\n" in shown
