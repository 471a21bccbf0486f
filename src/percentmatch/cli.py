"""The command line: one importable function a verb. Heavy imports happen inside, so that `--help` is quick."""

import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict

from percentmatch import __version__
from percentmatch.cli_data import data_app
from percentmatch.config import PRESETS, Config, DataSettings, merge
from percentmatch.errors import UserError, did_you_mean
from percentmatch.signals import Stopped

app = App(
    name="percentmatch",
    version=__version__,
    help="Semi-supervised multi-label image classification: a few labeled images, many unlabeled ones.",
)


app.command(data_app)


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
    from percentmatch.demo import run_demo

    run_demo(out, seed=seed, device=device)


@app.command
def train(
    *,
    out: Annotated[Path, Parameter(group="Run")],
    resume: Annotated[bool, Parameter(group="Run", negative="")] = False,
    config: Annotated[Path | None, Parameter(group="Run")] = None,
    preset: Annotated[str | None, Parameter(group="Run")] = None,
    option: Annotated[list[str] | None, Parameter(group="Training", negative="")] = None,
    settings: Annotated[Config, Parameter(name="*")] = Config(),  # noqa: B008  frozen
) -> None:
    """Train a classifier. Settings come from flags, then --config, then --preset, then defaults.

    Parameters
    ----------
    out
        The run folder: new, or that of a run to --resume.
    resume
        Continue the run in --out where it stopped.
    config
        A YAML file of settings, such as a run's config.yaml.
    preset
        A named set of settings: demo, voc2007-paper or coco2014-paper.
    option
        NAME=VALUE, an option of the method; may be repeated. `percentmatch methods NAME` lists them.
    """
    from percentmatch.show import percent
    from percentmatch.train import train

    metrics = train(replace(settings, options=_options(option or [])), out, resume=resume)
    for part in ("validation", "test"):
        if part in metrics:
            score = metrics[part]["ema"]
            shown = [f"{name} {percent(score[name])}" for name in ("mAP", "AUC", "accuracy") if name in score]
            print(f"{part:10}  {'  '.join(shown)}")
    print(f"run folder  {out}")


@app.command
def evaluate(
    run: Path,
    *,
    part: Literal["test", "validation"] = "test",
    labels: Path | None = None,
    images: Path | None = None,
    skip_bad_images: bool = False,
    device: str = "auto",
) -> None:
    """Score a finished run's model, class by class.

    Parameters
    ----------
    run
        The run folder.
    part
        Which of the run's own images.
    labels
        Score all rows of this CSV file instead.
    images
        The folder that the paths in --labels begin at; by default the folder of that file.
    skip_bad_images
        List images of --labels that cannot be read and go on without them.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.evaluate import score_files, score_run
    from percentmatch.progress import Counting
    from percentmatch.show import show_scores

    if labels is None and (images or skip_bad_images):
        raise UserError("--images and --skip-bad-images go with --labels; the run's own images need neither")
    with Counting("decoding images") as progress:
        if labels:
            scores = score_files(run, labels, images, device, skip_bad=skip_bad_images, progress=progress)
        else:
            scores = score_run(run, part, device, progress=progress)
    show_scores(scores)


@app.command
def predict(
    model: Path, *sources: Path, out: Path | None = None, skip_bad_images: bool = False, device: str = "auto"
) -> None:
    """Write the probability of every class for each image, as a CSV file.

    Parameters
    ----------
    model
        A run folder, or its model.safetensors.
    sources
        Images, folders of images, or text files with one path a line.
    out
        The CSV file; without it the table is printed.
    skip_bad_images
        List images that cannot be read and go on without them.
    device
        auto, cpu, cuda or cuda:N.
    """
    from percentmatch.predict import predict
    from percentmatch.progress import Counting

    with Counting("images") as progress:
        done = predict(model, sources, out, device=device, skip_bad=skip_bad_images, progress=progress)
    if out:
        print(f"{done} images  {out}")


@app.command
def benchmark(
    file: Path,
    *,
    out: Path,
    minutes: float = float("inf"),
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> None:
    """Train the grid of runs that a file plans, and write one results file.

    Parameters
    ----------
    file
        A YAML file with any of preset, settings, runs, grid and seeds.
    out
        Folder of the runs. Finished runs found there are kept, broken ones continued.
    minutes
        Begin no run that would not end within so many; the same command goes on later.
    set
        NAME=VALUE, a setting for all runs, such as root=/data/coco; may be repeated.
    """
    from percentmatch.benchmark import over_settings, read_grid, run_grid, show_grid

    show_grid(run_grid(read_grid(file, over_settings(set or [])), out, minutes=minutes))
    print(f"results  {out / 'results.json'}")


@app.command
def methods(name: str | None = None) -> None:
    """List the methods, or one method's options.

    Parameters
    ----------
    name
        A method.
    """
    from percentmatch.show import show_method, show_methods

    show_method(name) if name else show_methods()


def _options(pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--option takes NAME=VALUE, such as --option momentum=0.99, not '{pair}'")
        options[name.strip()] = value.strip()
    return options


def _below_flags(config: str | None, preset: str | None, resumed: str | None) -> Config:
    """The settings that flags override: those of the run to be resumed, or of the preset and the file above it."""
    from percentmatch.run_folder import RunFolder, read_yaml

    if preset is not None and preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'{did_you_mean(preset, PRESETS)}")
    if resumed and preset:
        raise UserError("--resume takes its settings from the run; leave --preset out")
    base = PRESETS[preset] if preset else {}
    if resumed:
        base = RunFolder(Path(resumed)).read_config().to_dict()
    if config:
        base = merge(base, read_yaml(Path(config)))
    return Config.from_dict(base, source=config or "preset")


def _flag_value(tokens: list[str], flag: str) -> str | None:
    """The value of a flag before all others are parsed: it says what the defaults are."""
    for at, token in enumerate(tokens):
        if token == flag and at + 1 < len(tokens):
            return tokens[at + 1]
        if token.startswith(flag + "="):
            return token.partition("=")[2]
    return None


def run(tokens: list[str]) -> None:
    """Carry out one command line. Raises UserError or CycloptsError for bad input."""
    app.config = ()
    training, data = tokens[:1] == ["train"], tokens[:2] in (["data", "stats"], ["data", "split"])
    if (training or data) and not {"-h", "--help"} & set(tokens):
        config, preset, out = (_flag_value(tokens, flag) for flag in ("--config", "--preset", "--out"))
        below = _below_flags(config, preset, out if training and "--resume" in tokens else None).to_dict()
        options = [token for name, value in below.pop("options").items() for token in ("--option", f"{name}={value}")]
        kind = below.pop("data")  # which is also a command, so that Dict would skip it
        more = [] if _flag_value(tokens, "--data") else ["--data", kind]
        if training:
            tokens = [tokens[0], *options, *tokens[1:], *more]  # the command line's own options come later and win
        else:
            tokens = [*tokens, *more]
            below = {field.name: below[field.name] for field in fields(DataSettings) if field.name in below}
        app.config = Dict(below, use_commands_as_keys=False)
    app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


def main() -> None:
    """The `percentmatch` command: bad input is one sentence and exit code 2."""
    # Read when torch is imported: waiting threads spin for microseconds, then sleep. By default they spin for
    # milliseconds, which costs a busy machine dear and gains a quiet one nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
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
        if not isinstance(error, MemoryError) and "memory" not in str(error).lower():  # torch's own are RuntimeErrors
            raise
        _fail("out of memory; ask for fewer or smaller images, or a smaller batch (--accumulate keeps its size)", 2)
    except Stopped as error:
        _fail(str(error), 128 + error.number)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"percentmatch: {sentence}", file=sys.stderr)
    sys.exit(code)
