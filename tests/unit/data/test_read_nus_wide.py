"""NUS-WIDE: its lists and files of labels, and one sentence for each thing that does not fit."""

from pathlib import Path

import pytest

from percentmatch.data import read_manifest
from percentmatch.errors import UserError
from percentmatch.settings.config import Config, DataSettings
from percentmatch.use import suggest

IMAGES = {"Train": ["actor\\1.jpg", "sky\\2.jpg", "sky\\3.jpg"], "Test": ["sky\\1.jpg"]}
LABELS = {"Train": {"sky": "0 1 0", "person": "1 1 0"}, "Test": {"sky": "1", "person": "0"}}


def column(cells: str) -> str:
    """As the archives have it: a space after each label, and Windows line ends."""
    return "".join(f"{cell} \r\n" for cell in cells.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place in ("ImageList", "Groundtruth/TrainTestLabels", "Groundtruth/AllLabels", "Flickr/actor", "Flickr/sky"):
        (tmp_path / place).mkdir(parents=True)
    for part, images in IMAGES.items():
        (tmp_path / f"ImageList/{part}Imagelist.txt").write_text("\r\n".join(images) + "\r\n")
        for image in images:
            (tmp_path / "Flickr" / image.replace("\\", "/")).touch()
        for name, cells in LABELS[part].items():
            (tmp_path / f"Groundtruth/TrainTestLabels/Labels_{name}_{part}.txt").write_text(column(cells))
    return tmp_path


def found(**settings: str) -> list[tuple[str, str, list[int]]]:
    """Each image, its part and its labels of person and sky."""
    manifest = read_manifest(DataSettings.from_dict(settings))
    assert manifest.class_names == ("person", "sky")
    assert manifest.labels.known.dense().all()
    assert all(path.is_file() for path in manifest.paths)
    return list(zip(manifest.ids, manifest.parts, manifest.labels.targets.dense().tolist(), strict=True))


def test_the_official_halves(folder: Path) -> None:
    rows = [("actor/1.jpg", "train", [1, 0]), ("sky/2.jpg", "train", [1, 1]), ("sky/3.jpg", "train", [0, 0])]
    rows.append(("sky/1.jpg", "test", [0, 1]))
    assert found(labels=str(folder)) == [(f"Flickr/{name}", *more) for name, *more in rows]
    (folder / "Flickr").rename(folder / "photos")
    assert found(labels=str(folder), images=str(folder / "photos")) == rows


@pytest.mark.parametrize("gone", ["ImageList", "Groundtruth/TrainTestLabels"])
def test_one_list_of_all_images_says_no_part(gone: str, folder: Path) -> None:
    """It is read where the lists of the halves or their labels are missing."""
    (folder / gone).rename(folder / "elsewhere")
    (folder / "ImageList").mkdir(exist_ok=True)
    (folder / "ImageList/Imagelist.txt").write_text("sky\\3.jpg\nsky\\2.jpg\n")
    for name, cells in (("sky", "0 1"), ("person", "0 1")):
        (folder / f"Groundtruth/AllLabels/Labels_{name}.txt").write_text(column(cells))
    assert found(labels=str(folder)) == [("Flickr/sky/3.jpg", "", [0, 0]), ("Flickr/sky/2.jpg", "", [1, 1])]


def test_photographs_that_cannot_be_had_may_be_skipped(folder: Path) -> None:
    (folder / "Flickr/sky/2.jpg").unlink()
    with pytest.raises(
        UserError, match=r"TrainImagelist\.txt, line 2: the image 'Flickr/sky.*2\.jpg' is not in .*1 of 4"
    ):
        found(labels=str(folder))
    assert len(found(labels=str(folder), skip_bad_images=True)) == 3


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        (
            "Groundtruth/TrainTestLabels/Labels_sky_Train.txt",
            "0\n1\n",
            r"sky_Train\.txt has 2 labels, but Train.* has 3 images; ",
        ),
        (
            "Groundtruth/TrainTestLabels/Labels_sky_Test.txt",
            "\n-1\n",
            r"sky_Test\.txt, line 2: '-1' is not 0 or 1; unpack",
        ),
        (
            "Groundtruth/TrainTestLabels/Labels_sky_Test.txt",
            None,
            r"there is no file .*Labels_sky_Test\.txt; check the path",
        ),
        ("ImageList/TestImagelist.txt", None, r"there is no file .*TestImagelist\.txt; check the path"),
        ("ImageList", None, r"ImageList does not list the images that Groundtruth labels; unpack ImageList\.zip"),
        ("Groundtruth/TrainTestLabels", None, r"ImageList does not list the images that Groundtruth labels; unpack"),
        (
            "Groundtruth/TrainTestLabels",
            "",
            r"TrainTestLabels holds no Labels_<concept> files; unpack Groundtruth\.zip",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(file: str, text: str | None, sentence: str, folder: Path) -> None:
    if text:
        (folder / file).write_text(text)
    else:
        (folder / file).rename(folder / "elsewhere")
    if text == "":
        (folder / file).mkdir()
    with pytest.raises(UserError, match=sentence):
        found(labels=str(folder))


def test_a_list_of_images_to_label_is_a_plain_one(folder: Path) -> None:
    assert suggest._labels_table(Config(labels=str(folder))) == suggest.PLAIN
