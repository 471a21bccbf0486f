"""The training loop, of every method and of pretraining. Every effect of a step is visible here."""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from percentmatch.augment import mix
from percentmatch.console.notices import print_to_stderr
from percentmatch.console.progress import Report
from percentmatch.console.signals import Stopped, StopRequest
from percentmatch.distributed.device import Sender
from percentmatch.distributed.group import any_rank, average_buffers, forget_parts, is_main, own_numbers
from percentmatch.errors import Diverged
from percentmatch.runs.checkpoint import Checkpoint
from percentmatch.runs.run_folder import Folder
from percentmatch.settings.config import OF_THE_MACHINE, Config, with_absolute_paths
from percentmatch.settings.declare import without
from percentmatch.training.loader import Drawn
from percentmatch.training.loggers import Logger, shown_by
from percentmatch.training.meter import Meter, audit
from percentmatch.training.optim import set_lr

EAGER_STEPS = 3  # before the capture: libraries choose their algorithms, optimizers and meters make their state


class Replay:
    """Calls a step that works on device tensors which stay in place; from the fourth time on it is replayed.

    A step that cannot be captured is called every time, and one line says why.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.calls, self.graph = 0, None
        self.stream = torch.cuda.Stream(device)

    def __call__(self, step: Callable[[], None]) -> None:
        if self.graph is None and self.calls == EAGER_STEPS:
            self._capture(step)
        self.calls += 1
        if self.graph is not None:
            self.graph.replay()
            return
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):  # capture happens on a side stream, so memory is warm there
            step()
        here.wait_stream(self.stream)

    def _capture(self, step: Callable[[], None]) -> None:
        """What the step does in a capture is only written down, so a failed one has changed nothing on the device."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):  # a checkpoint's copy
                step()
        except RuntimeError as error:
            torch.cuda.synchronize(self.device)
            generator = torch.cuda.default_generators[self.device.index]
            generator.graphsafe_set_state(generator.clone_state())  # the copy does not wait for a capture to end
            cause = error.__context__ or error
            reason = next(iter(str(cause).splitlines()), type(cause).__name__)
            print_to_stderr(f"the step cannot be captured as a CUDA graph, so it runs slower: {reason}")
        else:
            self.graph = graph


class State(Protocol):
    """Everything that moves during training, so that saving it is saving all."""

    settings: Any  # of the run or the pretraining
    config: Config  # the same as the loop reads them
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
    ema: Any  # an `Ema` of the model, or None
    optimizer: torch.optim.Optimizer
    trained: list[nn.Parameter]
    sender: Sender
    meter: Meter
    replay: Replay | None  # None: the step is not captured as a CUDA graph

    @property
    def folder(self) -> Folder: ...

    def draw(self, step: int) -> Drawn:
        """What a step needs to know, on the host: a function of the seed and the step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of this state alone. All ranks must call it."""
        ...

    def load_state_dict(self, state: Checkpoint) -> None: ...


S = TypeVar("S", bound=State)


def run_loop(
    state: S,
    *,
    log: Callable[[S], dict[str, float]],
    refresh: Callable[[S, int], None] | None = None,
    validate: Callable[[S], float | None] | None = None,
    loggers: Sequence[Logger] = (),
) -> None:
    """Take the steps that are left.

    `log` writes a log row and returns the losses to show, `refresh` is called before each step, `validate` writes
    scores and returns mAP. Ctrl-C and SIGTERM save and raise `Stopped`; numbers that are not finite raise `Diverged`.
    """
    config, checkpoints, steps = state.config, state.folder.checkpoints, state.config.total_steps
    bar = Report(state.name, steps, state.step, state.images_per_step, silent=not is_main())
    with StopRequest() as stop, shown_by(loggers if is_main() else (), state.folder, config), bar as report:
        for step in range(state.step, steps):
            if refresh:
                refresh(state, step)
            train_step(state, step)
            state.step = done = step + 1
            report.step(done)
            if done % config.log_every == 0 or done == steps:  # the only device-to-host copies
                checkpoints.check()
                check_finite(state)
                report.row(done, losses=log(state))
            if validate and config.eval_every and done % config.eval_every == 0:
                check_finite(state)
                report.row(done, mean_ap=validate(state))
            asked = any_rank(stop.number)
            if done % config.save_every == 0 or done == steps or asked:
                save(state)
            if asked and done < steps:
                how = f"continue with --out {state.folder.path} --resume"
                raise Stopped(f"stopped at step {done} of {steps}; {how}", asked)


def train_step(state: State, step: int) -> None:
    """One optimizer step. Nothing in it waits for the device."""
    torch.manual_seed(mix(*own_numbers(state.config.seed, step)))  # dropout; views and samples draw by themselves
    drawn = state.drawn_ahead.pop(step, None) or state.draw(step)
    sent = state.sender.send(drawn)
    state.meter.count += state.config.accumulate
    do = partial(update, state, drawn, sent)
    state.replay(do) if state.replay else do()
    if step + 1 < state.config.total_steps:
        state.drawn_ahead = {step + 1: state.draw(step + 1)}  # while the device is at work


def update(state: State, drawn: Drawn, sent: Drawn) -> None:
    """All that a step does, from what was drawn for it and sent. On a GPU it is captured once and replayed."""
    config = state.config
    set_lr(state.optimizer, sent["lr"])
    state.optimizer.zero_grad(set_to_none=True)
    forget_parts(state.method)  # of a capture that failed
    for micro in range(config.accumulate):
        batch = state.loader.make(drawn, sent, micro)
        with _no_exchange(state, micro):
            with autocast(config, state.device):
                loss = state.method(state.student, batch, state.ema and state.ema.model)
            (loss.total / config.accumulate).backward()
        # pretraining has one term, called `loss`
        losses = {name if name == "loss" else f"{name} loss": value for name, value in loss.parts.items()}
        state.meter.watch(losses, sent["step"])
        truth, known = sent.get(f"{micro}.truth"), sent.get(f"{micro}.truth_known")
        state.meter.add({**loss.parts, **audit(loss.pseudo, truth, known)})
    norm = nn.utils.get_total_norm([each.grad for each in state.trained if each.grad is not None])
    if config.clip_grad:
        nn.utils.clip_grads_with_norm_(state.trained, config.clip_grad, norm)
    state.meter.watch({"gradient norm": norm}, sent["step"])
    state.optimizer.step()
    average_buffers(state.model)
    if state.ema:
        state.ema.update(state.model, sent["ema_weight"])


def autocast(config: Config, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")


def _no_exchange(state: State, micro: int) -> contextlib.AbstractContextManager[None]:
    """Before the last micro-batch of a step the ranks need not agree on a gradient."""
    waits = isinstance(state.student, DistributedDataParallel) and micro < state.config.accumulate - 1
    return state.student.no_sync() if waits else contextlib.nullcontext()


def save(state: State) -> None:
    """Have a checkpoint written, unless the state is not worth keeping."""
    check_finite(state)
    if not torch.stack([each.isfinite().all() for each in state.model.state_dict().values()]).all():  # waits once
        raise _diverged(state, f"weights not finite after step {state.step}")
    checkpoint = {
        "step": state.step,
        "seconds": time.monotonic() - state.began,
        "log": state.folder.log.mark(),
        "settings": with_absolute_paths(without(state.settings.to_dict(), OF_THE_MACHINE)),
        **state.state_dict(),
    }
    if is_main():
        state.folder.checkpoints.save(cast(Checkpoint, checkpoint))


def check_finite(state: State) -> None:
    """Stop if a loss or gradient was not finite since the start (waits for the device)."""
    if found := state.meter.first_bad():
        raise _diverged(state, f"{found[0]} not finite in step {found[1] + 1}")


def _diverged(state: State, what: str) -> Diverged:
    checkpoints = state.folder.checkpoints
    checkpoints.wait()
    good = f"'{checkpoints.last}' holds the last good state, " if checkpoints.last.exists() else ""
    return Diverged(f"{what}; {good}{state.remedy}")


def minutes(state: State) -> float:
    """Of training, over all its resumes."""
    return round((time.monotonic() - state.began) / 60, 2)
