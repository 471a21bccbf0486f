"""The pretraining: its loss, what it learns and from which images, its folder, exact resume, and grids that use it."""

import json
import math
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import TINY, rows, save_scenes
from torch import Tensor
from torch.nn import functional as F

from percentmatch.cli import main as cli
from percentmatch.console.signals import Stopped
from percentmatch.data import Data, load_data, split_data
from percentmatch.data.labels import Labels
from percentmatch.errors import Diverged, UserError
from percentmatch.models import build_classifier
from percentmatch.runs.run_folder import PretrainFolder, RunFolder
from percentmatch.settings.config import Config, DataSettings, PretrainSettings
from percentmatch.settings.declare import given_in
from percentmatch.training import loop, resolve
from percentmatch.training import pretraining as module
from percentmatch.training.optim import lr_at
from percentmatch.training.pretraining import Pretraining, nt_xent
from percentmatch.training.run import Run
from percentmatch.training.start import pretrain, train
from percentmatch.use import grid as benchmark

BRIEF = PretrainSettings(
    scenes_pool=60,
    scenes_test=10,
    validation=20,
    backbone="test_resnet",
    image_size=32,
    batch=16,
    total_steps=6,
    log_every=2,
    save_every=4,
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed pretraining."""
    folder = tmp_path_factory.mktemp("pretrained") / "whole"
    pretrain(BRIEF, folder)
    return folder


def test_the_loss_by_hand() -> None:
    """Two images along the axes; both views of the first point along x, those of the second along y.

    Each view sees its partner at cosine 1 and two others at 0: -log(e^(1/t) / (e^(1/t) + 2)) = log(1 + 2 e^(-1/t)).
    Lengths do not matter. With the second views swapped, the partner is one of those at 0: log(e^(1/t) + 2).
    """
    one, other = torch.tensor([[3.0, 0.0], [0.0, 0.5]]), torch.tensor([[0.2, 0.0], [0.0, 7.0]])
    assert nt_xent(one, other, 0.5).item() == pytest.approx(math.log(1 + 2 * math.exp(-2)), rel=1e-6)
    assert nt_xent(one, other.flip(0), 0.5).item() == pytest.approx(math.log(math.exp(2) + 2), rel=1e-6)


def slow(one: list[list[float]], other: list[list[float]], temperature: float) -> float:
    """Equation 1 of Chen et al., view by view, without tensors."""
    views, n = one + other, len(one)

    def similar(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    losses = []
    for i, view in enumerate(views):
        weights = {k: math.exp(similar(view, views[k]) / temperature) for k in range(2 * n) if k != i}
        losses.append(-math.log(weights[(i + n) % (2 * n)] / sum(weights.values())))
    return sum(losses) / (2 * n)


def test_the_loss_against_a_slow_one() -> None:
    draw = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 7, 5, generator=draw).unbind()
    assert nt_xent(one, other, 0.2).item() == pytest.approx(slow(one.tolist(), other.tolist(), 0.2), rel=1e-5)
    half = nt_xent(one.bfloat16(), other.bfloat16(), 0.2)
    assert half.dtype == torch.float32


def alike(pretrained: Pretraining) -> float:
    """How much more alike, by cosine, two views of an image are than those of different images; on new views."""
    drawn = pretrained.draw(10_000)
    with torch.no_grad():
        unit = F.normalize(pretrained.model(pretrained.loader.make(drawn, drawn)), dim=1)
    similar = unit @ unit.T
    n = len(unit) // 2
    same = similar.diagonal(n)
    return float(same.mean() - (similar.sum() - 2 * n - 2 * same.sum()) / (4 * n * n - 4 * n))


def pretraining(settings: PretrainSettings, folder: Path, data: Data) -> Pretraining:
    config = replace(settings.as_config(), images_on="device", precision="float32")
    return Pretraining(settings, config, PretrainFolder(folder), data, torch.device("cpu"))


def test_views_of_an_image_become_alike(tmp_path: Path) -> None:
    settings = replace(BRIEF, total_steps=16, view=replace(BRIEF.view, ops=4, jitter=0.0))  # colours do it soon
    pretrained = pretraining(settings, tmp_path, load_data(settings.as_config()))
    before = alike(pretrained)
    for step in range(16):
        loop.train_step(pretrained, step)
    assert alike(pretrained) > before + 0.08


def test_a_step_draws_two_views_of_the_images_in_turn(tmp_path: Path) -> None:
    """40 images, 16 a step: five steps see each image twice. Seed and step decide everything."""
    data = load_data(BRIEF.as_config())
    pretrained, other = (pretraining(replace(BRIEF, seed=s), tmp_path, data) for s in (0, 1))
    drawn = [pretrained.draw(step) for step in range(5)]
    for each in drawn:
        first, second = each["rows"].chunk(2)
        assert torch.equal(first, second)
        assert not torch.equal(*each["plan.matrix"].chunk(2))
    seen = torch.cat([each["rows"][:16] for each in drawn])
    assert seen.bincount(minlength=60).nonzero().flatten().tolist() == pretrained.loader.rows.tolist()
    assert seen.bincount().unique().tolist() == [0, 2]
    again = pretrained.draw(3)
    assert all(torch.equal(again[name], value) for name, value in drawn[3].items())
    assert not torch.equal(other.draw(3)["rows"], drawn[3]["rows"])
    assert not torch.equal(drawn[3]["plan.matrix"], drawn[2]["plan.matrix"])


def test_the_projector_and_the_defaults_are_those_that_were_measured() -> None:
    settings = PretrainSettings()
    model = module.Embedder("test_resnet", 32, torch.device("cpu"))
    layers = [type(layer).__name__ for layer in model.project]
    assert layers == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    shapes = [tuple(each.shape) for each in model.project.parameters()]
    assert shapes == [(2048, model.backbone.num_features), (2048,), (2048,), (256, 2048)]
    assert (settings.batch, settings.image_size, settings.temperature) == (256, 128, 0.2)
    assert settings.as_config().decode_size == 256
    assert (settings.lr, settings.weight_decay, settings.as_config().optimizer) == (1e-3, 0.05, "adamw")
    assert (settings.view.ops, settings.view.jitter) == (2, 0.5)
    assert (settings.view.crop_scale, settings.view.cutout_ratio) == (0.15, 0.0)


def test_what_it_leaves_behind(pretrained: Path) -> None:
    result = json.loads((pretrained / "pretrain.json").read_text())
    assert (result["images"], result["steps"]) == (40, 6)
    assert result["split"] == json.loads((pretrained / "split.json").read_text())["digest"]
    assert result["environment"]["torch"] == torch.__version__
    log = rows(pretrained)
    assert [row["step"] for row in log] == [2, 4, 6]
    assert result["loss"] == log[-1]["loss"]
    rates = [lr_at(row["step"] - 1, max_lr=1e-3, total_steps=6, warmup_ratio=0.1) for row in log]
    assert [row["lr"] for row in log] == pytest.approx(rates)
    assert PretrainFolder(pretrained).read_settings() == replace(
        BRIEF, data="scenes", device="cpu", split_kind="random"
    )
    assert yaml.safe_load((pretrained / "pretrain.yaml").read_text())["given"] == given_in(BRIEF)
    assert {file.name for file in pretrained.iterdir()} == {
        *("pretrain.yaml", "split.json", "environment.json", "log.jsonl", "last.pt", "backbone.safetensors"),
        "pretrain.json",
    }


def test_training_starts_from_the_backbone(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = pretrained / "backbone.safetensors"
    learnt = load_file(file)
    assert {value.dtype for value in learnt.values()} == {torch.float32, torch.int64}
    state = torch.load(pretrained / "last.pt", weights_only=True)["model"]
    assert all(torch.equal(value, state[f"backbone.{name}"]) for name, value in learnt.items())
    started: dict[str, Tensor] = {}

    def look(run: Run, step: int) -> None:
        started.update(run.model.backbone.state_dict())
        raise Stopped("seen", signal.SIGINT)

    monkeypatch.setattr(loop, "train_step", look)
    with pytest.raises(Stopped):
        train(replace(TINY, weights=str(file)), tmp_path / "run")
    assert started.keys() == learnt.keys()
    assert all(torch.equal(value, learnt[name]) for name, value in started.items())
    fresh = build_classifier("test_resnet", num_classes=1, head="linear").backbone.state_dict()
    assert not any(torch.equal(learnt[name], fresh[name]) for name in learnt if name.endswith("conv1.weight"))


def test_a_backbone_of_a_fixed_size_serves_another(tmp_path: Path) -> None:
    pretrain(replace(BRIEF, backbone="test_vit", total_steps=1), tmp_path / "pretrained")
    file = tmp_path / "pretrained" / "backbone.safetensors"
    model = build_classifier("test_vit", num_classes=3, head="linear", image_size=64, weights=str(file))
    name = "blocks.0.attn.qkv.weight"
    assert torch.equal(model.backbone.state_dict()[name], load_file(file)[name])


def test_neither_labels_nor_images_set_apart_are_used(pretrained: Path, tmp_path: Path) -> None:
    """Other labels, other validation and test pictures, other images labeled: the same backbone."""
    data = load_data(BRIEF.as_config())
    apart = data.pool.rows(split_data(BRIEF, data).validation)
    pixels = data.pool.pixels.clone()
    pixels[apart] = 255 - pixels[apart]
    pool = replace(data.pool, pixels=pixels, labels=Labels.of(1 - data.pool.labels.targets.dense()))
    test = replace(data.test, pixels=255 - data.test.pixels)
    pretrain(replace(BRIEF, labeled=15), tmp_path / "other", data=Data(pool, test))
    assert (tmp_path / "other/backbone.safetensors").read_bytes() == (pretrained / "backbone.safetensors").read_bytes()
    pixels[data.pool.rows(split_data(BRIEF, data).unlabeled or split_data(BRIEF, data).labeled)[0]] = 0
    pretrain(BRIEF, tmp_path / "seen", data=Data(replace(pool, pixels=pixels), test))
    assert (tmp_path / "seen/backbone.safetensors").read_bytes() != (pretrained / "backbone.safetensors").read_bytes()


def test_images_kept_on_the_host_make_the_same_views(pretrained: Path, tmp_path: Path, monkeypatch) -> None:
    on_host = {"images_on": "host", "device": "cpu", "precision": "float32"}
    monkeypatch.setattr(resolve, "for_machine", lambda config, _: replace(config, **on_host))
    pretrain(BRIEF, tmp_path / "host")
    assert (tmp_path / "host/backbone.safetensors").read_bytes() == (pretrained / "backbone.safetensors").read_bytes()


@pytest.mark.parametrize("step", [3, 5])
def test_a_stopped_pretraining_resumes_exactly(
    step: int, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between log rows, before the first checkpoint was due and after it."""
    folder, real = tmp_path / "again", loop.train_step

    def noisy(state: Pretraining, number: int) -> None:
        real(state, number)
        if number + 1 == step:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "train_step", noisy)
    with pytest.raises(Stopped, match=f"stopped at step {step} of 6; continue with --out .*again --resume") as stopped:
        pretrain(BRIEF, folder)
    assert stopped.value.number == signal.SIGTERM
    monkeypatch.undo()
    assert not (folder / "pretrain.json").exists()
    assert torch.load(folder / "last.pt", weights_only=True)["step"] == step
    with open(folder / "log.jsonl", "a") as log:
        log.write('{"step": 6, "lo')  # torn
    result = pretrain(BRIEF, folder, resume=True)
    assert result["loss"] == json.loads((pretrained / "pretrain.json").read_text())["loss"]
    for name in ("backbone.safetensors", "log.jsonl"):
        assert (folder / name).read_bytes() == (pretrained / name).read_bytes()


def test_a_finished_pretraining_is_not_repeated_and_a_lost_result_is_written_again(
    pretrained: Path, tmp_path: Path
) -> None:
    before = (pretrained / "last.pt").stat().st_mtime_ns, (pretrained / "pretrain.json").read_bytes()
    assert pretrain(BRIEF, pretrained, resume=True) == json.loads(before[1])
    assert ((pretrained / "last.pt").stat().st_mtime_ns, (pretrained / "pretrain.json").read_bytes()) == before
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in pretrained.iterdir():
        if file.name not in ("pretrain.json", "backbone.safetensors"):
            (copy / file.name).write_bytes(file.read_bytes())
    assert pretrain(BRIEF, copy, resume=True)["loss"] == json.loads(before[1])["loss"]
    assert (copy / "backbone.safetensors").read_bytes() == (pretrained / "backbone.safetensors").read_bytes()
    (copy / "pretrain.json").unlink()
    (copy / "last.pt").write_bytes(b"nothing")
    with pytest.raises(UserError, match="not a readable checkpoint"):
        pretrain(BRIEF, copy, resume=True)
    torch.save({"step": 3}, copy / "last.pt")
    with pytest.raises(UserError, match=r"last\.pt' is the checkpoint of another model or method"):
        pretrain(BRIEF, copy, resume=True)


def test_what_is_refused(pretrained: Path, tmp_path: Path) -> None:
    """One sentence each, and nothing is written."""
    new = tmp_path / "new"
    with pytest.raises(UserError, match="--batch 41 asks for more images than the 40 there are"):
        pretrain(replace(BRIEF, batch=41), new)
    with pytest.raises(UserError, match="unknown backbone 'test_resnt'"):
        pretrain(replace(BRIEF, backbone="test_resnt"), new)
    assert not new.exists()
    with pytest.raises(UserError, match="already holds a pretraining; continue it with --resume"):
        pretrain(BRIEF, pretrained)
    with pytest.raises(UserError, match=r"was begun with temperature=0\.2, not 0\.5"):
        pretrain(replace(BRIEF, temperature=0.5), pretrained, resume=True)
    with pytest.raises(UserError, match=r"holds no pretraining \(it has no pretrain\.yaml\)"):
        pretrain(BRIEF, tmp_path, resume=True)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        pretrain(BRIEF, tmp_path)
    for wrong in ({"batch": 1}, {"temperature": 0.0}, {"lr": 0.0}, {"lr": math.nan}, {"view": {"ops": 40}}):
        with pytest.raises(UserError, match=f"{min(wrong.get('view', wrong))} must "):
            PretrainSettings.from_dict(wrong)


def test_a_loss_that_is_not_finite_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From step 4 on, before a log row is due; the checkpoint of step 2 is kept and what follows is not saved."""
    real, calls = module.nt_xent, []

    def broken(*views: object) -> Tensor:
        calls.append(views)
        return real(*views) * (math.nan if len(calls) >= 4 else 1)

    monkeypatch.setattr(module, "nt_xent", broken)
    sentence = (
        r"^loss and gradient norm not finite in step 4; '.*last\.pt' holds the last good state, "
        "begin in another --out with a lower --lr$"
    )
    with pytest.raises(Diverged, match=sentence):
        pretrain(replace(BRIEF, log_every=6, save_every=2), tmp_path / "pretrained")
    assert torch.load(tmp_path / "pretrained/last.pt", weights_only=True)["step"] == 2
    assert not (tmp_path / "pretrained/backbone.safetensors").exists()


def test_the_callers_draws_go_on(tmp_path: Path) -> None:
    torch.manual_seed(7)
    wanted = torch.rand(2)
    torch.manual_seed(7)
    first = torch.rand(1)
    pretrain(replace(BRIEF, total_steps=1), tmp_path / "pretrained")
    assert torch.equal(torch.cat([first, torch.rand(1)]), wanted)


def tokens(settings: PretrainSettings, *names: str) -> list[str]:
    return [part for name in names for part in (f"--{name.replace('_', '-')}", str(getattr(settings, name)))]


def test_the_command(pretrained: Path, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Flags above a file; resumed without any; a refusal is one line and exit code 2."""
    file, out = tmp_path / "pretrained.yaml", str(tmp_path / "out")
    values = {name: value for name, value in BRIEF.to_dict().items() if name not in ("data", "batch", "validation")}
    file.write_text(yaml.safe_dump({**values, "seed": 5}))
    flags = tokens(BRIEF, "batch", "validation", "data", "seed")
    cli.run(["pretrain", "--out", out, "--config", str(file), *flags])
    printed = capsys.readouterr().out
    assert "40 images  6 steps  loss " in printed
    assert f"--weights {out}/backbone.safetensors" in printed
    assert (tmp_path / "out/backbone.safetensors").read_bytes() == (pretrained / "backbone.safetensors").read_bytes()
    cli.run(["pretrain", "--out", out, "--resume"])
    assert "40 images" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["percentmatch", "pretrain", "--out", out, "--resume", "--view.ops", "1"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


GRID = (
    "settings: {scenes_pool: 60, scenes_test: 20, validation: 20, labeled: 20, image_size: 32, backbone: test_resnet, "
    "head: linear, labeled_batch: 4, total_steps: 1, method: supervised}\n"
    "pretraining: {image_size: 32, batch: 8, total_steps: 2}\n"
)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    file = tmp_path / "grid.yaml"
    file.write_text(GRID + "runs: {a: {}, scratch: {weights: none}}\nseeds: [0, 1]")
    return file


def call(file: Path, *more: str) -> list[dict]:
    out = file.parent / "out"
    cli.run(["benchmark", str(file), "--out", str(out), *more])
    return json.loads((out / "results.json").read_text())["runs"]


def test_a_grid_makes_one_pretraining_a_seed(grid: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    runs, out = call(grid), grid.parent / "out"
    assert {path.name for path in out.glob("pretraining*")} == {"pretraining-seed0", "pretraining-seed1"}
    assert "without the pretrainings, which took 0." in capsys.readouterr().out
    for run in runs:
        start = out / f"pretraining-seed{run['seed']}"
        result = json.loads((start / "pretrain.json").read_text())
        if run["group"] == "scratch":
            assert run["settings"]["weights"] == "none"
            assert "pretraining_minutes" not in run
        else:
            assert run["settings"]["weights"] == str(start / "backbone.safetensors")
            assert run["pretraining_minutes"] == result["minutes"]
            assert run["split"] == result["split"]
    settings = [PretrainFolder(out / f"pretraining-seed{seed}").read_settings() for seed in (0, 1)]
    assert [(each.seed, each.split_seed, each.backbone, each.batch) for each in settings] == [
        (0, 0, "test_resnet", 8),
        (1, 1, "test_resnet", 8),
    ]

    monkeypatch.chdir(grid.parent)  # another way to write the same folder, then another folder

    def never(*_: object, **__: object) -> None:
        raise AssertionError("finished")

    monkeypatch.setattr(benchmark, "train", never)
    monkeypatch.setattr(benchmark, "pretrain", never)
    cli.run(["benchmark", "grid.yaml", "--out", "out"])
    moved = out.rename(grid.parent / "moved")
    cli.run(["benchmark", "grid.yaml", "--out", "moved"])
    assert json.loads((moved / "results.json").read_text())["runs"] == runs
    plan = [benchmark._from_pretraining(each, moved) for each in benchmark.read_grid(grid, {})]
    assert all(Path(each.config.weights).exists() for each in plan if each.start)  # for a run that goes on

    grid.write_text(grid.read_text().replace("batch: 8", "batch: 9"))
    with pytest.raises(UserError, match=r"run 'a-seed0': .*pretraining-seed0' was begun with batch=8, not 9"):
        cli.run(["benchmark", "grid.yaml", "--out", "moved"])


def test_a_broken_pretraining_of_a_grid_goes_on_and_minutes_hold_for_it(grid: Path, monkeypatch, capsys) -> None:
    grid.write_text(GRID + "runs: {a: {}, b: {lr: 0.001}}")
    real = benchmark.pretrain
    calls = []

    def watched(settings: PretrainSettings, path: Path, *, resume: bool) -> dict:
        calls.append((path.name, resume))
        if len(calls) == 1:
            path.mkdir(parents=True)
            (path / "pretrain.yaml").write_text(yaml.safe_dump(settings.to_dict()))
            raise Stopped("stopped", signal.SIGINT)
        return real(settings, path, resume=resume)

    monkeypatch.setattr(benchmark, "pretrain", watched)
    with pytest.raises(Stopped):
        call(grid)
    assert not call(grid, "--minutes", "1e-9")  # the pretraining only
    assert "2 of 2 runs are left" in capsys.readouterr().out
    assert [run["group"] for run in call(grid, "--minutes", "1e-9")] == ["a"]
    assert len(call(grid)) == 2
    assert calls == [("pretraining-seed0", False), ("pretraining-seed0", True)]


def test_a_diverged_pretraining_ends_its_runs_and_not_the_grid(grid: Path, monkeypatch, capsys) -> None:
    """Seed 0 diverges in its first step: both runs that need it are told of, it is tried once, the other four go on."""
    grid.write_text(GRID + "runs: {a: {}, b: {lr: 0.001}, scratch: {weights: none}}\nseeds: [0, 1]")
    real, tried = benchmark.pretrain, []

    def broken(settings: PretrainSettings, path: Path, *, resume: bool) -> dict:
        tried.append(path.name)
        with monkeypatch.context() as patch:
            if settings.seed == 0:
                patch.setattr(module, "nt_xent", lambda one, *_: one.sum() * math.nan)
            return real(settings, path, resume=resume)

    monkeypatch.setattr(benchmark, "pretrain", broken)
    with pytest.raises(UserError, match=r"^a-seed0, b-seed0: training diverged; 4 other runs are in the results$"):
        call(grid)
    assert tried == ["pretraining-seed0", "pretraining-seed1"]
    said = capsys.readouterr().err
    for name in ("a", "b"):
        assert f"{name}-seed0: loss and gradient norm not finite in step 1; begin in another" in said
    runs = json.loads((grid.parent / "out" / "results.json").read_text())["runs"]
    assert [(run["group"], run["seed"]) for run in runs] == [("scratch", 0), ("a", 1), ("b", 1), ("scratch", 1)]
    monkeypatch.setattr(benchmark, "pretrain", real)
    assert len(call(grid)) == 6  # the same command goes on


def test_training_takes_the_backbone_that_a_weights_file_names(tmp_path: Path, capsys) -> None:
    """`pretrain` prints the way on, and that command works: no --backbone is needed, and a wrong one is named."""
    lines = [f"{name},{'cat' if sum(shown) else 'dog'}" for name, shown in save_scenes(tmp_path, 24, 0)]
    labels = tmp_path / "photos" / "labels.csv"
    labels.write_text("\n".join(["image,labels", *lines, ""]))
    data = ["--labels", str(labels), "--device", "cpu"]
    brief = ["--backbone", "test_resnet", "--total-steps", "1"]
    cli.run(["pretrain", *data, *brief, "--out", str(tmp_path / "pretrained")])
    said = capsys.readouterr()
    assert "chosen for 22 images (flags change it):\n  test_resnet, 32 pixels, 1 steps of 16 images" in said.err
    weights = said.out.split("--weights ")[1].split()
    cli.run(["train", *data, "--out", str(tmp_path / "run"), "--total-steps", "1", "--weights", *weights])
    assert f"backbone test_resnet, as {weights[0]} says" in capsys.readouterr().err
    config = RunFolder(tmp_path / "run").read_config()
    assert (config.backbone, config.weights) == ("test_resnet", weights[0])
    model = str(tmp_path / "run" / "model.safetensors")  # a whole classifier names its backbone, too
    given = {
        "labels": str(labels),
        "device": "cpu",
        "weights": model,
        "total_steps": 1,
        "image_size": 32,
        "method": "supervised",
    }
    train(Config(**given, head="linear", labeled_batch=8), tmp_path / "next")
    assert RunFolder(tmp_path / "next").read_config().backbone == "test_resnet"
    with pytest.raises(UserError, match=r"does not fit this backbone: .* \(the file is of test_resnet; leave --backb"):
        train(Config(**given, backbone="resnet18"), tmp_path / "other")


def test_runs_on_other_data_or_backbones_have_their_own_pretraining(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(GRID + "runs: {a: {}, b: {backbone: test_vit}, c: {lr: 0.1}}\ngrid: {validation: [20, 10]}")
    plan = {planned.name: planned.start for planned in benchmark.read_grid(file)}
    names = {name: pretrained.name for name, pretrained in plan.items() if pretrained}
    assert names == {
        "a-validation=20-seed0": "pretraining-seed0",
        "b-validation=20-seed0": "pretraining-b-validation=20-seed0",
        "c-validation=20-seed0": "pretraining-seed0",
        "a-validation=10-seed0": "pretraining-a-validation=10-seed0",
        "b-validation=10-seed0": "pretraining-b-validation=10-seed0",
        "c-validation=10-seed0": "pretraining-a-validation=10-seed0",
    }


def test_without_validation_images_a_pretraining_serves_any_number_of_labels(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(GRID.replace("validation: 20", "validation: 0") + "runs: {a: {}}\ngrid: {labeled: [20, 10]}")
    one, other = benchmark.read_grid(file)
    assert one.start == other.start
    assert (one.config.labeled, other.config.labeled) == (20, 10)
    file.write_text(GRID + "runs: {a: {}}\ngrid: {labeled: [20, 10]}")  # which images are set apart depends on them
    one, other = benchmark.read_grid(file)
    assert one.start != other.start


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("runs: {a: {}}\npretraining: 3", "pretraining must hold names and values"),
        ("runs: {a: {}}\npretraining: {bach: 3}", "unknown setting 'bach'; did you mean 'batch'?"),
        ("runs: {a: {}}\npretraining: {root: x}", "pretraining: root is that of the runs"),
        ("runs: {a: {}}\npretraining: {seed: 3}", "pretraining: seed is that of the runs"),
        ("runs: {a: {weights: pretrained}}\npretraining: {}", "every run has weights of its own"),
        ("runs: {pretraining: {}}\npretraining: {}", "two runs would share the folder pretraining-seed0"),
    ],
)
def test_an_odd_pretraining_of_a_grid_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as refused:
        benchmark.read_grid(file)
    assert str(refused.value).startswith(str(file))
    assert sentence in str(refused.value)


def test_every_data_setting_of_a_run_reaches_its_pretraining() -> None:
    assert {each for each in DataSettings().to_dict()} <= set(benchmark.OF_THE_RUN)
    assert not {"log_every", "save_every"} & set(benchmark.OF_THE_RUN)  # each has its own


@pytest.mark.gpu
def test_a_captured_pretraining_learns_and_resumes_exactly(tmp_path: Path, monkeypatch, capfd) -> None:
    settings = replace(BRIEF, device="cuda", deterministic=True, total_steps=12)
    pretrain(settings, tmp_path / "whole")
    assert "cannot be captured" not in capfd.readouterr().err
    real = loop.train_step

    def noisy(state: Pretraining, number: int) -> None:
        real(state, number)
        if number == 6:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "train_step", noisy)
    with pytest.raises(Stopped):
        pretrain(settings, tmp_path / "again")
    monkeypatch.undo()
    pretrain(settings, tmp_path / "again", resume=True)
    for name in ("backbone.safetensors", "log.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
