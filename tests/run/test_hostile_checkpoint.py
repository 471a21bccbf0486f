"""A checkpoint that somebody made up is refused in one sentence, in little time and memory, and nothing is changed."""

import math
import os
import re
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TINY, rows

from percentmatch.console.signals import Stopped
from percentmatch.errors import UserError
from percentmatch.training import loop
from percentmatch.training.run import Run
from percentmatch.training.start import train

TERABYTES = 10_000_000_000_000
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, real = tmp_path_factory.mktemp("runs") / "run", loop.train_step

    def stop(run: Run, number: int) -> None:
        if number == 7:
            raise Stopped("", 2)
        real(run, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", stop)
        with pytest.raises(Stopped):
            train(TINY, folder)
    return folder


def shared(depth: int = 43, leaf: object = "x") -> list:
    """2 to the power of `depth` leaves, in as many lists."""
    value = [leaf, leaf]
    for _ in range(depth):
        value = [value, value]
    return value


def put(*path: Any, value: object) -> Change:
    def change(state: dict[str, Any]) -> None:
        *first, last = path
        for name in first:
            state = state[name]
        state[last] = value

    return change


def first_moment(value: object) -> Change:
    return lambda state: state["optimizer"]["state"][0].update(exp_avg=value)


def wide(*shape: int) -> torch.Tensor:
    """One number in the file, and as many as this when it is used."""
    return torch.zeros(()).expand(shape)


CHANGES: dict[str, Change] = {
    "a log of 10 TB": lambda state: state["log"].__setitem__(0, TERABYTES),
    "a log of a negative length": lambda state: state["log"].__setitem__(0, -1),
    "a log's length that is no number": lambda state: state["log"].__setitem__(0, "7"),
    "a log's hash that is no text": lambda state: state["log"].__setitem__(1, shared()),
    "a log of three": put("log", value=[1, "x", 2]),
    "a log that is a tensor": put("log", value=wide(2)),
    "settings of 10^13 leaves": put("settings", value={"lr": shared()}),
    "settings of 10^13 leaves in a view": put("settings", "weak_view", value={"x": shared()}),
    "settings that are a list": put("settings", value=shared(3)),
    "a setting that is a tensor": put("settings", "lr", value=wide(10**12)),
    "settings that are nested deeply": put("settings", value={"a": {"b": {"c": {"d": {"e": {"f": {}}}}}}}),
    "a step of text": put("step", value="7"),
    "a step below 0": put("step", value=-3),
    "a step of 10^30": put("step", value=10**30),
    "a step beyond the end": put("step", value=13),
    "a step that is true": put("step", value=True),
    "a step that is a tensor": put("step", value=wide(10**9)),
    "seconds that are no number": put("seconds", value=math.nan),
    "seconds that are text": put("seconds", value="1"),
    "no seconds": lambda state: state.pop("seconds"),
    "other parameters": put("optimizer", "param_groups", 0, "params", value=[5, 6]),
    "groups of 10^13 leaves": put("optimizer", "param_groups", value=shared()),
    "no groups": put("optimizer", "param_groups", value=[]),
    "a moment of another shape": first_moment(wide(3, 10**9)),
    "a moment that is a list": first_moment(shared()),
    "a moment of another kind": first_moment("x"),
    "moments of a parameter that is not there": put("optimizer", "state", 10**6, value={}),
    "moments of the last parameter by -1": put("optimizer", "state", -1, value={}),
    "moments that are missing": put("optimizer", "state", 0, value={}),
    "an optimizer that is a list": put("optimizer", value=shared()),
    "a model that is a list": put("model", value=shared()),
    "a model of one tensor": put("model", value={"x": wide(10**12)}),
    "a weight that is text": lambda state: state["model"].update({next(iter(state["model"])): "x"}),
    "a mean of 10^12 numbers": put("meter", "sums", "loss", value=wide(10**12)),
    "a mean of complex numbers": put("meter", "sums", "loss", value=torch.zeros((), dtype=torch.complex64)),
    "a mean that is sparse": put("meter", "sums", "loss", value=torch.zeros(10).to_sparse()),
    "a mean without a name": put("meter", "sums", 3, value=wide()),
    "a mean that is a list": put("meter", "sums", "loss", value=shared()),
    "a bad step of 10^12 numbers": put("meter", "bad_steps", "loss", value=wide(10**12)),
    "a count of text": put("meter", "count", value="x"),
    "means that are a list": put("meter", "sums", value=[1]),
    "a method that is a list": put("method", value=shared()),
    "a split that is a list": put("split", value=shared()),
    "labels that are a list": put("labels", value=shared()),
    "a list": lambda state: state.clear(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_made_up_checkpoint_is_one_sentence(what: str, stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    (folder / "previous.pt").unlink(missing_ok=True)
    state = torch.load(folder / "last.pt", weights_only=True)
    CHANGES[what](state)
    torch.save(state, folder / "last.pt")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    limits, began = resource.getrlimit(resource.RLIMIT_AS), time.process_time()
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    try:
        with pytest.raises(UserError) as caught:
            train(TINY, folder, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.process_time() - began < 20
    sentence = str(caught.value)
    assert re.search(r"last\.pt|begun with|have changed", sentence)
    assert "\n" not in sentence
    assert len(sentence) < 700
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "value"), [("betas", shared(2)), ("betas", (2.0, -1.0)), ("eps", "x"), ("fused", True), ("other", 1)]
)
def test_the_settings_of_the_optimizer_are_those_of_the_run(
    name: str, value: object, stopped: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    state = torch.load(folder / "last.pt", weights_only=True)
    for group in state["optimizer"]["param_groups"]:
        group[name] = value
    torch.save(state, folder / "last.pt")
    train(TINY, folder, resume=True)
    assert rows(folder) == rows(whole)
    groups = torch.load(folder / "last.pt", weights_only=True)["optimizer"]["param_groups"]
    assert groups == torch.load(whole / "last.pt", weights_only=True)["optimizer"]["param_groups"]
