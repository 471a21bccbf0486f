"""Which process of several this is, by the variables of torchrun and of Slurm."""

import os

import pytest

from percentmatch.cli.main import run
from percentmatch.distributed.ranks import Launched, launched, restarts
from percentmatch.errors import UserError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a launcher around the tests, and nothing left of what they set."""
    monkeypatch.setattr(os, "environ", {"HOME": "/"})


def test_a_process_alone() -> None:
    assert launched() == Launched(rank=0, size=1, local_rank=0)
    assert restarts() == 0


def test_torchrun() -> None:
    os.environ |= {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert launched() == Launched(rank=5, size=8, local_rank=1)
    assert restarts() == 2


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[007-009,12],login", "gpu007"),
        ("gpu[7,9]", "gpu7"),
        ("a-3,b[1-2]", "a-3"),
        ("rack[2-3]-n,x", "rack2-n"),
        ("gpu007", "127.0.0.1"),
        ("", "127.0.0.1"),
    ],
)
def test_the_tasks_of_an_srun_find_the_first(nodes: str, first: str) -> None:
    """The port is 20000 + 123456 mod 20000 = 20000 + 3456."""
    os.environ |= {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "123456"}
    os.environ |= {"SLURM_STEP_NODELIST": nodes, "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}  # of where srun was typed
    assert launched() == Launched(rank=3, size=4, local_rank=1)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == (first, "23456")


def test_a_batch_script_without_srun_is_alone() -> None:
    os.environ |= {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
    assert launched().size == 1


def test_torchrun_inside_slurm_counts() -> None:
    os.environ |= {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    os.environ |= {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert launched() == Launched(rank=1, size=8, local_rank=1)


@pytest.mark.parametrize(("rank", "message"), [("one", "must be numbers"), ("2", "RANK is 2 of WORLD_SIZE 2")])
def test_odd_variables_are_refused(rank: str, message: str) -> None:
    os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    with pytest.raises(UserError, match=message):
        launched()


def test_only_training_takes_several_processes() -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    with pytest.raises(UserError, match="predict works in one process"):
        run(["predict", "run", "photos"])


def test_two_steps_of_a_slurm_job_do_not_meet() -> None:
    os.environ |= {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "123456"}
    ports = set()
    for step in range(3):
        for name in ("RANK", "MASTER_PORT"):
            os.environ.pop(name, None)
        os.environ["SLURM_STEP_ID"] = str(step)
        launched()
        ports.add(os.environ["MASTER_PORT"])
    assert len(ports) == 3
