"""Runs whose head starts as a linear probe: the method `probe`, which takes no step, and fine-tuning from it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TINY, rows

from percentmatch import Config, Predictor, train
from percentmatch.errors import UserError
from percentmatch.models import build_classifier, load_classifier

PROBE = replace(TINY, method="probe", options={}, dropout=0.0)
CPU = torch.device("cpu")


def head_of(folder: Path) -> torch.Tensor:
    return load_classifier(folder / "model.safetensors", CPU)[0].head.linear.weight.detach()


def test_a_probe_is_scored_saved_and_read_as_any_run(tmp_path: Path) -> None:
    """It has no step, the backbone is as it was, and it is finished when it is resumed."""
    metrics = train(PROBE, tmp_path / "run")
    assert metrics["step"] == 0
    assert metrics["test"]["ema"] == metrics["test"]["model"]
    assert [row["kind"] for row in rows(tmp_path / "run")] == ["start"]
    assert not (tmp_path / "run/last.pt").exists()
    assert train(PROBE, tmp_path / "run", resume=True) == metrics
    assert len(Predictor(tmp_path / "run").classes_) == 10
    train(replace(PROBE, method="supervised", head_start="random", total_steps=1), tmp_path / "other")
    before, after = (
        load_classifier(tmp_path / name / "model.safetensors", CPU)[0].backbone for name in ("other", "run")
    )
    assert not torch.equal(*(next(each.parameters()) for each in (before, after)))  # one step moves it


def test_a_run_from_a_probe_begins_where_the_probe_is(tmp_path: Path) -> None:
    """One step at a vanishing rate leaves the head where the probe was, and resumes without fitting it again."""
    train(PROBE, tmp_path / "probe")
    config = replace(PROBE, method="supervised", head_start="probe", options={"loss": "bce"}, lr=1e-12, total_steps=1)
    train(config, tmp_path / "run")
    torch.testing.assert_close(head_of(tmp_path / "run"), head_of(tmp_path / "probe"), rtol=1e-5, atol=1e-7)
    train(replace(config, head_start="random"), tmp_path / "random")
    assert (head_of(tmp_path / "random") - head_of(tmp_path / "probe")).abs().max() > 0.1


def test_a_head_that_cannot_be_a_probe_says_which_can(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="add --head linear"):
        train(replace(PROBE, head="ml-decoder"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_backbone_has_a_rate_of_its_own() -> None:
    from percentmatch.training.optim import build_optimizer, set_lr

    model = build_classifier("test_resnet", num_classes=3, head="linear", image_size=32)
    optimizer = build_optimizer(model, Config(backbone_lr_ratio=0.25), CPU)
    set_lr(optimizer, torch.tensor(0.8, dtype=torch.float64))
    rate_of = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.8)  # which the log tells
    for name, parameter in model.named_parameters():
        assert rate_of[id(parameter)] == pytest.approx(0.2 if name.startswith("backbone.") else 0.8)


def test_frozen_batch_norm_keeps_the_statistics_of_the_start_weights(tmp_path: Path) -> None:
    """They normalise in training, too: two steps from the same start differ only in that, and so in the loss."""
    start = tmp_path / "start.pt"
    model = build_classifier("test_resnet", num_classes=10, head="linear", image_size=32)
    generator = torch.Generator().manual_seed(0)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0, generator=generator)
    torch.save(model.state_dict(), start)
    trained = replace(PROBE, method="supervised", weights=str(start), total_steps=2, log_every=1)
    for name, frozen in (("frozen", True), ("usual", False)):
        train(replace(trained, freeze_batch_norm=frozen), tmp_path / name)
    found = {name: load_classifier(tmp_path / name / "model.safetensors", CPU)[0] for name in ("frozen", "usual")}
    same = {
        name: [torch.equal(buffer, model.get_buffer(each)) for each, buffer in network.named_buffers()]
        for name, network in found.items()
    }
    assert all(same["frozen"])
    assert not any(same["usual"])
    assert any(not torch.equal(p, model.get_parameter(name)) for name, p in found["frozen"].named_parameters())
    losses = [next(row["loss"] for row in rows(tmp_path / name) if row["kind"] == "train") for name in found]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_random_weights_have_no_statistics_to_keep() -> None:
    with pytest.raises(UserError, match="weights must be learnt ones with freeze_batch_norm, not none"):
        Config(freeze_batch_norm=True)


def test_an_old_name_of_the_start_is_read() -> None:
    assert Config.from_dict({"prior_bias": True}).head_start == "prior"
    assert Config.from_dict({"prior_bias": False}).head_start == "random"
