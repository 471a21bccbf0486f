"""Files of unknown origin: plain ones of bounded size only, archives that do not swell, YAML that stays what it is."""

import errno
import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

import yaml

from percentmatch.errors import UserError

MOST_BYTES = 2 << 30  # of a text that is read whole; the largest files of labels in use have about 1 GiB
MOST_YAML = 128 << 10  # of a file of settings; YAML is slow to read
# a wrong value after a tag such as !!int raises whatever Python raises
BAD_YAML = (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError)
LONGEST_NUMBER = 40  # letters; YAML reads 1:1:1:... as one number, the slower the longer


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


def check_weights(path: Path) -> None:
    """Refuse what is no plain file, and an archive that says it holds more than it has: torch compresses nothing."""
    size = check_plain(path, None)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > size:
                raise ValueError("the archive is compressed")


class _Loader(yaml.SafeLoader):
    """YAML without aliases, by which a few lines stand for gigabytes, and without giant numbers."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not read; write it out", mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return super().construct_yaml_int(_short(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return super().construct_yaml_float(_short(node))


def _short(node: yaml.ScalarNode) -> yaml.ScalarNode:
    if len(node.value) > LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, "this number is too long", node.start_mark)
    return node


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def parse_yaml(text: str, what: str) -> Any:
    """The value of a YAML text, which messages call `what`. Tags that would make objects are refused."""
    try:
        return yaml.load(text, _Loader)  # derived from SafeLoader
    except RecursionError:
        raise UserError(f"{what} is nested too deeply to be a config") from None
    except BAD_YAML as error:
        reason = re.sub(r'\s*in "<unicode string>"', "", str(error))
        raise UserError(f"{what} is not valid YAML: {' '.join(reason.split())}") from None
