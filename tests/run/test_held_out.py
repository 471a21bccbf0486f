"""Labeled images that are held out of the supervised loss: who sees them, and the final fit of the head."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TINY, weights

from percentmatch.data import Split, load_data
from percentmatch.data.labels import Flags
from percentmatch.errors import UserError
from percentmatch.models import evaluating, load_classifier
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config
from percentmatch.training import loop
from percentmatch.training.run import Run, RunPool, hold_out
from percentmatch.training.start import train

DICAP = replace(
    TINY,
    images_on="device",
    method="dicap",
    options={"refresh_steps": 4, "warmup_steps": 0, "held_out": 4, "head_epochs": 2},
)


def new_run(config: Config, folder: Path) -> Run:
    folder.mkdir()
    return Run(config, RunFolder(folder), load_data(config), torch.device("cpu"))


def test_both_parts_get_their_share_of_each_class() -> None:
    """Of 20 images 4 show class 0 and the other 16 class 1; one in 4 is held out: 1 and 4 of them."""
    targets = torch.tensor([[1, 0]] * 4 + [[0, 1]] * 16)
    ids = tuple(f"{n:02}" for n in range(20))
    split = Split(ids, ("u",), ("v",), ("t",))
    shown, held = hold_out(split, Flags.of(targets), 4, seed=0)
    assert [sum(int(name) < 4 for name in held), len(held)] == [1, 5]
    assert shown == Split(tuple(sorted({*ids} - {*held})), ("u", *held), ("v",), ("t",))
    assert hold_out(split, Flags.of(targets), 4, seed=0)[1] == held
    assert any(hold_out(split, Flags.of(targets), 4, seed=seed)[1] != held for seed in range(1, 9))
    assert hold_out(split, Flags.of(targets), 0, seed=0) == (split, ())
    with pytest.raises(UserError, match="one labeled image is too few"):
        hold_out(replace(split, labeled=ids[:1]), Flags.of(targets[:1]), 4, seed=0)


def test_the_supervised_loss_never_sees_them_and_they_are_among_the_unlabeled(tmp_path: Path) -> None:
    run = new_run(DICAP, tmp_path / "run")
    held = set(run.held_out.tolist())
    assert len(held) == 10  # a quarter of 40
    assert len(run.loader.labeled) == 30
    assert len(run.loader.unlabeled) == 60  # 50 without labels, and those held out
    seen = [run.draw(step)["0.rows"] for step in range(12)]
    labeled, pool = ({int(row) for rows in seen for row in rows[part]} for part in (slice(0, 8), slice(8, None)))
    assert len(labeled) == 30
    assert not labeled & held
    assert held <= pool
    other = new_run(replace(DICAP, method="supervised", options={}), tmp_path / "other")
    assert len(other.loader.labeled) == 40
    assert not len(other.held_out)
    assert run.split == other.split  # what the folder keeps


def test_a_labeler_is_fitted_on_the_scores_of_all_labeled_images(tmp_path: Path) -> None:
    run = new_run(DICAP, tmp_path / "run")
    loop.train_step(run, 0)
    for who, model in (("student", run.model), ("teacher", run.ema.model)):
        found = RunPool(run).labeled(who)
        rows = torch.cat([run.loader.labeled, run.held_out])
        assert sorted(rows.tolist()) == sorted(load_data(DICAP).pool.rows(run.split.labeled).tolist())
        assert found.held_out.tolist() == [False] * 30 + [True] * 10
        assert torch.equal(found.targets, run.loader.labels.targets[rows])
        with evaluating(model), torch.no_grad():
            images = torch.cat([*run.loader.plain_images(rows, 7)])
            torch.testing.assert_close(found.scores, model(images).sigmoid())


def test_a_probe_to_start_from_does_not_know_their_labels(tmp_path: Path) -> None:
    run = new_run(replace(DICAP, head_start="probe", dropout=0.0), tmp_path / "run")
    assert run.labeled is not None
    assert len(run.labeled) == 30


def test_at_the_end_the_head_alone_learns_from_them(tmp_path: Path) -> None:
    """The weights of the last step stay in the checkpoint; those saved and scored differ from them in the head."""
    train(DICAP, tmp_path / "run")
    train(replace(DICAP, options={**DICAP.options, "head_epochs": 0}), tmp_path / "without")
    last, without = weights(tmp_path / "run"), weights(tmp_path / "without")
    assert all(torch.equal(value, without[name]) for name, value in last.items())
    fitted, plain = (
        load_classifier(tmp_path / name / "model.safetensors", torch.device("cpu"))[0] for name in ("run", "without")
    )
    changed = {name for name, value in fitted.state_dict().items() if not torch.equal(value, plain.state_dict()[name])}
    assert changed == {"head.linear.weight", "head.linear.bias"}
    data = load_data(DICAP)
    run = new_run(DICAP, tmp_path / "again")
    truth = data.pool.labels.targets[run.held_out].float()
    images = torch.cat([*run.loader.plain_images(run.held_out, 7)])
    losses = [run.method.pair_loss(model(images), truth).sum() for model in (fitted, plain)]
    assert losses[0] < losses[1]


def test_a_run_that_was_stopped_before_the_final_fit_ends_the_same(tmp_path: Path) -> None:
    train(DICAP, tmp_path / "run")
    model = (tmp_path / "run/model.safetensors").read_bytes()
    metrics = RunFolder(tmp_path / "run").read_metrics()
    for name in ("metrics.json", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    again = train(DICAP, tmp_path / "run", resume=True)
    assert (tmp_path / "run/model.safetensors").read_bytes() == model
    assert again["test"] == metrics["test"]


def test_one_label_an_image(tmp_path: Path) -> None:
    """With an ML-Decoder, whose queries are no parameters that are learnt."""
    config = replace(DICAP, task="single-label", head="ml-decoder", dropout=0.0, total_steps=5, eval_every=0)
    metrics = train(config, tmp_path / "run")
    assert 0 <= metrics["test"]["ema"]["accuracy"] <= 1
    model, _ = load_classifier(tmp_path / "run/model.safetensors", torch.device("cpu"))
    state = torch.load(tmp_path / "run/last.pt", weights_only=True)["ema"]
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, state[name])}
    assert changed
    assert all(name.startswith("head.") and name != "head.queries" for name in changed)
