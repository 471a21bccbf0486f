"""A run against another: gains and intervals by hand and by scikit-learn, the supervised baseline, and the command."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import average_precision_score, roc_auc_score
from tiny import TINY, save_scenes

from percentmatch.cli import main as cli
from percentmatch.console.signals import Stopped
from percentmatch.data import load_data
from percentmatch.errors import UserError
from percentmatch.runs.run_folder import RunFolder
from percentmatch.training.start import train
from percentmatch.use.compare import compare, gains, show_comparison, verdict


def test_the_gain_of_four_images_by_hand() -> None:
    """Two positives of four. The first run ranks + - + -: AP = (1/1 + 2/3) / 2 = 5/6, AUC 3 of 4 pairs. The second
    ranks - + - +: AP = (1/2 + 2/4) / 2 = 1/2, AUC 1 of 4 pairs."""
    targets, known = torch.tensor([[1], [0], [1], [0]]), torch.ones(4, 1, dtype=torch.long)
    mine, theirs = torch.tensor([[0.9], [0.8], [0.7], [0.6]]), torch.tensor([[0.6], [0.9], [0.4], [0.5]])
    theirs = torch.tensor([[0.8], [0.9], [0.6], [0.7]])
    found = gains(mine, theirs, targets, known, ["cat"])
    assert found["classes"]["cat"]["gain"] == found["mAP"]["gain"] == pytest.approx(5 / 6 - 1 / 2)
    assert found["AUC"]["gain"] == pytest.approx(3 / 4 - 1 / 4)
    assert (found["mAP"]["run"], found["mAP"]["other"]) == pytest.approx((5 / 6, 1 / 2))
    assert found["classes"]["cat"]["positives"] == 2
    assert found["classes"]["cat"]["finding"] == "too few"


def made_up(n: int = 60, c: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores that follow the labels, worse ones, the labels, and a tenth of the pairs unknown."""
    generator = torch.Generator().manual_seed(5)
    targets = (torch.rand(n, c, generator=generator) < 0.4).long()
    draw = lambda: torch.rand(n, c, generator=generator)  # noqa: E731
    good = (targets + draw()) / 2
    return good, (good + 2 * draw()) / 3, targets, (draw() < 0.9).long()


def test_intervals_are_those_of_scikit_learn_on_the_same_draws() -> None:
    """Both runs on the images of each draw, class by class; a class is clear beyond the largest chance of any."""
    mine, theirs, targets, known = made_up()
    found = gains(mine, theirs, targets, known, ["a", "b", "c"], resamples=40)
    drawn = torch.randint(60, (40, 60), generator=torch.Generator().manual_seed(0))
    ap, auc = np.zeros((2, 40, 3))
    for r, rows in enumerate(drawn):
        for c in range(3):
            kept = rows[known[rows, c] > 0]
            pairs = [(targets[kept, c], scores[kept, c]) for scores in (mine, theirs)]
            ap[r, c] = np.subtract(*(average_precision_score(*pair) for pair in pairs))
            auc[r, c] = np.subtract(*(roc_auc_score(*pair) for pair in pairs))
    rows = [*found["classes"].values()]
    for c, row in enumerate(rows):
        assert row["interval"] == pytest.approx(np.quantile(ap[:, c], [0.025, 0.975]), abs=1e-9)
    assert found["mAP"]["interval"] == pytest.approx(np.quantile(ap.mean(1), [0.025, 0.975]), abs=1e-9)
    assert found["AUC"]["interval"] == pytest.approx(np.quantile(auc.mean(1), [0.025, 0.975]), abs=1e-9)
    most = np.quantile((np.abs(ap - ap.mean(0)) / ap.std(0)).max(1), 0.95)
    assert 2.0 < most < 4.0
    clear = [row["gain"] > most * spread for row, spread in zip(rows, ap.std(0), strict=True)]
    assert [row["finding"] == "better" for row in rows] == clear


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """One of them turns the direction of writing, one begins a line."""
    mine, theirs, targets, known = made_up(400)
    found = gains(mine, theirs, targets, known, ["a\nb", "\u202ec", "d"])
    runs = [{"path": f"runs/{name}", "method": "fixmatch"} for name in ("x\x1b[2J", "y")]
    found |= {"runs": runs, "differ": [], "num_images": 400, "part": "test", "verdict": verdict(found, None)}
    assert "\u202ec" in found["verdict"]
    show_comparison(found)
    printed = capsys.readouterr().out
    assert not {"\u202e", "\x1b"} & set(printed)
    assert "clearly better: " in printed.splitlines()[-1]


def test_very_many_classes_have_fewer_resamples() -> None:
    """1,250 classes: 800."""
    draw = torch.Generator().manual_seed(0)
    mine, theirs, chances = (torch.rand(6, 1250, generator=draw) for _ in range(3))
    case = mine, theirs, (chances > 0.5).byte(), torch.ones(6, 1250, dtype=torch.uint8), list(map(str, range(1250)))
    intervals = [gains(*case, **more)["mAP"]["interval"] for more in ({}, {"resamples": 800}, {"resamples": 801})]
    assert intervals[0] == intervals[1] != intervals[2]


def test_the_same_scores_give_exactly_nothing() -> None:
    mine, _, targets, known = made_up()
    found = gains(mine, mine, targets, known, ["a", "b", "c"])
    for row in (found["mAP"], found["AUC"], *found["classes"].values()):
        assert (row["gain"], row["interval"]) == (0, (0, 0))
    assert verdict(found, None) == (
        "No difference: mAP +0.0 (95% interval +0.0 to +0.0); clearly better: none; clearly worse: none."
    )


def test_a_planted_difference_is_found_and_no_other() -> None:
    """Class a is ranked better by the first run, b worse, c alike but for noise; d has 3 positives."""
    generator = torch.Generator().manual_seed(1)
    n = 400
    draw = lambda: torch.rand(n, generator=generator)  # noqa: E731
    targets = torch.stack([draw() < 0.3, draw() < 0.3, draw() < 0.3, torch.arange(n) < 3], 1).long()
    poor, rich = (torch.stack([(targets[:, c] * share + draw()) / 2 for c in range(4)], 1) for share in (0.2, 0.9))
    order = torch.tensor([1, 0, 0, 1]).bool()
    first, second = torch.where(order, rich, poor), torch.where(~order, rich, poor)
    second[:, 2] = first[:, 2] + 0.02 * draw()
    found = gains(first / 2, second / 2, targets, torch.ones_like(targets), list("abcd"))
    assert [row["finding"] for row in found["classes"].values()] == ["better", "worse", "unclear", "too few"]
    assert found["classes"]["a"]["interval"][0] > 0 > found["classes"]["b"]["interval"][1]
    better, worse = found | {"mAP": found["classes"]["a"]}, found | {"mAP": found["classes"]["b"]}
    assert found["classes"]["d"]["interval"] is None
    assert verdict(better, None).startswith("The run with unlabeled images is better than the one without: mAP +")
    assert verdict(worse, None).startswith("The run with unlabeled images is worse than the one without: mAP -")
    rare = found | {"classes": {"d": found["classes"]["d"]}, "mAP": found["classes"]["a"]}
    assert verdict(rare, None).startswith("Too few positives to tell: mAP +")
    nearly = found | {"mAP": {"gain": -0.009, "interval": (-0.017, -0.0002)}}
    assert verdict(nearly, None).startswith("No clear difference: mAP -0.9 (95% interval -1.7 to +0.0)")
    assert verdict(better, ("x", "y")).startswith("x is better than y: mAP +")
    assert verdict(worse, ("x", "y")).startswith("x is worse than y: mAP -")
    ending = "; clearly better: a; clearly worse: b; too few positives to tell: d."
    assert verdict(better, None).endswith(ending)
    assert verdict(found | {"mAP": found["classes"]["c"]}, None).startswith("No clear difference: mAP ")


def test_by_chance_seldom_any_class_is_called_clear() -> None:
    """Two runs that differ by noise alone, 20 classes, 15 times: some own intervals miss 0, hardly a class is clear."""
    generator = torch.Generator().manual_seed(2)
    clear = missed = 0
    for _ in range(15):
        targets = (torch.rand(120, 20, generator=generator) < 0.3).long()
        both = [(targets + 2 * torch.rand(120, 20, generator=generator)) / 3 for _ in range(2)]
        known, names = torch.ones_like(targets), [str(c) for c in range(20)]
        found = gains(*both, targets, known, names, resamples=300)["classes"].values()
        clear += any(row["finding"] in ("better", "worse") for row in found)
        missed += sum(not row["interval"][0] <= 0 <= row["interval"][1] for row in found)
    assert missed >= 10
    assert clear <= 4


# the command


def run(*tokens: object) -> None:
    cli.run([str(token) for token in tokens])


@pytest.fixture
def own(whole: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed run, for tests that write beside it."""
    return shutil.copytree(whole, tmp_path / "mine")


def test_one_run_is_compared_with_the_baseline_it_gets(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own.parent / "found.json"
    run("compare", own, "--json", file)
    baseline = RunFolder(own.parent / "mine-supervised")
    assert baseline.read_split().digest == RunFolder(own).read_split().digest
    mine, theirs = RunFolder(own).read_config().to_dict(), baseline.read_config().to_dict()
    assert {name for name in mine if mine[name] != theirs[name]} == {"method", "options", "split_file"}
    assert (theirs["method"], theirs["options"]) == ("supervised", {"loss": "asl"})
    found = json.loads(file.read_text())
    scores = [json.loads((each / "metrics.json").read_text())["test"]["ema"] for each in (own, baseline.path)]
    for name in ("mAP", "AUC"):
        assert (found[name]["run"], found[name]["other"]) == pytest.approx([each[name] for each in scores], abs=1e-6)
    assert (found["part"], found["num_images"], found["differ"]) == ("test", 40, ["method"])
    printed, said = capsys.readouterr()
    assert printed.splitlines()[-1] == found["verdict"]
    assert "training the supervised baseline in" in said
    before = baseline.checkpoints.last.stat().st_mtime_ns
    run("compare", own, "--part", "validation")
    again, said = capsys.readouterr()
    assert "On 30 validation images." in again
    assert "training" not in said
    assert baseline.checkpoints.last.stat().st_mtime_ns == before


def test_several_seeds_have_a_mean_and_a_spread(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run and its baseline with seeds 0 to 2, all on one split; what is there is not trained again."""
    file = own.parent / "found.json"
    run("compare", own, "--seeds", 3, "--json", file)
    folders = [[own.parent / f"mine{kind}{end}" for end in ("", "-seed1", "-seed2")] for kind in ("", "-supervised")]
    configs = [[RunFolder(each).read_config() for each in row] for row in folders]
    assert [[each.seed for each in row] for row in configs] == [[0, 1, 2]] * 2
    assert {(each.method, str(each.options)) for each in configs[0]} == {(TINY.method, str(TINY.options))}
    assert len({RunFolder(each).read_split().digest for row in folders for each in row}) == 1
    scores = [[json.loads((f / "metrics.json").read_text())["test"]["ema"]["mAP"] for f in row] for row in folders]
    assert len(set(scores[0])) == len(set(scores[1])) == 3
    found = json.loads(file.read_text())["seeds"]
    assert (found["seeds"], found["baseline"]) == ([0, 1, 2], "supervised")
    assert found["methods"]["supervised"] == {"mAP": scores[1], "gains": None}
    gained = np.subtract(*scores)
    assert found["methods"][TINY.method] == {"mAP": scores[0], "gains": pytest.approx(list(gained))}
    printed, said = capsys.readouterr()
    assert said.count("training the supervised baseline in") == 3
    assert f"{100 * np.mean(scores[0]):.1f} ± {100 * np.std(scores[0], ddof=1):.1f}" in printed
    assert f"{100 * gained.mean():+.1f} ± {100 * gained.std(ddof=1):.1f}" in printed
    run("compare", own, "--seeds", 3)
    again, said = capsys.readouterr()
    assert again == printed
    assert "training" not in said
    for more in (["--seeds", 0], [own, "--seeds", 3]):
        with pytest.raises(UserError, match=r"--seeds \d: give 1 or more, and only where no second run is named"):
            run("compare", own, *more)


def test_a_run_named_by_dots_has_its_baseline_beside_it(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "inside").mkdir()
    monkeypatch.chdir(own / "inside")
    run("compare", "..")
    assert (own.parent / "mine-supervised" / "metrics.json").exists()
    assert not [*(own / "inside").iterdir()]


def test_without_images_to_compare_on_no_baseline_is_trained(own: Path) -> None:
    split = replace(RunFolder(own).read_split(), test=())
    (own / "split.json").write_text(split.to_json())
    with pytest.raises(UserError, match="no test images to compare on; choose another --part"):
        run("compare", own, "--part", "test")
    (own / "split.json").write_text(replace(split, validation=()).to_json())
    with pytest.raises(UserError, match="no test or validation images to compare on; train it with --validation"):
        run("compare", own)
    assert not (own.parent / "mine-supervised").exists()


def test_an_unfinished_baseline_is_continued(own: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    import percentmatch.training.loop as module

    step = module.train_step

    def stop(state, number: int) -> None:
        if number == 7:
            raise Stopped("stopped", 2)
        step(state, number)

    monkeypatch.setattr(module, "train_step", stop)
    with pytest.raises(Stopped):
        run("compare", own, "--out", own.parent / "baseline")
    monkeypatch.setattr(module, "train_step", step)
    run("compare", own, "--out", own.parent / "baseline")
    assert "continuing the supervised baseline in" in capsys.readouterr().err
    file = own.parent / "baseline" / "config.yaml"
    file.write_text(re.sub(r"^  lr: .*$", "  lr: 0.5", file.read_text(), flags=re.MULTILINE))
    with pytest.raises(UserError, match=r"baseline' was begun with lr=0.5, not 0.001; .* choose another --out"):
        run("compare", own, "--out", own.parent / "baseline")


@pytest.mark.parametrize(("method", "options"), [("fixmatch", {"loss": "bce"}), ("mixmatch", {})])
def test_the_baseline_has_the_loss_and_the_split_of_the_run(
    method: str, options: dict, whole: Path, tmp_path: Path
) -> None:
    """The split came from a file that is gone, and data from Python that is given again."""
    split = RunFolder(whole).read_split()
    (tmp_path / "split.json").write_text(replace(split, labeled=split.labeled[:20]).to_json())
    brief = replace(TINY, total_steps=1, method=method, options=options)
    train(replace(brief, split_file=str(tmp_path / "split.json")), tmp_path / "a", data=load_data(TINY))
    (tmp_path / "split.json").unlink()
    with pytest.raises(UserError, match="data was given in Python"):
        compare(tmp_path / "a")
    compare(tmp_path / "a", data=load_data(TINY))
    baseline = RunFolder(tmp_path / "a-supervised")
    assert baseline.read_config().options == {"loss": "bce"}
    assert baseline.read_split().labeled == split.labeled[:20]


def test_a_run_is_compared_from_another_folder_and_without_its_unlabeled_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and split were named from where it was trained; elsewhere, other weights lie under that name."""
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows = [f"{name},{','.join(map(str, yes))}" for name, yes in save_scenes(tmp_path, 24, 6)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,disc,triangle,square", *rows]))
    brief = replace(TINY, data="files", scenes_pool=4000, scenes_test=1000, total_steps=2, labeled=0, validation=8)
    brief = replace(brief, labels="labels.csv", images="photos", unlabeled="more")
    train(brief, tmp_path / "first")
    start = {key: value for key, value in load_file("first/model.safetensors").items() if key.startswith("backbone")}
    save_file(start, "start.safetensors")
    shutil.copy("first/split.json", "split.json")
    train(replace(brief, weights="start.safetensors", split_file="split.json"), tmp_path / "run")
    train(replace(brief, weights="start.safetensors", split_file="split.json"), tmp_path / "run", resume=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run("train", "--out", "../run", "--resume")
    Path("start.safetensors").write_bytes(b"no weights")
    (tmp_path / "more").rename(tmp_path / "gone")
    run("compare", "../run")
    baseline = RunFolder(tmp_path / "run-supervised")
    assert baseline.read_config().weights == str(tmp_path / "start.safetensors")
    assert baseline.read_split().unlabeled == ()
    assert len(RunFolder(tmp_path / "run").read_split().unlabeled) == 6


def test_from_learnt_weights_the_better_of_two_baselines_is_compared(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "start.safetensors"
    save_file({key: each for key, each in load_file(own / "model.safetensors").items() if "backbone" in key}, weights)
    train(replace(TINY, weights=str(weights), total_steps=1), tmp_path / "run")
    folders = [RunFolder(tmp_path / f"run-{name}") for name in ("supervised", "probe")]
    found = compare(tmp_path / "run")
    means = [folder.read_metrics()["test"]["ema"]["mAP"] for folder in folders]
    assert means[0] != means[1]
    assert found["baselines"] == [
        {"path": str(each.path), "mAP": mean} for each, mean in zip(folders, means, strict=True)
    ]
    assert (folders[1].read_config().method, folders[1].read_split().labeled) == (
        "probe",
        folders[0].read_split().labeled,
    )
    for better, mean in ((0, 1.0), (1, 0.0)):  # whichever it is
        metrics = folders[0].read_metrics()
        metrics["test"]["ema"]["mAP"] = mean
        folders[0].metrics.write_text(json.dumps(metrics))
        capsys.readouterr()
        run("compare", tmp_path / "run", "--json", tmp_path / "found.json")
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["runs"][1]["path"] == str(folders[better].path)
        said, noise = capsys.readouterr()
        assert f"B is the baseline with the larger mAP: {folders[0].path} {100 * mean:.1f}" in said
        assert "training" not in noise


def test_the_baseline_has_the_steps_of_one_student(tmp_path: Path) -> None:
    """Rate and average were chosen for them; that the run had more in all is said."""
    options = {"share_step": 0.5, "loss": "bce"}  # a supervised round and two more
    train(replace(TINY, method="curriculum_labeling", options=options, total_steps=7), tmp_path / "a")
    found = compare(tmp_path / "a")
    assert RunFolder(tmp_path / "a-supervised").read_config().total_steps == 3
    assert found["differ"] == ["method", "total_steps"]
    assert "nlabeled images" not in found["verdict"]


def test_two_runs_and_what_else_they_differ_in(own: Path, tmp_path: Path, capsys) -> None:
    run("compare", own, own)
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].startswith("No difference: mAP +0.0 (95% interval +0.0 to +0.0)")
    train(replace(TINY, method="supervised", options={}, total_steps=1, seed=1), tmp_path / "b")
    found = compare(own, tmp_path / "b")
    assert found["differ"] == ["seed", "method", "total_steps"]
    assert "nlabeled images" not in found["verdict"]
    other = compare(tmp_path / "b", own)
    assert other["mAP"]["gain"] == -found["mAP"]["gain"]


def test_what_cannot_be_compared_is_refused_in_a_sentence(own: Path, tmp_path: Path) -> None:
    brief = replace(TINY, method="supervised", options={}, total_steps=1)
    train(replace(brief, split_seed=1), tmp_path / "b")
    train(replace(brief, image_size=40), tmp_path / "d")
    refused = {
        (own, tmp_path / "b", "--part", "validation"): "have different validation images",
        (own, tmp_path / "d"): "differ in the labels of their test images",
        (own, tmp_path / "none"): "holds no run",
        (tmp_path / "b",): "is a supervised run itself; name a second run",
        (own, own, "--out", tmp_path / "x"): "--out is the folder of the supervised baseline",
        (own, "--json", tmp_path / "no" / "x.json"): "--json .* must name a file in a folder that is there",
    }
    for tokens, sentence in refused.items():
        with pytest.raises(UserError, match=sentence):
            run("compare", *tokens)
    (own / "metrics.json").unlink()
    with pytest.raises(UserError, match=r"has not finished; continue it by train --out"):
        run("compare", own)
    assert not (own.parent / "mine-supervised").exists()
