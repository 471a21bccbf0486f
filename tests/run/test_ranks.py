"""Several ranks train what one does: the same images, thresholds and losses, through the command line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from ranks import Double
from safetensors.torch import load_file
from torch import nn

from forked import exit_code, start_copy
from near import assert_near
from percentmatch.cli.main import main, run
from percentmatch.data import load_data
from percentmatch.data.scenes import draw_scenes
from percentmatch.distributed import group as distributed
from percentmatch.distributed import shared_norm
from percentmatch.errors import UserError
from percentmatch.methods import METHODS
from percentmatch.models import build_classifier
from percentmatch.runs.run_folder import PretrainFolder
from percentmatch.settings.config import PretrainSettings
from percentmatch.training import pretraining as pretrain_module
from percentmatch.training.pretraining import Pretraining

RANKS = Path(__file__).with_name("ranks.py")
BASE = {
    "data": "scenes",
    "scenes-pool": 60,
    "scenes-test": 7,
    "labeled": 24,
    "validation": 10,
    "image-size": 32,
    "backbone": "test_convnext",  # no BatchNorm
    "head": "linear",
    "dropout": 0,
    "labeled-batch": 12,
    "total-steps": 4,
    "log-every": 1,
    "save-every": 1,
    "precision": "float64",
    "device": "cpu",
}
OPTIONS = {
    "percentmatch": ["warmup_steps=2", "gap_start=-1", "gap_full=-1"],
    "dash": ["warmup_steps=2"],
    "cap": ["warmup_steps=1", "refresh_steps=2"],
    "mat": ["warmup_steps=1", "refresh_steps=2"],
    "dicap": ["warmup_steps=1", "refresh_steps=2"],
    "ups": ["num_generations=2", "passes=2"],
    "curriculum_labeling": ["share_step=0.5"],
}
CASES: dict[str, dict[str, Any]] = {
    "percentmatch": {},
    "freematch": {"backbone": "test_resnet"},  # BatchNorm; a term of the loss that is no mean over images
    "mixmatch": {"mixup": 0.5, "backbone": "test_efficientnet"},  # partners on other ranks; BatchNorm with activation
    "cap": {"cutmix": 1.0, "accumulate": 2},  # scores of the pool; next rank's first image as partner
    "dicap": {},  # scores of labeled images; at the end each rank fits the head on all that are held out
}


WARM = {
    "scenes-pool": 60,
    "validation": 10,
    "image-size": 32,
    "batch": 12,
    "total-steps": 4,
    "log-every": 1,
    "save-every": 2,
    "device": "cpu",
}
WARM_CASES: dict[str, dict[str, Any]] = {
    "resnet": {"backbone": "test_resnet", "log-every": 3},  # BatchNorm in the backbone, too
    "efficientnet": {"backbone": "test_efficientnet", "data": "files", "shuffle-buffer": 20},  # its images streamed
}


def warm_command(case: str, folder: Path, out: Path, **more: Any) -> list[str]:
    """Of a case of WARM_CASES, with the images in `folder`."""
    flags = {**WARM, **WARM_CASES[case], **more, "out": out}
    if flags.get("data") == "files":
        flags |= {"labels": folder / "labels.csv", "images": folder / "photos", "unlabeled": folder / "pool"}
    return ["pretrain", *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]


def draw_files(folder: Path) -> None:
    """12 labeled scenes, and 40 without labels in shards."""
    scenes = draw_scenes(52, size=32)
    lines = ["image,labels"]
    for number, name in enumerate(scenes.ids):
        path = folder / ("photos" if number < 12 else "more") / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(scenes.pixels[number].permute(1, 2, 0).numpy()).save(path)
        lines += [f"{name}.png,{'odd' if number % 2 else 'even'}"] if number < 12 else []
    (folder / "labels.csv").write_text("\n".join(lines))
    places = ["--unlabeled", str(folder / "more"), "--out", str(folder / "pool")]
    run(["data", "shard", *places, "--images-per-shard", "9"])


def command(method: str, out: Path, **more: Any) -> list[str]:
    flags = {**BASE, "method": method, **more, "out": out}
    options = [word for option in OPTIONS.get(method, []) for word in ("--option", option)]
    return ["train", *(word for name, value in flags.items() for word in (f"--{name}", str(value))), *options]


def torchrun(commands: list[Any], folder: Path, *flags: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    plan = folder / "plan.json"
    plan.write_text(json.dumps(commands))
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *flags, str(RANKS), str(plan)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}
    environment = {**clean, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *launch], env=environment, capture_output=True, text=True, timeout=900, check=False
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def ema_weights(folder: Path) -> dict[str, torch.Tensor]:
    """In full precision from the checkpoint; a probe has none."""
    last = folder / "last.pt"
    return torch.load(last, weights_only=True)["ema"] if last.exists() else load_file(folder / "model.safetensors")


def same_run(one: Path, other: Path, *, within: float) -> None:
    """Same rows up to rounding, same metrics, same weights."""
    first, second = rows(one), rows(other)
    assert [row["step"] for row in first] == [row["step"] for row in second]
    for mine, theirs in zip(first, second, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert_near(mine[name], theirs[name], rel=within, abs=within, where=f"step {mine['step']}: {name}")
    torch.testing.assert_close(ema_weights(one), ema_weights(other), rtol=within, atol=within)
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (one, other)]
    assert metrics[0]["test"]["ema"]["num_images"] == metrics[1]["test"]["ema"]["num_images"] == BASE["scenes-test"]
    assert metrics[0]["test"]["ema"]["mAP"] == pytest.approx(metrics[1]["test"]["ema"]["mAP"], abs=1e-6)


def same_start(one: Path, other: Path) -> None:
    """Same rows, weights and gradients, as AdamW remembers them, of two pretrainings in float64, up to its rounding.

    AdamW would move the weights alike by a gradient that is larger by a factor, so weights alone do not tell.
    """
    for mine, theirs in zip(rows(one), rows(other), strict=True):
        assert_near(mine, theirs, rel=1e-9, abs=1e-9, where=f"step {mine['step']}")
    states = [torch.load(folder / "last.pt", weights_only=True) for folder in (one, other)]
    for name in ("model", "optimizer"):
        torch.testing.assert_close(states[0][name], states[1][name], rtol=1e-9, atol=1e-9)
    backbones = [load_file(folder / "backbone.safetensors") for folder in (one, other)]
    torch.testing.assert_close(*backbones)  # float32


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERCENTMATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case on two ranks, then a run and a pretraining that one rank is asked to stop at step 2."""
    folder = tmp_path_factory.mktemp("ranks")
    draw_files(folder)
    commands: list[Any] = [command(method, folder / method, **more) for method, more in CASES.items()]
    commands += [{"step": 1, "signal": signal.SIGTERM, "rank": 1}, command("percentmatch", folder / "stopped")]
    commands += [warm_command(case, folder, folder / case) for case in WARM_CASES]
    commands += [{"step": 1, "signal": signal.SIGTERM, "rank": 1}]
    commands += [warm_command("resnet", folder, folder / "stopped start")]
    result = torchrun(commands, folder)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("train from it by --weights") == len(WARM_CASES)
    assert result.stdout.count(f"run folder  {folder / 'percentmatch'}\n") == 1  # one rank speaks
    return folder


@pytest.mark.parametrize("method", CASES)
def test_two_ranks_train_what_one_does(method: str, two_ranks: Path, tmp_path: Path) -> None:
    """Losses, thresholds, counts of pseudo-labels and weights: float32 sums in another order, nothing else."""
    run(command(method, tmp_path / "one", **CASES[method]))
    same_run(tmp_path / "one", two_ranks / method, within=2e-6)


def test_a_stopped_run_of_two_ranks_goes_on_with_one(two_ranks: Path) -> None:
    """One rank got the signal, both stopped after the same step, and what they saved is no rank's own."""
    stopped = two_ranks / "stopped"
    assert torch.load(stopped / "last.pt", weights_only=True)["step"] == 2
    assert not (stopped / "metrics.json").exists()
    run(["train", "--resume", "--out", str(stopped)])
    same_run(stopped, two_ranks / "percentmatch", within=2e-6)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrain_module, "Embedder", Double)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("case", WARM_CASES)
def test_two_ranks_pretrain_what_one_does(case: str, two_ranks: Path, tmp_path: Path) -> None:
    run(warm_command(case, two_ranks, tmp_path / "one"))
    same_start(tmp_path / "one", two_ranks / case)


@pytest.mark.usefixtures("double")
def test_a_stopped_pretraining_of_two_ranks_goes_on_with_one(two_ranks: Path) -> None:
    """Between two rows of the log: the mean loss of steps 1 and 2 goes on, too."""
    stopped = two_ranks / "stopped start"
    assert torch.load(stopped / "last.pt", weights_only=True)["step"] == 2
    assert not (stopped / "pretrain.json").exists()
    run(["pretrain", "--resume", "--out", str(stopped)])
    same_start(stopped, two_ranks / "resnet")


@pytest.mark.slow
def test_a_pretraining_of_three_ranks_survives_the_loss_of_one(two_ranks: Path, tmp_path: Path) -> None:
    """Rank 2 dies in the fourth step; torchrun starts all again, and they go on from the checkpoint of the second."""
    out = tmp_path / "killed"
    plan = [{"step": 3, "signal": signal.SIGKILL, "rank": 2}, warm_command("resnet", two_ranks, out)]
    result = torchrun(plan, tmp_path, "--max-restarts=1", ranks=3)
    assert result.returncode == 0, result.stderr[-3000:]
    same_start(out, two_ranks / "resnet")


@pytest.mark.parametrize("resident", [True, False])
def test_ranks_draw_their_slices_of_a_pretraining(resident: bool, tmp_path: Path, monkeypatch) -> None:
    """What 1 and 3 ranks draw for a step is the same, one slice after another, first views before second ones."""
    settings = PretrainSettings(scenes_pool=60, backbone="test_resnet", image_size=32, batch=12, total_steps=6)
    data = load_data(settings.as_config())
    config = replace(settings.as_config(), images_on="device" if resident else "host")

    def drawn(number: int, ranks: int) -> dict[str, torch.Tensor]:
        monkeypatch.setattr(pretrain_module, "num_ranks", lambda: ranks)
        monkeypatch.setattr(pretrain_module, "rank", lambda: number)
        return Pretraining(settings, config, PretrainFolder(tmp_path), data, torch.device("cpu")).draw(4)

    whole, parts = drawn(0, 1), [drawn(number, 3) for number in range(3)]
    assert {"jitter", "rows", "plan.matrix", *(() if resident else ("pixels",))} <= whole.keys()
    for name in whole.keys() - ({"lr", "step"} if resident else {"lr", "step", "rows"}):
        if name == "pixels":
            together = torch.cat([part[name] for part in parts])
        else:
            together = torch.cat([part[name].chunk(2)[view] for view in (0, 1) for part in parts])
        assert torch.equal(together, whole[name]), name


def test_the_gradient_of_the_contrastive_loss_is_whole() -> None:
    """Against differences: a view is also among the others of each other view."""
    views = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda both: pretrain_module.nt_xent(*both, 0.5), views)


@pytest.mark.parametrize("backbone", ["test_resnet", "test_efficientnet"])
def test_shared_norms_of_one_rank_are_torchs(backbone: str) -> None:
    """In training and after it; outputs, gradients and moving statistics."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(6, 3, 32, 32, generator=draw, dtype=torch.float64)
    results = []
    for shared in (False, True):
        torch.manual_seed(0)
        model = build_classifier(backbone, num_classes=4, head="linear", image_size=32).double()
        if shared:
            shared_norm.share_norms(model, on_gpu=False)
            norms = [each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
            assert norms
            assert {type(each) for each in norms} <= set(shared_norm.SHARED.values())
        first = model(images)
        first.square().sum().backward()
        gradients = [each.grad for each in model.parameters()]
        state = {name: value.clone() for name, value in model.state_dict().items()}
        results.append((first.detach(), gradients, state, model.eval()(images).detach()))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("backbone", ["test_resnet", "test_efficientnet"])
def test_shared_norms_take_bfloat16(backbone: str) -> None:
    """Their means are taken in float32, as torch's are."""
    images, states = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)), []
    for shared in (False, True):
        torch.manual_seed(0)
        model = build_classifier(backbone, num_classes=4, head="linear", image_size=32)
        if shared:
            shared_norm.share_norms(model, on_gpu=False)
        with torch.autocast("cpu", torch.bfloat16):
            model(images).square().sum().backward()
        assert all(each.grad.isfinite().all() for each in model.parameters())
        states.append(dict(model.state_dict()))
    torch.testing.assert_close(*states, rtol=0.02, atol=0.02)


def test_norms_shared_on_gpus_keep_their_activation() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = build_classifier("test_efficientnet", num_classes=4, head="linear", image_size=32).eval()
    before, names = model(images), list(model.state_dict())
    shared_norm.share_norms(model, on_gpu=True)
    assert any(isinstance(each, nn.SyncBatchNorm) for each in model.modules())
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(images), before)


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_resumes(two_ranks: Path, tmp_path: Path) -> None:
    """Rank 1 dies in the third step; torchrun starts both again, and they end as undisturbed ones do."""
    out = tmp_path / "killed"
    result = torchrun(
        [{"step": 2, "signal": signal.SIGKILL, "rank": 1}, command("percentmatch", out)], tmp_path, "--max-restarts=1"
    )
    assert result.returncode == 0, result.stderr[-3000:]
    same_run(out, two_ranks / "percentmatch", within=1e-12)


def one_of_two(number: int, port: str, tokens: list[str]) -> None:
    """The command as a rank that a launcher started."""
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    sys.argv = ["percentmatch", *tokens]
    main()


def test_ranks_that_do_not_mean_the_same_are_refused(free_port: str, tmp_path: Path) -> None:
    out, said = tmp_path / "odd", [tmp_path / "said0", tmp_path / "said1"]
    odd = [command("percentmatch", out, **{"seed": number, "split-seed": number}) for number in range(2)]
    ranks = [start_copy(one_of_two, number, free_port, odd[number], said=said[number]) for number in range(2)]
    assert [exit_code(process) for process in ranks] == [2, 2]
    sentence = "the processes of this run differ in split_seed, seed; give all the same command, data and code"
    assert all(sentence in file.read_text() for file in said)  # each rank says so
    assert not out.exists()


def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percentmatch.training.loader.num_ranks", lambda: 2)
    with pytest.raises(UserError, match="--labeled-batch 9 must be a multiple of 2, the number of ranks"):
        run(command("supervised", tmp_path / "odd", **{"labeled-batch": 9}))
    assert not (tmp_path / "odd").exists()
    monkeypatch.setattr("percentmatch.training.pretraining.num_ranks", lambda: 2)
    with pytest.raises(UserError, match="--batch 9 must be a multiple of 2, the number of ranks"):
        run(warm_command("resnet", tmp_path, tmp_path / "odd", batch=9))
    assert not (tmp_path / "odd").exists()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_method_on_several_ranks(ranks: int, tmp_path: Path) -> None:
    """20 steps of 36 images. UPS needs dropout, whose draws are each rank's own: its run is only seen to end."""
    sizes = {"scenes-pool": 200, "labeled-batch": 36, "total-steps": 20, "save-every": 10}
    more = {method: {**sizes, "dropout": 0.2} if method == "ups" else sizes for method in METHODS}
    result = torchrun([command(method, tmp_path / method, **more[method]) for method in METHODS], tmp_path, ranks=ranks)
    assert result.returncode == 0, result.stderr[-3000:]
    for method in METHODS:
        run(command(method, tmp_path / f"one {method}", **more[method]))
        if method != "ups":
            same_run(tmp_path / f"one {method}", tmp_path / method, within=1e-5)


@pytest.mark.slow
def test_two_machines(two_ranks: Path, tmp_path: Path) -> None:
    """Two launchers of one rank each, as on two machines, joined over the loopback."""
    out, plan = tmp_path / "run", tmp_path / "plan.json"
    plan.write_text(json.dumps([command("percentmatch", out)]))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    launch += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29611", "--rdzv-id=test", str(RANKS), str(plan)]
    machines = [subprocess.Popen(launch, env={**os.environ, "OMP_NUM_THREADS": "1"}) for _ in range(2)]
    assert [machine.wait(600) for machine in machines] == [0, 0]
    same_run(out, two_ranks / "percentmatch", within=1e-12)


@pytest.mark.parametrize(("ranks", "total"), [(1, 5), (2, 5), (3, 7), (4, 5), (4, 3), (3, 0)])
def test_shares_cover_every_row_once(ranks: int, total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "num_ranks", lambda: ranks)
    shares = []
    for number in range(ranks):
        monkeypatch.setattr(distributed, "rank", lambda number=number: number)
        shares.append(list(range(total))[distributed.own_share(total)])
    assert [row for share in shares for row in share] == list(range(total))
    assert all(
        len(share) == len(shares[0]) for share in shares[: -1 if total % ranks else None] if share and shares[-1]
    )
