"""What a stranger would write who knows the formats: each attack makes a file from a valid one and a Random."""

import io
import json
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import torch
from PIL import Image

Attack = Callable[[Random, bytes], bytes]
CODECS = ("utf-16", "utf-16-le", "utf-32", "utf-7", "cp037", "utf-8-sig", "latin-1")
LITERALS = ("1e999", "-1e999", "1E400", "1e-999", "-0", "0." + "0" * 5000 + "1", "9" * 4300, "9" * 4301, "1.0", "true")
LITERALS += ("[]", "{}", "null", '"1"', '"\\ud83d"', '"\\u0000"', '"\\u202e"', '"{0.__class__}"', '"%s%n"', '"$(id)"')
LITERALS += ('"</script><canary onload=x>"', '"javascript:x"', '"' + "x" * 100_000 + '"', "[" * 100_000)


def recode(rng: Random, data: bytes) -> bytes:
    """The same text in another encoding, or with another mark at its start."""
    return data.decode("utf-8", "replace").encode(rng.choice(CODECS), "replace")


def lines_end(rng: Random, data: bytes) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r", b"\x85", b"\x0b", b"\x0c", b"\xe2\x80\xa8", b"\r\r\n", b"\n" * 500)))


def endless(rng: Random, data: bytes) -> bytes:
    """Much of the same, with and without its beginning."""
    return data * rng.choice((2, 300)) if rng.random() < 0.5 else data + data[len(data) // 2 :] * 300


def json_literal(rng: Random, data: bytes) -> bytes:
    """A number or a text as no program would write it."""
    found = list(re.finditer(rb'-?\d+(\.\d+)?|"[^"]*"(?!\s*:)', data))
    place = rng.choice(found)
    return data[: place.start()] + rng.choice(LITERALS).encode() + data[place.end() :]


def json_keys(rng: Random, data: bytes) -> bytes:
    """A key twice, an empty one, or one that Python or JavaScript would take for its own."""
    found = list(re.finditer(rb'"[^"]*"\s*:', data))
    place = rng.choice(found)
    more = rng.choice(("__proto__", "__class__", "", "constructor", "\\ud800", place[0].decode().split('"')[1]))
    return data[: place.start()] + f'"{more}": {rng.choice(LITERALS[:20])}, '.encode() + data[place.start() :]


def json_dialect(rng: Random, data: bytes) -> bytes:
    """What other readers of JSON allow."""
    change = rng.choice(
        ((b'"', b"'"), (b"}", b",}"), (b"]", b",]"), (b"{", b"{/* */"), (b",", b",,"), (b"\n", b" // x\n"))
    )
    return data.replace(*change)


def json_width(rng: Random, data: bytes) -> bytes:
    """A list of tens of thousands, or a mapping, in place of a value."""
    some = ("[" + "0," * 30_000 + "0]", "{" + ",".join(f'"k{n}":0' for n in range(30_000)) + "}")
    found = list(re.finditer(rb'(?<=: )(-?\d+(\.\d+)?|"[^"]*"|\[\]|null|true|false)', data)) or [re.match(b"", data)]
    place = rng.choice(found)
    return data[: place.start()] + rng.choice(some).encode() + data[place.end() :]


SIZES = (0, 1, 3, 7, 9, 255, 65535, 100_000, 2**31, 2**32 - 1)
CELLS = ("a.png\0", "./a.png", "a.png/", "//a.png", "a.png:stream", "%2e%2e/secret.png", "\\\\?\\C:\\a.png", "CON.png")
CELLS += ("A.PNG", "a.png ", "a." + "p" * 300 + "ng", "a/" * 3000 + "a.png", "data/../a.png", "=HYPERLINK(1)", "'[1]")
CELLS += (
    "[1,[2]]",
    '["\\ud800"]',
    '{"a": 1}',
    "\u212b",
    "\u200b",
    "\ufeff",
    "1e5",
    "1" * 5000,
    "½",
    "٣",
    "TRUE",
    "?;?",
)


def table_cells(rng: Random, data: bytes) -> bytes:
    rows = [line.split(b",") for line in data.split(b"\n")]
    for _ in range(rng.choice((1, 2, 5))):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(CELLS).encode("utf-8", "surrogatepass")
    return b"\n".join(map(b",".join, rows))


def table_shape(rng: Random, data: bytes) -> bytes:
    """Many columns, rows of other lengths, a line for Excel, no header, or nothing but one."""
    head, _, rest = data.partition(b"\n")
    wide = b",".join(b"c%d" % n for n in range(20_000))
    made = (
        head + b"," + wide + b"\n" + rest,
        b"sep=;\n" + data,
        rest,
        head + b"\n",
        head + b"\n" + rest.replace(b"\n", b",,,,\n"),
        head + b"\n" + rest.replace(b",", b""),
        head + b"," + head + b"\n" + rest,
        b"\n" * 3000 + data,
        data + b'"' + b"\n,x" * 30_000,
        data + b",\n" * 30_000,
    )
    return rng.choice(made)


YAMLS = (
    "? {a: b}\n: c\n",
    "? [[1]]\n: c\n",
    "a: !!set {x, y}\n",
    "a: !!omap [x: 1]\n",
    "a: !!pairs [x: 1]\n",
    "= : 1\n",
)
YAMLS += ("%YAML 9.9\n---\na: 1\n", "%TAG ! tag:x,2000:\n---\n!x a: 1\n", "a: !!python/name:os.system\n", "a: =\n")
YAMLS += ("a: !!python/object/new:os.system [x]\n", "<<: [{lr: 1}, {lr: 2}]\n", "<<: 1\n", "a: |\n" + "  x\n" * 20_000)
YAMLS += (
    "a: !!binary '!!!'\n",
    "lr: 1:1.5\n",
    "lr: 1_0_0\n",
    "lr: 0b1\n",
    "lr: 0o17\n",
    "lr: 2001-12-14t21:59:43.10-05:00\n",
)
YAMLS += (
    "? " * 2000,
    "a: &a b\n" * 3000,
    "lr: 0.1\n" * 3000,
    "- [" * 500,
    "a: '" + "''" * 30_000 + "'\n",
    "\u2028: 1\n",
)
YAMLS += (
    "weights: ../../../../etc/passwd\n",
    "weights: /dev/zero\n",
    "backbone: hf-hub:x/y\n",
    "backbone: local-dir:/etc\n",
)
YAMLS += (
    "labels: http://localhost:9/x.csv\n",
    "unlabeled: 'pipe:id |'\n",
    "options: {__class__: x}\n",
    "data: shards\nroot: s3://x\n",
)


def yaml_piece(rng: Random, data: bytes) -> bytes:
    piece = rng.choice(YAMLS).encode()
    return piece + data if rng.random() < 0.3 else data + b"\n" + piece if rng.random() < 0.5 else piece


def jpeg_segments(rng: Random, data: bytes) -> bytes:
    """Fill bytes, thousands of markers, headers or scans twice, and tables of other lengths."""
    if not data.startswith(b"\xff\xd8"):
        return image_ends(rng, data)
    scan = data.find(b"\xff\xda")
    more = (
        b"\xff" * 200_000,
        b"\xff\xe1\0\x08Exif\0\0" * 2000,
        b"\xff\xfe\0\2" * 20_000,
        b"\xff\xdd\0\4\0\1",
        b"\xff\xdb\0\3\x1f",
        b"\xff\xc4\0\x13\0" + b"\xff" * 16,
        b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([rng.randrange(256)]),
        data[2:scan],
        data[scan:-2] * 50,
    )
    return data[:scan] + rng.choice(more) + data[scan:]


def exif(rng: Random, data: bytes) -> bytes:
    """Metadata with directories that lead to themselves and counts that lie, in any format that has it."""
    count = rng.choice((0, 1, 0xFFFF, 0xFFFFFFFF))
    entry = struct.pack(
        "<HHII", rng.choice((0x112, 0x8769, 0x8825, 0x14A)), rng.randrange(20), count, rng.choice((8, 0))
    )
    made = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", rng.choice((1, 2, 0xFFFF))) + entry * 2 + struct.pack("<I", 8)
    form, out = rng.choice(("JPEG", "PNG", "WEBP", "AVIF")), io.BytesIO()
    with suppress(TypeError, ValueError, OSError, SyntaxError, struct.error):  # some formats look into it
        Image.new("RGB", (9, 9)).save(out, form, exif=made)
        return out.getvalue()
    return data


def png_chunks(rng: Random, data: bytes) -> bytes:
    """Empty chunks, an animation that never ends, text that swells, palettes and transparency of other lengths."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    if not data.startswith(b"\x89PNG"):
        return image_ends(rng, data)
    more = (
        chunk(b"IDAT", b"") * 20_000,
        chunk(b"tEXt", b"") * 20_000,
        chunk(b"tEXt", b"a\0b") * 5000,
        chunk(b"acTL", struct.pack(">II", 2**31, 0)),
        chunk(b"acTL", struct.pack(">II", 2, 0))
        + chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, 2**31, 9, 0, 0, 0, 0, 0, 0)),
        chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 22))),
        chunk(b"iTXt", b"a\0\1\0\0\0" + zlib.compress(bytes(1 << 22))),
        chunk(b"PLTE", b"\0" * rng.choice((0, 1, 769, 3000))),
        chunk(b"tRNS", b"\0" * rng.choice((0, 1, 3000))),
        chunk(b"eXIf", b"II*\0\x08\0\0\0" + b"\xff" * 20),
        data[8:33],
    )
    return data[:33] + rng.choice(more) + data[33:]


def frames(rng: Random, data: bytes) -> bytes:
    """Animations, and directories of TIFF that lead back."""
    if data.startswith(b"GIF8"):
        return data[:-1] * rng.choice((2, 1000)) + b";"
    if data[:4] == b"II*\0":
        start = struct.unpack("<I", data[4:8])[0]
        end = start + 2 + 12 * struct.unpack("<H", data[start : start + 2])[0]
        return data[:end] + struct.pack("<I", rng.choice((8, start, 2**32 - 1))) + data[end + 4 :]
    out, image = io.BytesIO(), Image.new("RGB", (5, 5))
    form = rng.choice(("WEBP", "AVIF", "PNG", "TIFF", "GIF"))
    image.save(out, form, save_all=True, append_images=[Image.new("RGB", (5, 5), (n, 0, 0)) for n in range(60)])
    return out.getvalue()


def tiff_tags(rng: Random, data: bytes) -> bytes:
    """Strips, samples and sizes that do not fit, in every compression."""
    out = io.BytesIO()
    way = rng.choice(("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"))
    Image.new("RGB", (9, 9), (1, 2, 3)).save(out, "TIFF", compression=way)
    made = bytearray(out.getvalue())
    start = struct.unpack("<I", made[4:8])[0]
    for _ in range(rng.choice((1, 1, 2, 3))):
        entry = start + 2 + 12 * rng.randrange(struct.unpack("<H", made[start : start + 2])[0])
        change = rng.choice(
            ((0, "<H", (256, 259, 273, 317, 322, 330)), (2, "<H", range(20)), (4, "<I", SIZES), (8, "<I", SIZES))
        )
        struct.pack_into(change[1], made, entry + change[0], rng.choice(change[2]))
    return bytes(made)


def image_ends(rng: Random, data: bytes) -> bytes:
    """Something else behind the image or before it, or another format's name for it."""
    other = rng.choice((b"PK\3\4" + bytes(50), b"<svg onload=x>", b"%PDF-1.4", b"MZ", b"#!/bin/sh\n", bytes(100_000)))
    head = rng.choice(
        (
            b"",
            b"\x8aMNG\r\n\x1a\n",
            b"8BPS\0\1",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            b"P6\n9 9\n255\n",
        )
    )
    return head + data if head else data + other


def boxes(rng: Random, data: bytes) -> bytes:
    """Sizes of the boxes and chunks of AVIF and WebP that lie, or hold each other."""
    if data[4:8] == b"ftyp":
        names = [
            place.start() for place in re.finditer(b"meta|hdlr|iloc|iinf|infe|iprp|ipco|ispe|av1C|ipma|mdat", data)
        ]
        at = rng.choice(names) - 4
        size = rng.choice((0, 1, 7, 8, len(data), 2**31, 2**32 - 1))
        nested = b"".join(struct.pack(">I4s", 8 * (n + 1), b"meta") for n in range(3000, 0, -1))
        return data[:at] + (struct.pack(">I", size) if rng.random() < 0.8 else nested) + data[at + 4 :]
    if data.startswith(b"RIFF"):
        big = struct.pack("<I", 0xFFFFFF)[:3] * 2
        extended = b"VP8X\x0a\0\0\0" + bytes([rng.randrange(256), 0, 0, 0]) + rng.choice((big, b"\x17\0\0" * 2))
        return data[:12] + extended * rng.choice((1, 2, 3000)) + data[12:]
    return image_ends(rng, data)


def bmp_runs(rng: Random, data: bytes) -> bytes:
    """Runs and jumps of RLE, masks, heights below 0, and depths that there are not."""
    wide, high = rng.choice((24, 5000)), rng.choice((24, -24, 5000, -(2**31)))
    depth, way = rng.choice((1, 4, 8, 16, 24, 32, 0, 48)), rng.randrange(7)
    head = struct.pack("<IiiHHIIiiII", 40, wide, high, 1, depth, way, 0, 0, 0, rng.choice((0, 256, 2**31)), 0)
    runs = rng.choice((b"\0\2\xff\xff", b"\0\0", b"\xff\1", b"\0\xff", b"\0\1")) * 5000
    return b"BM" + struct.pack("<IHHI", 54 + len(runs), 0, 0, rng.choice((54, 54 + 1024, 2**31))) + head + runs


def tar_headers(rng: Random, data: bytes) -> bytes:
    """Extended headers that lie, names that are paths, members that are none."""
    keys = {"size": ("0", "1", "9" * 30, "-1", "1.5"), "path": ("../x.png", "/x.png", "", "a" * 5000)}
    keys |= {"GNU.sparse.size": ("9" * 15,), "GNU.sparse.map": ("0,1," * 500,), "hdrcharset": ("BINARY",)}
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as old,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in old:
            content = old.extractfile(member).read()  # ty: ignore[unresolved-attribute]
            key = rng.choice(list(keys))
            member.pax_headers = {key: rng.choice(keys[key])} if rng.random() < 0.5 else {}
            new.addfile(member, io.BytesIO(content))
    made, kind = out.getvalue(), rng.random()
    if kind < 0.3:  # a header for itself, again and again
        return made[:512] * rng.choice((2, 2000)) + made
    return made if kind < 0.8 else made + bytes(512 * 3) + data


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def safetensors_header(rng: Random, data: bytes) -> bytes:
    """Tensors that overlap, leave gaps, have sizes that overflow, or are of kinds and shapes that do not fit."""
    header, body = _header(data)
    name = rng.choice([key for key in header if key != "__metadata__"])
    length = len(body)
    changes: tuple[dict[str, Any], ...] = (
        {"data_offsets": [0, length]},
        {"data_offsets": [length, 0]},
        {"data_offsets": [0, 0], "shape": [0, 2**62]},
        {"shape": [2**32, 2**32]},
        {"shape": [1] * 3000},
        {"shape": []},
        *({"dtype": kind} for kind in ("F8_E4M3", "F4", "C64", "BOOL", "U64", "I64", "F64", "X")),
    )
    header[name] |= rng.choice(changes)
    if rng.random() < 0.2:
        header |= {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [length, length]} for n in range(5000)}
    text = json.dumps(header).encode() + b" " * rng.choice((0, 0, 5, 1_000_000))
    return struct.pack("<Q", len(text)) + text + body


def safetensors_card(rng: Random, data: bytes) -> bytes:
    """A card that asks for what is not in the file."""
    header, body = _header(data)
    if "__metadata__" not in header:
        return safetensors_header(rng, data)
    card = json.loads(header["__metadata__"]["percentmatch"])
    changes = {
        "backbone": (
            "hf-hub:timm/x",
            "local-dir:/etc",
            "../x",
            "test_resnet.",
            "test_resnet.x",
            "os",
            "resnet18",
            "TEST_RESNET",
        ),
        "class_names": (["x" * 3_000_000], [str(n) for n in range(20_000)], ["</script><canary>"] * 3, {"a": 1}, "abc"),
        "image_size": (True, 1, 4096, 33, 2**63, 1e999),
        "decode_size": (True, 1, 4096, -1),
        "dropout": (True, "0", 1e999),
        "mean": ([10**300] * 3, [True] * 3, "abc"),
        "version": ("\n# x", "{card}", "x" * 100_000, "<canary>"),
        "decisions": ({}, [], {"scale": []}, {"__class__": 1}),
        "more": (1,),
        "__class__": ("x",),
        "head": ("ml-decoder", "x"),
    }
    name = rng.choice(list(changes))
    card[name] = rng.choice(changes[name])
    header["__metadata__"]["percentmatch"] = json.dumps(card)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def checkpoint_objects(rng: Random, data: bytes) -> bytes:
    """What pickles may hold without acting: shared lists without end, lists that hold themselves, other tensors."""
    shared: Any = ["x"]
    for _ in range(40):
        shared = [shared, shared]
    ring: list[Any] = []
    ring.append(ring)
    values = (
        lambda: shared,
        lambda: ring,
        lambda: torch.zeros(1).expand(1 << 40),
        lambda: torch.zeros(2, 2).to_sparse(),
        lambda: torch.zeros(3, dtype=torch.complex64),
        lambda: torch.zeros(2, 3, device="meta"),
        lambda: torch.full((2, 3), float("nan")),
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: {1: 2, None: 3, (1, 2): 4},
        lambda: 10**400,
        lambda: b"x" * 100,
    )
    key = rng.choice(
        ("step", "seconds", "log", "settings", "model", "optimizer", "meter", "split", "labels", "state_dict")
    )
    inner = rng.choice(values)()
    value = {"w": inner} if key in ("model", "state_dict") and rng.random() < 0.7 else inner
    buffer, state = io.BytesIO(), torch.load(io.BytesIO(data), weights_only=True)
    torch.save({**state, key: value}, buffer)
    return buffer.getvalue()


def checkpoint_archive(rng: Random, data: bytes) -> bytes:
    """Members with other names, twice, or with a pickle written by hand."""
    scripts = (
        b"\x80\x02cos\nsystem\nX\x02\0\0\0idq\0\x85R.",
        b"\x80\x02cbuiltins\neval\nX\x01\0\0\0xq\0\x85R.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(tR.",
        b"\x80\x02ccollections\nOrderedDict\n)R}X\x01\0\0\0a]sb.",
        b"\x80\x02}" + b"(" * 20_000 + b".",
        b"\x80\x02]" + b"2" * 1000 + b".",
        b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.",
        b"\x80\x02r\xff\xff\xff\x7f.",
        b".",
    )
    script, kind, packed = rng.choice(scripts), rng.random(), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w") as new:
        for name in old.namelist():
            content = script if name.endswith("data.pkl") and kind < 0.7 else old.read(name)
            new.writestr(name if kind < 0.9 else f"../{name}", content)
        if kind > 0.8:
            new.writestr("archive/data/999", b"")
    return packed.getvalue()


HEADS = ('boundary="' + ";" * 60_000, "boundary=" + "x" * 60_000, "boundary=", 'boundary=""', "boundary=x; boundary=y")
HEADS += (
    "boundary*=idna''x",
    "boundary*=utf-7''+AHg-",
    "boundary*=hex''78",
    "boundary*=a\0b''x",
    "boundary*0=x; boundary*2=y",
)
HEADS += (
    "boundary*1*=%ff; boundary*0*=utf-16''x",
    "Boundary=x; charset=utf-16",
    "boundary=x" + "; a=b" * 10_000,
    "boundary=.*",
)
HEADS += (
    "boundary*9999999999999999999=x",
    "boundary*=''",
    "boundary*='",
    "boundary=(((((",
    "b\xffundary=\xff",
    "boundary=\t x",
)


def form_head(rng: Random, data: bytes) -> bytes:
    """Content types as no browser sends them."""
    return f"multipart/form-data; {rng.choice(HEADS)}\n".encode("latin-1") + data.partition(b"\n")[2]


def form_body(rng: Random, data: bytes) -> bytes:
    """Very many parts, boundaries within each other, no end, and names without one."""
    head, _, body = data.partition(b"\n")
    made = (
        b"--x\r\n\r\n\r\n" * 20_000 + body,
        body.replace(b"--x", b"--xx"),
        body.removesuffix(b"--x--\r\n"),
        body.replace(b"filename=", b"filename*=utf-8''"),
        body.replace(b"\r\n", b"\n"),
        b"--x\r\nContent-Disposition: " + b"; filename " * 20_000 + b"\r\n\r\nabc\r\n--x--",
        b"--x\r\n" + b"A: b\r\n" * 20_000 + b"\r\nabc\r\n--x--",
        b"--x--" + body,
        b"preamble --x" * 5000 + body,
    )
    return head + b"\n" + rng.choice(made)


XMLS = (
    b"<annotation><object><name>dog</name></object>" * 3000,
    b"<a " + b"x" * 50_000 + b"='1'/>",
    b"<?xml version='1.0'?>" * 2,
)
XMLS += (
    b"<?xml version='1.1'?><annotation/>",
    b"<?xml version='1.0' encoding='cp037'?><annotation/>",
    b"<annotation>&#0;</annotation>",
)
XMLS += (
    b"<annotation xmlns:xi='http://www.w3.org/2001/XInclude'><xi:include href='/etc/passwd'/></annotation>",
    b"<a>" + b"&#x41;" * 50_000 + b"</a>",
)
XMLS += (
    b"<?xml-stylesheet href='file:///etc/passwd'?><annotation/>",
    b"<annotation><object><name>a<name>b</name></name></object></annotation>",
)
XMLS += (
    b"<annotation>" + b"<object><name>n%d</name></object>" * 1 + b"</annotation>",
    b"<a" + b" b%d=''" * 1 + b"/>",
    b"<!doctype a><a/>",
    b"<![CDATA[" * 3000,
)


def xml_piece(rng: Random, data: bytes) -> bytes:
    return rng.choice(XMLS) if rng.random() < 0.7 else data.replace(b"<object>", b"<object>" + rng.choice(XMLS))


ANY_TEXT: tuple[Attack, ...] = (recode, lines_end, endless)
JSONS = (*ANY_TEXT, json_literal, json_literal, json_keys, json_dialect, json_width)
TABLES = (*ANY_TEXT, table_cells, table_cells, table_shape)
IMAGES = (jpeg_segments, exif, png_chunks, frames, tiff_tags, image_ends, boxes, boxes, bmp_runs)
