"""Images as files in, tar shards (WebDataset) out: in parallel, shard by shard, and taken up again where it stopped."""

import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from percentmatch.console.notices import print_to_stderr
from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.cache import Progress, cores, threads
from percentmatch.data.pixels.decode import BadImage, cannot_read, read
from percentmatch.data.pixels.images import Say
from percentmatch.data.readers.folder import IMAGE_SUFFIXES
from percentmatch.data.shards.index import PLAN
from percentmatch.data.shards.tar import BLOCK, Damaged, members, whole_blocks
from percentmatch.errors import UserError
from percentmatch.files import is_part, new_part, read_json, sweep, write_atomic, written_out

VERSION = 1
SEED = 0  # of the order; that of training comes from the run's own
MEGABYTE = 1 << 20


def write_shards(
    manifest: Manifest,
    out: Path,
    *,
    shard_mb: float = 256,
    images_per_shard: int = 0,
    workers: int | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
    say: Say = print_to_stderr,
) -> dict[str, Any]:
    """Write the images of a manifest into shards of about `shard_mb` megabytes, or of `images_per_shard` images each.

    The files' bytes go in as they are, in a random order, with what is known of the labels as JSON. Shards that are
    there and whole are kept; a folder with other images or settings is refused. `progress` counts images; returns the
    plan, as it is kept in shards.json. Images that cannot be read are an error, or left out with `skip_bad`.
    """
    if shard_mb <= 0 or images_per_shard < 0:
        raise UserError("--shard-mb and --images-per-shard must be above 0")
    lengths = [_length(path) for path in manifest.paths]
    sizes = [1 if images_per_shard else BLOCK + whole_blocks(length) for length in lengths]
    groups = _groups(sizes, images_per_shard or shard_mb * MEGABYTE)
    shards = {f"shard-{number:06d}.tar": rows for number, rows in enumerate(groups)}
    plan = {
        "version": VERSION,
        "digest": _digest(manifest, lengths, groups),
        "images": len(manifest),
        "shards": [{"name": name, "images": len(rows)} for name, rows in shards.items()],
    }
    _start_or_continue(out, plan)
    keys, stop, done = _keys(manifest), threading.Event(), 0
    try:
        with threads(workers or cores()) as pool, ExitStack() as stack:
            stack.callback(stop.set)
            about = manifest, keys, skip_bad, say, stop
            work = [pool.submit(_write, out / name, rows, *about) for name, rows in shards.items()]
            for future in as_completed(work):
                done += future.result()
                if progress:
                    progress(done, len(manifest))
    except OSError as error:
        raise UserError(f"cannot write '{out}': {error.strerror or error}; make room and run this again") from error
    return plan


def _length(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):  # reported when it is read
        return 0


def _groups(sizes: Sequence[int], most: float) -> list[list[int]]:
    """The rows of the images of each shard, in a random order: their sizes add up to `most` at most."""
    groups, room = [], 0.0
    for row in torch.randperm(len(sizes), generator=torch.Generator().manual_seed(SEED)).tolist():
        room -= sizes[row]
        if room < 0:
            groups.append([])
            room = most - sizes[row]
        groups[-1].append(row)
    return groups


def _digest(manifest: Manifest, lengths: Sequence[int], groups: list[list[int]]) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, manifest.ids, manifest.parts, manifest.class_names]).encode())
    digest.update(json.dumps([lengths, [len(group) for group in groups]]).encode())
    for piece in manifest.labels.bytes_of(torch.arange(len(manifest))):
        digest.update(piece)
    return digest.hexdigest()[:16]


def _start_or_continue(out: Path, plan: dict[str, Any]) -> None:
    """Begin a folder, or continue one that was begun with the same plan."""
    file = out / PLAN
    try:
        out.mkdir(parents=True, exist_ok=True)
        sweep(out)
        if file.exists():
            if read_json(file).get("digest") != plan["digest"]:
                raise UserError(f"'{out}' holds shards of other images or settings; choose another --out")
        elif not all(map(is_part, out.iterdir())):
            raise UserError(f"'{out}' is not empty; choose another --out")
        else:
            write_atomic(file, (json.dumps(plan, indent=0) + "\n").encode())
    except OSError as error:
        raise UserError(f"cannot write '{out}': {error.strerror or error}; choose another --out") from error


def _keys(manifest: Manifest) -> list[str]:
    """A name for each image: its id, so that no two are the same and the first dot begins the suffix."""
    taken: set[str] = set()
    keys = []
    for name in manifest.ids:
        stem = next((name[: -len(suffix)] for suffix in IMAGE_SUFFIXES if name.lower().endswith(suffix)), name)
        *folders, last = [piece for piece in stem.split("/") if piece not in ("", ".", "..")] or ["image"]
        key = "/".join([*folders, last.replace(".", "_")])
        keys.append(next(new for new in chain([key], (f"{key}_{n}" for n in count(2))) if new not in taken))
        taken.add(keys[-1])
    return keys


def _write(
    shard: Path, rows: list[int], manifest: Manifest, keys: list[str], skip_bad: bool, say: Say, stop: threading.Event
) -> int:
    """Write these rows into one shard, unless it is there; returns their number, with those left out."""
    if _is_whole(shard, [keys[row] for row in rows], skip_bad):
        return len(rows)
    with new_part(shard) as temporary:
        with written_out(temporary, "xb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            for row in rows:
                if stop.is_set():
                    return 0
                path = manifest.paths[row]
                try:
                    content = read(path)
                except BadImage as error:
                    bad = cannot_read(path, str(error))
                    if not path.parent.is_dir():
                        what = f"the folder '{path.parent}' is gone, so its images cannot be written"
                        raise UserError(f"{what}; bring it back and run this again") from None
                    if not skip_bad:
                        hint = "replace it or leave it out by --skip-bad-images"
                        raise UserError(f"{manifest.sources[row]}: {bad}; {hint}") from None
                    say(f"skipped: {bad}")
                    continue
                suffix = path.suffix.lower()
                _add(tar, keys[row] + (suffix if suffix in IMAGE_SUFFIXES else IMAGE_SUFFIXES[0]), content)
                if note := _note(manifest, row):
                    _add(tar, f"{keys[row]}.json", json.dumps(note, ensure_ascii=False).encode())
        os.replace(temporary, shard)
    return len(rows)


def _is_whole(path: Path, keys: list[str], some_missing: bool) -> bool:
    """Whether a shard is there to its end and holds these images, all of them or, where that may be, some."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = list(dict.fromkeys(member.name.rpartition(".")[0] for member in members(file.fileno(), size)))
    except (OSError, Damaged):
        return False
    rest = iter(keys)
    return all(key in rest for key in found) if some_missing else found == keys


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)  # all else stays fixed, so that the same images give the same bytes
    tar.addfile(info, io.BytesIO(content))


def _note(manifest: Manifest, row: int) -> dict[str, Any]:
    """What is known of an image, for JSON: names of classes that it shows, of others only where these need a word."""
    targets, known, difficult = (table[[row]][0].tolist() for table in vars(manifest.labels).values())
    classes = list(zip(manifest.class_names, targets, known, difficult, strict=True))
    note: dict[str, Any] = {}
    if any(known):
        note["labels"] = [name for name, yes, sure, _ in classes if yes and sure]
        note["unknown"] = [name for name, _, sure, _ in classes if not sure]
        note["difficult"] = [name for name, _, _, hard in classes if hard]
    note["part"] = manifest.parts[row]
    return {name: value for name, value in note.items() if value or name == "labels"}
