"""A run's log shown elsewhere as it is written: TensorBoard, Weights & Biases. What they show changes no result."""

import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from percentmatch.errors import UserError
from percentmatch.files import open_own, own_folder, write_atomic
from percentmatch.runs.run_folder import Folder
from percentmatch.settings.config import Config

MEANS = ("upper", "lower", "gap", "weights", "positive_rate", "negative_rate")  # of classes


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """The losses, rates and scores of a log row; of what it says class by class, the means."""
    numbers = {name: value for name, value in row.items() if isinstance(value, float)}
    for name in MEANS if row["kind"] == "train" else ():
        if known := [value for value in row["classes"].get(name, ()) if value is not None]:
            numbers[f"mean_{name}"] = sum(known) / len(known)
    return {f"{row['kind']}/{name}": value for name, value in numbers.items()}


class Logger(ABC):
    """Shows rows of a log. Made before a run, so that a missing package is reported at once."""

    @abstractmethod
    def begin(self, folder: Folder, config: Config) -> None:
        """The run begins or continues."""

    @abstractmethod
    def row(self, row: dict[str, Any]) -> None: ...

    @abstractmethod
    def end(self, *, failed: bool) -> None: ...


@contextmanager
def shown_by(loggers: Sequence[Logger], folder: Folder, config: Config) -> Generator[None]:
    """While active, the loggers show what is written to the folder's log."""
    with ExitStack() as begun:
        for logger in loggers:
            logger.begin(folder, config)
            begun.push(lambda error, *_, logger=logger: logger.end(failed=error is not None))
        folder.log.listeners = [logger.row for logger in loggers]
        begun.callback(folder.log.listeners.clear)
        yield


class TensorBoard(Logger):
    """Event files in `tensorboard` of the run folder. A resumed run shows its log anew from the start."""

    def __init__(self) -> None:
        self.open = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def begin(self, folder: Folder, config: Config) -> None:
        place, suffix = own_folder(folder.path / "tensorboard"), f".{secrets.token_hex(4)}"
        # what was shown before is dropped; the file has a name that nobody can guess
        self.writer = self.open(str(place), purge_step=0, filename_suffix=suffix)
        for row in folder.log.rows():
            self.row(row)

    def row(self, row: dict[str, Any]) -> None:
        for name, value in scalars(row).items():
            self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()

    def end(self, *, failed: bool) -> None:
        self.writer.close()


class Wandb(Logger):
    """A run of Weights & Biases with the folder's name; `wandb_id` in the folder names it for a resume.

    Its own settings come from the environment: WANDB_PROJECT, WANDB_MODE=offline and others.
    """

    def __init__(self) -> None:
        self.wandb = _imported("wandb", "wandb")
        if self.wandb.setup().settings.mode == "online":
            self._try(self.wandb.login)

    def begin(self, folder: Folder, config: Config) -> None:
        file = folder.path / "wandb_id"
        own_folder(folder.path / "wandb")
        known = file.exists()
        if not known:
            write_atomic(file, secrets.token_hex(4).encode())
        self.run = self._try(
            self.wandb.init,
            project=os.environ.get("WANDB_PROJECT", "percentmatch"),
            name=folder.path.resolve().name,
            id=_read_id(file),
            resume="allow",
            dir=str(folder.path),
            config=config.to_dict(),
            settings=self.wandb.Settings(console="off"),
        )
        self.first = self.run.step  # a resumed run may write rows again that are there
        for row in [] if known else folder.log.rows():
            self.row(row)

    def row(self, row: dict[str, Any]) -> None:
        if row["step"] >= self.first and (shown := scalars(row)):
            self.run.log(shown, step=row["step"])

    def end(self, *, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))

    def _try(self, do: Any, **options: Any) -> Any:
        try:
            return do(**options)
        except self.wandb.errors.Error as error:
            reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
            raise UserError(f"wandb: {reason}; run 'wandb login', or set WANDB_MODE=offline") from error


def _read_id(file: Path) -> str:
    """What the folder says its run is called there, and no other text, which would be sent."""
    with suppress(OSError, UnicodeDecodeError), open_own(file, "rb") as content:
        if re.fullmatch(r"[0-9a-f]{8}", found := content.read(9).decode()):
            return found
    raise UserError(f"'{file}' is damaged; remove it, and the run is logged as a new one")


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        how = f'which is not installed; run pip install "percentmatch[{package}]"'
        raise UserError(f"--{package} needs {package}, {how}") from error
