"""A manifest that took long to read, kept beside the decoded images."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from percentmatch.data.labels import TABLES, Flags, Labels
from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.cache_file import key_of
from percentmatch.errors import UserError
from percentmatch.files import write_atomic

VERSION = 3
FLAGS = ("usual", "starts", "columns")
NAMES = ("paths", "ids", "parts", "class_names", "sources")


def remember(read: Callable[[], Manifest], file: Path, images: Path, *settings: object, cache: Path) -> Manifest:
    """What `read` makes of `file` under these settings, from `cache` if nothing has changed since.

    Neither the file nor which names the folder `images` holds; folders below it are not looked into.
    """
    about = os.stat(file)
    held = (os.stat(images).st_mtime_ns, len(os.listdir(images))) if images.is_dir() else ()
    facts = VERSION, os.path.abspath(file), about.st_size, about.st_mtime_ns, str(images), held, *map(str, settings)
    target = cache / f"{key_of(facts)}.manifest"
    with contextlib.suppress(OSError, SafetensorError, ValueError, KeyError, TypeError):
        return _unpack(target.read_bytes())
    manifest = read()
    with contextlib.suppress(OSError, UserError):  # only speed is lost
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, _pack(manifest))
    return manifest


def _pack(manifest: Manifest) -> bytes:
    names = {name: [str(value) for value in getattr(manifest, name)] for name in NAMES}
    text = torch.frombuffer(bytearray(json.dumps(names).encode()), dtype=torch.uint8)
    tables = {name: getattr(manifest.labels, name) for name in TABLES}
    flags = {f"{name}.{field}": getattr(table, field) for name, table in tables.items() for field in FLAGS}
    return save({"names": text, **flags})


def _unpack(content: bytes) -> Manifest:
    stored = load(content)
    fields: dict[str, Any] = json.loads(bytes(stored.pop("names").numpy()))
    for name, values in fields.items():
        fields[name] = tuple(map(Path, values) if name == "paths" else values)
    width = len(fields["class_names"])
    labels = {}
    for name in TABLES:
        labels[name] = flags = Flags(*(stored[f"{name}.{field}"] for field in FLAGS), width)
        ends, columns = flags.starts, flags.columns
        if ends[0] != 0 or (ends.diff() < 0).any() or ends[-1] != len(columns) or len(ends) != len(flags) + 1:
            raise ValueError("rows of labels do not fit")
        if ((columns < 0) | (columns >= width)).any() or (flags.usual > 1).any():
            raise ValueError("labels of no class")
    return Manifest(labels=Labels(**labels), **fields)
