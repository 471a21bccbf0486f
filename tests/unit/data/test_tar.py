"""The walk over tar headers finds what Python's tarfile finds, and survives what that does not."""

import io
import os
import random
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tarred import write_tar

from percentmatch.data.shards.tar import BLOCK, Damaged, Member, members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def walk(path: Path) -> tuple[list[Member], str]:
    """What is found, and why it ends early."""
    found, reason = [], ""
    with open(path, "rb") as file:
        try:
            for member in members(file.fileno(), os.path.getsize(path)):
                found.append(member)
        except Damaged as error:
            reason = str(error)
    return found, reason


def oracle(path: Path) -> list[Member]:
    with tarfile.open(path) as tar:
        return [Member(info.name, info.offset_data, info.size) for info in tar if info.isreg() and not info.issparse()]


@pytest.mark.parametrize("form", FORMATS)
def test_every_plain_file_is_found_where_tarfile_finds_it(form: str, tmp_path: Path) -> None:
    """Among links, folders and pipes; with long names, other alphabets and names that lead elsewhere."""
    dice, path = random.Random(form), tmp_path / "x.tar"
    odd = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
    with tarfile.open(path, "w", format=FORMATS[form]) as tar:
        for number in range(200):
            folder = dice.choice(["", "../", "/etc/", "a" * 90 + "/", "übermäßig/"])
            info = tarfile.TarInfo(f"{folder}{'b' * dice.randint(1, 60)}{number}.jpg")
            if form != "ustar" and number % 7 == 0:
                info.name = "long/" * 40 + info.name
            if number % 5 == 0:
                info.type, info.linkname = dice.choice(odd), "c" * (90 if form == "ustar" else 300)
                tar.addfile(info)
                continue
            info.size = dice.choice([0, 1, 511, 512, 513, 3000])
            tar.addfile(info, io.BytesIO(dice.randbytes(info.size)))
    assert len(oracle(path)) == 160
    assert walk(path) == (oracle(path), "")


def sparse(*, extended: bool) -> bytes:
    """A file of one block of data as GNU tar keeps sparse ones; its map may go on in a block of its own."""
    info = tarfile.TarInfo("sparse.jpg")
    info.size, info.type = BLOCK, tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"00000000000\x00" + b"%011o\x00" % BLOCK
    header[482] = extended
    header[483:495] = b"%011o\x00" % BLOCK
    header[148:156] = b"%06o\x00 " % (sum(header) - sum(header[148:156]) + 8 * 32)
    return bytes(header) + bytes(BLOCK) * extended + b"d" * BLOCK


@pytest.mark.parametrize("extended", [False, True])
def test_sparse_files_are_stepped_over(extended: bool, tmp_path: Path) -> None:
    after = write_tar(tmp_path / "after.tar", {"after.jpg": b"abc"}).read_bytes()
    (tmp_path / "x.tar").write_bytes(sparse(extended=extended) + after)
    assert [member.name for member in oracle(tmp_path / "x.tar")] == ["after.jpg"]
    assert walk(tmp_path / "x.tar") == (oracle(tmp_path / "x.tar"), "")


def test_a_size_that_needs_binary_or_extended_headers(tmp_path: Path) -> None:
    """9 GB of nothing after the header, which take no room on the disk."""
    for number, form in enumerate(("gnu", "pax")):
        info = tarfile.TarInfo("big.jpg")
        info.size = 9 << 30
        path = tmp_path / f"{number}.tar"
        with open(path, "wb") as file:
            file.write(info.tobuf(FORMATS[form]))
            file.seek(9 << 30, os.SEEK_CUR)
            file.write(bytes(2 * BLOCK))
        assert walk(path) == (oracle(path), "")
        assert walk(path)[0][0].length == 9 << 30


def test_a_cut_shard_gives_its_whole_files_and_says_so(tmp_path: Path) -> None:
    """Cut at every 64th byte: what is found is the beginning of what the whole holds, and only the whole is whole."""
    whole = write_tar(tmp_path / "x.tar", {f"{'n' * 120}{each}.jpg": b"x" * 700 for each in range(4)}).read_bytes()
    everything, end = oracle(tmp_path / "x.tar"), len(whole.rstrip(b"\0"))
    end = -(-end // BLOCK) * BLOCK + BLOCK  # one block of zeros ends the file
    for length in range(0, end, 64):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        found, reason = walk(tmp_path / "cut.tar")
        assert found == everything[: len(found)]
        assert reason, length
        assert len(found) == sum(member.offset + member.length <= length for member in everything)
    (tmp_path / "cut.tar").write_bytes(whole[:end])
    assert walk(tmp_path / "cut.tar") == (everything, "")


@pytest.mark.parametrize("length", [b"000", b"00x", b"001", b"005", b"999"])
def test_an_extended_header_of_a_wrong_length_is_damage(length: bytes, tmp_path: Path) -> None:
    content = write_tar(tmp_path / "x.tar", {"n" * 110 + ".jpg": b"x"}, format=tarfile.PAX_FORMAT).read_bytes()
    (record,) = re.findall(rb"\d{3} path=", content)
    (tmp_path / "x.tar").write_bytes(content.replace(record, length + b" path="))
    assert walk(tmp_path / "x.tar") == ([], "it is damaged at byte 0")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_of_any_kind_is_told_and_never_leads_outside(data: st.DataObject, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("tar")
    names = {f"{'n' * 110}{each}.jpg": b"x" * 600 for each in range(3)}
    content = bytearray(
        write_tar(folder / "x.tar", names, format=FORMATS[data.draw(st.sampled_from(list(FORMATS)[1:]))]).read_bytes()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "x.tar").write_bytes(content)
    for member in walk(folder / "x.tar")[0]:
        assert 0 <= member.offset <= member.offset + member.length <= len(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"image,labels\n" * 100, "no tar file"),
        (b"\x1f\x8b" + bytes(600), "compressed"),
        (b"short", "no tar file"),
    ],
)
def test_what_is_no_tar_file_is_told_apart(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    assert said in walk(tmp_path / "x.tar")[1]


def test_headers_that_swell_are_refused(tmp_path: Path) -> None:
    """A long name of 3 GiB in a file that is as long, none of which is read; and many small records in one header."""
    info = tarfile.TarInfo("././@LongLink")
    info.size, info.type = 3 << 30, tarfile.GNUTYPE_LONGNAME
    with open(tmp_path / "x.tar", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(4 << 30)
    assert "bytes of headers" in walk(tmp_path / "x.tar")[1]
    info = tarfile.TarInfo("x")
    records = b"6 a=b\n" * 20_000
    info.size, info.type = len(records), tarfile.XHDTYPE
    after = write_tar(tmp_path / "after.tar", {"after.jpg": b"abc"}).read_bytes()
    padding = bytes(-len(records) % BLOCK)
    (tmp_path / "y.tar").write_bytes(info.tobuf(tarfile.USTAR_FORMAT) + records + padding + after)
    assert walk(tmp_path / "y.tar") == (oracle(tmp_path / "y.tar"), "")
