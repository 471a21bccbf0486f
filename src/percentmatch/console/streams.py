"""Standard output and error as they may be: closed, full, a pipe that nobody reads, or not made for all letters."""

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO

from percentmatch.console.notices import print_to_stderr
from percentmatch.errors import UserError, visible


class Forgiving:
    """A stream on which a line that cannot be written is lost: a run does not end for it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError:
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Shown(io.StringIO):
    """Standard output for what holds names of files and classes: none of them steers the terminal behind it."""

    def write(self, text: str) -> int:
        return sys.stdout.write("\n".join(map(visible, text.split("\n"))))


def prepare() -> None:
    """What a command does before it prints."""
    if sys.stdout is None:  # closed; the first file that is opened must not become it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file need not be valid UTF-8
    if sys.stderr is sys.__stderr__:
        sys.stderr = Forgiving(sys.stderr)
    if sys.getfilesystemencoding() == "ascii":
        print_to_stderr("this locale knows ASCII only; set PYTHONUTF8=1 for names of files with other letters")


def shown_output() -> TextIO:
    """Standard output, if it is open."""
    if sys.__stdout__ is None:
        raise UserError("standard output is closed; name a file by --out")
    return Shown()


def abandon() -> None:
    """Let nothing more be written to standard output, not even by the interpreter when it ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reason(error: OSError) -> str:
    """What to tell a person about it. Without a file, it is about what is printed."""
    what = error.strerror or str(error)
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF):
        abandon()
        return f"cannot write to standard output: {what}"
    return f"{error.filename or 'a file'}: {what}"
