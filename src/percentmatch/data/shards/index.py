"""Tar shards (WebDataset): which there are, where each image lies in them, and which labels they hold.

Headers are read once and remembered.
"""

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from glob import glob
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels import cache_file
from percentmatch.data.pixels.cache import key_of, threads
from percentmatch.data.pixels.decode import member_path
from percentmatch.data.pixels.images import Say
from percentmatch.data.readers.folder import is_image_name, list_files
from percentmatch.data.readers.rows import LabelFile, encode, good_rows, labels_of, refuse
from percentmatch.data.readers.table import Table, label_rows
from percentmatch.data.shards.tar import Damaged, Scattered, Unclear, note_of, samples, subset_of
from percentmatch.errors import UserError

VERSION = 2
PLAN = "shards.json"  # what `percentmatch data shard` writes beside its shards
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")  # but .tar refused: with a reason
MOST_SHARDS = 1_000_000
WAITS = (0.1, 0.5, 2.0)  # seconds before a file that cannot be read is tried again: mounted storage has hiccups
READERS, SLOW = 16, 2e-4  # shards whose headers are read at a time, where an image takes longer than so many seconds
SAY_EVERY = 10  # seconds


class Noted(NamedTuple):
    """An image whose labels are in its shard."""

    shard: int
    name: str
    offset: int
    length: int
    note: dict[str, Any]  # at least labels: a list or a text, not checked


@dataclass(frozen=True)
class Shards:
    """Where the N images of s shards lie."""

    paths: tuple[str, ...]  # s
    stamps: tuple[tuple[int, int], ...]  # s times (size, time of the last change)
    counts: np.ndarray  # (s,) images
    places: np.ndarray  # (N, 2) int64, mapped: where the content begins and its length, shard after shard
    noted: tuple[Noted, ...] = ()  # the images with labels, where these were asked for; they are not among the N
    left_out: tuple[str, ...] = ()  # a sentence for each shard that cannot be read to its end
    firsts: np.ndarray = field(init=False)  # (s,) the first row of each shard in `places`

    def __post_init__(self) -> None:
        object.__setattr__(self, "firsts", np.cumsum(self.counts) - self.counts)

    def __len__(self) -> int:
        return len(self.places)

    def shard_of(self, rows: np.ndarray | int) -> np.ndarray:
        """The shard of each of these images, by their rows in `places`."""
        return self.firsts.searchsorted(rows, side="right") - 1

    @property
    def digest(self) -> str:
        """A hash of the shards' names, sizes and numbers of images, wherever they are."""
        about = zip(self.paths, self.stamps, self.counts.tolist(), strict=True)
        facts = [(os.path.basename(path), size, count) for path, (size, _), count in about]
        return hashlib.sha256(json.dumps(facts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def names_shards(place: str) -> bool:
    """Whether a setting names shards: a tar file, a pattern such as `pool/{000..099}.tar`, or a folder with some."""
    if os.path.isdir(place):
        return any(name.endswith(".tar") for name in list_files(place))
    return place.lower().endswith(ARCHIVES) or (any(mark in place for mark in "*?{") and not os.path.exists(place))


def find_shards(place: str) -> list[str]:
    """The shards that a setting names, sorted. Of names in braces, and of a written plan, some may not be there."""
    if os.path.isdir(place):
        return _in_folder(place)
    named = [place] if os.path.exists(place) else _expand(place)
    found = [path for name in named for path in (glob(name) if "*" in name or "?" in name else [name])]
    if not found or (found == [place] and not os.path.exists(place)):
        raise UserError(f"there is no file {place}; check the path or the pattern")
    return sorted(set(found))


def _in_folder(folder: str) -> list[str]:
    planned = []
    with suppress(OSError, ValueError, KeyError, TypeError):  # another file of that name
        planned = [shard["name"] for shard in json.loads(Path(folder, PLAN).read_bytes())["shards"]]
    names = {name for name in list_files(folder) if name.endswith(".tar") and not name.startswith(".")}.union(planned)
    if image := next((name for *_, files in os.walk(folder) for name in files if is_image_name(name)), None):
        ways = f"name the shards by a pattern such as '{folder}/*.tar', or give a folder with images only"
        raise UserError(f"{folder} holds tar files and images such as {image}; {ways}")
    if not names:
        raise UserError(f"{folder} holds no tar file; give a folder with shards")
    return sorted(os.path.join(folder, name) for name in names)


def _expand(pattern: str) -> list[str]:
    """`{000..002}` and `{a,b}` as a shell writes them out."""
    names, complete = [pattern], []
    while names:
        name = names.pop()
        if braces := re.search(r"\{([^{}]*)\}", name):
            names += [name[: braces.start()] + choice + name[braces.end() :] for choice in _choices(braces[1])]
        else:
            complete.append(name)
        if len(names) + len(complete) > MOST_SHARDS:
            raise UserError(f"{pattern} names more than {MOST_SHARDS:,} shards; name fewer")
    return complete


def _choices(inside: str) -> Sequence[str]:
    """The texts that braces with this inside stand for."""
    ends = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", inside)
    if not ends:
        return inside.split(",")
    width = max(map(len, ends.groups())) if any(len(end) > 1 and end[0] == "0" for end in ends.groups()) else 0
    numbers = range(int(ends[1]), int(ends[2]) + 1)
    return [f"{number:0{width}d}" for number in numbers[: MOST_SHARDS + 1]]


def open_shards(
    place: str, *, cache: Path, labels: bool = False, skip_bad: bool = False, say: Say = lambda sentence: None
) -> Shards:
    """Where the images lie in the shards that `place` names; from `cache` if these have not changed.

    With `labels`, images with a member json that has labels, or cls or txt, come apart. Those whose JSON says that they
    are for validation or test are never among the others. A shard that is missing or cut short is an error, and so is
    one with a member that should say something about an image and cannot be read, unless `skip_bad`: then the other
    whole images count. `say` hears of work that takes long.
    """
    paths = find_shards(place)
    stamps = _stamps(paths)
    facts = VERSION, labels, *((os.path.abspath(path), stamp) for path, stamp in zip(paths, stamps, strict=True))
    target = cache / f"{key_of(facts)}.shards"
    shards = _load(target, paths, stamps) or _build(target, paths, stamps, labels, say)
    if shards.left_out and not skip_bad:
        more = f" ({len(shards.left_out)} of {len(paths)} shards are not whole)" if len(paths) > 1 else ""
        raise UserError(f"{shards.left_out[0]}{more}; replace it, or go on without by --skip-bad-images")
    if not len(shards) and not shards.noted:
        raise UserError(f"{place} holds no image in its {len(paths)} shards; name shards with .jpg or other images")
    return shards


def _stamps(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Size and time of each; (-1, -1) of those that are not there, after some patience."""
    found: dict[str, tuple[int, int]] = {}
    for wait in (0, *WAITS):
        time.sleep(wait)
        for path in (path for path in paths if path not in found):
            with suppress(OSError):
                about = os.stat(path)
                found |= {path: (about.st_size, about.st_mtime_ns)} if stat.S_ISREG(about.st_mode) else {}
        if len(found) == len(paths):
            break
    return [found.get(path, (-1, -1)) for path in paths]


def _load(target: Path, paths: Sequence[str], stamps: Sequence[tuple[int, int]]) -> Shards | None:
    """The index in a file, or None if that is missing or not whole. The places come first, then a JSON text."""
    try:
        about = cache_file.read_end(target)
        number = sum(about["counts"])
        if number * 16 != about["start"] or len(about["counts"]) != len(paths):
            return None
        places = np.memmap(target, "<i8", "r", shape=(number, 2)) if number else np.zeros((0, 2), np.int64)
        noted = tuple(Noted(*image) for image in about["noted"])
        return Shards(tuple(paths), tuple(stamps), np.array(about["counts"]), places, noted, tuple(about["left_out"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(target: Path, paths: Sequence[str], stamps: Sequence[tuple[int, int]], labels: bool, say: Say) -> Shards:
    """Read the headers of all shards, several at a time, and write the index."""
    counts, noted, left_out, lasting = [], [], [], True
    began = said = time.monotonic()
    first = _scan(labels, paths[0], stamps[0])
    slow = time.monotonic() - began > SLOW * len(first.places)  # on quick storage, threads would wait for each other
    with threads(READERS if slow else 1) as pool, cache_file.new_cache_file(target, "the index of the shards") as part:
        with open(part, "xb") as file:
            others = pool.map(partial(_scan, labels), paths[1:], stamps[1:])
            for shard, scanned in enumerate(chain([first], others)):
                file.write(scanned.places.astype("<i8").tobytes())
                counts.append(len(scanned.places))
                noted += [(shard, *image) for image in scanned.noted]
                left_out += [f"shard '{paths[shard]}': {scanned.problem}"] if scanned.problem else []
                lasting = lasting and scanned.lasting
                if time.monotonic() - said > SAY_EVERY:
                    said = time.monotonic()
                    say(f"found the images in {shard + 1:,} of {len(paths):,} shards")
            file.write(cache_file.end_of({"counts": counts, "noted": noted, "left_out": left_out}))
        shards = _load(part, paths, stamps)  # stays mapped when it is renamed
        if shards is None:
            raise OSError("it was changed by another program")
        if lasting:
            os.replace(part, target)
        return shards


class _Scanned(NamedTuple):
    places: np.ndarray  # (n, 2)
    noted: list[tuple[str, int, int, dict[str, Any]]]  # as in Noted, without the shard
    problem: str = ""
    lasting: bool = True  # the problem is in the file, so that trying again is of no use


def _scan(labels: bool, path: str, stamp: tuple[int, int]) -> _Scanned:
    """The images of one shard, as far as it can be read."""
    reason = "there is no such file"
    for wait in (0, *WAITS) if stamp[0] >= 0 else ():
        time.sleep(wait)
        places, noted, unclear, problem = [], [], [], ""
        try:
            with open(path, "rb", buffering=0) as file:
                for pictures, others in samples(file.fileno(), stamp[0], labels=labels):
                    try:
                        note = note_of(file.fileno(), others, labels=labels)
                    except Unclear as error:
                        unclear.append(str(error))
                        continue
                    if labels and note.get("labels") is not None:
                        noted += [(*member, note) for member in pictures]
                    elif subset_of(note) not in ("validation", "test"):
                        places += [(member.offset, member.length) for member in pictures]
            more = f" ({len(unclear):,} images are left out)" if len(unclear) > 1 else ""
            problem = f"{unclear[0]}{more}" if unclear else ""
        except Scattered as error:  # any image may lack its labels or its subset
            places, noted, problem = [], [], str(error)
        except Damaged as error:
            some = len(places) + len(noted)
            problem = f"{error}{f' (after {some:,} images)' if some else ''}"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            continue
        return _Scanned(np.array(places, np.int64).reshape(-1, 2), noted, problem)
    return _Scanned(np.zeros((0, 2), np.int64), [], reason, lasting=stamp[0] < 0)


def labeled_manifest(shards: Shards, place: str, classes: Sequence[str] | None = None) -> Manifest:
    """The images that have labels in their shards, as `open_shards(labels=True)` found them.

    Labels are a list in JSON, `{"labels": ["cat"]}`, or a text as in a CSV file. JSON may also name classes that are
    unknown or difficult for the image, and its subset. Other `classes` than those asked for are left out.
    """
    if not shards.noted:
        raise UserError(f"{place}: no image in these shards has labels; put a member json, cls or txt beside some")
    names = [image.name for image in shards.noted]
    if len(set(names)) < len(names):
        names = [f"{Path(shards.paths[image.shard]).name}/{image.name}" for image in shards.noted]
    sources = [f"{shards.paths[image.shard]}, {image.name}" for image in shards.noted]
    notes = [_checked(image, source) for image, source in zip(shards.noted, sources, strict=True)]
    lines = [[name, *note[:2], ""] for name, note in zip(names, notes, strict=True)]
    table = Table(Path(place), ["image", "labels", "part"], lines, sources, image=0, labels=1, subset=2)
    plain = list(good_rows(label_rows(table), refuse))
    rows = [row._replace(unsure=note[2], difficult=note[3]) for row, note in zip(plain, notes, strict=True)]
    shown = sorted({name for row in plain for name in row.labels or ()})
    class_names, codes = encode(LabelFile(Path(place)), rows, shown, open_labels=True)
    members = ((image, shards.paths[image.shard], shards.stamps[image.shard][1]) for image in shards.noted)
    manifest = Manifest(
        paths=tuple(member_path(path, image.offset, image.length, time, image.name) for image, path, time in members),
        ids=tuple(names),
        labels=labels_of(codes, len(class_names)),
        parts=tuple(row.subset for row in rows),
        class_names=class_names,
        sources=tuple(sources),
    )
    return manifest.choose(classes) if classes else manifest


def _checked(noted: Noted, source: str) -> tuple[str, str, list[str], list[str]]:
    """Labels as a cell of a table, the subset, unknown and difficult classes."""
    labels, subset = noted.note["labels"], noted.note.get("part", "")
    lists = [noted.note.get(name, []) for name in ("unknown", "difficult")]
    listed = [*([labels] if isinstance(labels, list) else []), *lists]
    good = all(isinstance(names, list) and all(isinstance(name, str | int) for name in names) for names in listed)
    if not good or not isinstance(labels, list | str | int) or not isinstance(subset, str):
        raise UserError(f'{source}: its JSON is not as expected; write {{"labels": ["cat", "dog"]}}')
    cell = json.dumps(labels) if isinstance(labels, list) else str(labels)
    unknown, difficult = ([str(name) for name in names] for names in lists)
    return cell, subset, unknown, difficult
