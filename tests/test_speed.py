"""The speed command: every part is measured, written and shown; the pipeline it compares with trains."""

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from percentmatch.errors import UserError
from percentmatch.methods import METHODS, build_method
from percentmatch.records import Facts
from percentmatch.settings.config import Config
from percentmatch.settings.views import View

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import run_speed as script  # noqa: E402
import tables  # noqa: E402
from speed import PARTS, bench, run_speed, sheets  # noqa: E402
from speed.conventional import Conventional, Files, load, pillow_view  # noqa: E402
from speed.pictures import write_photographs  # noqa: E402
from speed.timing import ratio, rounds  # noqa: E402

CPU = torch.device("cpu")
TINY: dict[str, Any] = {
    "backbone": "test_resnet",
    "head": "linear",
    "image_size": 32,
    "labeled_batch": 2,
    "steps": 1,
    "repeats": 1,
    "num_images": 24,
}
FEW = ("supervised", "mean_teacher", "percentmatch")  # the contract tests run them all


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All parts, as the file has them; of the methods only a few."""
    out = tmp_path_factory.mktemp("speed") / "new" / "speed.json"
    assert bench.METHODS is METHODS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "METHODS", {name: METHODS[name] for name in FEW})
        returned = run_speed(out, device="cpu", **TINY)
    assert not [path for path in out.parent.iterdir() if path != out]
    assert json.loads(out.read_text()) == returned
    return returned


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        return [number for each in (value.values() if isinstance(value, dict) else value) for number in numbers(each)]
    return [] if isinstance(value, str) else [value]


def test_every_part_is_measured_with_positive_figures(measured: dict[str, Any]) -> None:
    assert list(measured["parts"]) == list(PARTS)
    for part, figures in measured["parts"].items():
        assert "failed" not in json.dumps(figures), part
        assert numbers(figures), part
        assert all(math.isfinite(number) and number > 0 for number in numbers(figures)), part
    assert measured["settings"] == {**TINY, "classes": 20}
    assert measured["torch"] == torch.__version__
    assert measured["cpu_cores"] >= 1
    assert "CPU" in measured["device"]
    assert "commit" in measured


def test_figures_that_belong_together_agree(measured: dict[str, Any]) -> None:
    """2 labeled + 2 weak + 2 strong images make 6 a step, so images/s is 6000 / ms."""
    parts = measured["parts"]
    assert parts["network"]["eager_images_per_s"] == pytest.approx(6000 / parts["network"]["eager_ms"])
    loop = parts["loop"]
    assert loop["loop_images_per_s"] == pytest.approx(6000 / loop["loop_ms"])
    assert loop["loop_over_network_ratio"] == pytest.approx(loop["loop_ms"] / loop["network_ms"])  # of one round
    assert loop["views_over_loop_ratio"] == pytest.approx(loop["views_ms"] / loop["loop_ms"])
    assert loop["peak_memory_bytes"] > 50e6  # torch alone needs more
    evaluation = parts["evaluation"]
    assert evaluation["seconds_for_4952_images"] == pytest.approx(4952 / evaluation["images_per_s"])
    conventional = parts["conventional"]
    for row in conventional["rows"]:
        assert row["over_loop_ratio"] == pytest.approx(row["ms"] / conventional["loop_ms"])
        assert row["images_per_s"] == pytest.approx(6000 / row["ms"])
    assert conventional["rows"][0]["workers"] == 1
    assert conventional["rows"][-1]["workers"] == measured["cpu_cores"]
    assert [row["method"] for row in parts["methods"]["rows"]] == list(FEW)
    assert parts["methods"]["rows"][0]["over_supervised_ratio"] == 1
    assert [row["scores"] for row in parts["methods"]["pairs"]] == ["student", "teacher"]


def test_the_labeler_keeps_a_number_a_class_and_bin(measured: dict[str, Any]) -> None:
    """float32 mass (c, k) and the weight of the start: 4 c k + 4 bytes."""
    rows = measured["parts"]["labeler"]["rows"]
    assert {(row["classes"], row["bins"]) for row in rows} == {
        (c, k) for c in (20, 80, 1000, 10_000) for k in (100, 256)
    }
    assert all(row["state_bytes"] == 4 * row["classes"] * row["bins"] + 4 for row in rows)


def test_tables_show_every_part(measured: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    shutil.copy(ROOT / "docs/speed.md", page)
    tables.fill_speed(page, [measured])
    for part in PARTS:
        block = tables.read_block(page, part)
        assert measured["device"] in block
        for sheet in sheets(part, measured["parts"][part]):
            assert all(len(row) == len(sheet.columns) for row in sheet.rows)
            assert all(f"| {' | '.join(row)} |" in block for row in sheet.rows)
    assert all(f"\n| {method} | " in tables.read_block(page, "methods") for method in FEW)


def test_the_page_has_the_tables_of_the_results() -> None:
    page, results = ROOT / "docs/speed.md", tables.speed_results()
    assert results
    assert tables.read_block(page, "conditions") == tables.speed_conditions(results)
    for part in PARTS:
        assert tables.read_block(page, part) == tables.speed_table(part, results)


def test_figures_of_a_gpu_are_shown() -> None:
    """What only a GPU has: the captured step, and the labeler launched one by one."""
    [network] = sheets("network", {"captured_ms": 18.414, "captured_images_per_s": 5865.3})
    assert network.rows == [("network, replayed as a CUDA graph", "18.41", "5,865")]
    row = {"classes": 10_000, "bins": 256, "ms": 0.4567, "eager_ms": 0.6, "state_bytes": 10_240_004}
    [labeler] = sheets("labeler", {"images": 36, "rows": [row]})
    assert labeler.columns[3] == "launched one by one, ms"
    assert labeler.rows == [("10,000", "256", "0.457", "0.600", "10,240,004")]


def test_a_part_that_fails_is_written_down_and_the_others_go_on(tmp_path: Path, monkeypatch, capsys) -> None:
    def broken(bench: object, figures: dict[str, Any]) -> None:
        figures["eager_ms"] = 3.0
        figures["eager_images_per_s"] = 2000.0
        raise torch.OutOfMemoryError("CUDA out of memory.\nTry less")

    monkeypatch.setitem(bench.PARTS, "network", broken)
    out = tmp_path / "speed.json"
    results = run_speed(out, parts=["cache", "network"], device="cpu", **TINY)
    assert list(results["parts"]) == ["network", "cache"]
    assert json.loads(out.read_text())["parts"]["network"]["failed"] == "CUDA out of memory."
    assert results["parts"]["cache"]["images"] == 24
    printed = capsys.readouterr().out
    assert "3.00" in printed
    assert "network failed: CUDA out of memory." in printed
    assert "failed: CUDA out of memory." in tables.speed_table("network", [results])


@pytest.mark.parametrize(("load", "warned"), [(2.5, False), (3.4, True)])
def test_a_busy_machine_is_told(load: float, warned: bool, tmp_path: Path, monkeypatch, capsys) -> None:
    """On 6 cores, from half of them on."""
    monkeypatch.setattr(bench, "cores", lambda: 6)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 9.0, 9.0))
    results = run_speed(tmp_path / "speed.json", parts=[], device="cpu", **TINY)
    assert results["load_average_before"] == load
    assert ("load average 3.4" in capsys.readouterr().err) == warned
    assert f"Load average before it began: {load}." in tables.speed_conditions([results])


def test_a_run_cut_short_keeps_what_it_has(tmp_path: Path, monkeypatch) -> None:
    def stopped(bench: object, figures: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.PARTS, "evaluation", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_speed(tmp_path / "speed.json", parts=["cache", "evaluation"], device="cpu", **TINY)
    assert list(json.loads((tmp_path / "speed.json").read_text())["parts"]) == ["cache"]


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *tokens: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["run_speed.py", *tokens])
    try:
        script.main()
        code = 0
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    return code, *capsys.readouterr()


def test_the_command_takes_a_folder_of_images(tmp_path: Path, monkeypatch, capsys) -> None:
    folder, out = tmp_path / "photos", tmp_path / "speed.json"
    folder.mkdir()
    for n in range(3):
        Image.new("RGB", (60, 40), (80 * n, 90, 100)).save(folder / f"{n}.png")
    sizes = ["--backbone", "test_resnet", "--head", "linear", "--image-size", "32", "--steps", "1"]
    arguments = ["--images", str(folder), "--out", str(out), "--parts", "evaluation, cache", "--device", "cpu"]
    code, printed, _ = command(monkeypatch, capsys, *arguments, *sizes)
    assert code == 0
    assert "files decoded" in printed
    assert f"figures  {out}" in printed
    results = json.loads(out.read_text())
    assert results["parts"]["cache"]["images"] == results["settings"]["num_images"] == 3
    assert results["settings"]["image_size"] == 32
    assert results["settings"]["labeled_batch"] == bench.DEFAULTS["cpu"].labeled_batch


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (["--parts", "network,lop"], "--parts: unknown part 'lop'; did you mean 'loop'?"),
        (["--parts", "network,"], "--parts: unknown part ''"),
        (["--steps", "0"], "--steps must be at least 1, not 0"),
        (["--backbone", "resnt50"], "unknown backbone 'resnt50'"),
        (["--image-size", "0"], "image_size must lie between 1 and 4096"),
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--images", "nowhere"], "cannot read the folder nowhere"),
    ],
)
def test_bad_input_is_one_sentence(tokens: list[str], sentence: str, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "speed.json"
    out.write_text("before")
    code, printed, errors = command(monkeypatch, capsys, "--out", str(out), *tokens)
    assert code == 2
    assert printed == ""
    assert sentence in errors
    assert errors.count("\n") == 1
    assert out.read_text() == "before"


def test_too_many_workers_cost_only_their_own_row(tmp_path: Path, monkeypatch) -> None:
    def fails(bench: object, theirs: object, files: object, workers: int) -> list[float]:
        if workers > 1:
            raise RuntimeError("no shared memory\nat all")
        return [9.0, 7.0, 8.0]

    monkeypatch.setattr(bench, "loaded", fails)
    monkeypatch.setattr(bench, "cores", lambda: 6)
    figures = run_speed(tmp_path / "speed.json", parts=["conventional"], device="cpu", **TINY)["parts"]["conventional"]
    assert [row["workers"] for row in figures["rows"]] == [1, 4, 6]
    assert figures["rows"][0]["ms"] == 8
    assert figures["rows"][1] == {"workers": 4, "failed": "no shared memory"}
    [sheet] = sheets("conventional", figures)
    assert sheet.rows[2] == ("conventional, 4 workers", "failed: no shared memory", "", "")


@pytest.mark.gpu
def test_on_a_gpu_steps_are_captured(tmp_path: Path) -> None:
    parts = ["network", "loop", "labeler", "conventional"]
    figures = run_speed(tmp_path / "speed.json", parts=parts, device="cuda", **TINY)["parts"]
    assert "failed" not in json.dumps(figures)
    assert figures["network"].keys() >= {"eager_ms", "captured_ms"}
    assert all(row.keys() >= {"ms", "eager_ms"} for row in figures["labeler"]["rows"])
    assert figures["loop"]["peak_memory_bytes"] < 4e9


def test_the_parts_of_the_help_are_those_there_are() -> None:
    from inspect import signature

    assert signature(script.speed).parameters["parts"].default == ",".join(PARTS)


def test_rounds_call_each_in_turn_forwards_and_backwards() -> None:
    """One warm-up each, then rounds of two steps: a b, b a, a b."""
    seen: list[str] = []
    calls = {name: lambda name=name: seen.append(name) for name in "ab"}
    times = rounds(calls, CPU, warmup=1, steps=2, repeats=3)
    assert "".join(seen) == "ab" + "aabb" + "bbaa" + "aabb"
    assert {name: len(each) for name, each in times.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_that_of_rounds_side_by_side() -> None:
    """3/2, 30/20 and 8/4: the machine was ten times slower in the second round; the ratio of medians would be 8/4."""
    assert ratio({"a": [3, 30, 8], "b": [2, 20, 4]}, "a", "b") == 1.5


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_photographs(tmp_path_factory.mktemp("jpeg"), 18)


def test_photographs_are_jpeg_files_of_the_usual_size(files: list[Path]) -> None:
    assert len(files) == 18
    for path in files:
        with Image.open(path) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (500, 375), "RGB")
        assert 50_000 < path.stat().st_size < 120_000  # VOC2007's are about 85 kB
    contents = [path.read_bytes() for path in files]
    assert contents[0] == contents[16]
    assert len(set(contents)) == 16


CONFIG = Config(backbone="test_resnet", head="linear", image_size=32, labeled_batch=3, lr=0.01, ema_decay=0.5)


def test_the_conventional_pipeline_makes_batches_and_trains(files: list[Path]) -> None:
    targets = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    facts = Facts.from_targets(targets, num_unlabeled=15)
    torch.manual_seed(0)
    loop = Conventional(CONFIG, build_method("fixmatch", facts), 3, CPU)
    dataset = Files(CONFIG, loop.model, files[:3], targets, files[3:])
    operations = [view.transforms[2].num_ops for view in (dataset.view, dataset.weak, dataset.strong)]
    assert operations == [3, 3, 8]  # as ours
    batches = load(dataset, 3, 1, CPU)
    images, labels, weak, strong = views = next(batches)
    assert images.shape == weak.shape == strong.shape == (3, 3, 32, 32)
    assert all(label.tolist() in targets.tolist() for label in labels)
    assert not torch.equal(weak, strong)
    before = {name: value.clone() for name, value in loop.model.state_dict().items()}
    averaged = loop.ema.model.state_dict()["head.linear.weight"].clone()
    for _ in range(8):  # passes over 15 images never end
        loop.step(next(batches))
    after = loop.model.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    assert all(not torch.equal(before[name], after[name]) for name, _ in loop.model.named_parameters())
    assert not torch.equal(averaged, loop.ema.model.state_dict()["head.linear.weight"])
    assert loop.send(views)[0].is_contiguous(memory_format=torch.channels_last)


def test_a_view_without_chance_is_the_resized_normalised_image(files: list[Path]) -> None:
    """No operations, no flip, no cutout: Pillow's bilinear resize, then (value / 255 - mean) / std by hand."""
    with Image.open(files[0]) as image:
        view = pillow_view(View(ops=0, flip=False, cutout_ratio=0), size=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
        small = image.resize((32, 32), Image.Resampling.BILINEAR)
        pixels = torch.tensor(list(small.tobytes())).view(32, 32, 3).permute(2, 0, 1)
        mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
        assert torch.allclose(view(image), (pixels / 255 - mean) / std, atol=1e-5)


def test_both_pipelines_cut_out_as_much_at_most(files: list[Path]) -> None:
    with Image.open(files[0]) as image:
        view = pillow_view(replace(View(), ops=0, cutout_ratio=0.5), size=32, mean=(5.0,) * 3, std=(1.0,) * 3)
        holes = [(view(image) == 0).all(0).sum().item() for _ in range(200)]  # a pixel is never the mean colour
    assert 150 <= max(holes) <= 16 * 16


def test_one_image_is_too_few(tmp_path: Path, files: list[Path]) -> None:
    shutil.copy(files[0], tmp_path)
    with pytest.raises(UserError, match="holds one image"):
        run_speed(tmp_path / "speed.json", images=tmp_path, device="cpu", **TINY)


def test_fewer_images_than_a_batch_has_are_enough(tmp_path: Path) -> None:
    found = run_speed(tmp_path / "s.json", parts=["conventional"], device="cpu", **{**TINY, "num_images": 4})
    assert "failed" not in found["parts"]["conventional"]
    assert found["settings"]["num_images"] == 4


def test_if_every_part_fails_the_exit_code_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.PARTS, "labeler", lambda *_: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["run_speed.py", "--parts", "labeler", "--out", str(tmp_path / "s.json")])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 1
    with pytest.raises(UserError, match="is a folder; name a file"):
        run_speed(tmp_path)
