"""One process at a time works in a folder.

Two things say so: a lock on a file in it, which the system frees when the process ends, however it ends; and a note in
that file of who has it. Network disks may know no locks, or keep them from other machines: there the note is all.
"""

import os
import platform
import stat
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from percentmatch.errors import UserError
from percentmatch.files import boot_id, cannot_write

NAME = ".lock"
LONGEST = 1000  # bytes of a note


class Lock:
    """The lock of a folder, which is made if it is not there, and removed at the end if nothing was put into it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self.file: int | None = None  # its descriptor while the lock is held
        self.made: list[Path] = []  # folders, the innermost first

    def take(self) -> None:
        """Hold the lock until `free`; refused while anybody else does. Nobody waits."""
        self.made = self.made or [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        while self.file is None:
            self._make_folder()
            if sys.platform == "win32":
                return
            self.file = self._try()

    def free(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            with suppress(OSError):
                if _same(self.path, file):
                    self.path.unlink()
            os.close(file)
        made, self.made = self.made, []
        with suppress(OSError):  # it holds something
            for folder in made:
                folder.rmdir()

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot make the folder '{self.folder}': {error.strerror}; choose another --out"
            ) from error

    def _try(self) -> int | None:
        """The file of the lock, locked; None if it, or the folder, came or went meanwhile."""
        import fcntl

        is_new, locked = not os.path.lexists(self.path), True
        how = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT | os.O_EXCL if is_new else 0)
        try:
            with ExitStack() as closing:
                file = os.open(self.path, how, 0o666)
                closing.callback(os.close, file)
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise UserError(f"'{self.path}' is not a plain file; remove it and run the command again")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UserError(
                        f"another process is at work in '{self.folder}'; wait until it ends, or end it"
                    ) from None
                except OSError:
                    locked = False  # this disk knows no locks
                if not _same(self.path, file):
                    return None
                self._check(os.pread(file, LONGEST, 0).decode(errors="replace").split("\n"), locked or is_new)
                os.ftruncate(file, 0)
                os.pwrite(file, "\n".join([str(os.getpid()), platform.node(), boot_id()]).encode(), 0)
                closing.pop_all()
                return file
        except (FileExistsError, FileNotFoundError):
            return None
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _check(self, note: list[str], mine: bool) -> None:
        """Refuse a lock whose note names another machine, or that nobody can own here and somebody else made."""
        process, host, boot = note if len(note) == 3 else ("", "", "")
        here = host == platform.node() or (boot and boot == boot_id())
        if (host and not here) or not mine:
            who = f"process {process} on the machine '{host}'" if host else "another process"
            how = f"if it has ended, remove '{self.path}' and run the command again"
            raise UserError(f"{who} is at work in '{self.folder}', or was killed there; {how}")


def _same(path: Path, file: int) -> bool:
    """Whether this is still the file of that name."""
    with suppress(OSError):
        return os.path.samestat(os.lstat(path), os.fstat(file))
    return False


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Wait until no other process is in such a block for this folder. Some network disks cannot promise that."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
