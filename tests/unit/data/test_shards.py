"""Tar shards: which there are, what lies in them, how they are written, and that other programs agree."""

import io
import json
import os
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
import torch
import webdataset
from PIL import Image
from tarred import picture, write_photos, write_pool, write_tar

from percentmatch.data import (
    Manifest,
    load_data,
    load_images,
    open_shards,
    read_table,
    unlabeled_manifest,
    write_shards,
)
from percentmatch.data.labels import Labels
from percentmatch.data.pixels.decode import decode, decode_bytes
from percentmatch.data.shards import copies
from percentmatch.data.shards import index as shards
from percentmatch.data.shards import write as sharding
from percentmatch.data.shards.copies import without_copies
from percentmatch.data.shards.index import find_shards, labeled_manifest, names_shards
from percentmatch.data.source import open_data, read_manifest
from percentmatch.errors import UserError
from percentmatch.settings.config import Config


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "WAITS", (0.001,))


def contents(found: shards.Shards) -> list[bytes]:
    """The bytes at every place."""
    whole = []
    for shard, (path, count) in enumerate(zip(found.paths, found.counts, strict=True)):
        data, first = Path(path).read_bytes(), int(found.firsts[shard])
        whole += [data[offset : offset + length] for offset, length in found.places[first : first + count].tolist()]
    return whole


def test_braces_stars_folders_and_files_name_shards(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", [1] * 12)
    named = [str(tmp_path / "pool" / f"shard-{each:03d}.tar") for each in range(12)]
    assert find_shards(str(tmp_path / "pool")) == named
    assert find_shards(f"{tmp_path}/pool/shard-{{000..011}}.tar") == named
    assert find_shards(f"{tmp_path}/pool/shard-0{{00..04,x}}.tar")[:2] != named[:2]
    assert find_shards(f"{tmp_path}/pool/shard-0{{0{{0..4}},11}}.tar") == [*named[:5], named[11]]
    assert find_shards(f"{tmp_path}/po*/shard-00?.tar") == named[:10]
    assert find_shards(named[3]) == [named[3]]
    assert find_shards(f"{tmp_path}/{{8..11}}.tar") == sorted(f"{tmp_path}/{each}.tar" for each in range(8, 12))
    for place in (str(tmp_path / "pool"), "a/{0..9}.tar", "x.tar", "b/*.tar", "x.tar.gz"):
        assert names_shards(place), place
    for place in (str(tmp_path), "list.txt", "photos"):
        assert not names_shards(place), place
    for place, said in (("{0..99999999}.tar", "more than 1,000,000"), (f"{tmp_path}/no/*.tar", "there is no file")):
        with pytest.raises(UserError, match=said):
            find_shards(place)
    (tmp_path / "pool" / "deep").mkdir()
    (tmp_path / "pool" / "deep" / "a.JPG").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds tar files and images such as a\.JPG; name the shards by a pattern"):
        find_shards(str(tmp_path / "pool"))


def test_a_sample_has_one_image_and_hidden_files_have_none(tmp_path: Path) -> None:
    """The key ends at the first dot of the name: 'b' has a mask beside it, 'photo' is no sample with a plain image."""
    names = ["a.jpg", "a.json", "a.png", "b.png", "b.seg.png", "b.txt", "dir.x/c.JPEG", "photo.1.jpg", "photo.2.jpg"]
    names += ["._a.jpg", ".hidden/d.webp", "readme.md", "e.jpg.bak", "only.json", "../../f.gif"]
    members = {name: name.encode() for name in names} | {"a.json": b"[1]"}
    write_tar(tmp_path / "x.tar", members)
    found = open_shards(str(tmp_path / "x.tar"), cache=tmp_path / "cache")
    expected = ["a.jpg", "b.png", "dir.x/c.JPEG", "photo.1.jpg", "photo.2.jpg", ".hidden/d.webp", "../../f.gif"]
    assert [content.decode() for content in contents(found)] == expected
    assert not (tmp_path.parent / "f.gif").exists()


def test_where_images_lie_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, cache = str(write_pool(tmp_path / "pool", [3, 0, 5])), tmp_path / "cache"
    first = open_shards(place, cache=cache)
    assert (first.counts.tolist(), len(first)) == ([3, 0, 5], 8)
    assert contents(first) == [picture(number) for number in range(8)]
    with monkeypatch.context() as patch:
        patch.setattr(shards, "_scan", None)
        again = open_shards(place, cache=cache)
    assert contents(again) == contents(first)
    assert again.digest == first.digest
    write_tar(tmp_path / "pool" / "shard-001.tar", {"new.png": picture(99)})
    changed = open_shards(place, cache=cache)
    assert changed.counts.tolist() == [3, 1, 5]
    assert changed.digest != first.digest
    remembered = max(cache.glob("*.shards"), key=os.path.getmtime)
    remembered.write_bytes(remembered.read_bytes()[:-20])  # the disk was full
    assert contents(open_shards(place, cache=cache)) == contents(changed)
    assert not list(cache.glob(".*"))
    shutil.move(tmp_path / "pool", tmp_path / "moved")
    assert open_shards(str(tmp_path / "moved"), cache=cache).digest == changed.digest


def test_a_shard_that_is_missing_or_cut_is_named_or_skipped(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", [4, 4, 4])
    middle, cache = tmp_path / "pool" / "shard-001.tar", tmp_path / "cache"
    whole = middle.read_bytes()
    pattern = f"{tmp_path}/pool/shard-{{000..003}}.tar"
    with pytest.raises(UserError, match=r"shard '.*shard-003\.tar': there is no such file \(1 of 4 shards"):
        open_shards(pattern, cache=cache)
    assert open_shards(pattern, cache=cache, skip_bad=True).counts.tolist() == [4, 4, 4, 0]
    write_tar(tmp_path / "pool" / "shard-003.tar", {"late.png": picture(12)})
    assert open_shards(pattern, cache=cache).counts.tolist() == [4, 4, 4, 1]
    place = str(tmp_path / "pool")
    for cut, count in ((3500, 2), (600, 0), (0, 0)):  # 1,024 bytes a picture, and the third may go on
        middle.write_bytes(whole[:cut])
        with pytest.raises(UserError, match=r"shard '.*shard-001\.tar': it is (cut short|empty)"):
            open_shards(place, cache=cache)
        lean = open_shards(place, cache=cache, skip_bad=True)
        assert lean.counts.tolist() == [4, count, 4, 1]
        assert len(lean.left_out) == 1
    (tmp_path / "pool" / "folder.tar").mkdir()
    assert len(open_shards(f"{place}/*.tar", cache=cache, skip_bad=True).left_out) == 2
    with pytest.raises(UserError, match="holds no image in its 1 shards"):
        open_shards(str(write_tar(tmp_path / "none.tar", {"a.txt": b"x"})), cache=cache)


def test_a_fault_of_the_storage_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, cache, real = str(write_pool(tmp_path / "pool", [3, 3])), tmp_path / "cache", open

    def fails(path: str, *more: object, **how: object) -> IO[bytes]:
        if str(path).endswith("shard-001.tar"):
            raise OSError(5, "Input/output error")
        return real(path, *more, **how)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "open", fails, raising=False)
        with pytest.raises(UserError, match=r"shard-001\.tar': input/output error"):
            open_shards(place, cache=cache)
    assert open_shards(place, cache=cache).counts.tolist() == [3, 3]


@pytest.fixture
def labels(tmp_path: Path) -> Manifest:
    """Twelve photos, some for the test, one of unknown labels, and twenty without."""
    paths = write_photos(tmp_path / "photos", 12)
    rows = ["image,cat,dog,sofa,part"]
    for number, path in enumerate(paths):
        known = f"{number % 2},{int(number % 3 == 0)},{'?' if number == 5 else 1 - number % 2}"
        rows.append(f"{path.relative_to(tmp_path / 'photos')},{known},{'test' if number < 3 else ''}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    write_photos(tmp_path / "more", 20)
    return read_table(tmp_path / "labels.csv", tmp_path / "photos")


def test_written_shards_are_the_files_in_another_order(labels: Manifest, tmp_path: Path) -> None:
    more = unlabeled_manifest(tmp_path / "more", ("x",))
    plan = write_shards(more, tmp_path / "out", images_per_shard=6)
    assert [shard["images"] for shard in plan["shards"]] == [6, 6, 6, 2]
    found = open_shards(str(tmp_path / "out"), cache=tmp_path / "cache")
    files = [path.read_bytes() for path in more.paths]
    assert sorted(contents(found)) == sorted(files)
    assert contents(found) != files
    sizes = write_shards(more, tmp_path / "small", shard_mb=0.005)["shards"]
    assert len(sizes) > 3
    assert all((tmp_path / "small" / shard["name"]).stat().st_size < 5243 + 2 * 10240 for shard in sizes)


def test_writing_goes_on_where_it_stopped(labels: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken off after two shards, with one of these cut short since; the end is the same, byte for byte."""
    write_shards(labels, tmp_path / "whole", images_per_shard=3, workers=1)
    real, calls = sharding.read, []

    def tired(path: Path) -> bytes:
        calls.append(path)
        if len(calls) > 7:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(sharding, "read", tired)
    with pytest.raises(KeyboardInterrupt):
        write_shards(labels, tmp_path / "out", images_per_shard=3, workers=1)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["shard-000000.tar", "shard-000001.tar", "shards.json"]
    with pytest.raises(UserError, match=r"shard '.*shard-000002\.tar': there is no such file"):  # the plan is known
        open_shards(str(tmp_path / "out"), cache=tmp_path / "cache")
    cut = tmp_path / "out" / "shard-000001.tar"
    cut.write_bytes(cut.read_bytes()[:3000])
    kept = (tmp_path / "out" / "shard-000000.tar").stat().st_mtime_ns
    monkeypatch.undo()
    write_shards(labels, tmp_path / "out", images_per_shard=3, workers=4)
    assert (tmp_path / "out" / "shard-000000.tar").stat().st_mtime_ns == kept
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name
    for manifest, number in ((labels, 4), (labels.select(range(11)), 3)):
        with pytest.raises(UserError, match="holds shards of other images or settings"):
            write_shards(manifest, tmp_path / "out", images_per_shard=number)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="is not empty"):
        write_shards(labels, tmp_path / "taken")


def test_an_image_that_cannot_be_read_stops_the_writing_or_is_left_out(labels: Manifest, tmp_path: Path) -> None:
    labels.paths[4].unlink()
    with pytest.raises(UserError, match=r"labels\.csv, line 6: cannot read image .*no such file.*--skip-bad-images"):
        write_shards(labels, tmp_path / "out", images_per_shard=5)
    said = []
    for _ in range(2):
        write_shards(labels, tmp_path / "out", images_per_shard=5, skip_bad=True, say=said.append)
    assert len(said) == 1  # the shard without it counts as whole the second time
    found = open_shards(str(tmp_path / "out"), cache=tmp_path / "cache", labels=True)
    assert len(found.noted) == 11


def test_webdataset_reads_what_is_written(labels: Manifest, tmp_path: Path) -> None:
    write_shards(labels, tmp_path / "out", images_per_shard=5)
    pattern = str(tmp_path / "out" / "shard-{000000..000002}.tar")
    samples = {each["__key__"]: each for each in webdataset.WebDataset(pattern, shardshuffle=False)}
    assert len(samples) == 12
    for row, name in enumerate(labels.ids):
        sample = samples[name.removesuffix(".jpg").replace("photo.", "photo_")]
        assert sample["jpg"] == labels.paths[row].read_bytes()
        note = json.loads(sample["json"])
        assert note["labels"] == [
            c for c, yes in zip(labels.class_names, labels.labels.targets.dense()[row].tolist(), strict=True) if yes
        ]
        assert note.get("unknown", []) == (["sofa"] if row == labels.ids.index("odd/photo.005.jpg") else [])
        assert note.get("part", "") == labels.parts[row]


def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    """Encoded by its writer: an image, a class or JSON; samples of a class that is a number, a text, a list."""
    notes = {"cls": "1", "txt": "cat;dog", "json": {"labels": ["dog"], "part": "test"}, "": None}
    with webdataset.ShardWriter(str(tmp_path / "w-%02d.tar"), maxcount=5, verbose=0) as sink:
        for number in range(20):
            kind = list(notes)[number % 4]
            image = Image.open(io.BytesIO(picture(number)))
            sink.write({"__key__": f"k{number:03d}", "png": image, **({kind: notes[kind]} if kind else {})})
    place = str(tmp_path / "w-{00..03}.tar")
    unlabeled = open_shards(place, cache=tmp_path / "cache")
    shown = [int(decode_bytes(content, 8, "squash")[0, 0, 0]) for content in contents(unlabeled)]
    assert shown == [number for number in range(20) if number % 4 != 2]  # all but those for the test
    found = open_shards(place, cache=tmp_path / "cache", labels=True)
    assert [int(decode_bytes(content, 8, "squash")[0, 0, 0]) for content in contents(found)] == list(range(3, 20, 4))
    manifest = labeled_manifest(found, place)
    assert manifest.class_names == ("1", "cat", "dog")
    for row, name in enumerate(manifest.ids):
        number = int(name[1:4])
        expected = {0: [1, 0, 0], 1: [0, 1, 1], 2: [0, 0, 1]}[number % 4]
        assert manifest.labels.targets.dense()[row].tolist() == expected
        assert manifest.parts[row] == ("test" if number % 4 == 2 else "")
        assert int(decode(manifest.paths[row], 8, "squash")[0, 0, 0]) == number


def test_labels_go_through_shards_and_back(labels: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    hard = torch.zeros(labels.labels.shape, dtype=torch.uint8)
    hard[4, 1] = 1 - labels.labels.targets.dense()[4, 1]
    tables = labels.labels.targets.dense(), labels.labels.known.dense()
    labels = replace(labels, labels=Labels.of(*tables, hard))
    write_shards(labels, tmp_path / "out", images_per_shard=5)
    settings = Config(root=str(tmp_path / "out"))
    back = read_manifest(settings)
    order = [labels.ids.index(name.replace("photo_", "photo.")) for name in back.ids]
    assert sorted(order) == list(range(12))
    for name in ("targets", "known", "difficult"):
        mine, theirs = (getattr(each.labels, name).dense() for each in (labels, back))
        assert torch.equal(mine[order], theirs), name
    assert back.parts == tuple(labels.parts[row] for row in order)
    assert torch.equal(load_images(back, size=16).pixels, load_images(labels, size=16).pixels[order])
    assert open_data(settings).shards is None
    few = read_manifest(Config(root=str(tmp_path / "out"), classes="sofa,cat"))
    assert torch.equal(few.labels.targets.dense(), back.labels.targets.dense()[:, [2, 0]])
    shard = Path(str(back.paths[0]).partition("#")[0])
    os.utime(shard)
    with pytest.raises(UserError, match="its shard was changed meanwhile"):
        decode(back.paths[0], 8, "squash")


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ({"labels": {"cat": 1}}, "its JSON is not as expected"),
        ({"labels": [["cat"]]}, "its JSON is not as expected"),
        ({"labels": ["cat"], "part": "tset"}, "no part is called 'tset'"),
        ({"labels": ["cat"], "unknown": "dog"}, "its JSON is not as expected"),
    ],
)
def test_notes_that_make_no_sense_are_named(note: dict, said: str, tmp_path: Path) -> None:
    members = {"good.png": picture(1), "good.json": b'{"labels": ["cat"]}'}
    members |= {"bad.png": picture(2), "bad.json": json.dumps(note).encode()}
    found = open_shards(str(write_tar(tmp_path / "x.tar", members)), cache=tmp_path / "cache", labels=True)
    with pytest.raises(UserError, match=rf"x\.tar, bad\.png: {said}"):
        labeled_manifest(found, "x.tar")


@pytest.mark.parametrize(
    ("torn", "said"),
    [
        ({"b.json": b'{"labels": ["cat"], "part": "test",}'}, "its member 'b.json' is not JSON"),
        ({"b.json": b"[" * 100_000}, "its member 'b.json' is not JSON"),
        ({"b.cls": b"caf\xe9"}, "its member 'b.cls' is not UTF-8"),
        ({"b.txt": b"x" * ((1 << 20) + 1)}, "its member 'b.txt' has more than 1,048,576 bytes"),
        ({"b.json": b'{"part": "holdout"}'}, "no part is called 'holdout', as its member 'b.json' says"),
    ],
)
def test_an_image_about_which_a_torn_note_speaks_is_not_streamed(torn: dict, said: str, tmp_path: Path) -> None:
    members = {"a.png": picture(1), "a.cls": b"cat", "b.png": picture(2), **torn, "c.png": picture(3)}
    place, cache = str(write_tar(tmp_path / "x.tar", members)), tmp_path / "cache"
    with pytest.raises(UserError, match=rf"x\.tar': {said}.*; replace it, or go on without by --skip-bad-images"):
        open_shards(place, cache=cache, labels=True)
    found = open_shards(place, cache=cache, labels=True, skip_bad=True)
    assert ([each.name for each in found.noted], contents(found)) == (["a.png"], [picture(3)])


def test_a_part_is_read_as_in_a_table(tmp_path: Path) -> None:
    members = {"a.png": picture(1), "a.json": b'{"part": " Test "}', "b.png": picture(2)}
    found = open_shards(str(write_tar(tmp_path / "x.tar", members)), cache=tmp_path / "cache")
    assert contents(found) == [picture(2)]


@pytest.mark.parametrize("order", [["a.png", "b.png", "a.json", "b.json"], ["b.json", "a.json", "a.png", "b.png"]])
def test_members_that_do_not_follow_each_other_are_refused(order: list[str], tmp_path: Path) -> None:
    """As a plain `tar` of a folder writes them: images would lose their labels, and test images be streamed."""
    members = {
        "a.png": picture(1),
        "b.png": picture(2),
        "a.json": b'{"labels": ["cat"]}',
        "b.json": b'{"part": "test"}',
    }
    place = str(write_tar(tmp_path / "x.tar", {name: members[name] for name in order}))
    for labels in (True, False):
        with pytest.raises(UserError, match=r"x\.tar': the members of '[ab]' do not follow each other; write them in"):
            open_shards(place, cache=tmp_path / "cache", labels=labels)
    with pytest.raises(UserError, match="holds no image"):
        open_shards(place, cache=tmp_path / "cache", skip_bad=True)
    apart = {"a.jpg": picture(1), "b.png": picture(2), "a.png": picture(3), "a.txt": b"a caption"}
    assert len(open_shards(str(write_tar(tmp_path / "y.tar", apart)), cache=tmp_path / "cache")) == 3
    hidden = {
        "._a.png": b"",
        "a.png": picture(1),
        "._a.json": b"",
        "a.json": b"{}",
        "readme.txt": b"",
        "readme.md": b"",
    }
    hidden |= {"b.png": picture(2), "b.json": b'{"labels": null, "part": null}', "readme.json": b"torn"}
    assert len(open_shards(str(write_tar(tmp_path / "z.tar", hidden)), cache=tmp_path / "cache", labels=True)) == 2


def test_the_code_in_the_documents_runs(labels: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(unlabeled_manifest(tmp_path / "more", ("x",)), tmp_path / "pool")
    (tmp_path / "photos").rename(tmp_path / "labeled")
    page = Path(__file__).parents[3] / "docs" / "shards.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    names: dict = {}
    exec(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0], names)
    assert names["data"].stream.rows(0, 20).shape == (20, 3, 64, 64)


@pytest.mark.parametrize(("labeled", "left"), [(0, 8), (4, 17)])
def test_copies_of_what_the_labels_name_are_not_streamed(
    labeled: int, left: int, labels: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the twenty, the first twelve are the labeled ones: all are left out, or, if labels stay unused, the two of
    the test and the one for validation. One that differs from a test image in its last byte alone is not.
    """
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    more = sorted((tmp_path / "more").rglob("*.jpg"), key=lambda path: path.name)
    long = more[0].read_bytes() + bytes(4 * copies.PIECE)  # whose middle is like that of others
    for path in (more[0], tmp_path / "photos" / more[0].relative_to(tmp_path / "more")):
        path.write_bytes(long)
    more[17].write_bytes(long[:-1] + b"x")
    file = tmp_path / "labels.csv"
    file.write_text(file.read_text().replace("test", "validation", 1))
    write_shards(unlabeled_manifest(tmp_path / "more", ("x",)), tmp_path / "pool", images_per_shard=6)
    config = Config(labels=str(tmp_path / "labels.csv"), images=str(tmp_path / "photos"), image_size=16)
    config = replace(config, unlabeled=str(tmp_path / "pool"), labeled=labeled)
    for _ in range(2):
        said: list[str] = []
        stream = load_data(config, say=said.append).stream
        assert sum(f"left out {20 - left} of 20 images in the shards" in each for each in said) == 1
        held = {path.read_bytes() for path in more[: 20 - left]}
        assert sorted(contents(stream.shards)) == sorted({path.read_bytes() for path in more} - held)
        assert stream.shards.counts.sum() == left
        monkeypatch.setattr(copies, "_find", None)  # it is remembered
        monkeypatch.chdir(tmp_path)
        config = replace(config, unlabeled="pool")
    monkeypatch.undo()
    monkeypatch.setattr(shards, "WAITS", (0.001,))
    write_shards(labels, tmp_path / "own")  # and of labeled images that are in shards themselves
    own = labeled_manifest(open_shards(str(tmp_path / "own"), cache=tmp_path / "cache", labels=True), "own")
    pool = open_shards(str(tmp_path / "pool"), cache=tmp_path / "cache")
    assert len(without_copies(pool, own.paths, cache=tmp_path / "cache")) == 8
    assert without_copies(pool, [tmp_path / "nowhere.jpg"], cache=tmp_path / "cache") is pool


def test_copies_that_could_not_be_looked_for_are_looked_for_again(tmp_path: Path, monkeypatch) -> None:
    place, cache, copy = write_pool(tmp_path / "pool", [3, 3]), tmp_path / "cache", tmp_path / "5.png"
    copy.write_bytes(picture(5))
    found = open_shards(str(place), cache=cache)
    (place / "shard-001.tar").rename(tmp_path / "gone")
    assert len(without_copies(found, [copy], cache=cache)) == 6
    (tmp_path / "gone").rename(place / "shard-001.tar")
    assert contents(without_copies(found, [copy], cache=cache)) == [picture(number) for number in range(5)]


def test_names_that_two_shards_share_are_told_apart(tmp_path: Path) -> None:
    for number in range(2):
        members = {"a.png": picture(number), "a.cls": str(number).encode()}
        write_tar(tmp_path / "pool" / f"{number}.tar", members)
    found = open_shards(str(tmp_path / "pool"), cache=tmp_path / "cache", labels=True)
    assert labeled_manifest(found, "pool").ids == ("0.tar/a.png", "1.tar/a.png")
    bare = open_shards(str(write_pool(tmp_path / "bare", [2])), cache=tmp_path / "cache", labels=True)
    with pytest.raises(UserError, match="no image in these shards has labels"):
        labeled_manifest(bare, "bare")


def test_links_in_shards_are_no_images(tmp_path: Path) -> None:
    """A link to a file of this machine, named like an image."""
    (tmp_path / "secret.png").write_bytes(picture(7))
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("a.png")
        info.type, info.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.png")
        tar.addfile(info)
    with pytest.raises(UserError, match="holds no image"):
        open_shards(str(tmp_path / "x.tar"), cache=tmp_path / "cache")
