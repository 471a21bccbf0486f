"""The commands that train: one run, a pretraining, a grid of runs, the demo; and the list of methods."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from percentmatch.cli.flags import ConfigFile, ConfigFlags, Device, Preset, PretrainFlags, gather, over_settings
from percentmatch.distributed.ranks import launched, restarts
from percentmatch.errors import UserError
from percentmatch.settings.config import Config, PretrainSettings


def demo(*, out: Path = Path("runs/demo"), seed: int = 0, device: Device = "auto") -> None:
    """Train supervised, FixMatch and PercentMatch on generated scenes with few labels, and compare them.

    Parameters
    ----------
    out
        Folder of the three runs. Finished runs found there are shown, interrupted ones continued.
    seed
        Chooses the labeled images, the initial weights and the order of training.
    """
    from percentmatch.use.demo import run_demo

    run_demo(out, seed=seed, device=device)


def train(
    *,
    out: Annotated[Path, Parameter(group="Run")],
    resume: Annotated[bool, Parameter(group="Run", negative="")] = False,
    minutes: Annotated[float | None, Parameter(group="Training")] = None,
    config: ConfigFile = None,
    preset: Preset = None,
    option: Annotated[list[str] | None, Parameter(group="Training", negative="")] = None,
    tensorboard: Annotated[bool, Parameter(group="Run", negative="")] = False,
    wandb: Annotated[bool, Parameter(group="Run", negative="")] = False,
    settings: Annotated[ConfigFlags, Parameter(name="*")] = ConfigFlags(),  # noqa: B008  frozen
) -> None:
    """Train a classifier. Flags override the file --config, which overrides --preset.

    What is not set is chosen for the amount of your data and for the machine, and printed; with a preset or with
    generated scenes, it has the paper's value.

    Parameters
    ----------
    out
        The run folder: new, or that of a run to --resume.
    resume
        Continue the run in --out where it stopped.
    minutes
        Take as many steps as fit into so many minutes, scores included: a few are timed before the run begins.
    option
        NAME=VALUE, an option of the method; may be repeated. `percentmatch methods NAME` lists them.
    tensorboard
        Also write losses, learning rates and validation scores for TensorBoard, to OUT/tensorboard.
    wandb
        Also log them to Weights & Biases; with WANDB_MODE=offline they stay on this machine.
    """
    from percentmatch.console.tables import percent
    from percentmatch.runs.run_folder import RunFolder
    from percentmatch.scoring.table import final_scores
    from percentmatch.training.loggers import TensorBoard, Wandb
    from percentmatch.training.start import ONE_PLAN, train_given

    if minutes is not None and getattr(settings, "total_steps", None) is not None:
        raise UserError(f"--minutes and --total-steps: {ONE_PLAN}")
    if resume and preset:
        raise UserError("--resume takes its settings from the run; leave --preset out")
    folder = RunFolder(out)
    if restarts() and not resume and folder.config.exists():
        resume, config, preset, minutes = True, None, None, None
    resumed = folder.read_to_resume() if resume else None
    given = gather(Config, settings, config=config, preset=preset, options=option, resumed=resumed)
    loggers = [make() for make, wanted in ((TensorBoard, tensorboard), (Wandb, wandb)) if wanted]
    chooses = not (resume or preset)
    metrics = train_given(given, out, resume=resume, choose_rest=chooses, minutes=minutes, loggers=loggers)
    if launched().rank > 0:
        return
    for subset, table in reversed(final_scores(metrics).items()):
        shown = [f"{name} {percent(value)}" for name, value in table.headline().items()]
        print(f"{subset:10}  {'  '.join(shown)}")
    print(f"run folder  {out}")


def pretrain(
    *,
    out: Annotated[Path, Parameter(group="Run")],
    resume: Annotated[bool, Parameter(group="Run", negative="")] = False,
    config: ConfigFile = None,
    settings: Annotated[PretrainFlags, Parameter(name="*")] = PretrainFlags(),  # noqa: B008  frozen
) -> None:
    """Pretrain a backbone on the training images, without labels, for `train --weights`.

    What is not set is chosen for the number of images and for the machine, and printed.

    Parameters
    ----------
    out
        The folder of the pretraining: new, or that of one to --resume.
    resume
        Continue the pretraining in --out where it stopped.
    """
    from percentmatch.runs.run_folder import PretrainFolder
    from percentmatch.training.start import pretrain_given

    folder = PretrainFolder(out)
    if restarts() and not resume and folder.settings.exists():
        resume, config = True, None
    resumed = folder.read_to_resume() if resume else None
    given = gather(PretrainSettings, settings, config=config, resumed=resumed)
    result = pretrain_given(given, out, resume=resume, choose_rest=not resume)
    if launched().rank > 0:
        return
    print(f"{result['images']} images  {result['steps']} steps  loss {result['loss']:.3f}  {result['minutes']} minutes")
    print(f"train from it by --weights {folder.backbone}")


def benchmark(
    file: Path,
    *,
    out: Path,
    minutes: float = float("inf"),
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> None:
    """Train the grid of runs that a file describes, and write one file of results.

    Parameters
    ----------
    file
        A YAML file with any of preset, settings, pretraining, runs, grid and seeds.
    out
        Folder of the runs. Finished runs found there are kept, interrupted ones continued.
    minutes
        Begin no run that would not end within so many minutes, but the first; the same command continues later.
    only
        Train only the runs whose names match, such as "*-seed1", so that machines can share a grid; may be repeated.
    set
        NAME=VALUE, a setting for all runs, such as root=/data/coco; may be repeated.
    """
    from percentmatch.use.grid import read_grid, run_grid
    from percentmatch.use.grid_results import show_grid

    show_grid(run_grid(read_grid(file, over_settings(set)), out, minutes=minutes, only=only or ()))
    print(f"results  {out / 'results.json'}")


def methods(name: str | None = None) -> None:
    """List the methods, or one method's options.

    Parameters
    ----------
    name
        A method.
    """
    from rich.table import Table

    from percentmatch.console.tables import show
    from percentmatch.methods import METHODS, method_row, options_of, own_options_in_words

    if name:
        print(f"{name}: {method_row(name).summary}\n")
        advice = "Set one with --option NAME=VALUE, or under `options:` in a config file."
        own = own_options_in_words(name)
        table = Table("option", "default", "own data", "meaning", box=None)
        for option in options_of(name).values():
            choices = f" \\[{' | '.join(option.choices)}]" if option.choices else ""
            table.add_row(option.name, str(option.default), own.get(option.name, ""), option.help + choices)
    else:
        advice = "The options of a method: percentmatch methods NAME"
        table = Table("method", "what it does", box=None)
        for method, row in METHODS.items():
            table.add_row(method, row.summary)
    show(table)
    print(f"\n{advice}")
