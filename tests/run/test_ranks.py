"""Several ranks train what one does: the same images, thresholds and losses, through the command line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from percentmatch import distributed
from percentmatch.cli import run
from percentmatch.errors import UserError
from percentmatch.methods import METHODS

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
    "ups": ["num_generations=2", "passes=2"],
    "curriculum_labeling": ["share_step=0.5"],
}
CASES: dict[str, dict[str, Any]] = {
    "percentmatch": {},
    "freematch": {},  # a term of the loss that is no mean over images
    "mixmatch": {"mixup": 0.5},  # partners on other ranks
    "cap": {"cutmix": 1.0, "accumulate": 2},  # scores of the pool; next rank's first image as partner
}


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


def same_run(one: Path, other: Path, *, within: float) -> None:
    """Same rows up to rounding, same metrics, same weights."""
    first, second = rows(one), rows(other)
    assert [row["step"] for row in first] == [row["step"] for row in second]
    for mine, theirs in zip(first, second, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert_close(mine[name], theirs[name], within, f"step {mine['step']}: {name}")
    states = [torch.load(folder / "last.pt", weights_only=True) for folder in (one, other)]
    for name, value in states[0]["ema"].items():
        torch.testing.assert_close(states[1]["ema"][name], value, rtol=within, atol=within)
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (one, other)]
    assert metrics[0]["test"]["ema"]["num_images"] == metrics[1]["test"]["ema"]["num_images"] == BASE["scenes-test"]
    assert metrics[0]["test"]["ema"]["mAP"] == pytest.approx(metrics[1]["test"]["ema"]["mAP"], abs=1e-6)


def assert_close(mine: Any, theirs: Any, within: float, where: str) -> None:
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys(), where
        for name in mine:
            assert_close(mine[name], theirs[name], within, f"{where}.{name}")
    elif isinstance(mine, list):
        assert len(mine) == len(theirs), where
        for one, other in zip(mine, theirs, strict=True):
            assert_close(one, other, within, where)
    elif isinstance(mine, float):
        assert mine == pytest.approx(theirs, rel=within, abs=within), where
    else:
        assert mine == theirs, where


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case on two ranks, then a run that one rank is asked to stop at step 2."""
    folder = tmp_path_factory.mktemp("ranks")
    commands: list[Any] = [command(method, folder / method, **more) for method, more in CASES.items()]
    commands += [{"step": 1, "signal": signal.SIGTERM, "rank": 1}, command("percentmatch", folder / "stopped")]
    result = torchrun(commands, folder)
    assert result.returncode == 0, result.stderr[-3000:]
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


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_resumes(two_ranks: Path, tmp_path: Path) -> None:
    """Rank 1 dies in the third step; torchrun starts both again, and they end as undisturbed ones do."""
    out = tmp_path / "killed"
    result = torchrun(
        [{"step": 2, "signal": signal.SIGKILL, "rank": 1}, command("percentmatch", out)], tmp_path, "--max-restarts=1"
    )
    assert result.returncode == 0, result.stderr[-3000:]
    same_run(out, two_ranks / "percentmatch", within=1e-12)


def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percentmatch.loader.num_ranks", lambda: 2)
    with pytest.raises(UserError, match="--labeled-batch 9 is that of all 2 ranks and must be a multiple of 2"):
        run(command("supervised", tmp_path / "odd", **{"labeled-batch": 9}))
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
