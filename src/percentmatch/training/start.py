"""The two calls that train: checks, data and state before the loop, the end after it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from percentmatch import __version__
from percentmatch.console.progress import Counting
from percentmatch.data import Data, Source, Split, detected, load_data, open_data
from percentmatch.data.labels import check_single
from percentmatch.distributed.device import pick_device
from percentmatch.distributed.group import check_same_on_all, first_on_each_machine, is_main, joined, wait_for_all
from percentmatch.distributed.ranks import launched
from percentmatch.errors import UserError
from percentmatch.methods import checked_options
from percentmatch.models.heads import head_class
from percentmatch.runs.checkpoint import BAD_STATE
from percentmatch.runs.run_folder import MAY_CHANGE, Folder, PretrainFolder, RunFolder
from percentmatch.settings.config import Config, DataSettings, PretrainSettings
from percentmatch.settings.declare import given_in, merge
from percentmatch.settings.renamed import renamed
from percentmatch.training.loggers import Logger
from percentmatch.training.loop import State, run_loop
from percentmatch.training.pretraining import Pretraining, finish_pretraining, log_pretraining
from percentmatch.training.resolve import Seen, for_machine, look, resolve
from percentmatch.training.results import finish_run, log_start, log_training, log_validation
from percentmatch.training.run import Run, refresh


def train(
    config: Config, out: str | Path, *, resume: bool = False, data: Data | None = None, loggers: Sequence[Logger] = ()
) -> dict[str, Any]:
    """Train as `config` says into the run folder `out`; returns what metrics.json holds.

    `data` replaces the data the config names. With `resume` a run continues from its last checkpoint, exactly.
    Ctrl-C and SIGTERM save and raise `Stopped`. `loggers` show the log elsewhere. Processes started by torchrun or
    srun train together, and the first one writes.
    """
    return train_given(given_in(config), out, resume=resume, data=data, loggers=loggers)


def fit(
    *, out: str | Path, resume: bool = False, data: Data | None = None, loggers: Sequence[Logger] = (), **settings: Any
) -> dict[str, Any]:
    """Train on data of your own, such as `labels="labels.csv", images="photos"`, into the run folder `out`.

    `settings` are any of a `Config`; the rest is chosen by the amount of data and the machine, as on the command line,
    and printed. Otherwise as `train`.
    """
    given = merge(RunFolder(Path(out)).read_to_resume(), settings) if resume else settings
    return train_given(given, out, resume=resume, choose_rest=not resume, data=data, loggers=loggers)


def train_given(
    given: Mapping[str, Any],
    out: str | Path,
    *,
    resume: bool = False,
    choose_rest: bool = False,
    data: Data | None = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, Any]:
    """Train with the settings that are given; the rest are defaults or, with `choose_rest`, chosen for own data."""
    with joined(), RunFolder(Path(out)) as folder, torch.random.fork_rng(devices=()):  # the caller's draws go on
        given = renamed(given)
        settings = Config.from_dict(given, source="settings")
        settings = replace(settings, options=checked_options(settings.method, settings.options))
        head_class(settings.head, settings.dropout)  # before any image is read
        settings = detected(settings if data is None else replace(settings, data="custom"))
        given = _as_found(given, settings)
        if _is_finished(folder, folder.metrics, settings, resume):
            return folder.read_metrics()
        device, source, seen = _look(settings, given, data, choose_rest=choose_rest)
        resolved = resolve(given, seen)
        config = resolved.config
        for line in resolved.reasons if is_main() else ():
            print(line, file=sys.stderr)
        for images in (data.pool, data.test) if data and config.task == "single-label" else ():
            check_single(images.labels, images.ids)
        run = Run(config, folder, data or _load(config, source), device, resumed=resume)
        _claim(run, resume, partial(folder.create, config, given))
        if is_main() and not folder.log.size:
            log_start(run)
        validate = log_validation if len(run.validation) else None
        run_loop(run, log=log_training, refresh=refresh, validate=validate, loggers=loggers)
        return finish_run(run)  # while the last checkpoint is being written


def pretrain(
    settings: PretrainSettings, out: str | Path, *, resume: bool = False, data: Data | None = None
) -> dict[str, Any]:
    """Train a backbone as `settings` say into the folder `out`; returns what pretrain.json holds.

    It sees the labeled and unlabeled images of the split, or those of the stream alone; no labels, and no images for
    validation or test. `data` replaces the data that the settings name. With `resume` it continues from its last
    checkpoint, exactly. Processes started by torchrun or srun train together, and the first one writes.
    """
    with joined(), PretrainFolder(Path(out)) as folder, torch.random.fork_rng(devices=()):  # the caller's draws go on
        given = given_in(settings)
        settings = detected(settings if data is None else replace(settings, data="custom"))
        if _is_finished(folder, folder.result, settings, resume):
            return folder.read_result()
        device, source, seen = _look(settings, given, data)
        config = for_machine(settings.as_config(), seen)
        settings = replace(settings, device=config.device)
        state = Pretraining(settings, config, folder, data or _load(config, source), device, resumed=resume)
        _claim(state, resume, partial(folder.create, settings, given))
        run_loop(state, log=log_pretraining)
        return finish_pretraining(state)


def _as_found(given: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """What was given, with checked options; a VOC or COCO folder given as `labels` becomes `root`."""
    found = {**given, **({"options": settings.options} if "options" in given else {})}
    found |= {"data": settings.data} if "data" in given or settings.data == "custom" else {}
    return found | ({"root": settings.root, "labels": ""} if found.get("labels") and not settings.labels else {})


def _is_finished(folder: Folder, result: Path, settings: DataSettings, resume: bool) -> bool:
    """Check that all ranks agree and that the folder fits the settings; whether there is nothing left to do."""
    same = {name: value for name, value in settings.to_dict().items() if name not in (*MAY_CHANGE, "weights")}
    check_same_on_all({**same, "version": __version__, "resume": resume})
    if resume:
        folder.check_same(settings)
    else:
        folder.check_new()
    return resume and result.exists()


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
    """Create the folder of a new state, or continue from what is in it."""
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
            state.load_state_dict(found)
            state.step, state.began = int(found["step"]), state.began - float(found["seconds"])
        except BAD_STATE as error:
            how = "is the checkpoint of another model or method; choose another --out"
            raise UserError(f"'{checkpoints.last}' {how}") from error
    wait_for_all()  # until all have read it
    if is_main():
        checkpoints.go_on_from(found, why)
