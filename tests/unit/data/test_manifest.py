"""The manifest, and pools without labels from a folder or a text list."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from percentmatch.data.labels import Labels
from percentmatch.data.manifest import Manifest, concat, join
from percentmatch.data.readers.folder import read_folder, unlabeled_manifest
from percentmatch.errors import UserError


def make(folder: Path, *ids: str, classes: tuple[str, ...] = ("cat", "dog")) -> Manifest:
    """Image i has target 1 for class i modulo c; the last image is difficult for the first class."""
    n, c = len(ids), len(classes)
    targets = torch.eye(c, dtype=torch.uint8)[torch.arange(n) % c]
    difficult = torch.zeros_like(targets)
    difficult[-1, 0] = 1 - targets[-1, 0]
    parts = ("train", "validation", "test", "")
    return Manifest(
        paths=tuple(folder / name for name in ids),
        ids=ids,
        labels=Labels.of(targets, difficult=difficult),
        parts=tuple(parts[row % 4] for row in range(n)),
        class_names=classes,
        sources=tuple(f"labels.csv, line {row + 2}" for row in range(n)),
    )


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


FOUR = make(Path("there"), "a", "b", "c", "d")


def test_a_class_whose_accents_are_encoded_in_two_ways_is_named() -> None:
    with pytest.raises(
        UserError, match="two classes are called 'l\u00e9', its accents encoded in two ways; write it in"
    ):
        make(Path("there"), "a", "b", classes=("l\u00e9", "le\u0301"))


def test_rows_select_and_part_agree() -> None:
    assert len(FOUR) == 4
    assert FOUR.rows(["c", "a"]).tolist() == [2, 0]
    two = FOUR.select(FOUR.rows(["c", "a"]))
    assert (two.ids, two.parts, two.sources) == (
        ("c", "a"),
        ("test", "train"),
        ("labels.csv, line 4", "labels.csv, line 2"),
    )
    assert two.paths == (Path("there/c"), Path("there/a"))
    assert torch.equal(two.labels.targets.dense(), FOUR.labels.targets.dense()[[2, 0]])
    for kind in (torch.bool, torch.uint8):
        assert FOUR.select(torch.tensor([0, 1, 0, 1], dtype=kind)).ids == ("b", "d")
    assert FOUR.part("test").ids == ("c",)
    assert FOUR.part("validation", "train").ids == ("a", "b")
    with pytest.raises(UserError, match=r"no image 'z' \(and 1 more\)"):
        FOUR.rows(["z", "a", "y"])
    with pytest.raises(UserError, match=r"part 'test'; the parts of the data are: 'train', 'validation'"):
        FOUR.select([0, 1]).part("test")


def test_choose_takes_classes_in_the_order_asked_for() -> None:
    turned = FOUR.choose(FOUR.class_names[::-1])
    assert turned.class_names == FOUR.class_names[::-1]
    assert torch.equal(turned.labels.targets.dense(), FOUR.labels.targets.dense().flip(1))
    assert torch.equal(FOUR.choose(FOUR.class_names[1:]).labels.difficult.dense(), FOUR.labels.difficult.dense()[:, 1:])
    with pytest.raises(UserError, match="no class 'cow'"):
        FOUR.choose(["cow"])


def test_concat_appends_and_refuses_other_classes() -> None:
    both = concat(FOUR.select([0, 1]), FOUR.select([2, 3]))
    assert both.ids == FOUR.ids
    assert torch.equal(both.labels.difficult.dense(), FOUR.labels.difficult.dense())
    with pytest.raises(UserError, match="differ in their classes"):
        concat(FOUR, FOUR.choose(FOUR.class_names[::-1]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ids": ("a", "b", "a", "d")}, r"id 'a' \(labels.csv, line 2 and labels.csv, line 4\)"),
        ({"paths": FOUR.paths[:3]}, "paths has 3 entries for 4 images"),
        ({"labels": FOUR.labels.choose([0])}, r"labels are of shape \(4, 1\)"),
        ({"labels": FOUR.labels.select(torch.tensor([0, 1]))}, r"labels are of shape \(2, 2\)"),
        ({"labels": torch.zeros(4, 2, dtype=torch.uint8)}, "labels must be Labels, not Tensor"),
        ({"class_names": ("cat", "cat")}, "class names must differ"),
        ({"class_names": ()}, "no class"),
        ({"parts": ("train", "train", "tset", "")}, "unknown part 'tset'"),
        ({"ids": ("a", "b", "c", "\udcff.jpg")}, r"'\\udcff.jpg' is not valid UTF-8"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(changed: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(FOUR, **changed)


def test_a_manifest_without_images_is_refused() -> None:
    with pytest.raises(UserError, match="no image"):
        FOUR.select([])


def test_a_pool_joins_without_the_images_that_have_labels(tmp_path: Path) -> None:
    """Of the pool, x/a.jpg is labeled a.jpg under a linked folder, link.jpg links to labeled b.jpg: two images stay."""
    labeled = make(write(tmp_path / "labeled", "a.jpg", "b.jpg"), "a.jpg", "b.jpg")
    pool = write(tmp_path / "pool", "a.jpg", "c.PNG")
    (pool / "x").symlink_to(tmp_path / "labeled")
    (pool / "link.jpg").symlink_to(tmp_path / "labeled" / "b.jpg")
    unlabeled = unlabeled_manifest(pool, ("other",))
    assert unlabeled.ids == ("a.jpg", "c.PNG", "link.jpg", "x/a.jpg", "x/b.jpg")
    both = join(labeled, unlabeled)
    assert both.ids == ("a.jpg", "b.jpg", "unlabeled/a.jpg", "c.PNG")
    assert both.paths[2:] == (pool / "a.jpg", pool / "c.PNG")
    assert both.class_names == labeled.class_names
    assert both.labels.known.dense().tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]
    assert not both.labels.targets.dense()[2:].any()
    assert join(labeled, labeled).ids == labeled.ids


def test_a_folder_is_read_below_and_sorted(tmp_path: Path) -> None:
    names = ("b.jpg", "a.JPEG", "sub dir/é.webp", "sub dir/deeper/x.AVIF", ".hidden.jpg", ".git/y.jpg", "notes.txt")
    write(tmp_path, *names)
    (tmp_path / "sub dir" / "up").symlink_to(tmp_path)  # a circle
    found = read_folder(tmp_path)
    assert found.ids == ("a.JPEG", "b.jpg", "sub dir/deeper/x.AVIF", "sub dir/é.webp")
    assert all(path.is_file() for path in found.paths)
    manifest = unlabeled_manifest(tmp_path, ["cat", "dog"])
    assert manifest.ids == found.ids
    assert manifest.labels.known.dense().shape == (4, 2)
    assert not manifest.labels.known.dense().any()


def test_a_text_list_is_relative_to_its_folder(tmp_path: Path) -> None:
    write(tmp_path, "in/a.jpg", "in/sub/B.JPG", "out/c.jpg", "out/d.jpg")
    again, absolute = ((tmp_path / f"out/{name}.jpg").as_posix() for name in "cd")
    lines = ["\ufeffa.jpg", "", "sub\\b.jpg", "../out/c.jpg", "./a.jpg  ", again, absolute]
    (tmp_path / "in/list.txt").write_bytes("\r\n".join(lines).encode())
    manifest = unlabeled_manifest(tmp_path / "in/list.txt", ["cat"])
    assert manifest.ids == ("a.jpg", "sub/B.JPG", "../out/c.jpg", absolute)
    assert manifest.sources[1].endswith("list.txt, line 3")
    assert all(path.is_file() for path in manifest.paths)


def test_a_bad_pool_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.jpg", "empty/readme.md", "list.txt", "blank.txt", "latin.txt")
    (tmp_path / "list.txt").write_text("a.jpg\nb.jpg\nc.jpg\n")
    (tmp_path / "latin.txt").write_bytes(b"a.jpg\n\xe9.jpg\n")
    for name, message in {
        "empty": "holds no image; give a folder with .jpg",
        "list.txt": r"list.txt, line 2: the image 'b.jpg' is not in .* \(2 of 3 images are missing\)",
        "blank.txt": "is empty; write one image path a line",
        "latin.txt": "latin.txt, line 2: the text is not UTF-8",
        "nowhere": "there is no file .*nowhere",
    }.items():
        with pytest.raises(UserError, match=message):
            unlabeled_manifest(tmp_path / name, ["cat"])

    def refuse(place: str) -> None:
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"cannot read the folder .* \(Permission denied\)"):
        unlabeled_manifest(tmp_path, ["cat"])
