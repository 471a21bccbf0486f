"""What every rank of a test runs: one command line after another. Started by torchrun, so it is no test itself."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from percentmatch.cli.main import run
from percentmatch.console.signals import Stopped
from percentmatch.training import loop
from percentmatch.training import pretraining as pretrain_module
from percentmatch.training.pretraining import Embedder


class Double(Embedder):
    """Weights in float64, as `train --precision float64` has them: what ranks sum in another order is the same."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self.double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.double())


def main() -> None:
    """The commands are lists in a JSON file. {"step": S, "signal": N, "rank": R} before one sends N to R at S."""
    torch.set_num_threads(1)
    pretrain_module.Embedder = Double
    real = loop.train_step
    for command in json.loads(Path(sys.argv[1]).read_text()):
        if isinstance(command, dict):
            fault = command

            def step(state, number, fault=fault) -> None:
                real(state, number)
                first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
                if number == fault["step"] and int(os.environ["RANK"]) == fault["rank"] and first:
                    os.kill(os.getpid(), fault["signal"])

            loop.train_step = step
            continue
        with contextlib.suppress(Stopped):
            run(command)
        loop.train_step = real


if __name__ == "__main__":
    main()
