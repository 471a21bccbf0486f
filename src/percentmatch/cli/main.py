"""The command line. Heavy imports happen inside the verbs, so that `--help` is quick."""

import os
import sys
from typing import NoReturn

from cyclopts import App, CycloptsError

from percentmatch import __version__
from percentmatch.cli import models, review, training
from percentmatch.cli.data import data_app
from percentmatch.cli.mistakes import sentence
from percentmatch.console.notices import Working
from percentmatch.console.signals import Stopped
from percentmatch.console.streams import abandon, prepare, reason
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
    *(models.report, models.compare, models.suggest, review.review),
):
    app.command(verb)


def run(tokens: list[str]) -> None:
    """Carry out one command line. Raises UserError or CycloptsError for bad input."""
    verb, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    if launched().size > 1 and tokens and verb not in (training.train, training.pretrain):
        raise UserError(f"{tokens[0]} works in one process; torchrun and srun with several tasks are for training only")
    with Working(tokens[0] if tokens else "", silent=launched().rank > 0 or verb is models.serve):
        verb(*bound.args, **bound.kwargs)


def main() -> None:
    """The `percentmatch` command: bad input is one sentence and exit code 2."""
    # Read when torch is imported: waiting threads spin for microseconds, then sleep. By default they spin for
    # milliseconds, which slows a busy machine and gains nothing on an idle one.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    prepare()
    try:
        try:
            run(sys.argv[1:])
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # here its faults are heard
    except (UserError, CycloptsError) as error:
        said = sentence(error) if isinstance(error, CycloptsError) else str(error)
        _fail(" ".join(said.split()), 2)
    except BrokenPipeError:  # the reader of the output has closed it
        abandon()
        sys.exit(141)
    except OSError as error:
        _fail(reason(error), 2)
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


def _fail(message: str, code: int) -> NoReturn:
    rank = launched().rank
    print(f"percentmatch: {f'rank {rank}: ' if rank else ''}{visible(message)}", file=sys.stderr)
    sys.exit(code)
