"""What the training loop asks of the state of a run or a pretraining, and whether its numbers are finite."""

import time
from typing import Any, Protocol

import torch
from torch import nn

from percentmatch.distributed.device import Sender
from percentmatch.errors import Diverged
from percentmatch.runs.checkpoint import Checkpoint
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config
from percentmatch.settings.pretraining import PretrainSettings
from percentmatch.training.graph import Replay
from percentmatch.training.loader import Drawn
from percentmatch.training.meter import Meter, all_finite
from percentmatch.training.optim import Ema


class State(Protocol):
    """Everything that moves during training, so that saving it is saving all."""

    config: Config  # the settings as the loop reads them
    folder: RunFolder
    device: torch.device
    name: str  # shown beside the progress
    remedy: str  # what to do when it diverges
    images_per_step: int  # that pass through the student
    step: int  # optimizer steps made
    began: float  # on the monotonic clock, as if it had never stopped
    drawn_ahead: dict[int, Drawn]  # by step
    loader: Any  # makes a step's micro-batches from what was drawn
    method: Any  # called with the student, a micro-batch and the teacher; answers with a `StepLoss`
    model: Any
    student: nn.Module  # the model as a step calls it: with several ranks it averages their gradients
    optimizer: torch.optim.Optimizer
    trained: list[nn.Parameter]
    sender: Sender
    meter: Meter
    replay: Replay | None  # None: the step is not captured as a CUDA graph

    @property
    def settings(self) -> Config | PretrainSettings: ...

    @property
    def ema(self) -> Ema | None: ...

    def draw(self, step: int) -> Drawn:
        """What a step needs to know, on the host: a function of the seed and the step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of this state alone. All ranks have a part in it."""
        ...

    def load_state_dict(self, state: Checkpoint) -> None: ...


def minutes(state: State) -> float:
    """Of training, over all its resumes."""
    return round((time.monotonic() - state.began) / 60, 2)


def check_finite(state: State) -> None:
    """Stop if a loss or gradient was not finite since the start (waits for the device)."""
    if found := state.meter.first_bad():
        raise _diverged(state, f"{found[0]} not finite in step {found[1] + 1}")


def check_weights_finite(state: State) -> None:
    if not all_finite(state.model.state_dict()):
        raise _diverged(state, f"weights not finite after step {state.step}")


def _diverged(state: State, what: str) -> Diverged:
    checkpoints = state.folder.checkpoints
    checkpoints.wait()
    kept = f"'{checkpoints.last}' holds the last good state, " if checkpoints.last.exists() else ""
    return Diverged(f"{what}; {kept}{state.remedy}")
