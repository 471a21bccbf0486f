"""Short real trainings: what a run leaves behind and what its settings do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from tiny import TINY, on_a_cpu, rows, weights

from near import assert_near
from percentmatch.data import Data, Images, load_data
from percentmatch.data.labels import Labels
from percentmatch.errors import UserError
from percentmatch.methods import METHODS, uses_unlabeled
from percentmatch.methods.weak_to_strong import WeakToStrong
from percentmatch.records import Facts, Task
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config
from percentmatch.settings.declare import given_in
from percentmatch.training import loop as train_module
from percentmatch.training import run as run_module
from percentmatch.training.optim import build_optimizer
from percentmatch.training.run import Run
from percentmatch.training.start import train
from percentmatch.use.evaluate import score_run


def test_a_run_leaves_the_files_that_the_contract_names(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names == {
        "config.yaml",
        "split.json",
        "environment.json",
        "log.jsonl",
        "last.pt",
        "model.safetensors",
        "metrics.json",
    }
    assert RunFolder(whole).read_config() == on_a_cpu(TINY)
    assert yaml.safe_load((whole / "config.yaml").read_text())["given"] == given_in(TINY)
    kinds = [(row["step"], row["kind"]) for row in rows(whole)]
    assert kinds == [(0, "start"), (4, "train"), (6, "validation"), (8, "train"), (12, "train"), (12, "validation")]
    classes = rows(whole)[-2]["classes"]
    wanted = {
        "upper",
        "lower",
        "gap",
        "weights",
        "positive_rate",
        "negative_rate",
        "positives_right",
        "negatives_right",
    }
    assert wanted <= classes.keys()
    assert all(len(values) == 10 for values in classes.values())


@pytest.mark.parametrize(
    ("method", "warmup"), [("priormatch", 7), ("dash", 6), ("cap", 0), ("priormatch", 6), ("dash", 5)]
)
def test_a_warm_up_of_the_whole_run_is_said(method: str, warmup: int, tmp_path: Path, capsys) -> None:
    options = {"warmup_steps": warmup} | ({"refresh_steps": 6} if method == "cap" else {})
    train(replace(TINY, method=method, options=options, total_steps=6, log_every=1), tmp_path / "run")
    said = f"{method} starts using unlabeled images after 6 steps, but the run has only 6; lower --option"
    more = " or refresh_steps" if method == "cap" else ""
    never = f"{said} warmup_steps{more}, or raise --total-steps" in capsys.readouterr().err
    learnt = [row["unlabeled"] > 0 for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert learnt == [False] * 5 + [not never]
    assert never == ((method, warmup) not in (("priormatch", 6), ("dash", 5)))


def test_the_saved_model_scores_what_the_run_reported(whole: Path) -> None:
    metrics = json.loads((whole / "metrics.json").read_text())
    assert score_run(whole, "test").means["mAP"] == metrics["test"]["ema"]["mAP"]
    assert score_run(whole, "validation").means["AUC"] == metrics["validation"]["ema"]["AUC"]
    assert metrics["test"]["ema"] != metrics["test"]["model"]


def test_another_seed_is_another_run(whole: Path, tmp_path: Path) -> None:
    train(replace(TINY, seed=1, total_steps=4, save_every=4), tmp_path / "other")
    assert rows(tmp_path / "other")[1]["loss"] != rows(whole)[1]["loss"]


def test_bfloat16_training_is_finite(tmp_path: Path) -> None:
    """One step on a CPU, where it is slow; float32 gives almost the same loss."""
    config = replace(TINY, total_steps=1, labeled_batch=2, save_every=1, log_every=1, method="supervised", options={})
    for precision in ("float32", "bfloat16"):
        train(replace(config, precision=precision), tmp_path / precision)
    losses = [rows(tmp_path / precision)[1]["loss"] for precision in ("float32", "bfloat16")]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_prior_logits_are_the_frequencies(task: Task) -> None:
    """3 of 8, 0 of 8 and the only known label: Laplace's rule gives 4/10, 1/10 and 2/3; a softmax shares them out."""
    logits = Facts(torch.tensor([3.0, 0.0, 1.0]), torch.tensor([8.0, 8.0, 1.0]), 8, 10, 10).prior_logits(task)
    wanted = torch.tensor([0.4, 0.1, 2 / 3])
    if task == "multi-label":
        torch.testing.assert_close(logits.sigmoid(), wanted)
    else:
        torch.testing.assert_close(logits.softmax(0), wanted / wanted.sum())


def test_a_head_that_starts_at_the_frequencies_begins_with_a_smaller_loss(tmp_path: Path) -> None:
    """Scenes have few of ten kinds an image, so a head that starts at one half begins far off."""
    first = {}
    for start in ("random", "prior"):
        config = replace(TINY, method="supervised", options={"loss": "bce"}, head="linear", head_start=start)
        train(replace(config, total_steps=1, eval_every=1, save_every=1, log_every=1), tmp_path / start)
        first[start] = next(row["loss"] for row in rows(tmp_path / start) if row["kind"] == "train")
    assert first["prior"] < 0.9 * first["random"]


def test_weight_decay_spares_biases() -> None:
    """AdamW without gradient: a weight of 1 shrinks by lr * decay = .05, a bias does not."""
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(1.0), layer.bias.fill_(1.0)
    config = replace(TINY, optimizer="adamw", weight_decay=0.1, lr=0.5)
    optimizer = build_optimizer(layer, config, torch.device("cpu"))
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert layer.weight.flatten().tolist() == pytest.approx([0.95] * 4)
    assert layer.bias.tolist() == [1.0, 1.0]


def test_clip_grad_reaches_the_gradients(tmp_path: Path) -> None:
    """The gradients a step leaves behind have at most the norm asked for; without clipping they have more."""
    norms = {}
    for clip in (0.0, 0.01):
        run = Run(replace(TINY, clip_grad=clip), RunFolder(tmp_path / "none"), load_data(TINY), torch.device("cpu"))
        train_module.train_step(run, 0)
        norms[clip] = torch.nn.utils.get_total_norm([p.grad for p in run.trained]).item()
    assert norms[0.01] <= 0.0101 < norms[0.0]


def test_data_given_in_python(tmp_path: Path) -> None:
    data = load_data(TINY)
    metrics = train(TINY, tmp_path / "run", data=data)
    assert score_run(tmp_path / "run", data=data).means["mAP"] == metrics["test"]["ema"]["mAP"]
    with pytest.raises(UserError, match="given in Python"):
        score_run(tmp_path / "run")


def test_accumulation_sees_the_same_images_and_about_the_same_gradient(tmp_path: Path) -> None:
    """A backbone without BatchNorm and dropout: two halves of the batch give the step of the whole one."""
    config = replace(
        TINY,
        method="supervised",
        options={},
        backbone="test_vit",
        dropout=0.0,
        total_steps=3,
        save_every=3,
        image_size=160,
    )
    for accumulate in (1, 2):
        train(replace(config, accumulate=accumulate), tmp_path / str(accumulate))
    one, two = weights(tmp_path / "1"), weights(tmp_path / "2")
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-2, atol=2e-4)


def test_single_label_training_runs_through_the_same_labelers(tmp_path: Path) -> None:
    metrics = train(replace(TINY, task="single-label"), tmp_path / "single")
    assert 0 <= metrics["test"]["ema"]["accuracy"] <= 1
    assert rows(tmp_path / "single")[-2]["unlabeled"] >= 0


def test_training_learns(tmp_path: Path) -> None:
    """Sixty supervised steps on 450 labels lift validation mAP well above the mean prevalence of 0.2."""
    config = replace(
        TINY,
        method="supervised",
        options={},
        scenes_pool=600,
        labeled=450,
        validation=150,
        labeled_batch=64,
        total_steps=60,
        lr=1e-2,
        dropout=0.0,
        ema_decay=0.9,
    )
    config = replace(config, labeled_view=replace(config.labeled_view, ops=0, cutout_ratio=0.0))
    assert train(config, tmp_path / "learn")["validation"]["ema"]["mAP"] > 0.3


def test_a_loss_that_is_not_finite_stops_with_step_and_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(run_module.Loader):
        def make(self, drawn: dict, sent: dict, micro: int = 0):
            batch = super().make(drawn, sent, micro)
            return replace(batch, images=batch.images * torch.nan) if sent["step"] == 7 else batch

    monkeypatch.setattr(run_module, "Loader", Broken)
    with pytest.raises(UserError, match=r"supervised loss.* not finite in step 8; .*last\.pt' holds"):
        train(TINY, tmp_path / "run")
    kept = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert kept["step"] == 5
    assert all(value.isfinite().all() for value in kept["model"].values())


@pytest.mark.gpu
def test_a_training_step_on_a_gpu_never_waits(tmp_path: Path) -> None:
    """Steps between log rows run with synchronisation forbidden."""
    config = replace(TINY, device="cuda", total_steps=30, log_every=30, eval_every=0, save_every=30)
    run = Run(config, RunFolder(tmp_path / "run"), load_data(config), torch.device("cuda"))
    for step in range(8):
        if step == 3:
            torch.cuda.set_sync_debug_mode("error")
        try:
            train_module.train_step(run, step)
        except RuntimeError:
            torch.cuda.set_sync_debug_mode("default")
            raise
    torch.cuda.set_sync_debug_mode("default")
    train_module.check_finite(run)


SELECTS: dict[str, dict] = {  # options with which a method uses unlabeled images within 50 steps
    "percentmatch": {"warmup_steps": 5, "gap_start": -1.0, "gap_full": -0.5, "lower_percentile": 0.3},
    "priormatch": {"warmup_steps": 5},
    "fixmatch": {"variant": "symmetric", "threshold": 0.55},
    "uda": {"threshold": 0.55},
    "dash": {"warmup_steps": 5, "decay_steps": 10},
    "cap": {"warmup_steps": 0, "refresh_steps": 10},
    "mat": {"warmup_steps": 0, "refresh_steps": 10},
    "dicap": {"warmup_steps": 0, "refresh_steps": 10},
    "ups": {"num_generations": 2, "positive_uncertainty": 1.0, "negative_uncertainty": 1.0},
    "curriculum_labeling": {"share_step": 0.5},
}


@pytest.mark.gpu
@pytest.mark.parametrize("changed", [{}, {"accumulate": 2, "mixup": 0.5, "images_on": "host"}], ids=["plain", "parts"])
@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.method.trains])
def test_a_replayed_step_is_the_step(name: str, changed: dict, tmp_path: Path, monkeypatch) -> None:
    """Every method on a GPU, 50 steps in float32: losses, rates and state of the captured step are the eager one's."""
    monkeypatch.setattr(run_module, "quicken", lambda model, _: model)  # the same kernels in both
    found = {}
    for graph in (True, False):
        config = replace(TINY, method=name, options=SELECTS.get(name, {}), device="cuda", precision="float32")
        config = replace(config, cuda_graph=graph, deterministic=True, total_steps=50, log_every=10, **changed)
        train(replace(config, eval_every=0, save_every=50), tmp_path / str(graph))
        found[graph] = [row for row in rows(tmp_path / str(graph)) if row["kind"] == "train"]
    assert not uses_unlabeled(name) or any(row["unlabeled"] > 0 for row in found[True])
    for mine, other in zip(found[True], found[False], strict=True):
        assert_near(mine["loss"], other["loss"], rel=2e-3)
        assert_near(mine["classes"], other["classes"], rel=0.02, abs=0.02)
    states = [torch.load(tmp_path / str(graph) / "last.pt", weights_only=True)["method"] for graph in (True, False)]
    for key, value in states[0].items():
        torch.testing.assert_close(value.double(), states[1][key].double(), rtol=0.02, atol=0.02)


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_runs_all_the_same(tmp_path: Path, monkeypatch, capsys) -> None:
    """A method that asks for a number on the host ends as without capture, and one line says so."""
    config = replace(TINY, device="cuda", precision="float32", deterministic=True, accumulate=2)
    losses = {}
    whole = WeakToStrong.forward

    def asks(self, *args):
        loss = whole(self, *args)
        float(loss.total)
        return loss

    monkeypatch.setattr(WeakToStrong, "forward", asks)
    # other kernels round otherwise
    monkeypatch.setattr("percentmatch.training.run.quicken", lambda model, device: model)
    for graph in (True, False):
        train(replace(config, cuda_graph=graph), tmp_path / str(graph))
        losses[graph] = [row["loss"] for row in rows(tmp_path / str(graph)) if row["kind"] == "train"]
        assert ("cannot be captured" in capsys.readouterr().err) == graph
    assert losses[True] == losses[False]


@pytest.mark.gpu
@pytest.mark.slow
def test_a_compiled_network_learns_the_same(tmp_path: Path) -> None:
    config = replace(TINY, backbone="resnet18", image_size=64, device="cuda", precision="float32", dropout=0.0)
    losses = {}
    for compiled in (True, False):
        train(replace(config, compile=compiled), tmp_path / str(compiled))
        losses[compiled] = [row["loss"] for row in rows(tmp_path / str(compiled)) if row["kind"] == "train"]
    assert_near(losses[True], losses[False], rel=1e-2)


@pytest.mark.gpu
def test_float64_on_a_gpu_is_that_of_a_cpu(tmp_path: Path) -> None:
    """No kernel of lower precision is between. Without dropout, whose draws are the device's own."""
    losses = []
    for device in ("cuda", "cpu"):
        train(replace(TINY, device=device, precision="float64", dropout=0.0), tmp_path / device)
        losses.append([row["loss"] for row in rows(tmp_path / device) if row["kind"] == "train"])
    assert_near(losses[0], losses[1], rel=1e-3)


def test_one_label_an_image_is_asked_of_python_too(tmp_path: Path) -> None:
    ones, pixels = torch.ones(2, 3, dtype=torch.uint8), torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    several = Images(pixels, Labels.of(ones), ("a", "b"), ("x", "y", "z"))
    config = Config(task="single-label", image_size=4, validation=0)
    with pytest.raises(UserError, match=r"image 'a' has 3 labels \(2 images have not exactly one\)"):
        train(config, tmp_path / "run", data=Data(several, several.part(())))
    assert not (tmp_path / "run").exists()


def test_the_callers_draws_go_on(tmp_path: Path) -> None:
    torch.manual_seed(7)
    wanted = torch.rand(2)
    torch.manual_seed(7)
    first = torch.rand(1)
    train(replace(TINY, total_steps=1), tmp_path / "run")
    assert torch.equal(torch.cat([first, torch.rand(1)]), wanted)
