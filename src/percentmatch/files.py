"""Reading files of unknown origin: plain ones of bounded size, archives that do not swell, YAML and JSON as they are.

And the one way to write: whole files or none. A file is written under a temporary name in the same folder and renamed.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import yaml

from percentmatch.errors import UserError

MOST_BYTES = 2 << 30  # of a text that is read whole; the largest files of labels in use have about 1 GiB
MOST_YAML = 128 << 10  # of a file of settings; YAML is slow to read
# a wrong value after a tag such as !!int raises whatever Python raises
BAD_YAML = (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError)
LONGEST_NUMBER = 40  # letters; YAML reads 1:1:1:... as one number, the slower the longer
# a name from `beside`: the file's, the process, its machine (older versions did not say), and what nobody can guess
PART = re.compile(r"\.(.+)\.(\d+)\.([0-9a-f]{4})?[0-9a-f]{8}\.part", re.DOTALL)
LEFT_BEHIND = 600  # seconds without a write, after which a file of another machine counts as left behind
PROCESSES = Path("/proc")
DAMAGE = (KeyError, TypeError, ValueError, AttributeError)  # what a look at the values of a damaged file raises
MOST = 1e300  # beyond any number that a run writes


def check_plain(path: str | Path, most: int | None = MOST_BYTES) -> int:
    """The size of a plain file. Anything else is an OSError: opening a pipe waits, a device may have no end."""
    try:
        about = os.stat(path)
    except ValueError:  # a zero byte, or letters that no file name can have
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    if most is not None and about.st_size > most:
        raise OSError(errno.EFBIG, f"it has {about.st_size:,} bytes, more than the {most:,} allowed", str(path))
    return about.st_size


def read_plain(path: Path, most: int | None = MOST_BYTES) -> bytes:
    """All of a plain file; OSError if that cannot be."""
    return path.read_bytes() if check_plain(path, most) else b""  # empty ones of the system may block


class _Loader(yaml.SafeLoader):
    """YAML without aliases, by which a few lines stand for gigabytes, and without giant numbers."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not read; write it out", mark)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        if node.tag.endswith((":int", ":float")) and len(node.value) > LONGEST_NUMBER:
            raise yaml.constructor.ConstructorError(None, None, "this number is too long", node.start_mark)
        return super().construct_scalar(node)


def parse_yaml(text: str, what: str) -> Any:
    """The value of a YAML text, which messages call `what`. Tags that would make objects are refused."""
    try:
        return yaml.load(text, _Loader)  # derived from SafeLoader
    except RecursionError:
        raise UserError(f"{what} is nested too deeply to be a config") from None
    except BAD_YAML as error:
        reason = re.sub(r'\s*in "<unicode string>"', "", str(error))
        raise UserError(f"{what} is not valid YAML: {' '.join(reason.split())}") from None


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


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote."""
    try:
        value = json.loads(read_plain(path), parse_constant=refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"'{path}' is missing or damaged ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise UserError(f"'{path}' is damaged: it must hold names and values")
    return value


def refuse_constant(name: str) -> None:
    """NaN and Infinity, which are no JSON, though Python reads them."""
    raise ValueError(f"{name} is no number")


def cannot_write(path: Path, error: OSError) -> UserError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = f"{'make room' if full else 'check the path and its permissions'} and run the command again"
    return UserError(
        f"cannot write '{path}': {error.strerror or error}; what was there is kept: {advice} (--resume continues a run)"
    )


def beside(path: Path) -> Path:
    """A temporary name in the folder of `path`, which nobody can guess: two writers never share a file."""
    return path.with_name(f".{path.name}.{os.getpid()}.{_machine()}{secrets.token_hex(4)}.part")


@cache
def _machine() -> str:
    """Four digits that tell where the numbers of processes are of use: this kernel, or this container on it."""
    where = platform.node()
    with contextlib.suppress(OSError):
        where += boot_id() + os.readlink(PROCESSES / "self" / "ns" / "pid")
    return hashlib.blake2b(where.encode(), digest_size=2).hexdigest()


def boot_id() -> str:
    """A text that all processes of a running kernel share, in containers too; empty where there is none."""
    with contextlib.suppress(OSError):
        return (PROCESSES / "sys" / "kernel" / "random" / "boot_id").read_text("utf-8").strip()
    return ""


def is_part(path: Path) -> bool:
    """Whether it is what an interrupted write left behind."""
    return PART.fullmatch(path.name) is not None


def sweep(folder: Path, name: str = "", *, alone: bool = False) -> None:
    """Remove what killed writers left of the file `name`, or of all files: that of this machine's processes which are
    gone, and of other machines what was not written to for long, or all if the caller is `alone` in the folder."""
    with contextlib.suppress(OSError):
        for path in [Path(entry) for entry in os.scandir(folder) if entry.name.endswith(".part")]:
            found = PART.fullmatch(path.name)
            if not found or name not in ("", found[1]):
                continue
            with contextlib.suppress(OSError):
                gone = not (PROCESSES / found[2]).exists()
                if found[3] != _machine() or not PROCESSES.exists():  # then its number says little
                    gone = alone or (gone and time.time() - path.lstat().st_mtime >= LEFT_BEHIND)
                if gone:
                    _remove(path)


def _remove(path: Path) -> None:
    """A file, a link, or a folder with what is in it."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextlib.contextmanager
def new_part(path: Path) -> Generator[Path]:
    """A new name beside `path` to write to; whatever is left there when the block ends is removed.

    So is what killed processes left there of the same file.
    """
    sweep(path.parent, path.name)
    temporary = beside(path)
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            _remove(temporary)


@contextlib.contextmanager
def written_out(path: Path, mode: str, **how: Any) -> Generator[IO[Any]]:
    """An open file that the disk has when the block ends."""
    with open(path, mode, **how) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path, previous: Path | None = None) -> Generator[IO[bytes]]:
    """A file that takes the place of `path` when the block ends without an error; a link there is not followed.

    The old file stays as `previous`, if that is named. A fault leaves the old file and no new one; between the two
    moves it may be `previous`.
    """
    try:
        with new_part(path) as temporary:
            with written_out(temporary, "xb") as file:
                yield file
            if previous and path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # the move itself survives a power cut
            finally:
                os.close(folder)
    except OSError as error:
        raise cannot_write(path, error) from error


def open_own(path: Path, mode: str) -> IO[bytes]:
    """Open a file of a folder that the program made; OSError if a link stands in its place."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666))


def own_folder(path: Path) -> Path:
    """The path of a folder within one that the program made; refused if a link stands in its place."""
    if path.is_symlink():
        raise UserError(f"'{path}' is a link, which nothing is written through; remove it and run the command again")
    return path


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` to `path`; a fault on the way leaves the old file as it was and no new one."""
    with replacing(path) as file:
        file.write(content)


def write_json(path: Path, value: object) -> None:
    write_atomic(path, json_text(value).encode())


def json_text(value: object) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


@contextlib.contextmanager
def replacing_named(path: Path) -> Generator[IO[str]]:
    """The same for a text file that a person names: a link there stays one, a pipe or device is written to as it is."""
    real = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            with open(path, "w", encoding="utf-8", newline="") as file:
                yield file
            return
        with new_part(real) as temporary:
            with written_out(temporary, "x", encoding="utf-8", newline="") as file:
                yield file
            os.replace(temporary, real)
    except OSError as error:
        raise cannot_write(path, error) from error


def read_sound(path: Path, check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """A JSON file in which `check` finds what it looks for."""
    values = read_json(path)
    try:
        check(values)
    except DAMAGE as error:
        raise UserError(f"'{path}' is damaged ({type(error).__name__}: {error}); restore the file") from None
    return values


def check_numbers(row: Mapping[str, Any], *names: str) -> None:
    """Raise one of DAMAGE where a name is missing or no number."""
    for name in names:
        check_number(row[name])
        if row[name] is None:
            raise ValueError(f"{name} is null")


def check_number(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    if not abs(value) < MOST:
        raise ValueError(f"{value!r:.40} is no finite number")


def check_count(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise ValueError(f"{what} is no count")
