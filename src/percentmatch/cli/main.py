"""The command line: one importable function a verb. Heavy imports happen inside, so that `--help` is quick."""

import io
import os
import sys
from dataclasses import fields, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict

from percentmatch import __version__
from percentmatch.cli import use as cli_use
from percentmatch.cli.data import data_app
from percentmatch.console.signals import Stopped
from percentmatch.distributed.ranks import launched, restarts
from percentmatch.errors import UserError, did_you_mean, visible
from percentmatch.settings.config import Config, DataSettings, PretrainSettings, flat, merge
from percentmatch.settings.presets import PRESETS, preset_values

VIEW_FLAGS = ("--labeled-view", "--weak-view", "--strong-view", "--view")

app = App(
    name="percentmatch",
    version=__version__,
    help="Semi-supervised multi-label image classification: a few labeled images, many unlabeled ones.",
)

app.command(data_app)
for verb in (
    cli_use.evaluate,
    cli_use.predict,
    cli_use.serve,
    cli_use.calibrate,
    cli_use.export,
    cli_use.report,
    cli_use.compare,
    cli_use.suggest,
):
    app.command(verb)


@app.command
def demo(*, out: Path = Path("runs/demo"), seed: int = 0, device: str = "auto") -> None:
    """Train supervised, FixMatch and PercentMatch on made-up scenes with few labels, and compare them.

    Parameters
    ----------
    out
        Folder of the three runs. Finished runs found there are shown, broken ones continued.
    seed
        Chooses the labeled images, the initial weights and the order of training.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.use.demo import run_demo

    run_demo(out, seed=seed, device=device)


@app.command
def train(
    *,
    out: Annotated[Path, Parameter(group="Run")],
    resume: Annotated[bool, Parameter(group="Run", negative="")] = False,
    config: Annotated[Path | None, Parameter(group="Run")] = None,
    preset: Annotated[str | None, Parameter(group="Run")] = None,
    option: Annotated[list[str] | None, Parameter(group="Training", negative="")] = None,
    tensorboard: Annotated[bool, Parameter(group="Run", negative="")] = False,
    wandb: Annotated[bool, Parameter(group="Run", negative="")] = False,
    settings: Annotated[Config, Parameter(name="*")] = Config(),  # noqa: B008  frozen
) -> None:
    """Train a classifier. Settings come from flags, then --config, then --preset.

    For your own data, the rest is chosen by its amount and by the machine, and printed; with a preset, for made-up
    scenes and in Python, the rest are the paper's values.

    Parameters
    ----------
    out
        The run folder: new, or that of a run to --resume.
    resume
        Continue the run in --out where it stopped.
    config
        A YAML file of settings, such as a run's config.yaml.
    preset
        A named set of settings: demo, voc2007-best, voc2007-paper or coco2014-paper.
    option
        NAME=VALUE, an option of the method; may be repeated. `percentmatch methods NAME` lists them.
    tensorboard
        Write losses, rates and validation scores for TensorBoard, too, into OUT/tensorboard.
    wandb
        Log them to Weights & Biases, too. WANDB_MODE=offline keeps them here.
    """
    from percentmatch.console.tables import percent
    from percentmatch.scoring.table import final_scores
    from percentmatch.training.loggers import TensorBoard, Wandb
    from percentmatch.training.loop import train

    followers = [make() for make, wanted in ((TensorBoard, tensorboard), (Wandb, wandb)) if wanted]
    metrics = train(replace(settings, options=_options(option)), out, resume=resume, followers=followers)
    if launched().rank > 0:
        return
    for subset, table in reversed(final_scores(metrics).items()):
        shown = [f"{name} {percent(value)}" for name, value in table.headline().items()]
        print(f"{subset:10}  {'  '.join(shown)}")
    print(f"run folder  {out}")


@app.command
def pretrain(
    *,
    out: Annotated[Path, Parameter(group="Run")],
    resume: Annotated[bool, Parameter(group="Run", negative="")] = False,
    config: Annotated[Path | None, Parameter(group="Run")] = None,
    settings: Annotated[PretrainSettings, Parameter(name="*")] = PretrainSettings(),  # noqa: B008  frozen
) -> None:
    """Warm-start a backbone on the images to learn from, without labels, for `train --weights`.

    Parameters
    ----------
    out
        The folder of the warm start: new, or that of one to --resume.
    resume
        Continue the warm start in --out where it stopped.
    config
        A YAML file of settings, such as a warm start's pretrain.yaml.
    """
    from percentmatch.runs.warm_folder import WarmFolder
    from percentmatch.training.pretraining import pretrain

    result = pretrain(settings, out, resume=resume)
    if launched().rank > 0:
        return
    print(f"{result['images']} images  {result['steps']} steps  loss {result['loss']:.3f}  {result['minutes']} minutes")
    print(f"train from it by --weights {WarmFolder(out).backbone}")


@app.command
def benchmark(
    file: Path,
    *,
    out: Path,
    minutes: float = float("inf"),
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> None:
    """Train the grid of runs that a file plans, and write one results file.

    Parameters
    ----------
    file
        A YAML file with any of preset, settings, warm_start, runs, grid and seeds.
    out
        Folder of the runs. Finished runs found there are kept, broken ones continued.
    minutes
        Begin no second run that would not end within so many; the same command goes on later.
    only
        Begin only runs whose names match, such as "*-seed1", so that machines can share a grid; may be repeated.
    set
        NAME=VALUE, a setting for all runs, such as root=/data/coco; may be repeated.
    """
    from percentmatch.use.grid import read_grid, run_grid, show_grid

    show_grid(run_grid(read_grid(file, over_settings(set)), out, minutes=minutes, only=only or ()))
    print(f"results  {out / 'results.json'}")


@app.command
def methods(name: str | None = None) -> None:
    """List the methods, or one method's options.

    Parameters
    ----------
    name
        A method.
    """
    from percentmatch.cli.method_tables import show_method, show_methods

    show_method(name) if name else show_methods()


def over_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Settings from NAME=VALUE pairs: values read as YAML, dots for nested names."""
    from percentmatch.files import parse_yaml

    settings: dict[str, Any] = {}
    for name, text in cli_use.read_pairs(pairs).items():
        settings = merge(settings, _nested(name, parse_yaml(text, f"--set {name}: '{text}'")))
    return settings


def _options(pairs: list[str] | None) -> dict[str, str]:
    return cli_use.read_pairs(pairs, "--option momentum=0.99")


def _below_flags(config: str | None, preset: str | None, method: str | None, resumed: str | None) -> Config:
    """The settings that flags override: those of the run to be resumed, or of the preset and the file above it."""
    from percentmatch.runs.run_folder import RunFolder, read_yaml

    if preset is not None and preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'{did_you_mean(preset, PRESETS)}")
    if resumed and preset:
        raise UserError("--resume takes its settings from the run; leave --preset out")
    above = read_yaml(Path(config)) if config else {}
    base = preset_values(preset, method or above.get("method"))
    if resumed:
        base = RunFolder(Path(resumed)).read_config().to_dict()
    base = merge(base, above)
    return Config.from_dict(base, source=config or "preset")


def _below_pretrain_flags(config: str | None, resumed: str | None) -> PretrainSettings:
    """The same for a warm start, which has no presets."""
    from percentmatch.runs.run_folder import read_yaml
    from percentmatch.runs.warm_folder import WarmFolder

    base = WarmFolder(Path(resumed)).read_settings().to_dict() if resumed else {}
    if config:
        base = merge(base, read_yaml(Path(config)))
    return PretrainSettings.from_dict(base, source=config or "config")


def _flag_value(tokens: list[str], flag: str) -> str | None:
    """The value of a flag before all others are parsed: it says what the defaults are."""
    for at, token in enumerate(tokens):
        if token == flag and at + 1 < len(tokens):
            return tokens[at + 1]
        if token.startswith(flag + "="):
            return token.partition("=")[2]
    return None


def _is_resumed(tokens: list[str]) -> bool:
    """--resume alone, or --resume=true in any form that the parser reads so."""
    return any(
        token == "--resume" or token.lower() in {f"--resume={yes}" for yes in ("yes", "y", "1", "true", "t")}
        for token in tokens
    )


def _without(tokens: list[str], flags: tuple[str, ...]) -> list[str]:
    """The command line without these flags and their values."""
    after = [False, *(token in flags for token in tokens)]
    return [
        token for token, value in zip(tokens, after, strict=False) if not value and token.partition("=")[0] not in flags
    ]


def _began(out: str | None, *, warming: bool) -> bool:
    """Whether a run or a warm start in `out` has come so far that there is one to resume."""
    from percentmatch.runs.warm_folder import WarmFolder

    folder = WarmFolder(Path(out or ""))
    return out is not None and (folder.settings if warming else folder.run.config).exists()


def run(tokens: list[str]) -> None:
    """Carry out one command line. Raises UserError or CycloptsError for bad input."""
    app.config = ()
    training, warming = tokens[:1] == ["train"], tokens[:1] == ["pretrain"]
    if launched().size > 1 and tokens and not training and not warming:
        raise UserError(
            f"{tokens[0]} works in one process; torchrun and srun with several tasks are for train and pretrain"
        )
    bare = next((token for token in tokens if token.partition("=")[0] in VIEW_FLAGS), None)
    if bare and (training or warming):  # it would be read as the first of a view's settings, and put back the others
        raise UserError(
            f"{bare} alone says nothing; name a setting of the view, such as {bare.partition('=')[0]}.ops 1"
        )
    anew = (training or warming) and restarts() and not _is_resumed(tokens)
    if anew and _began(_flag_value(tokens, "--out"), warming=warming):
        tokens = [*_without(tokens, ("--preset", "--config")), "--resume"]
    data = tokens[:2] in (["data", "stats"], ["data", "check"], ["data", "split"], ["data", "shard"])
    if (training or warming or data) and not {"-h", "--help"} & set(tokens):
        flags = ("--config", "--preset", "--method", "--out")
        config, preset, method, out = (_flag_value(tokens, flag) for flag in flags)
        resumed = out if not data and _is_resumed(tokens) else None
        settings = _below_pretrain_flags(config, resumed) if warming else _below_flags(config, preset, method, resumed)
        own = tokens
        tokens = _above(settings, own, data=data)
        if training and not resumed and not preset:
            chosen = _chosen(own, tokens, config, out)
            tokens = tokens if chosen is None else _above(chosen, own, data=data)
    app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


def _above(settings: Config | PretrainSettings, tokens: list[str], *, data: bool) -> list[str]:
    """The command line, to be read with these settings for what it does not say."""
    below = settings.to_dict()
    named = below.pop("options", {})
    options = [token for name, value in named.items() for token in ("--option", f"{name}={value}")]
    kind = below.pop("data")  # which is also a command, so that Dict would skip it
    more = [] if _flag_value(tokens, "--data") else ["--data", kind]
    if not data:
        tokens = [tokens[0], *options, *tokens[1:], *more]  # the command line's own options come later and win
    else:
        tokens = [*tokens, *more]
        below = {field.name: below[field.name] for field in fields(DataSettings) if field.name in below}
    app.config = Dict(below, use_commands_as_keys=False)
    return tokens


def _chosen(own: list[str], tokens: list[str], config: str | None, out: str | None) -> Config | None:
    """Settings for the user's own data, chosen where neither flags nor --config speak, and said in a few lines."""
    from percentmatch.runs.run_folder import RunFolder, read_yaml
    from percentmatch.training.resolve import choose_for

    _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    if out:
        RunFolder(Path(out)).check_new()
    values = read_yaml(Path(config)) if config else {}
    if Config().to_dict().keys() <= values.keys():  # a run's own: nothing is left to choose
        return None
    options = _options(bound.arguments.get("option"))
    settings = replace(bound.arguments.get("settings", Config()), options=options)
    names = [*_flags(own), *flat(values)]
    choice = choose_for(settings, _given(names, settings))
    if choice is None:
        return None
    for line in choice.reasons if launched().rank == 0 else ():
        print(line, file=sys.stderr)
    return Config.from_dict(choice.settings, source="flags")


def _flags(tokens: list[str]) -> list[str]:
    """The settings that flags name: --labeled-view.ops is labeled_view.ops."""
    return [token[2:].partition("=")[0].replace("-", "_") for token in tokens if token.startswith("--")]


def _given(names: list[str], settings: Config) -> dict[str, Any]:
    """The values of these settings, those that are any."""
    given: dict[str, Any] = {"options": settings.options} if settings.options else {}
    values = flat(settings.to_dict())
    for name in names:
        if values.get(name) is not None:
            given = merge(given, _nested(name, values[name]))
    return given


def _nested(name: str, value: Any) -> dict[str, Any]:
    """A setting whose name may have dots, as `merge` takes it."""
    return reduce(lambda inner, key: {key: inner}, reversed(name.split(".")), value)


def main() -> None:
    """The `percentmatch` command: bad input is one sentence and exit code 2."""
    # Read when torch is imported: waiting threads spin for microseconds, then sleep. By default they spin for
    # milliseconds, which costs a busy machine dear and gains a quiet one nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file need not be valid UTF-8
    try:
        run(sys.argv[1:])
    except (UserError, CycloptsError) as error:
        _fail(" ".join(str(error).split()), 2)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}", 2)
    except (MemoryError, RuntimeError) as error:
        if launched().size > 1 and any(word in str(error).lower() for word in ("gloo", "nccl")):
            _fail("another process of this run has ended, see what it said; continue with --resume", 1)
        if not isinstance(error, MemoryError) and "memory" not in str(error).lower():  # torch's own are RuntimeErrors
            raise
        _fail("out of memory; ask for fewer or smaller images, or a smaller batch (--accumulate keeps its size)", 2)
    except Stopped as error:
        _fail(str(error), 128 + error.number)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(sentence: str, code: int) -> NoReturn:
    rank = launched().rank
    print(f"percentmatch: {f'rank {rank}: ' if rank else ''}{visible(sentence)}", file=sys.stderr)
    sys.exit(code)
