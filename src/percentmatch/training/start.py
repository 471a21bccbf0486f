"""The two calls that train: checks, data and state before the loop, the end after it."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from percentmatch import __version__
from percentmatch.console.notices import Working, doing, print_to_stderr
from percentmatch.console.progress import Counting
from percentmatch.data import Data, Source, Split, detected, load_data, open_data
from percentmatch.data.checks.findings import alike_classes
from percentmatch.data.labels import check_single
from percentmatch.distributed.device import pick_device
from percentmatch.distributed.group import (
    any_rank,
    check_same_on_all,
    first_on_each_machine,
    is_main,
    joined,
    wait_for_all,
)
from percentmatch.distributed.ranks import launched
from percentmatch.errors import UserError
from percentmatch.methods import checked_options
from percentmatch.models.backbones import backbone_cfg
from percentmatch.models.heads import head_class
from percentmatch.runs.checkpoint import BAD_STATE
from percentmatch.runs.run_folder import MAY_CHANGE, Folder, PretrainFolder, RunFolder
from percentmatch.settings.config import Config, DataSettings, PretrainSettings
from percentmatch.settings.declare import given_in
from percentmatch.settings.renamed import renamed
from percentmatch.training.fit_head import fit_heads
from percentmatch.training.loggers import Logger
from percentmatch.training.loop import State, run_loop
from percentmatch.training.plan import plan
from percentmatch.training.pool_prevalence import choose_prevalence
from percentmatch.training.pretraining import Pretraining, finish_pretraining, log_pretraining
from percentmatch.training.resolve import Seen, look, method_with, resolve, resolve_pretraining
from percentmatch.training.results import finish_run, log_start, log_training, log_validation
from percentmatch.training.run import Run, refresh

ONE_PLAN = "both a number of steps and minutes are given; leave one of them out"


def train(
    config: Config, out: str | Path, *, resume: bool = False, data: Data | None = None, loggers: Sequence[Logger] = ()
) -> dict[str, Any]:
    """Train as `config` says into the run folder `out`; returns what metrics.json holds.

    `data` replaces the data the config names. With `resume` a run continues from its last checkpoint, exactly.
    Ctrl-C and SIGTERM save and raise `Stopped`. `loggers` show the log elsewhere. Processes started by torchrun or
    srun train together, and the first one writes.
    """
    return train_given(given_in(config), out, resume=resume, data=data, loggers=loggers)


def train_given(
    given: Mapping[str, Any],
    out: str | Path,
    *,
    resume: bool = False,
    choose_rest: bool = False,
    minutes: float | None = None,
    data: Data | None = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, Any]:
    """Train with the settings that are given; the rest are defaults or, with `choose_rest`, chosen for own data.

    With `minutes`, the number of steps is what fits into them, whatever a file or a preset says.
    """
    began = time.monotonic()
    if minutes is not None and (resume or not 0 < minutes < math.inf):
        raise UserError("--minutes must be above 0, for a new run; one to --resume keeps its number of steps")
    working = Working("training", silent=launched().rank > 0)
    with (
        working,
        joined(),
        RunFolder(Path(out)) as folder,
        torch.random.fork_rng(devices=()),  # the caller's draws go on
    ):
        given = renamed(given)
        given = {name: value for name, value in given.items() if minutes is None or name != "total_steps"}
        settings = Config.from_dict(given, source="settings")
        method = method_with(settings.options) if choose_rest and "method" not in given else settings.method
        settings = replace(settings, options=checked_options(method, settings.options))
        head_class(settings.head, settings.dropout)  # before any image is read
        backbone_cfg(settings.backbone)
        settings = detected(settings if data is None else replace(settings, data="custom"))
        given = _as_found(given, settings)
        if _is_finished(folder, folder.metrics, settings, resume):
            return folder.read_metrics()
        device, source, seen = _look(settings, given, data, choose_rest=choose_rest)
        if source and source.manifest and not resume:
            _show(alike_classes(source.manifest))
        resolved = resolve(given, seen)
        loaded = None
        if minutes is not None:
            loaded, first = data or _load(resolved.config, source), resolved.config
            _show(["timing a few steps for the plan"])
            resolved, line = plan(given, seen, loaded, folder, device, minutes=minutes, began=began)
            loaded = loaded if resolved.config.decode_size == first.decode_size else None
            resolved = replace(resolved, reasons=(*resolved.reasons, line))
        config = resolved.config
        _show(resolved.reasons)
        for images in (data.pool, data.test) if data and config.task == "single-label" else ():
            check_single(images.labels, images.ids)
        run = Run(config, folder, data or loaded or _load(config, source), device, resumed=resume)
        if seen.amount and not resume and (line := choose_prevalence(run, given)):  # where settings are chosen
            _show([line])
        _claim(run, resume, partial(folder.create, run.config, given))
        if is_main() and not folder.log.size:
            log_start(run)
        validate = log_validation if len(run.validation) else None
        if run.method.trains:
            run_loop(run, log=log_training, refresh=refresh, validate=validate, loggers=loggers)
        fit_heads(run)
        doing("scoring the weights of the last step")
        return finish_run(run)  # while the last checkpoint is being written


def pretrain(
    settings: PretrainSettings, out: str | Path, *, resume: bool = False, data: Data | None = None
) -> dict[str, Any]:
    """Train a backbone as `settings` say into the folder `out`; returns what pretrain.json holds.

    It sees the labeled and unlabeled images of the split, or those of the stream alone; no labels, and no images for
    validation or test. `data` replaces the data that the settings name. With `resume` it continues from its last
    checkpoint, exactly. Processes started by torchrun or srun train together, and the first one writes.
    """
    return pretrain_given(given_in(settings), out, resume=resume, data=data)


def pretrain_given(
    given: Mapping[str, Any],
    out: str | Path,
    *,
    resume: bool = False,
    choose_rest: bool = False,
    data: Data | None = None,
) -> dict[str, Any]:
    """Pretrain with the settings that are given; the rest are defaults or, with `choose_rest`, chosen for own data."""
    working = Working("pretraining", silent=launched().rank > 0)
    with (
        working,
        joined(),
        PretrainFolder(Path(out)) as folder,
        torch.random.fork_rng(devices=()),  # the caller's draws go on
    ):
        settings = PretrainSettings.from_dict(given, source="settings")
        settings = detected(settings if data is None else replace(settings, data="custom"))
        if _is_finished(folder, folder.result, settings, resume):
            return folder.read_result()
        device, source, seen = _look(settings, given, data, choose_rest=choose_rest)
        settings, config, reasons = resolve_pretraining(given, seen)
        _show(reasons)
        state = Pretraining(settings, config, folder, data or _load(config, source), device, resumed=resume)
        _claim(state, resume, partial(folder.create, settings, given))
        run_loop(state, log=log_pretraining)
        return finish_pretraining(state)


def _show(reasons: Sequence[str]) -> None:
    for line in reasons if is_main() else ():
        print_to_stderr(line)


def _as_found(given: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """What was given, with checked options; a VOC or COCO folder given as `labels` becomes `root`."""
    found = {**given, **({"options": settings.options} if "options" in given else {})}
    found |= {"data": settings.data} if "data" in given or settings.data == "custom" else {}
    return found | ({"root": settings.root, "labels": ""} if found.get("labels") and not settings.labels else {})


def _is_finished(folder: Folder, result: Path, settings: DataSettings, resume: bool) -> bool:
    """Whether there is nothing left to do. If there is, nobody else works in the folder from now on.

    Checks that all ranks agree and that the folder fits the settings, which nobody can change once it is held.
    """
    same = {name: value for name, value in settings.to_dict().items() if name not in (*MAY_CHANGE, "weights")}
    check_same_on_all({**same, "version": __version__, "resume": resume})
    check = partial(folder.check_same, settings) if resume else folder.check_new
    check()
    finished = resume and result.exists()
    if is_main() and not finished:
        folder.hold()
        check()
        finished = resume and result.exists()
    return bool(any_rank(int(finished)))


def _look(
    settings: Config | PretrainSettings, given: Mapping[str, Any], data: Data | None, *, choose_rest: bool = False
) -> tuple[torch.device, Source | None, Seen]:
    """The device, the data that the settings name unless it was given in Python, and what is seen of both."""
    device = pick_device(settings.device, deterministic=settings.deterministic)
    with first_on_each_machine():
        source = open_data(settings) if data is None else None
    return device, source, look(settings, given, source, data, device, choose_rest=choose_rest)


def _load(config: Config, source: Source | None) -> Data:
    with Counting("decoding images", silent=launched().rank > 0) as progress, first_on_each_machine():
        return load_data(config, source=source, progress=progress)


def _claim(state: Run | Pretraining, resume: bool, create: Callable[[Split, torch.device], None]) -> None:
    """Fill the folder of a new state, or continue from what is in it."""
    check_same_on_all({"the split": state.split.digest, "the labels": state.labels})
    wait_for_all()  # until all have seen that the folder is new
    if is_main():
        (state.folder.complete if resume else create)(state.split, state.device)
    if resume:
        take_up(state)


def take_up(state: State) -> None:
    """Continue from the newest whole checkpoint, or begin at step 0 if training ended before its first."""
    checkpoints = state.folder.checkpoints
    found, why = checkpoints.newest(state.device, save_every=state.config.save_every)
    if found:
        try:
            state.folder.check_same(state.settings, found["settings"])  # if its file was changed
            if found["step"] > state.config.total_steps:
                raise ValueError("more steps than the run has")
            state.load_state_dict(found)
            state.step, state.began = found["step"], state.began - found["seconds"]
        except BAD_STATE as error:
            how = "is the checkpoint of another model or method; choose another --out"
            raise UserError(f"'{checkpoints.last}' {how}") from error
    wait_for_all()  # until all have read it
    if is_main():
        checkpoints.go_on_from(found, why)
