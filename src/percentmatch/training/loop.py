"""The training loop of every method. Every effect of a step is visible here."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from percentmatch import __version__
from percentmatch.augment import mix
from percentmatch.console.progress import Counting, Report
from percentmatch.console.signals import Stopped, StopRequest
from percentmatch.data import Data, detected, load_data
from percentmatch.data.labels import check_single
from percentmatch.distributed.device import pick_device
from percentmatch.distributed.group import (
    any_rank,
    average_buffers,
    check_same_on_all,
    first_on_each_machine,
    forget_parts,
    is_main,
    joined,
    own_numbers,
    wait_for_all,
)
from percentmatch.distributed.ranks import launched
from percentmatch.methods import checked_options
from percentmatch.models.heads import head_class
from percentmatch.runs.run_folder import MAY_CHANGE, RunFolder
from percentmatch.settings.config import Config
from percentmatch.training.loader import Drawn
from percentmatch.training.loggers import Follower, following
from percentmatch.training.optim import set_lr
from percentmatch.training.run import Run


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    data: Data | None = None,
    followers: Sequence[Follower] = (),
) -> dict[str, Any]:
    """Train as `config` says into the run folder `out`; returns what metrics.json holds.

    `data` replaces the data the config names. With `resume` a run continues from its last checkpoint, exactly.
    Ctrl-C and SIGTERM save and raise `Stopped`. `followers` show the log elsewhere. Processes started by torchrun or
    srun train together, and the first one writes.
    """
    with joined(), RunFolder(Path(out)) as folder, torch.random.fork_rng(devices=()):  # the caller's draws go on
        return _train(config, folder, resume=resume, data=data, followers=followers)


def _train(
    config: Config, folder: RunFolder, *, resume: bool, data: Data | None, followers: Sequence[Follower]
) -> dict[str, Any]:
    config = replace(config, options=checked_options(config.method, config.options))
    head_class(config.head, config.dropout)  # before any image is read
    config = detected(config) if data is None else replace(config, data="custom")
    own = {name: value for name, value in config.to_dict().items() if name not in (*MAY_CHANGE, "weights")}
    check_same_on_all({**own, "version": __version__, "resume": resume})
    if resume:
        folder.check_same(config)
        if folder.metrics.exists():
            return folder.read_metrics()
    else:
        folder.check_new()
    device = pick_device(config.device, deterministic=config.deterministic)
    if data is None:
        with Counting("decoding images", silent=launched().rank > 0) as progress, first_on_each_machine():
            data = load_data(config, progress=progress)
    elif config.task == "single-label":
        for images in (data.pool, data.test):
            check_single(images.labels, images.ids)
    run = Run(config, folder, data, device, resumed=resume)
    check_same_on_all({"the split": run.split.digest, "the labels": run.labels})
    if resume:
        run.restore()
    else:
        wait_for_all()  # until all have seen that the folder is new
        if is_main():
            folder.create(config, run.split, device)
        run.write_start()

    steps = config.total_steps
    shown = following(followers if is_main() else (), folder, config)
    bar = Report(config.method, steps, run.step, run.images_per_step, silent=not is_main())
    with run.saver:
        with StopRequest() as stop, shown, bar as report:
            for step in range(run.step, steps):
                run.refresh(step)
                train_step(run, step)
                run.step = done = step + 1
                report.step(done)
                if done % config.log_every == 0 or done == steps:  # the only device-to-host copies
                    report.row(done, loss=run.log_row())
                if config.eval_every and done % config.eval_every == 0 and len(run.validation):
                    report.row(done, mean_ap=run.validate())
                asked = any_rank(stop.number)
                if done % config.save_every == 0 or done == steps or asked:
                    run.save()
                if asked and done < steps:
                    raise Stopped(
                        f"stopped at step {done} of {steps}; continue with --out {folder.path} --resume", asked
                    )
        return run.finish()  # while the last checkpoint is being written


def train_step(run: Run, step: int) -> None:
    """One optimizer step. Nothing in it waits for the device."""
    torch.manual_seed(mix(*own_numbers(run.config.seed, step)))  # dropout; views and samples draw by themselves
    drawn = run.drawn_ahead.pop(step, None) or run.draw(step)
    sent = run.sender.send(drawn)
    run.meter.count += run.config.accumulate
    do = partial(update, run, drawn, sent)
    run.replay(do) if run.replay else do()
    if step + 1 < run.config.total_steps:
        run.drawn_ahead = {step + 1: run.draw(step + 1)}  # while the device is at work


def update(run: Run, drawn: Drawn, sent: Drawn) -> None:
    """All that a step does, from what was drawn for it and sent. On a GPU it is captured once and replayed."""
    config = run.config
    set_lr(run.optimizer, sent["lr"])
    run.optimizer.zero_grad(set_to_none=True)
    forget_parts(run.method)  # of a capture that failed
    for micro in range(config.accumulate):
        batch = run.loader.make(drawn, sent, micro)
        with run.no_exchange(micro):
            with run.autocast():
                loss = run.method(run.student, batch, run.ema.model)
            (loss.total / config.accumulate).backward()
        run.meter.watch({f"{name} loss": part for name, part in loss.parts.items()}, batch.step)
        run.meter.add({**loss.parts, **run.audit(loss.pseudo, run.loader.truth(sent, micro))})
    norm = nn.utils.get_total_norm([each.grad for each in run.trained if each.grad is not None])
    if config.clip_grad:
        nn.utils.clip_grads_with_norm_(run.trained, config.clip_grad, norm)
    run.meter.watch({"gradient norm": norm}, batch.step)
    run.optimizer.step()
    average_buffers(run.model)
    run.ema.update(run.model, sent["ema_weight"])
