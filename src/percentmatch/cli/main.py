"""The command line. Heavy imports happen inside the verbs, so that `--help` is quick."""

import io
import os
import sys
from typing import NoReturn

from cyclopts import App, CycloptsError

from percentmatch import __version__
from percentmatch.cli import models, training
from percentmatch.cli.data import data_app
from percentmatch.console.signals import Stopped
from percentmatch.distributed.ranks import launched
from percentmatch.errors import UserError, visible

app = App(
    name="percentmatch",
    version=__version__,
    help="Semi-supervised multi-label image classification: a few labeled images, many unlabeled ones.",
)
app.command(data_app)
for verb in (
    *(training.demo, training.train, training.pretrain, training.benchmark, training.methods),
    *(models.evaluate, models.predict, models.serve, models.calibrate, models.export),
    *(models.report, models.compare, models.suggest),
):
    app.command(verb)


def run(tokens: list[str]) -> None:
    """Carry out one command line. Raises UserError or CycloptsError for bad input."""
    verb, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    if launched().size > 1 and tokens and verb not in (training.train, training.pretrain):
        raise UserError(f"{tokens[0]} works in one process; torchrun and srun with several tasks are for training only")
    verb(*bound.args, **bound.kwargs)


def main() -> None:
    """The `percentmatch` command: bad input is one sentence and exit code 2."""
    # Read when torch is imported: waiting threads spin for microseconds, then sleep. By default they spin for
    # milliseconds, which slows a busy machine and gains nothing on an idle one.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file need not be valid UTF-8
    try:
        run(sys.argv[1:])
    except (UserError, CycloptsError) as error:
        _fail(" ".join(str(error).split()), 2)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}", 2)
    except (MemoryError, RuntimeError) as error:
        if launched().size > 1 and any(word in str(error).lower() for word in ("gloo", "nccl")):
            _fail("another process of this run has ended, see its message; continue with --resume", 1)
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
