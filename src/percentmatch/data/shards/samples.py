"""What is in a tar shard (WebDataset): images, and what other members say about them.

Members that share their path up to the first dot of the file name are one sample: `cats/001.jpg` and `cats/001.json`.
"""

import json
import os
from collections.abc import Generator
from itertools import groupby
from typing import Any

from percentmatch.data.manifest import SUBSET_OF
from percentmatch.data.readers.folder import IMAGE_SUFFIXES, is_image_name
from percentmatch.data.shards.tar import Damaged, Member, members

MOST_NOTE = 1 << 20  # bytes of a member that says something about an image
LABELS = ("cls", "txt")  # members that hold labels as text, where no JSON does
NOTES = ("json", *LABELS)


class Scattered(Damaged):
    """The members of a sample do not follow each other."""


class Unclear(Exception):
    """Why a member that says something about an image is of no use, in words that follow `shard 'x': `."""


def samples(file: int, size: int, *, labels: bool) -> Generator[tuple[list[Member], dict[str, Member]]]:
    """The images of each sample in an open shard, and all of its members by what stands after the first dot.

    A sample has one image: that with nothing but an image's suffix after the first dot. Without such a one, every
    member with the suffix of an image is an image. Hidden files are no members. An image is an error if what is
    said about it comes apart from it: in JSON, and with `labels` in text. The last sample before a damage is left out,
    as it may go on there.
    """
    notes = NOTES if labels else NOTES[:1]
    seen: dict[str, tuple[bool, bool]] = {}  # of the samples so far: is there an image, and a note about it
    shown = (member for member in members(file, size) if not os.path.basename(member.name).startswith("."))
    for key, group in groupby(shown, lambda member: _key(member.name)[0]):
        found = [(_key(member.name)[1].lower(), member) for member in group]
        images = [(ending, member) for ending, member in found if is_image_name(os.path.basename(member.name))]
        here, before = (bool(images), any(ending in notes for ending, _ in found)), seen.get(key, (False, False))
        if key in seen and (here[0] or before[0]) and (here[1] or before[1]):
            raise Scattered(f"the members of '{key}' do not follow each other; write them in the order of their names")
        seen[key] = here
        plain = [member for ending, member in images if f".{ending}" in IMAGE_SUFFIXES]
        if pictures := plain[:1] or [member for _, member in images]:
            yield pictures, dict(found)


def _key(name: str) -> tuple[str, str]:
    """What the members of a sample share, and the rest."""
    folder, slash, last = name.rpartition("/")
    key, _, ending = last.partition(".")
    return folder + slash + key, ending


def note_of(file: int, others: dict[str, Member], *, labels: bool) -> dict[str, Any]:
    """What the members of a sample say about its image: its part, and with `labels` those."""
    note: Any = {}
    if "json" in others and (labels or others["json"].length <= MOST_NOTE):
        try:
            note = json.loads(_content(file, others["json"]))
        except (ValueError, RecursionError):
            raise Unclear(f"its member '{others['json'].name}' is not JSON") from None
    note = note if isinstance(note, dict) else {}
    kind = next((kind for kind in LABELS if kind in others), "")
    if labels and kind and note.get("labels") is None:
        try:
            note["labels"] = _content(file, others[kind]).decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise Unclear(f"its member '{others[kind].name}' is not UTF-8") from None
    if labels and note.get("labels") is None and part_of(note) is None:
        what = f"no part is called {note['part']!r}, as its member '{others['json'].name}' says"
        raise Unclear(f"{what}; write train, validation or test")
    return {name: note[name] for name in ("labels", "unknown", "difficult", "part") if name in note}


def part_of(note: dict[str, Any]) -> str | None:
    """The part that a note names, "" for none; None if it names what is no part."""
    return SUBSET_OF.get(str(note.get("part") or "").strip().lower())


def _content(file: int, member: Member) -> bytes:
    if member.length > MOST_NOTE:
        raise Unclear(f"its member '{member.name}' has more than {MOST_NOTE:,} bytes")
    return os.pread(file, member.length, member.offset)
