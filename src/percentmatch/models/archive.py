"""Files of tensors that strangers made, looked through before torch reads them."""

import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import IO

from percentmatch.files import check_plain

MOST_STEPS = 4_000_000  # of a pickle, which torch takes one by one; a tensor has about sixty
MOST_INSIDE = 100_000  # values in a tuple, counted as often as they are in it
PICKLES = 5  # in the older format, before the tensors
NAMED, RECALLED = ("PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")


def check_weights(path: Path) -> None:
    """Refuse what is no plain file, what says it holds more than it has, and what would take for ever to read."""
    size = check_plain(path, None)
    if path.suffix == ".safetensors":  # its header tells all sizes, and is checked by its own reader
        return
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            for _ in range(PICKLES if file.peek(1)[:1] == pickle.PROTO else 0):
                check_pickle(file)
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > size:
            raise ValueError("the archive is compressed")  # torch compresses nothing
        for member in members:
            if member.filename.endswith("data.pkl"):
                with archive.open(member) as file:
                    check_pickle(file)


def check_pickle(file: IO[bytes]) -> None:
    """ValueError or IndexError if the next pickle in the file cannot be taken in reasonable time. Nothing is made.

    A few tuples that hold each other twice stand for billions of values, all of which are looked at where such a tuple
    is a key. So the values in each tuple are counted, and a list or a dictionary, which is no key, counts as one.
    """
    stack: list[int | None] = []  # how many values each stands for; None is a mark
    named: dict[int, int | None] = {}
    for step, (code, argument, _) in enumerate(pickletools.genops(file)):
        if step > MOST_STEPS:
            raise ValueError("a pickle of that many steps")
        if code.name == "MARK":
            stack.append(None)
        elif code.name in NAMED or code.name == "MEMOIZE":
            named[len(named) if argument is None else int(argument)] = stack[-1]
        elif code.name in RECALLED:
            stack.append(named.get(int(argument or 0), 1))
        else:
            taken, before = [], code.stack_before
            if pickletools.stackslice in before:
                while (value := stack.pop()) is not None:
                    taken.append(value)
                before = before[: before.index(pickletools.markobject)]
            taken += [stack.pop() or 1 for _ in before]
            inside = 1 + sum(taken) if "TUPLE" in code.name else 1
            if inside > MOST_INSIDE:
                raise ValueError("a tuple of that many values")
            stack += [inside] * len(code.stack_after)
