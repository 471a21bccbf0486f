"""What every rank of a test runs: one command line after another. Started by torchrun, so it is no test itself."""

import contextlib
import json
import os
import sys
from pathlib import Path

import torch

from percentmatch import train as train_module
from percentmatch.cli import run
from percentmatch.signals import Stopped


def main() -> None:
    """The commands are lists in a JSON file. {"step": S, "signal": N, "rank": R} before one sends N to R at S."""
    torch.set_num_threads(1)
    real = train_module.train_step
    for command in json.loads(Path(sys.argv[1]).read_text()):
        if isinstance(command, dict):
            fault = command

            def step(state, number, fault=fault) -> None:
                real(state, number)
                first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
                if number == fault["step"] and int(os.environ["RANK"]) == fault["rank"] and first:
                    os.kill(os.getpid(), fault["signal"])

            train_module.train_step = step
            continue
        with contextlib.suppress(Stopped):
            run(command)
        train_module.train_step = real


if __name__ == "__main__":
    main()
