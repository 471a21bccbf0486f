"""The log of a run: one JSON row a line, and a mark that says how much of it a checkpoint goes with."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from percentmatch.distributed.group import is_main
from percentmatch.errors import UserError
from percentmatch.files import cannot_write, check_plain, open_own, read_plain, refuse_constant, write_atomic

_hash = partial(hashlib.blake2b, digest_size=16)


class Log:
    """log.jsonl. Rows are appended; a run that resumes first cuts the log back to its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listeners: list[Callable[[dict[str, Any]], None]] = []  # called with each row that is appended
        self.size, self.hash = 0, _hash()  # of what is in the file, in bytes

    def append(self, row: dict[str, Any]) -> None:
        """Write a row, once for all ranks."""
        if not is_main():
            return
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        try:
            with open_own(self.path, "ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.size += len(line)
        self.hash.update(line)
        for listen in self.listeners:
            listen(row)

    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        """Each line with its row; only the last line may be torn, and is left out."""
        try:
            lines = read_plain(self.path).decode().splitlines(keepends=True) if self.path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"'{self.path}' is damaged ({type(error).__name__})") from error
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line, parse_constant=refuse_constant)
                row["step"] + 0
            except (ValueError, TypeError, KeyError, RecursionError):
                if number < len(lines):
                    where = f"'{self.path}', line {number},"
                    raise UserError(f"{where} is damaged; restore the file or start anew") from None
                break
            found.append((line, row))
        return found

    def rows(self) -> list[dict[str, Any]]:
        return [row for _, row in self.lines()]

    def mark(self) -> list[int | str]:
        """Size and hash, for the checkpoint that goes with the log as it is now."""
        return [self.size, self.hash.hexdigest()]

    def begins_with(self, mark: list[Any]) -> bool:
        """Whether the log began as it does now when this mark was made."""
        size, digest = mark
        try:
            there = check_plain(self.path, None) if self.path.exists() else 0
        except OSError as error:
            raise UserError(f"'{self.path}' cannot be read ({type(error).__name__})") from error
        return size <= there and self._hash_of(size).hexdigest() == digest

    def cut(self, mark: list[Any] | None, step: int) -> None:
        """Cut the log back to a mark, or where there is none to the rows up to a step."""
        try:
            if mark:
                with open_own(self.path, "ab") as file:
                    file.truncate(mark[0])
            else:
                lines = [line for line, row in self.lines() if row["step"] <= step and line.endswith("\n")]
                write_atomic(self.path, "".join(lines).encode())
            self.size = self.path.stat().st_size
            self.hash = self._hash_of(self.size)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _hash_of(self, size: int) -> "hashlib.blake2b":
        """The hash of the first bytes of the log, which may be larger than memory; of nothing if there is no log."""
        digest = _hash()
        try:
            with open(self.path, "rb") as file:
                while size > 0 and (chunk := file.read(min(size, 1 << 20))):
                    digest.update(chunk)
                    size -= len(chunk)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UserError(f"'{self.path}' cannot be read ({type(error).__name__})") from error
        return digest
