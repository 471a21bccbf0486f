"""Inputs that were valid once: changed byte by byte, or in their structure. A function of a `random.Random` alone."""

import copy
import csv
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import yaml

Mutator = Callable[[Random, bytes, Sequence[bytes]], bytes]  # a valid input, and all of them, to splice with

TOKENS = (b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\n", b"\r\n", b'"', b"'", b",", b";")
TOKENS += (
    b"\t",
    b"[",
    b"]",
    b"{",
    b"}",
    b"<",
    b">",
    b"&",
    b"../",
    b"/",
    b"\\",
    b"\x1b[2J",
    b"-1",
    b"9" * 400,
    b"1e999",
)
TOKENS += (b"NaN", b"Infinity", b"null", b"true", b"[" * 3000, b'{"a":' * 3000, b"<a>" * 3000, b"x" * 5000, b"\x80" * 9)
PATHS = (
    "../secret.png",
    "../../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "~/.ssh/id_rsa",
    "..\\secret.png",
    ".",
    "..",
)
PATHS += (
    "file:///etc/passwd",
    "http://[x",
    "/data/local-files/?d=../secret.png",
    "a.png/../../secret.png",
    "C:\\a.png",
)
TEXTS = (
    "",
    " ",
    "\0",
    "\ud800",
    "\u202e",
    "\x1b[31m",
    "=1+1",
    "@x",
    "-1",
    "+1",
    "\t",
    "\r",
    "a\nb",
    "?",
    "[",
    "{",
    "é" * 300,
)
TEXTS += (
    "<script>alert(1)</script>",
    "[/red]",
    "x" * 5000,
    "'",
    '"',
    "NaN",
    "a;b",
    "a|b",
    "train",
    "1",
    "0",
    "a\u0301" * 2000,
)
NUMBERS = (0, 1, -1, 2, 2**31, 2**63, -(2**63), 10**400, 1e308, 1e-320, float("nan"), float("inf"), -float("inf"), 0.5)


DEEP = "[deep]"  # in JSON, `deeper` puts lists in lists there, more than Python could hold or write


def deeper(rng: Random, data: bytes) -> bytes:
    depth = rng.choice((300, 900, 1100, 20_000))
    return data.replace(json.dumps(DEEP).encode(), b"[" * depth + b"]" * depth)


def deep(depth: int, pair: bool = False) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value} if pair else [value]
    return value


def hostile(rng: Random) -> Any:
    """A value that does not belong where it is put."""
    made = (
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(PATHS),
        lambda: rng.choice(TEXTS),
        lambda: rng.choice((None, True, False, [], {}, [None], {"": None}, [[]])),
        lambda: deep(rng.choice((3, 30)), rng.random() < 0.5),
        lambda: DEEP,
        lambda: ["x"] * rng.choice((2, 3000)),
    )
    return rng.choice(made)()


def mutate_bytes(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Flipped, set, inserted, deleted, doubled, cut off or spliced, once or a few times."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(found) + 1)
        length = min(rng.choice((1, 2, 4, 16, 200)), len(found) - at)
        kind = rng.randrange(8)
        if kind == 0 and length:
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            found[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            del found[at : at + length]
        elif kind == 4:
            found[at:at] = found[at : at + length] * rng.choice((1, 3, 50))
        elif kind == 5:
            del found[at:]
        elif kind == 6:
            other = rng.choice(others)
            found[at:] = other[rng.randrange(len(other) + 1) :]
        else:
            found[at : at + length] = bytes([rng.choice((0, 255, 127, 32))]) * length
    return bytes(found)


def mutate_tree(rng: Random, tree: Any) -> Any:
    """The same lists and mappings with a few values replaced, removed, doubled, moved or renamed."""
    root = {"": copy.deepcopy(tree)}
    for _ in range(rng.choice((1, 1, 2, 3))):
        inner, key = rng.choice(_places(root))
        kind = rng.randrange(7)
        if kind <= 2:
            inner[key] = hostile(rng)
        elif kind == 3:
            other, place = rng.choice(_places(root))
            inner[key] = copy.deepcopy(other[place])
        elif kind == 4 and inner is not root:
            del inner[key]
        elif kind == 5 and isinstance(inner, list):
            inner += [copy.deepcopy(inner[key])] * rng.choice((1, 2, 50))
        elif isinstance(inner, dict) and inner is not root:
            inner[str(rng.choice((*TEXTS, *PATHS)))] = inner.pop(key)
    return root[""]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Where each value of a tree stands."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        for key in inner if isinstance(inner, dict) else range(len(inner)):
            found.append((inner, key))
            waiting += [inner[key]] if isinstance(inner[key], list | dict) else []
    return found


def mutate_json(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, others)
    return deeper(rng, json.dumps(mutate_tree(rng, json.loads(data)), indent=rng.choice((None, 1))).encode())


def mutate_lines(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """JSON, an object a line."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, others)
    rows = mutate_tree(rng, [json.loads(line) for line in data.splitlines()])
    return deeper(rng, "\n".join(json.dumps(row) for row in (rows if isinstance(rows, list) else [rows])).encode())


def mutate_table(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The cells of a CSV file."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, others)
    rows = mutate_tree(rng, list(csv.reader(io.StringIO(data.decode()))))
    out = io.StringIO()
    mark, quoting = rng.choice(",;\t"), rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    writer = csv.writer(out, delimiter=mark, quoting=quoting, lineterminator=rng.choice(("\n", "\r\n", "\r")))
    for row in rows if isinstance(rows, list) else [rows]:
        writer.writerow(row if isinstance(row, list) else [row])
    return out.getvalue().encode("utf-8", "surrogatepass")


SNIPPETS = (b"a: &a [1]\nb: *a\n", b"x: &x {y: *x}\n", b"<<: {lr: 1}\n", b"lr: !!int ''\n", b"seed: !!float ''\n")
SNIPPETS += (
    b"seed: !!timestamp x\n",
    b"lr: !!python/object/apply:os.system [id]\n",
    b"lr: 2024-13-45\n",
    b"--- 1\n---\n",
)
SNIPPETS += (
    b"seed: 0x" + b"f" * 5000 + b"\n",
    b"seed: " + b"1:" * 3000 + b"1\n",
    b"lr: .nan\n",
    b"lr: -.inf\n",
    b"? [a]\n: 1\n",
)
SNIPPETS += (
    b"a: [" * 800,
    b"{" * 800,
    b"- " * 800 + b"\n",
    b'labels: "\\0"\n',
    b'labels: "\\ud800"\n',
    b"!!binary x: y\n",
)
SNIPPETS += (b"a0: &a0 [x,x]\n" + b"".join(b"a%d: &a%d [*a%d,*a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40)),)


def mutate_yaml(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    kind = rng.random()
    if kind < 0.3:
        return mutate_bytes(rng, data, others)
    if kind < 0.5:
        return data + rng.choice(SNIPPETS)
    try:
        return yaml.safe_dump(mutate_tree(rng, yaml.safe_load(data))).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, RecursionError, ValueError):
        return data + rng.choice(SNIPPETS)


PIECES = (
    "<object>",
    "</object>",
    "<name>",
    "</name>",
    "<difficult>",
    "&amp;",
    "&x;",
    "<![CDATA[",
    "]]>",
    "<!--",
    "<?xml?>",
)
PIECES += (
    '<!DOCTYPE a [<!ENTITY x "y">]>',
    '<?xml version="1.0" encoding="utf-16"?>',
    '<?xml version="1.0" encoding="hex"?>',
)
PIECES += (
    "<object>" * 5000,
    "<a b='c' b='d'/>",
    "-1",
    "2",
    "../a",
    "a/../../b",
    "\u2028",
    "person",
    "<object><name/></object>",
)


def mutate_text(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Lists and XML: pieces of text put in, exchanged and left out."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, others)
    words = data.decode().replace("\n", " \n ").replace("<", " <").split(" ")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(words))
        words[at : at + rng.randrange(2)] = [str(rng.choice((*PIECES, *TEXTS, *PATHS, words[at])))]
        words = words or [""]
    return " ".join(words).encode("utf-8", "surrogatepass")


SIZES = (0, 1, 2, 7, 255, 16384, 32768, 65535, 100_000, 2**31 - 1, 2**32 - 1)


def mutate_image(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Bytes, or the width and height that a header tells."""
    if rng.random() < 0.7:
        return mutate_bytes(rng, data, others)
    wide, high = rng.choice(SIZES), rng.choice(SIZES)
    found = bytearray(data)
    if data.startswith(b"\x89PNG"):
        found[16:24] = struct.pack(">II", wide, high)
        found[29:33] = struct.pack(">I", zlib.crc32(found[12:29]))
    elif data.startswith(b"\xff\xd8"):
        at = next(data.find(mark) for mark in (b"\xff\xc0", b"\xff\xc2") if mark in data)
        found[at + 5 : at + 9] = struct.pack(">HH", high % 65536, wide % 65536)
    elif data.startswith(b"GIF8"):
        at = rng.choice((6, data.find(b",") + 5))
        found[at : at + 4] = struct.pack("<HH", wide % 65536, high % 65536)
    elif data.startswith(b"BM"):
        found[18:26] = struct.pack("<II", wide, high)
    elif data.startswith(b"RIFF"):
        found[26:30] = struct.pack("<HH", wide % 65536, high % 65536)
    else:  # TIFF and AVIF: four bytes anywhere in the header
        at = rng.randrange(4, 300)
        found[at : at + 4] = struct.pack(rng.choice(("<I", ">I")), wide)
    return bytes(found)


def mutate_tar(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Members renamed, made links or devices, with other notes beside them, or one header whose numbers lie."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, data, others)
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as old,
        tarfile.open(fileobj=out, mode="w", format=rng.randrange(3)) as new,
    ):
        for member in old:
            content = old.extractfile(member).read()  # ty: ignore[unresolved-attribute]
            if rng.random() < 0.3 and member.name.endswith(".json"):
                content = deeper(rng, json.dumps(mutate_tree(rng, json.loads(content))).encode())
            if rng.random() < 0.2:
                member.name = (
                    str(rng.choice((*PATHS, *TEXTS))).replace("\0", "").encode(errors="replace").decode() + ".png"
                )
            if rng.random() < 0.1:
                member.type, member.linkname = (
                    rng.choice((b"0", b"1", b"2", b"3", b"5", b"6", b"S", b"V")),
                    "/etc/passwd",
                )
            member.size = len(content)
            with suppress(ValueError, UnicodeError):  # a name or number that the format cannot hold
                new.addfile(member, io.BytesIO(content))
    found = bytearray(out.getvalue())
    if rng.random() < 0.4:
        found[124:136] = rng.choice(
            (b"77777777777\0", b"\x80" + b"\xff" * 11, b"-0000000001\0", b"00000000000\0", b" " * 12)
        )
        found[148:156] = b" " * 8
        found[148:156] = b"%06o\0 " % sum(found[:512])
    return bytes(found)


def mutate_safetensors(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The header, also the card inside it, or the length it tells."""
    kind = rng.random()
    if kind < 0.3:
        return mutate_bytes(rng, data, others)
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    if kind < 0.7 and "__metadata__" in header:
        card = mutate_tree(rng, json.loads(header["__metadata__"]["percentmatch"]))
        header["__metadata__"]["percentmatch"] = deeper(rng, json.dumps(card).encode()).decode()
    else:
        header = mutate_tree(rng, header)
    text = deeper(rng, json.dumps(header).encode())
    told = rng.choice((len(text),) * 6 + (0, 2**63, len(text) * 2))
    return struct.pack("<Q", told) + text + body
