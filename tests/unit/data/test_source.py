"""The data that settings name and its split: what is left out is said, what cannot be is one sentence."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from percentmatch.cli.main import run
from percentmatch.data import Split, check_classes, count_split, load_data, read_manifest, split_data, split_manifest
from percentmatch.data.readers.coco import remember
from percentmatch.data.readers.table import read_table
from percentmatch.errors import UserError
from percentmatch.settings.config import Config

NAMES = [f"{n}.png" for n in range(8)]  # the even ones show a, the odd ones b


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """photos with 8 labeled images of two classes, the last two for the test; more with two others."""
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    for name in (*(f"photos/{name}" for name in NAMES), "more/x.png", "more/y.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4), 100).save(tmp_path / name)
    rows = [f"{name},{'ab'[n % 2]},{'test' if n > 5 else ''}" for n, name in enumerate(NAMES)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,labels,part", *rows]))
    return tmp_path


def settings(folder: Path, **changed: object) -> Config:
    places = {"labels": str(folder / "labels.csv"), "images": str(folder / "photos")}
    return Config.from_dict({"data": "files", "image_size": 4, "only_named": True, **places, **changed})


def write_rows(folder: Path, *rows: str) -> None:
    (folder / "labels.csv").write_text("\n".join(rows))


def write_split(folder: Path, *parts: tuple[str, ...]) -> str:
    (folder / "split.json").write_text(Split(*parts).to_json())
    return str(folder / "split.json")


def test_images_that_the_labels_do_not_name_count_as_unlabeled(folder: Path, capsys: pytest.CaptureFixture) -> None:
    """Never the two for the test, also where a row names one by another path, nor what lies in folders for a test."""
    for name in ("new.png", "trip/new.png", "Test/kept.png", "trip/val/kept.png"):
        (folder / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 50).save(folder / "photos" / name)
    table = (folder / "labels.csv").read_text()
    (folder / "labels.csv").write_text(table.replace("7.png", "trip/../7.png"))
    said: list[str] = []
    config = settings(folder, only_named=False)
    manifest = read_manifest(config, say=said.append)
    assert manifest.ids == (*NAMES, "new.png", "trip/new.png")
    assert manifest.parts == (*[""] * 6, "test", "test", "", "")
    assert manifest.labels.known.in_rows().tolist() == [2] * 8 + [0, 0]
    labels, photos = folder / "labels.csv", folder / "photos"
    assert said == [
        f"2 images in {photos} that {labels} does not name are not used, as they lie in folders for a test or for "
        "validation; give others by --unlabeled",
        f"2 images in {photos} that {labels} does not name count as unlabeled (--only-named leaves them out, such as "
        "those kept for a test)",
    ]
    split = split_manifest(config, manifest)
    assert set(split.unlabeled) == {"new.png", "trip/new.png"}
    more = replace(config, unlabeled=str(folder / "more"))
    assert read_manifest(more, say=said.append).ids[8:] == ("x.png", "y.png", "new.png", "trip/new.png")
    assert read_manifest(settings(folder), say=said.append).ids == tuple(NAMES)
    beside = replace(config, labels=str(labels.rename(photos / "labels.csv")), images="")
    assert read_manifest(beside, say=said.append).ids == tuple(NAMES)  # what else lies there is anybody's guess
    assert len(said) == 4
    run(["data", "stats", "--labels", str(photos / "labels.csv"), "--images", str(photos)])
    told = capsys.readouterr()
    assert "count as unlabeled" in told.err
    assert "10 images" in told.out


def test_images_that_are_not_there_are_skipped_where_bad_ones_are(folder: Path) -> None:
    """Each is listed: one of the labels, one of a list. Other mistakes in a row are still refused."""
    (folder / "photos" / "3.png").unlink()
    (folder / "more.txt").write_text("more/x.png\nmore/gone.png\n")
    config, said = settings(folder, unlabeled=str(folder / "more.txt")), []
    with pytest.raises(UserError, match=r"line 5: the image '3\.png' is not in"):
        read_manifest(config)
    manifest = read_manifest(replace(config, skip_bad_images=True), say=said.append)
    assert manifest.ids == (*(name for name in NAMES if name != "3.png"), "more/x.png")
    labels, more = folder / "labels.csv", folder / "more.txt"
    first = f"skipped: {labels}, line 5: there is no image '3.png'"
    assert said == [first, f"skipped: {more}, line 2: there is no image 'more/gone.png'"]
    more.write_text("gone.png\n")
    with pytest.raises(UserError, match=r"1 of 1 images are missing"):
        read_manifest(replace(config, skip_bad_images=True))
    labels.write_text(labels.read_text().replace("1.png,b,", "1.png,b,tset"))
    with pytest.raises(UserError, match="no part is called 'tset'"):
        read_manifest(replace(config, skip_bad_images=True))


def test_what_a_split_file_does_not_name_is_said_and_so_is_what_it_does_not_need(folder: Path) -> None:
    """It names 0 to 3 and 6: of the 8 images 4, 5 and 7 are left out."""
    file = write_split(folder, ("0.png", "1.png"), ("2.png",), ("3.png",), ("6.png",))
    config = settings(folder, split_file=file)
    said: list[str] = []
    split = split_data(config, load_data(config), say=said.append)
    assert said == [f"left out 3 of 8 images, which '{file}' does not name"]
    assert (split.labeled, split.test) == (("0.png", "1.png"), ("6.png",))
    changed = replace(config, labeled=3, validation=0, split_seed=7, split_kind="every-class")
    assert split_manifest(changed, read_manifest(changed), say=said.append) == split
    assert (
        said[1]
        == f"the split comes from '{file}', without regard to --labeled, --validation, --split-kind, --split-seed"
    )
    assert len(said) == 3
    whole = write_split(folder, tuple(NAMES[:4]), tuple(NAMES[4:6]), (), tuple(NAMES[6:]))
    said.clear()
    split_data(replace(config, split_file=whole), load_data(config), say=said.append)
    assert said == []


def test_images_are_counted_as_the_fields_split_draws_them(folder: Path) -> None:
    """Of the 6 images to learn from, 0.45 is 2.7: 2 by that split, 3 by the others."""
    for kind, labeled in (("field", 2), ("random", 3)):
        config = settings(folder, labeled=0.45, validation=0, split_kind=kind)
        manifest = read_manifest(config)
        split = split_manifest(config, manifest)
        assert count_split(config, manifest) == (len(split.labeled), len(split.unlabeled)) == (labeled, 6 - labeled)


def test_skipped_images_are_dropped_from_a_split_file(folder: Path) -> None:
    file = write_split(folder, tuple(NAMES[:3]), tuple(NAMES[3:5]), (NAMES[5],), tuple(NAMES[6:]))
    for name in ("1.png", "4.png", "7.png"):
        (folder / "photos" / name).write_text("hello")
    config = settings(folder, split_file=file, skip_bad_images=True)
    data = load_data(config, say=lambda _: None)
    assert data.skipped == ("1.png", "4.png", "7.png")
    said: list[str] = []
    assert split_data(config, data, say=said.append) == Split(("0.png", "2.png"), ("3.png",), ("5.png",), ("6.png",))
    assert said == []
    write_split(folder, ("0.png", "gone.png"), (), (), ())
    with pytest.raises(UserError, match=r"labeled image 'gone\.png' is not in the data \(1 of 2"):
        split_data(config, data)


def test_a_run_to_be_resumed_keeps_its_own_split(folder: Path) -> None:
    saved = folder / "saved.json"
    own = Split(("0.png",), ("1.png",), (), ("6.png",))
    saved.write_text(own.to_json())
    config = settings(folder, split_file=str(folder / "gone.json"))
    said: list[str] = []
    assert split_data(config, load_data(config), saved=saved, say=said.append) == own
    assert said == [f"the split comes from '{saved}', without regard to --split-file"]
    with pytest.raises(UserError, match=r"there is no file .*gone\.json"):
        split_data(config, load_data(config), saved=folder / "not yet.json")
    drawn = settings(folder, labeled=2)
    assert len(split_data(drawn, load_data(drawn), saved=saved).labeled) == 2  # drawn anew, and compared by the run


def test_validation_rows_without_labels_count_as_unlabeled(folder: Path) -> None:
    rows = ("0.png,1,0,", "1.png,0,1,", "2.png,,,validation", "3.png,1,0,validation", "4.png,?,?,validation")
    write_rows(folder, "image,a,b,part", *rows)
    config, said = settings(folder), []
    split = split_manifest(config, read_manifest(config), say=said.append)
    assert split == Split(("0.png", "1.png"), ("2.png", "4.png"), ("3.png",), ())
    assert said == ["2 of 3 images for validation have no labels; they count as unlabeled"]
    assert split_data(config, load_data(config)) == split
    file = folder / "split.json"
    file.write_text(split.to_json())
    assert split_data(replace(config, split_file=str(file)), load_data(config)) == split


def test_one_label_an_image_is_checked_before_any_pixel_is_read(folder: Path) -> None:
    assert len(read_manifest(settings(folder, task="single-label", unlabeled=str(folder / "more")))) == 10
    write_rows(folder, "image,labels", "0.png,a", "1.png,a;b")
    with pytest.raises(UserError, match=r"labels\.csv, line 3: image '1\.png' has 2 labels"):
        read_manifest(settings(folder, task="single-label"))


def test_the_advice_for_an_empty_column_can_be_followed(folder: Path) -> None:
    write_rows(folder, "image,a,empty,b,note", "0.png,1,0,0,ok", "1.png,0,?,1,dark")
    with pytest.raises(UserError, match="'ok' under 'note'"):
        read_manifest(settings(folder))
    write_rows(folder, "image,a,empty,b", "0.png,1,0,0", "1.png,0,?,1")
    with pytest.raises(
        UserError, match=r"labels\.csv: no image .* shows 'empty'; .*name the other classes by --classes"
    ):
        check_classes(settings(folder), read_manifest(settings(folder)))
    chosen = settings(folder, classes="b,a")
    manifest = read_manifest(chosen)
    check_classes(chosen, manifest)
    assert (manifest.class_names, manifest.labels.targets.dense().tolist()) == (("b", "a"), [[0, 1], [1, 0]])


def test_a_label_of_test_rows_only_is_refused_with_what_to_do(folder: Path) -> None:
    write_rows(folder, "image,labels,part", "0.png,a,", "1.png,c,test")
    config = settings(folder)
    with pytest.raises(UserError, match=r"shows 'c'; .*--classes \(in a column of labels, also remove these\)$"):
        check_classes(config, read_manifest(config))
    write_rows(folder, "image,labels,part", "0.png,a,", "1.png,,test")
    check_classes(config, read_manifest(config))


@pytest.mark.parametrize("unlabeled", [False, True])
def test_data_with_nothing_to_learn_from(folder: Path, unlabeled: bool) -> None:
    config = settings(folder, unlabeled=str(folder / "more") if unlabeled else "")
    write_rows(folder, "image,labels,part", "0.png,a,test", "1.png,b,test")
    with pytest.raises(
        UserError, match=r"labels\.csv: every image with labels is for the test; keep some to learn from"
    ):
        load_data(config)
    write_rows(folder, "image,a,b", "0.png,?,?", "1.png,?,")
    with pytest.raises(UserError, match=r"labels\.csv: no image has a known label; label some to learn from"):
        load_data(config)


def test_unlabeled_images_that_are_labeled_already_are_counted(folder: Path) -> None:
    said: list[str] = []
    (folder / "photos" / "new.png").write_bytes((folder / "more/x.png").read_bytes())
    assert len(read_manifest(settings(folder, unlabeled=str(folder / "photos")), say=said.append)) == 9
    assert said == ["--unlabeled: added 1 images, left out 8 that the labeled data holds already"]
    assert len(read_manifest(settings(folder, unlabeled=str(folder / "more")), say=said.append)) == 10
    assert len(said) == 1


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("nowhere", r"there is no file or folder .*nowhere; check"),
        ("more/x.png", r".*x\.png is an image; give a folder, or a text file"),
        ("cache", r".*cache holds no image"),
        ("list.txt", r".*list\.txt, line 1: the image 'z\.png' is not in"),
    ],
)
def test_a_mistake_in_unlabeled_names_the_option(folder: Path, place: str, sentence: str) -> None:
    (folder / "cache").mkdir()
    (folder / "list.txt").write_text("z.png\n")
    with pytest.raises(UserError, match=f"^--unlabeled: {sentence}"):
        read_manifest(settings(folder, unlabeled=str(folder / place)))


@pytest.mark.parametrize("classes", [",", " , ", " "])
def test_classes_that_name_none_are_refused(folder: Path, classes: str) -> None:
    with pytest.raises(UserError, match=f"--classes '{classes}' names no class"):
        read_manifest(settings(folder, classes=classes))


def test_a_bad_image_is_named_with_the_line_that_names_it(folder: Path) -> None:
    (folder / "photos/2.png").write_text("hello")
    (folder / "more/x.png").write_text("hello")
    with pytest.raises(UserError, match=r"^\S*labels\.csv, line 4: cannot read image '\S*2\.png': it is text"):
        load_data(settings(folder))
    said: list[str] = []
    config = settings(folder, skip_bad_images=True, unlabeled=str(folder / "more"))
    load_data(config, say=said.append)
    assert said[0].startswith(f"skipped: {folder / 'labels.csv'}, line 4: cannot read image")
    assert said[1].startswith("skipped: cannot read image")  # the folder it was found in is in its path


def test_a_manifest_is_read_again_when_images_come_or_go(folder: Path) -> None:
    calls: list[int] = []
    file, photos = folder / "labels.csv", folder / "photos"

    def read() -> None:
        remember(lambda: calls.append(1) or read_table(file, photos), file, photos, cache=folder / "cache")

    read(), read()
    assert len(calls) == 1
    (photos / "new.png").touch()
    read(), read()
    assert len(calls) == 2
    about = photos.stat()
    (photos / "7.png").unlink()
    os.utime(photos, ns=(about.st_atime_ns, about.st_mtime_ns))  # a clock too coarse: the number tells
    with pytest.raises(UserError, match=r"'7\.png' is not in"):
        read()
    (photos / "new.png").rename(photos / "7.png")
    (photos / "new.png").touch()
    os.utime(photos, ns=(about.st_atime_ns, about.st_mtime_ns + 1))  # the same number: the time tells
    read()
    assert len(calls) == 4
