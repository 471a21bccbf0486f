"""Trainings that relabel their pool in rounds: restarts, learning-rate cycles, and resuming at every awkward place."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import TINY, rows
from torch import nn

from percentmatch.data import load_data
from percentmatch.errors import UserError
from percentmatch.methods.rounds import expected_positives
from percentmatch.models import build_classifier
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config
from percentmatch.training import loop as train_module
from percentmatch.training import run as run_module
from percentmatch.training.optim import lr_at
from percentmatch.training.run import Run, RunPool, refresh
from percentmatch.training.start import train
from percentmatch.use.evaluate import score_run

LOOSE = {"positive_uncertainty": 1.0, "negative_uncertainty": 1.0, "negative_threshold": 0.5, "passes": 2}
BASE = replace(TINY, log_every=1, eval_every=0, save_every=3)
CONFIGS = {  # three rounds of 4 steps
    "ups": replace(BASE, method="ups", options={"num_generations": 3, **LOOSE}),
    "curriculum_labeling": replace(BASE, method="curriculum_labeling", options={"share_step": 0.5}),
    "cap": replace(BASE, method="cap", options={"refresh_steps": 4, "warmup_steps": 0}),
}
FITTED = {name: replace(CONFIGS["cap"], method=name) for name in ("mat", "dicap")}  # on the labeled images, as often


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config], Path]:
    """The folder of an undisturbed run, made once for each config."""
    folder = tmp_path_factory.mktemp("rounds")
    made: dict[str, Path] = {}

    def make(config: Config) -> Path:
        key = json.dumps(config.to_dict(), sort_keys=True)
        if key not in made:
            made[key] = folder / str(len(made))
            train(config, made[key])
        return made[key]

    return make


def new_run(config: Config, folder: Path) -> Run:
    """A run at step 0 whose folder can take log rows."""
    folder.mkdir()
    return Run(config, RunFolder(folder), load_data(config), torch.device("cpu"))


def checkpoint(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "last.pt", weights_only=True)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Every tensor and number of a nested state, by its path."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{name}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for n, item in enumerate(value) for k, v in flat(item, f"{name}/{n}").items()}
    return {name: value}


def assert_same_run(one: Path, two: Path) -> None:
    """Bit for bit: log, model and checkpoint, but for the clock and how often it was saved."""
    assert (one / "log.jsonl").read_bytes() == (two / "log.jsonl").read_bytes()
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    first, second = (flat(checkpoint(folder)) for folder in (one, two))
    assert first.keys() == second.keys()
    for name, value in first.items():
        if name not in ("/seconds", "/settings/save_every"):
            assert torch.equal(value, second[name]) if isinstance(value, torch.Tensor) else value == second[name], name
    results = [json.loads((folder / "metrics.json").read_text())["test"] for folder in (one, two)]
    assert results[0] == results[1]


class Killed(Exception):
    """In place of SIGKILL: nothing is saved on the way out."""


def kill_in(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run dies in this step (from 0), after the round that may begin with it."""
    real = train_module.train_step

    def mortal(run: Run, number: int) -> None:
        if number == step:
            raise Killed
        real(run, number)

    monkeypatch.setattr(train_module, "train_step", mortal)


@pytest.mark.parametrize(
    ("save_every", "dies", "saved"),
    [
        (3, 7, 6),  # in the middle of the second round; its refresh row stands in the log and stays
        (4, 6, 4),  # the checkpoint lies exactly between two rounds; the refresh row is written again
        (4, 8, 8),  # at once after the pool was relabeled and the student renewed, saved just before
        (5, 4, None),  # the log already speaks of step 5, whose checkpoint would have been the first
        (9, 10, 9),  # the first step of the third round is saved
    ],
)
@pytest.mark.parametrize("name", [*CONFIGS, *FITTED])
def test_a_killed_run_resumes_to_the_same_end(
    name: str,
    save_every: int,
    dies: int,
    saved: int | None,
    undisturbed: Callable[[Config], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = {**CONFIGS, **FITTED}[name]
    config = replace(whole, save_every=save_every)
    kill_in(dies, monkeypatch)
    with pytest.raises(Killed):
        train(config, tmp_path / "run")
    monkeypatch.undo()
    assert (checkpoint(tmp_path / "run")["step"] if (tmp_path / "run/last.pt").exists() else None) == saved
    train(config, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", undisturbed(whole))


def test_the_log_tells_rounds_and_what_they_selected(undisturbed: Callable[[Config], Path]) -> None:
    for name, config in {**CONFIGS, **FITTED}.items():
        log = rows(undisturbed(config))
        found = [(row["step"], row["restarted"]) for row in log if row["kind"] == "refresh"]
        restarted = name in ("ups", "curriculum_labeling")
        assert found == [(5, restarted), (9, restarted)]
        losses = [row["unlabeled"] for row in log if row["kind"] == "train"]
        assert losses[:4] == [0.0] * 4
        assert all(loss > 0 for loss in losses[4:])


@pytest.mark.parametrize("name", ["ups", "curriculum_labeling"])
def test_a_round_begins_with_another_student_optimizer_and_average(name: str, tmp_path: Path) -> None:
    """No weight matrix of a later generation is that of an earlier one, nor its start."""
    run = new_run(CONFIGS[name], tmp_path / "run")
    seen = [{key: value.clone() for key, value in run.model.named_parameters()}]
    for step in range(12):
        before, optimizer = run.model, run.optimizer
        refresh(run, step)
        if step in (4, 8):
            assert run.model is not before
            assert run.optimizer is not optimizer
            assert not run.optimizer.state
            for key, value in run.ema.model.state_dict().items():
                assert torch.equal(value, run.model.state_dict()[key])
            assert not run.ema.model.training
            assert run.model.training
            held = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
            assert held == {id(p) for p in run.trained} == {id(p) for p in run.model.parameters() if p.requires_grad}
            seen.append({key: value.clone() for key, value in run.model.named_parameters()})
        else:
            assert run.model is before
            assert run.optimizer is optimizer
        train_module.train_step(run, step)
    weight = "head.linear.weight"
    assert len(seen) == 3
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(seen[one][weight], seen[other][weight])
    moved = (run.model.get_parameter(weight) - seen[2][weight]).abs().max()
    assert 0 < moved < 5 * BASE.lr  # four Adam steps from the third start


def test_a_round_without_restart_keeps_the_student(tmp_path: Path) -> None:
    run = new_run(CONFIGS["cap"], tmp_path / "run")
    model, optimizer, average = run.model, run.optimizer, run.ema
    for step in range(5):
        refresh(run, step)
        train_module.train_step(run, step)
    assert (run.model, run.optimizer, run.ema) == (model, optimizer, average)
    assert run.method.round == 1


def test_the_learning_rate_starts_anew_with_each_student_only(undisturbed: Callable[[Config], Path]) -> None:
    """11 steps in 3 generations: 4, 4 and a last one of 3, whose cycle is whole too. CAP has one cycle of 12."""

    def rate(step: int, length: int) -> float:
        return lr_at(step, max_lr=BASE.lr, total_steps=length, warmup_ratio=BASE.lr_warmup_ratio)

    short = undisturbed(replace(CONFIGS["ups"], total_steps=11))
    found = [row["lr"] for row in rows(short) if row["kind"] == "train"]
    assert found == [rate(n, 4) for n in range(4)] * 2 + [rate(n, 3) for n in range(3)]
    found = [row["lr"] for row in rows(undisturbed(CONFIGS["cap"])) if row["kind"] == "train"]
    assert found == [rate(n, 12) for n in range(12)]


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_saved_and_scored_is_the_last_generation(name: str, undisturbed: Callable[[Config], Path]) -> None:
    folder = undisturbed(CONFIGS[name])
    state, saved = checkpoint(folder), load_file(folder / "model.safetensors")
    assert state["step"] == 12
    assert state["method"]["round"] == 2
    assert saved.keys() <= state["ema"].keys()
    assert all(torch.equal(value, state["ema"][key]) for key, value in saved.items())
    counters = [value for key, value in state["model"].items() if key.endswith("num_batches_tracked")]
    assert {int(value) for value in counters} == {12 if name == "cap" else 4}  # steps this student has lived
    steps = {int(entry["step"]) for entry in state["optimizer"]["state"].values()}
    assert steps == {12 if name == "cap" else 4}
    assert (
        score_run(folder, "test").means["mAP"]
        == json.loads((folder / "metrics.json").read_text())["test"]["ema"]["mAP"]
    )


def test_the_pool_is_labeled_at_the_labeled_prevalence(tmp_path: Path) -> None:
    for name in ("cap", "curriculum_labeling"):
        run = new_run(CONFIGS[name], tmp_path / name)
        for step in (4, 8):
            refresh(run, step)
        assert run.method.targets.sum(0).tolist() == expected_positives(run.facts).tolist()
        assert run.method.mask.all()


def test_scores_of_the_pool_come_in_the_order_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of 7, so that the last is short, and against one image at a time; the running norms do not learn."""
    monkeypatch.setattr(run_module, "BATCH", 7)
    run = new_run(CONFIGS["ups"], tmp_path / "run")
    for step in range(3):
        train_module.train_step(run, step)
    state = {key: value.clone() for key, value in run.model.state_dict().items()}
    for who, model in (("student", run.model), ("teacher", run.ema.model)):
        found, none = RunPool(run).probabilities(who)
        assert none is None
        assert found.shape == (50, 10)
        assert model.training == (who == "student")
        with run_module.evaluating(model), torch.no_grad():
            alone = torch.cat([model(image).sigmoid() for image in run.loader.plain_images(run.loader.unlabeled, 1)])
        torch.testing.assert_close(found, alone)
    assert not torch.equal(RunPool(run).probabilities("student")[0], RunPool(run).probabilities("teacher")[0])
    assert all(torch.equal(value, state[key]) for key, value in run.model.state_dict().items())


@pytest.mark.parametrize(("in_backbone", "reads"), [(0.0, 1), (0.3, 3)])
def test_passes_with_dropout_have_a_mean_and_a_deviation(tmp_path: Path, in_backbone: float, reads: int) -> None:
    """Against the passes one by one, from the same seed; another seed draws other ones. No pass is made for nothing."""
    run = new_run(CONFIGS["ups"], tmp_path / "run")
    backbone, calls = run.ema.model.backbone, []
    backbone.layer4.append(nn.Dropout(in_backbone).eval())
    backbone.conv1.register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(5)
    mean, deviation = RunPool(run).probabilities("teacher", dropout_passes=3)
    assert len(calls) == reads
    torch.manual_seed(5)
    with run_module.dropout_on(run.ema.model), torch.no_grad():
        images = next(run.loader.plain_images(run.loader.unlabeled, 50))
        passes = torch.stack([run.ema.model(images).sigmoid() for _ in range(3)]).double()
    torch.testing.assert_close(mean.double(), passes.mean(0))
    torch.testing.assert_close(deviation.double(), (passes - passes.mean(0)).square().mean(0).sqrt(), atol=1e-6, rtol=0)
    assert deviation.max() > 1e-4
    assert not torch.equal(RunPool(run).probabilities("teacher", dropout_passes=3)[0], mean)
    assert not any(module.training for module in run.ema.model.modules())


def test_ups_refuses_a_model_without_dropout_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--dropout 0\.2 with --head linear"):
        train(replace(CONFIGS["ups"], dropout=0.0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_student_that_diverged_does_not_label_the_pool(tmp_path: Path) -> None:
    run = new_run(replace(CONFIGS["cap"], log_every=100), tmp_path / "run")
    with torch.no_grad():
        next(iter(run.model.parameters())).fill_(torch.nan)
    train_module.train_step(run, 3)
    with pytest.raises(UserError, match="not finite in step 4"):
        refresh(run, 4)
    assert run.method.round == 0


def test_a_new_student_starts_from_the_weights_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backbone comes from the file in every generation; a resumed run that will need it says so at once."""
    file = tmp_path / "start.pt"
    start = build_classifier("test_resnet", num_classes=3, image_size=32, head="linear", dropout=0.2).backbone
    torch.save(start.state_dict(), file)
    config = replace(CONFIGS["curriculum_labeling"], weights=str(file))
    run = new_run(config, tmp_path / "first")
    head = run.model.head.linear.weight.clone()
    refresh(run, 4)
    assert isinstance(run.model.backbone, nn.Module)
    for key, value in run.model.backbone.state_dict().items():
        assert torch.equal(value, start.state_dict()[key])
    assert not torch.equal(run.model.head.linear.weight, head)

    kill_in(6, monkeypatch)
    with pytest.raises(Killed):
        train(config, tmp_path / "run")
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(UserError, match=r"weights file .* does not exist"):  # before a step is tried, which would die
        train(config, tmp_path / "run", resume=True)
    monkeypatch.undo()
    file.write_bytes(content)
    assert train(config, tmp_path / "run", resume=True)["step"] == 12


@pytest.mark.parametrize("name", CONFIGS)
def test_one_label_an_image(name: str, tmp_path: Path) -> None:
    metrics = train(replace(CONFIGS[name], task="single-label", save_every=12), tmp_path / "run")
    assert 0 <= metrics["test"]["ema"]["accuracy"] <= 1
    state = checkpoint(tmp_path / "run")["method"]
    assert state["targets"].sum(1).max() <= 1
    assert state["mask"].any()


def test_the_average_follows_the_step_and_is_short_again_for_a_new_student(tmp_path: Path) -> None:
    run = new_run(replace(BASE, method="supervised", options={}), tmp_path / "run")
    start = {name: value.clone() for name, value in run.model.state_dict().items()}
    train_module.train_step(run, 0)
    for name, value in run.model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(run.ema.model.state_dict()[name], 0.1 * start[name] + 0.9 * value)
    run = new_run(CONFIGS["ups"], tmp_path / "ups")
    found = [run.draw(step)["ema_weight"].item() for step in range(12)]
    assert found == pytest.approx([1 - min(BASE.ema_decay, (1 + n) / (10 + n)) for n in range(4)] * 3)


def test_dropout_has_a_seed_of_its_own_in_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seeds = new_run(replace(BASE, method="supervised", options={}), tmp_path / "run"), []
    monkeypatch.setattr(train_module, "update", lambda *_: seeds.append(torch.initial_seed()))
    for step in (0, 1, 0):
        train_module.train_step(run, step)
    assert seeds[0] == seeds[2] != seeds[1]


@pytest.mark.parametrize("method", ["percentmatch", "adamatch"])
def test_a_step_that_broke_off_between_its_parts_leaves_nothing(method: str, tmp_path: Path, monkeypatch) -> None:
    """As a capture that fails does; the step is then made again."""
    options = {"warmup_steps": 0} if method == "percentmatch" else {}
    config = replace(BASE, method=method, options=options, accumulate=2)
    whole, broken = (new_run(config, tmp_path / name) for name in ("whole", "broken"))
    train_module.train_step(whole, 0)
    forward, calls = type(broken.method).forward, []

    def fail_once(self, *args):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no memory left")
        return forward(self, *args)

    monkeypatch.setattr(type(broken.method), "forward", fail_once)
    with pytest.raises(RuntimeError, match="no memory left"):
        train_module.train_step(broken, 0)
    train_module.train_step(broken, 0)
    found, wanted = broken.method.state_dict(), whole.method.state_dict()
    assert wanted
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)
