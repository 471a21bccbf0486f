"""The folder of a run, the contract between training and everything that reads a run afterwards."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
import yaml

from percentmatch import __version__
from percentmatch.data.pixels.cache import cores
from percentmatch.data.readers.detect import detected
from percentmatch.data.shards.index import names_shards
from percentmatch.data.source import OWN
from percentmatch.data.split import Split
from percentmatch.errors import UserError
from percentmatch.files import (
    MOST_YAML,
    cannot_write,
    check_numbers,
    is_part,
    open_own,
    parse_yaml,
    read_json,
    read_plain,
    read_sound,
    refuse_constant,
    sweep,
    write_atomic,
    write_json,
)
from percentmatch.runs.checkpoint import BAD_STATE, load_checkpoint
from percentmatch.scoring.table import final_scores
from percentmatch.settings.config import Config, flat

PLACES = ("root", "labels", "images")  # of what a run is scored on
FILES = (*PLACES, "unlabeled", "split_file")
NO_FILE = (None, "none", "pretrained", "offline")  # weights
ALWAYS_THERE = ("data", "method", "seed")  # the first, one in the middle and one of the last: the file is whole
# settings that a resumed run may change
MAY_CHANGE = (*FILES, "device", "images_on", "cuda_graph", "compile", "verify_cache")
MAY_CHANGE += ("skip_bad_images",)  # the images left in the split must still be the same


def from_anywhere(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with files and folders as they are named from any working directory."""
    places = {name: settings[name] for name in FILES if settings.get(name)}
    if settings.get("weights") not in NO_FILE:
        places["weights"] = settings["weights"]
    return {**settings, **{name: os.path.abspath(place) for name, place in places.items()}}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings from anywhere, and what `auto` stands for among the kinds of a split."""
    kinds = {"auto": "every-class" if settings.get("data") in OWN else "random"}
    kind = settings.get("split_kind")
    return {**from_anywhere(settings), **({"split_kind": kinds.get(kind, kind)} if kind else {})}


class RunFolder:
    """config.yaml, split.json, environment.json, log.jsonl, last.pt, model.safetensors, metrics.json.

    Until the run is finished, previous.pt is the checkpoint before last.pt. In a `with` block, `hold` keeps others out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.split, self.environment = path / "config.yaml", path / "split.json", path / "environment.json"
        self.log, self.checkpoint, self.previous = path / "log.jsonl", path / "last.pt", path / "previous.pt"
        self.model, self.metrics = path / "model.safetensors", path / "metrics.json"
        self.readers: list[Callable[[dict[str, Any]], None]] = []  # get each row that is written to the log
        self.log_bytes, self.log_hash = 0, hashlib.blake2b(digest_size=16)  # of what was kept and written
        self.entered, self.held = False, None

    def __enter__(self) -> Self:
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        if self.held is not None:
            os.close(self.held)
        self.entered, self.held = False, None

    def hold(self) -> None:
        """Until the block or the process ends, nobody else writes here. Some network disks cannot promise that."""
        if not self.entered or self.held is not None or sys.platform == "win32":
            return
        import fcntl

        self.held = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sweep(self.path, older=0)
        except BlockingIOError:
            raise UserError(f"another process is at work in '{self.path}'; wait until it ends, or end it") from None
        except OSError:
            return

    def check_new(self) -> None:
        """Refuse a folder that holds anything: nobody's results are overwritten."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"'{self.path}' is a file; choose another --out")
            if self.config.exists():
                raise UserError(f"'{self.path}' already holds a run; continue it with --resume or choose another --out")
            if self.path.exists() and any(not is_part(each) for each in self.path.iterdir()):
                raise UserError(f"'{self.path}' is not empty; choose another --out")
        except OSError as error:
            raise UserError(f"cannot look into '{self.path}': {error.strerror}; choose another --out") from error

    def create(self, config: Config, split: Split, device: torch.device) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder '{self.path}': {error.strerror}; choose another --out") from error
        self.hold()
        write_atomic(self.config, yaml.safe_dump(from_anywhere(config.to_dict()), sort_keys=False).encode())
        self.complete(split, device)

    def complete(self, split: Split, device: torch.device) -> None:
        """Write what a fault at the start may have left out; refuse another run's split."""
        self.hold()
        if not self.environment.exists():
            write_json(self.environment, environment(device))
        if not self.split.exists():
            write_atomic(self.split, split.to_json().encode())
        if self.read_split().digest != split.digest:
            raise UserError(f"'{self.split}' names other images than the run's settings; choose another --out")

    def read_config(self) -> Config:
        """The settings of the run; one that an older version did not know yet has its default."""
        if not self.config.exists():
            raise UserError(f"'{self.path}' holds no run (it has no config.yaml)")
        values = read_yaml(self.config)
        if missing := [name for name in ALWAYS_THERE if name not in values]:
            raise UserError(f"'{self.config}' is damaged: it lacks {', '.join(missing)}")
        usual = Config().to_dict()
        known = {*usual, *flat(usual)}
        if strange := [name for name in flat(values) if name not in known and not name.startswith("options.")]:
            raise UserError(
                f"'{self.config}' has the setting '{strange[0]}', which percentmatch {__version__} does not know; the "
                f"run was made by {self._maker()}, so use that version or a newer one"
            )
        return Config.from_dict(values, source=str(self.config))

    def _maker(self) -> str:
        version = read_json(self.environment).get("percentmatch") if self.environment.exists() else None
        return f"percentmatch {version or 'of a version that it does not tell'}"

    def read_moved(self, moved: Mapping[str, Any]) -> Config:
        """The settings to score with, the run's data where it is now; unlabeled images need not be there."""
        for name in moved:
            if name not in PLACES:
                raise UserError(f"--set says where the run's data is now, by {', '.join(PLACES)}, not by '{name}'")
        config = Config.from_dict({**self.read_config().to_dict(), **moved}, source="--set")
        for name in PLACES:
            place = getattr(config, name)
            if place and not os.path.exists(place) and not names_shards(place):
                raise UserError(
                    f"the run's {name}, {place}, is not there; put it back, or say where it is now by --set {name}=PATH"
                )
        keep = os.path.exists(config.unlabeled) and not names_shards(config.unlabeled)  # nobody scores a stream
        return config if keep else replace(config, unlabeled="")

    def check_same(self, config: Config) -> None:
        """Refuse to resume with other settings than the run began with."""
        self.refuse_other(self.read_config().to_dict(), detected(config).to_dict())

    def refuse_other(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Refuse settings that have changed; one that the other version does not know is none."""
        was, then, now = then, _plain(then), _plain(now)
        if {was.get("weights"), now.get("weights")}.isdisjoint(NO_FILE) and not os.path.exists(was["weights"]):
            then["weights"] = now["weights"]  # the file was moved, or is named from elsewhere
        for name in then:
            if name in now and name not in MAY_CHANGE and then[name] != now[name]:
                raise UserError(
                    f"'{self.path}' was begun with {name}={then[name]}, not {now[name]}; resume with the same "
                    "settings or choose another --out"
                )

    def read_metrics(self) -> dict[str, Any]:
        """metrics.json, whose scores are numbers."""
        return read_sound(self.metrics, _check_metrics)

    def read_split(self) -> Split:
        return Split.from_values(read_json(self.split), str(self.split))

    def append(self, row: dict[str, Any]) -> None:
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        try:
            with open_own(self.log, "ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.log, error) from error
        self.log_bytes += len(line)
        self.log_hash.update(line)
        for read in self.readers:
            read(row)

    def read_log(self) -> list[tuple[str, dict[str, Any]]]:
        """Each line with what it says; only the last may be torn, and is left out."""
        try:
            lines = read_plain(self.log).decode().splitlines(keepends=True) if self.log.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"'{self.log}' is damaged ({type(error).__name__})") from error
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line, parse_constant=refuse_constant)
                row["step"] + 0
            except (ValueError, TypeError, KeyError, RecursionError):
                if number < len(lines):
                    raise UserError(
                        f"'{self.log}', line {number}, is damaged; restore the file or start anew"
                    ) from None
                break
            rows.append((line, row))
        return rows

    def log_mark(self) -> list[int | str]:
        """How long the log is and what it holds, for the checkpoint that goes with it."""
        return [self.log_bytes, self.log_hash.hexdigest()]

    def newest(self, device: torch.device, *, save_every: int) -> tuple[dict[str, Any] | None, str]:
        """The newest checkpoint that is whole, with the log up to it, and why it is not last.pt; None before the first.

        Nothing is changed.
        """
        reasons = [] if self.checkpoint.exists() else [f"'{self.checkpoint}' is missing"]
        for place in filter(Path.exists, (self.checkpoint, self.previous)):
            try:
                state = load_checkpoint(place, device)
                if "log" in state and self._hash_log(state["log"][0]).hexdigest() != state["log"][1]:
                    raise UserError(f"'{self.log}' does not begin as it did when '{place}' was written")
                return state, f"{reasons[0]}; going on from '{place}', step {state['step']}" if reasons else ""
            except UserError as error:
                reasons.append(str(error))
            except BAD_STATE as error:
                reasons.append(f"'{place}' is not the checkpoint of a run ({type(error).__name__})")
        if self.has_checkpoint:
            raise UserError(f"{' and '.join(reasons)}; put a copy of it back, or start anew in another --out")
        reached = max((row["step"] for _, row in self.read_log()), default=0)
        if reached > 2 * save_every:  # the first is in its place before the second is begun
            raise UserError(f"'{self.checkpoint}' is missing though the log reaches step {reached}; put it back")
        return None, f"no checkpoint in '{self.path}' yet: beginning at step 0"

    def go_on_from(self, state: dict[str, Any] | None, why: str) -> None:
        """Put the files in the state of this checkpoint of `newest`, or at step 0: the run writes later rows again."""
        if why:
            print(why, file=sys.stderr)
        try:
            if state and why:
                os.replace(self.previous, self.checkpoint)
            if state and "log" in state:
                with open_own(self.log, "ab") as file:
                    file.truncate(state["log"][0])
            else:  # no checkpoint yet, or one of an older version
                step = state["step"] if state else 0
                kept = [line for line, row in self.read_log() if row["step"] <= step and line.endswith("\n")]
                write_atomic(self.log, "".join(kept).encode())
            self.log_bytes = self.log.stat().st_size
            self.log_hash = self._hash_log(self.log_bytes)
        except OSError as error:
            raise cannot_write(self.log, error) from error

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint.exists() or self.previous.exists()

    def _hash_log(self, length: int) -> "hashlib.blake2b":
        """Of the first bytes of the log, which may be larger than memory; where there is none yet, of nothing."""
        digest = hashlib.blake2b(digest_size=16)
        if not self.log.exists():
            return digest
        try:
            with open(self.log, "rb") as file:
                while length > 0 and (part := file.read(min(length, 1 << 20))):
                    digest.update(part)
                    length -= len(part)
        except OSError as error:
            raise UserError(f"'{self.log}' cannot be read ({type(error).__name__})") from error
        return digest


def _check_metrics(metrics: dict[str, Any]) -> None:
    check_numbers(metrics, "step", "minutes", "seed")
    for weights in ("ema", "model"):
        final_scores(metrics, weights)
    if "calibration" in metrics:
        check_numbers(metrics["calibration"], "ece_before", "ece_after")


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = parse_yaml(read_plain(path, MOST_YAML).decode("utf-8-sig"), f"'{path}'")
    except FileNotFoundError:
        raise UserError(f"there is no config file '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(values, dict | None):
        raise UserError(f"'{path}' must hold names and values, such as 'lr: 0.001'")
    return values or {}


def environment(device: torch.device) -> dict[str, Any]:
    """Where a run was made: versions, hardware and, in a checkout, the commit."""
    import timm

    return {
        "percentmatch": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "platform": platform.platform(terse=True),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{cores()} CPU cores",
    }


def _commit() -> str | None:
    """$PERCENTMATCH_COMMIT, or that of the checkout this file belongs to, `-dirty` if it was changed since, or None."""
    if given := os.environ.get("PERCENTMATCH_COMMIT"):
        return given
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=True, timeout=10)
        found = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
