"""A grid of runs: every row says what it was, nothing finished is lost, and an odd file is one sentence."""

import json
import math
import multiprocessing
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from percentmatch.cli import main as cli
from percentmatch.cli.flags import over_settings
from percentmatch.console.signals import Stopped, StopRequest
from percentmatch.errors import Diverged, UserError
from percentmatch.settings.config import Config
from percentmatch.settings.presets import PRESETS
from percentmatch.use import grid as benchmark

SETTINGS = (
    "settings: {scenes_pool: 60, scenes_test: 20, validation: 20, labeled: 20, image_size: 32, backbone: test_resnet, "
    "head: linear, labeled_batch: 4, total_steps: 1}\n"
)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    file = tmp_path / "grid.yaml"
    file.write_text(SETTINGS + "runs: {a: {method: supervised}, b: {method: supervised, lr: 0.001}}\nseeds: [0, 1]")
    return file


def call(file: Path, *more: str) -> None:
    cli.run(["benchmark", str(file), "--out", str(file.parent / "out"), *more])


def collected(folder: Path) -> list[tuple[str, int, float]]:
    runs = json.loads((folder / "out" / "results.json").read_text())["runs"]
    return [(run["group"], run["seed"], run["settings"]["lr"]) for run in runs]


ROWS = [("a", 0, 3e-4), ("b", 0, 1e-3), ("a", 1, 3e-4), ("b", 1, 1e-3)]


@pytest.mark.parametrize(
    ("name", "runs"),
    [("same_data", 2 * 2 * 3), ("same_data_long", 2 * 3), ("pretrained", 4 * 2 * 3), ("paper", 8 * 2), ("ceiling", 1)],
)
def test_the_grids_for_voc_plan_their_runs(name: str, runs: int, tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "benchmarks" / f"voc2007_{name}.yaml"
    plan = benchmark.read_grid(file, {"root": str(tmp_path)})
    assert len(plan) == runs
    assert all((p.config.validation, p.config.image_size) == (0, 224) for p in plan)
    pretrainings = {"same_data": 3, "same_data_long": 3, "ceiling": 1}.get(name, 0)
    assert len({p.start.name for p in plan if p.start}) == pretrainings
    assert not any(p.config.official_validation for p in plan)


@pytest.mark.parametrize(
    "name",
    [
        "pretrained_tuning",
        "paper_open",
        "remedies",
        "ablations",
        "cpu_pretrained",
        "cpu_random",
        "cpu_methods",
        "cpu_long",
    ],
)
def test_the_grids_that_choose_settings_validate_on_the_val_half(name: str, tmp_path: Path) -> None:
    plan = benchmark.read_grid(Path(__file__).parents[2] / f"benchmarks/voc2007_{name}.yaml", {"root": str(tmp_path)})
    assert len(plan) > 1
    assert all(p.config.official_validation for p in plan)
    assert all(p.start.settings.official_validation for p in plan if p.start)  # nor does it see that half


def test_the_grids_of_the_fields_protocol_plan_their_runs() -> None:
    """5 and 10% with three splits of nine methods, three from a probe, and ours; 15 and 20% with one split of three."""
    folder = Path(__file__).parents[2] / "benchmarks"
    main, more = (
        benchmark.read_grid(folder / f"voc2012_{name}.yaml", {"root": "x"}) for name in ("field", "field_more")
    )
    assert (len(main), len(more)) == (13 * 2 * 3, 3 * 2)
    assert {p.config.method for p in main} >= {"probe", "cap", "mat", "dicap", "fixmatch", "percentmatch", "priormatch"}
    assert [p.config.options for p in main if p.config.method == "supervised"][:2] == [{}, {"loss": "bce"}]
    assert {(p.config.labeled, p.config.split_seed) for p in main} == {(n, s) for n in (0.05, 0.1) for s in (1, 2, 3)}
    assert {(p.config.labeled, p.config.split_seed) for p in more} == {(0.15, 1), (0.2, 1)}
    for config in (p.config for p in main + more):
        assert (config.backbone, config.image_size, config.frame) == ("resnet50_v1", 224, "squash")
        assert (config.year, config.split_kind, config.official_validation) == (2012, "field", True)
        assert config.weights.endswith(".safetensors")  # a run from random weights would say nothing
        assert config.total_steps % config.eval_every == 0 or config.method == "probe"  # the last epoch is scored


def test_the_grid_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "grids.md").read_text()
    (tmp_path / "grid.yaml").write_text(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    plan = benchmark.read_grid(tmp_path / "grid.yaml")
    assert len(plan) == 3 * 2 * 3
    assert "soft selection-labeled=100-seed1" in {planned.name for planned in plan}


def test_another_method_leaves_the_options_of_the_preset_behind(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(PRESETS, "voc2007-best", PRESETS["voc2007-best"] | {"options": {"momentum": 0.9}})
    file = tmp_path / "grid.yaml"
    file.write_text("preset: voc2007-best\nruns: {a: {}, b: {method: supervised}, c: {options: {loss: asl}}}")
    plan = benchmark.read_grid(file)
    assert [planned.config.method for planned in plan] == ["priormatch", "supervised", "priormatch"]
    mine, other, changed = (planned.config.options for planned in plan)
    assert mine == PRESETS["voc2007-best"]["options"]
    assert not other
    assert changed == {**mine, "loss": "asl"}


def test_results_hold_the_pseudo_labels_over_time(grid: Path) -> None:
    grid.write_text(SETTINGS.replace("total_steps: 1", "total_steps: 25, log_every: 2") + "runs: {a: {}}")
    call(grid)
    out = grid.parent / "out"
    (run,) = json.loads((out / "results.json").read_text())["runs"]
    logged = [json.loads(line) for line in (out / "a-seed0" / "log.jsonl").read_text().splitlines()]
    logged = {row["step"]: row for row in logged if row["kind"] == "train"}
    steps = [row["step"] for row in run["training"]]
    assert steps == [2, 4, 6, 10, 12, 14, 18, 20, 22, 25]
    for row in run["training"]:
        for name in ("positives_true", "negatives_right"):
            assert row["classes"][name] == pytest.approx(logged[row["step"]]["classes"][name], abs=1e-4)
    assert all(sum(row["classes"]["positives_true"]) > 0 for row in run["training"])


def test_a_part_of_a_grid(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another part adds to the results; the parts together are the grid."""
    call(grid, "--only", "*-seed1")
    assert collected(grid.parent) == [row for row in ROWS if row[1] == 1]
    assert "left" not in capsys.readouterr().out
    call(grid, "--only", "a-seed0", "--only", "a-*")
    assert collected(grid.parent) == [row for row in ROWS if row != ROWS[1]]
    call(grid)
    assert collected(grid.parent) == ROWS
    with pytest.raises(UserError, match=r"--only c-\*: no run has such a name; the first is 'a-seed0'"):
        call(grid, "--only", "c-*")


def test_a_run_that_diverges_does_not_keep_the_others_from_their_turn(grid: Path, monkeypatch, capsys) -> None:
    real = benchmark.train

    def fragile(config: Config, *place: Path, **options: bool) -> object:
        if config.lr == 0.001:
            raise Diverged("loss not finite in step 1")
        return real(config, *place, **options)

    monkeypatch.setattr(benchmark, "train", fragile)
    for _ in range(2):
        with pytest.raises(UserError, match=r"^b-seed0, b-seed1: training diverged; 2 other runs are in the results"):
            call(grid)
        assert "b-seed1: loss not finite in step 1" in capsys.readouterr().err
        assert collected(grid.parent) == [row for row in ROWS if row[0] == "a"]


def test_finished_runs_stay_in_the_results(grid: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    call(grid)
    assert collected(grid.parent) == ROWS
    out = grid.parent / "out"
    for name in ("a-seed0", "b-seed0"):
        (out / name / "metrics.json").unlink()
    capsys.readouterr()
    call(grid, "--minutes", "1e-9")  # the first one left begins at once, the second would be too late
    printed = capsys.readouterr().out
    assert "1 of 4 runs are left" in printed
    assert "results.json" in printed
    assert collected(grid.parent) == [row for row in ROWS if row[:2] != ("b", 0)]

    def full(*_: object, **__: object) -> None:
        raise UserError("no room")

    monkeypatch.setattr(benchmark, "train", full)
    with pytest.raises(UserError, match=r"grid\.yaml, run 'b-seed0': no room"):
        call(grid)
    assert len(collected(grid.parent)) == 3

    (out / "results.json").unlink()  # written again from what is finished, without training
    (out / "b-seed0" / "metrics.json").write_bytes((out / "b-seed1" / "metrics.json").read_bytes())
    call(grid)
    assert len(collected(grid.parent)) == 4

    grid.write_text(grid.read_text().replace("lr: 0.001", "lr: 0.002"))
    before = (out / "results.json").read_bytes()
    with pytest.raises(UserError, match=r"run 'b-seed0': .* begun with lr=0\.001, not 0\.002"):
        call(grid)
    assert (out / "results.json").read_bytes() == before


def test_set_replaces_what_holds_for_all(grid: Path) -> None:
    plan = benchmark.read_grid(grid, over_settings(["labeled=10", "strong_view.ops=2"]))
    assert {(planned.config.labeled, planned.config.strong_view.ops) for planned in plan} == {(10, 2)}
    assert [(planned.name, planned.config.seed, planned.config.split_seed) for planned in plan] == [
        ("a-seed0", 0, 0),
        ("b-seed0", 0, 0),
        ("a-seed1", 1, 1),
        ("b-seed1", 1, 1),
    ]


RUNS = "runs: {a: {method: supervised, options: {}}, b: {method: percentmatch, options: {momentum: 0.9}}}\n"
BAD = {
    "in runs and grid": ("grid: {method: [fixmatch]}", [], "method is both in grid and in runs"),
    "nested": ("grid: {options: [{}, {momentum: 0.5}]}", [], "options.momentum is both in grid and in runs"),
    "the whole and a part": ("grid: {options: [null]}", [], "options is both in grid and in runs"),
    "set over runs": ("", ["options.momentum=0.5"], "options.momentum is both in --set and in runs"),
    "set over grid": ("grid: {lr: [0.1, 0.2]}", ["lr=0.3"], "lr is both in --set and in grid"),
    "seed in settings": ("settings: {seed: 3}", [], "seed is set by seeds; .* out of settings"),
    "seed in runs": ("runs: {a: {seed: 3}}", [], "seed is set by seeds; .* out of runs"),
    "seed in grid": ("grid: {split_seed: [1, 2]}", [], "split_seed is set by seeds; .* out of grid"),
    "seed in set": ("seeds: [0, 1]", ["seed=3"], "seed is set by seeds; .* out of --set"),
    "seed twice": ("seeds: [0, 1, 0]", [], "seeds lists 0 twice"),
    "value twice": ("grid: {lr: [0.1, 0.1]}", [], "lr lists 0.1 twice"),
    "mapping twice": ("grid: {weak_view: [{ops: 1}, {ops: 1}]}", [], "weak_view lists .* twice"),
    "one folder": ("grid: {labels: [x/y, x_y]}", [], "two runs would share the folder a-labels=x_y-seed0"),
    "preset in a list": ("preset: [demo]", [], r"unknown preset '\['demo'\]'"),
    "out of range": ("grid: {lr: [-1]}", [], "run 'a-lr=-1-seed0': lr must"),
    "unknown option": ("grid: {options: [{momentm: 1}]}", [], "run 'a-.*seed0': unknown option 'momentm'"),
    "option without a name": ("grid: {options: [{&momentum : 1}]}", [], "run 'a-.*seed0': unknown option 'None'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_grid_that_would_mislabel_a_row_is_refused(case: str, tmp_path: Path) -> None:
    text, over, sentence = BAD[case]
    file = tmp_path / "grid.yaml"
    file.write_text(text if "runs" in text else RUNS + text)
    with pytest.raises(UserError, match=rf"^{re.escape(str(file))}(:|,) {sentence}"):
        benchmark.read_grid(file, over_settings(over))


@pytest.mark.parametrize("minutes", [0, -5, math.nan])
def test_no_time_is_refused(minutes: float, grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=f"--minutes must be above 0, not {minutes:g}"):
        call(grid, "--minutes", str(minutes))
    assert not capsys.readouterr().out
    assert not (grid.parent / "out").exists()


def test_what_training_refuses_names_the_file_and_the_run(grid: Path) -> None:
    grid.write_text(grid.read_text().replace("lr: 0.001", "labeled: 500"))
    with pytest.raises(UserError, match=r"grid\.yaml, run 'b-seed0': labeled=500"):
        call(grid)
    assert collected(grid.parent) == ROWS[:1]


def test_a_signal_in_the_last_moments_of_a_run_stops_the_grid(tmp_path: Path, monkeypatch) -> None:
    """Also one that came while the run itself listened."""
    whole = benchmark.train

    def then_signal(*args, **options):
        result = whole(*args, **options)
        with StopRequest() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert inner.number == signal.SIGTERM
        return result

    monkeypatch.setattr(benchmark, "train", then_signal)
    file = tmp_path / "grid.yaml"
    file.write_text(f"{SETTINGS}runs: {{a: {{method: supervised}}}}\nseeds: [0, 1]\n")
    with pytest.raises(Stopped, match="stopped between two runs; the same command goes on"):
        benchmark.run_grid(benchmark.read_grid(file), tmp_path / "out")
    assert [run["seed"] for run in json.loads((tmp_path / "out" / "results.json").read_text())["runs"]] == [0]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_before_the_first_step_of_a_run_stops_it_there(tmp_path: Path, monkeypatch) -> None:
    """As while images are decoded; the run is saved after one step and goes on with the same command."""
    whole = benchmark.train

    def first_signal(config, *args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return whole(replace(config, total_steps=5), *args, **options)

    file = tmp_path / "grid.yaml"
    file.write_text(f"{SETTINGS.replace('total_steps: 1', 'total_steps: 5')}runs: {{a: {{method: supervised}}}}\n")
    monkeypatch.setattr(benchmark, "train", first_signal)
    with pytest.raises(Stopped, match="stopped at step 1 of 5"):
        benchmark.run_grid(benchmark.read_grid(file), tmp_path / "out")
    monkeypatch.setattr(benchmark, "train", whole)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not StopRequest.active
    assert len(benchmark.run_grid(benchmark.read_grid(file), tmp_path / "out")["runs"]) == 1


def test_runs_that_another_process_finished_meanwhile_are_in_the_results(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(f"{SETTINGS}runs: {{a: {{method: supervised}}}}\nseeds: [0, 1]\n")
    plan, whole = benchmark.read_grid(file), benchmark.train
    benchmark.run_grid(plan, tmp_path / "other", only=["*-seed0"])

    def meanwhile(*args, **options):
        shutil.copytree(tmp_path / "other" / "a-seed0", tmp_path / "out" / "a-seed0")
        return whole(*args, **options)

    monkeypatch.setattr(benchmark, "train", meanwhile)
    found = benchmark.run_grid(plan, tmp_path / "out", only=["*-seed1"])
    assert [run["seed"] for run in found["runs"]] == [0, 1]


def test_two_processes_in_one_folder_leave_the_results_of_both(tmp_path: Path, monkeypatch) -> None:
    """The second finishes its run while the first, which has collected what is finished, writes for the last time."""
    file = tmp_path / "grid.yaml"
    file.write_text(f"{SETTINGS}runs: {{a: {{method: supervised}}}}\nseeds: [0, 1]\n")
    plan, fork = benchmark.read_grid(file), multiprocessing.get_context("fork")
    benchmark.run_grid(plan, tmp_path / "whole")
    writes, trained, writing, written, write = [], fork.Event(), fork.Event(), fork.Event(), benchmark.write_json

    def copied(config: Config, folder: Path, **options: object) -> None:
        if config.seed == 1:
            assert writing.wait(60)
        copy = tmp_path / f"{folder.name}-copy"
        folder.parent.mkdir(exist_ok=True)
        shutil.copytree(tmp_path / "whole" / folder.name, copy).rename(folder)  # at once, as metrics.json comes last
        if config.seed == 1:
            trained.set()

    def slow(path: Path, found: dict) -> None:
        writes.append(path)
        if [run["seed"] for run in found["runs"]] == [0] and len(writes) == 2:  # after the run, and at the end
            writing.set()
            assert trained.wait(60)
            written.wait(1)  # the other's last write, if it does not wait for this one
        write(path, found)
        if len(writes) == 2:
            written.set()

    monkeypatch.setattr(benchmark, "train", copied)
    monkeypatch.setattr(benchmark, "write_json", slow)
    both = [
        fork.Process(target=benchmark.run_grid, args=(plan, tmp_path / "out"), kwargs={"only": [f"*{n}"]})
        for n in (0, 1)
    ]
    for process in both:
        process.start()
    assert [process.join(100) or process.exitcode for process in both] == [0, 0]
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [run["seed"] for run in found["runs"]] == [0, 1]
