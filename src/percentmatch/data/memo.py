"""A manifest that took long to read, kept beside the decoded images."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from percentmatch.data.manifest import Manifest

VERSION = 1
LABELS = ("targets", "known", "difficult")
NAMES = ("paths", "ids", "parts", "class_names", "sources")


def remember(read: Callable[[], Manifest], file: Path, images: Path, *settings: object, cache: Path) -> Manifest:
    """What `read` makes of `file` under these settings, from `cache` if nothing has changed since.

    Neither the file nor which names the folder `images` holds; folders below it are not looked into.
    """
    about = os.stat(file)
    held = (os.stat(images).st_mtime_ns, len(os.listdir(images))) if images.is_dir() else ()
    facts = VERSION, os.path.abspath(file), about.st_size, about.st_mtime_ns, str(images), held, *map(str, settings)
    place = cache / f"{hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()}.manifest"
    with contextlib.suppress(OSError, SafetensorError, ValueError, KeyError, TypeError):
        return _unpack(place.read_bytes())
    manifest = read()
    with contextlib.suppress(OSError):  # only speed is lost
        _write(place, _pack(manifest))
    return manifest


def _pack(manifest: Manifest) -> bytes:
    names = {name: [str(value) for value in getattr(manifest, name)] for name in NAMES}
    text = torch.frombuffer(bytearray(json.dumps(names).encode()), dtype=torch.uint8)
    return save({"names": text, **{name: getattr(manifest, name).contiguous() for name in LABELS}})


def _unpack(content: bytes) -> Manifest:
    fields: dict[str, Any] = load(content)
    for name, values in json.loads(bytes(fields.pop("names").numpy())).items():
        fields[name] = tuple(map(Path, values) if name == "paths" else values)
    return Manifest(**fields)


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=place.parent, suffix=".part")
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(part, place)
    except BaseException:
        os.unlink(part)
        raise
