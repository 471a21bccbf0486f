"""Pascal VOC: the real lists, and the same result from lists and from XML."""

import tempfile
import zipfile
from pathlib import Path

import pytest
import torch

from percentmatch.data.manifest import Manifest, describe
from percentmatch.data.readers.voc import CLASSES, read_voc
from percentmatch.errors import UserError

PACK = Path(__file__).parents[4] / "shared" / "data" / "voc2007_256.zip"
PART = {"1": "train", "2": "val", "3": "train", "4": "test"}
OBJECTS = {  # (class, difficult) of each object
    "1": [("dog", 0), ("dog", 1), ("person", 1)],  # dog present, person difficult
    "2": [("train", 1), ("train", 1)],  # a class called train, difficult
    "3": [],
    "4": [("person", 1), ("person", 0)],  # present
}


def make_year(year: Path, *, lists: bool, xml: bool, suffixes: str = ".jpg .JPEG .avif .PNG") -> Path:
    main = year / "ImageSets" / "Main"
    for folder in (main, year / "JPEGImages", year / "Annotations"):
        folder.mkdir(parents=True)
    for (name, objects), suffix in zip(OBJECTS.items(), suffixes.split(), strict=True):
        (year / "JPEGImages" / f"{name}{suffix}").touch()
        if xml:
            parts = "<part><name>head</name></part>"
            things = [f"<object><name>{c}</name><difficult>{d}</difficult>{parts}</object>" for c, d in objects]
            (year / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(things)}</annotation>")
    for part, held in {"train": "13", "val": "2", "trainval": "123", "test": "4"}.items():
        (main / f"{part}.txt").write_text("\n".join(held) + "\n")
        for c in CLASSES if lists else ():
            flags = [[difficult for name, difficult in OBJECTS[image] if name == c] for image in held]
            values = [-1 if not flag else int(0 in flag) for flag in flags]
            lines = [f"{image} {value:2d}\n" for image, value in zip(held, values, strict=True)]
            (main / f"{c}_{part}.txt").write_text("".join(lines))
    return year


def facts(manifest: Manifest) -> tuple:
    tensors = (manifest.labels.targets.dense(), manifest.labels.known.dense(), manifest.labels.difficult.dense())
    names = [path.name for path in manifest.paths]
    return manifest.ids, names, manifest.parts, manifest.class_names, [values.tolist() for values in tensors]


def positives(values: torch.Tensor) -> list[tuple[int, str]]:
    return [(row, CLASSES[column]) for row, column in values.nonzero().tolist()]


def test_a_folder_of_another_year_is_refused(tmp_path: Path) -> None:
    year = make_year(tmp_path / "VOC2012", lists=True, xml=False)
    assert read_voc(year, year=2012).ids == read_voc(year).ids
    with pytest.raises(UserError, match=r"VOC2012 is VOC2012, not VOC2007; give the folder of that year"):
        read_voc(year, year=2007)
    (tmp_path / "mine").symlink_to(year)
    assert len(read_voc(tmp_path / "mine", year=2007)) == 4  # its name says nothing


def test_lists_and_xml_say_the_same(tmp_path: Path) -> None:
    lists = read_voc(make_year(tmp_path / "lists" / "VOCdevkit" / "VOC2007", lists=True, xml=False).parents[1])
    xml = read_voc(make_year(tmp_path / "xml" / "VOC2012", lists=False, xml=True).parent)
    assert facts(lists) == facts(xml)
    assert lists.ids == ("1", "2", "3", "4")
    assert [path.name for path in lists.paths] == ["1.jpg", "2.JPEG", "3.avif", "4.PNG"]
    assert lists.parts == ("train", "validation", "train", "test")
    assert lists.class_names == CLASSES
    assert positives(lists.labels.targets.dense()) == [(0, "dog"), (3, "person")]
    assert positives(lists.labels.difficult.dense()) == [(0, "person"), (1, "train")]
    assert lists.labels.known.dense().all()
    assert lists.sources[2].endswith("aeroplane_train.txt, line 2")
    assert xml.sources[2].endswith("3.xml")


def test_only_trainval_lists_take_their_parts_from_the_plain_ones(tmp_path: Path) -> None:
    year = make_year(tmp_path / "VOC2007", lists=True, xml=False)
    wanted = facts(read_voc(year))
    for c in CLASSES:
        (year / "ImageSets" / "Main" / f"{c}_train.txt").unlink()
        (year / "ImageSets" / "Main" / f"{c}_val.txt").unlink()
    assert facts(read_voc(year)) == wanted


@pytest.mark.parametrize("lists", [True, False])
def test_classes_choose_and_order_the_columns(tmp_path: Path, lists: bool) -> None:
    year = make_year(tmp_path / "VOC2007", lists=lists, xml=not lists)
    manifest = read_voc(year, classes=["person", "dog"])
    assert manifest.class_names == ("person", "dog")
    assert manifest.labels.targets.dense().tolist() == [[0, 1], [0, 0], [0, 0], [1, 0]]
    with pytest.raises(UserError, match="no class 'persn'; did you mean 'person'"):
        read_voc(year, classes=["persn"])


def test_own_classes_in_xml_without_any_list(tmp_path: Path) -> None:
    year = make_year(tmp_path / "mine", lists=False, xml=True)
    for file in (year / "ImageSets" / "Main").iterdir():
        file.unlink()
    (year / "Annotations" / "3.xml").unlink()
    (year / "Annotations" / "3.XML").write_text("<annotation><object><name>zebra</name></object></annotation>")
    manifest = read_voc(year)
    assert manifest.class_names == ("dog", "person", "train", "zebra")
    assert manifest.labels.targets.dense().tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    assert set(manifest.parts) == {""}


def test_of_two_files_of_an_image_the_usual_one_is_taken(tmp_path: Path) -> None:
    year = make_year(tmp_path / "VOC2007", lists=True, xml=False, suffixes=".webp .jpg .jpg .jpg")
    (year / "JPEGImages" / "1.png").touch()
    (year / "JPEGImages" / "1.txt").touch()
    assert read_voc(year).paths[0].name == "1.png"


def test_the_year_must_be_clear(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no VOC2007 or VOC2012; give the folder that holds JPEGImages"):
        read_voc(tmp_path / "nowhere")
    make_year(tmp_path / "VOCdevkit" / "VOC2007", lists=True, xml=False)
    make_year(tmp_path / "VOCdevkit" / "VOC2012", lists=True, xml=False)
    with pytest.raises(UserError, match="holds VOC2007 and VOC2012; give the folder that holds JPEGImages"):
        read_voc(tmp_path)
    assert len(read_voc(tmp_path / "VOCdevkit" / "VOC2007")) == 4


MAIN = "ImageSets/Main"
LAUGHS = '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><annotation>&c;</annotation>'


@pytest.mark.parametrize(
    ("lists", "file", "text", "message"),
    [
        (True, f"{MAIN}/dog_train.txt", "1 1\n3 2\n", "dog_train.txt, line 2: '3 2' is not an image id and -1, 0 or 1"),
        (True, f"{MAIN}/dog_train.txt", "1 1\n\n2 1\n", "dog_train.txt, line 3: the images are not those of aeroplane"),
        (True, f"{MAIN}/dog_train.txt", "1 1\n", "dog_train.txt, line 1: the images are not those of aeroplane"),
        (True, f"{MAIN}/dog_train.txt", "", "dog_train.txt: the images are not those of aeroplane_train.txt"),
        (True, f"{MAIN}/dog_train.txt", None, r"there is no file .*dog_train.txt"),
        (True, f"{MAIN}/test.txt", "4\n1\n", "test.txt names 1, as another list does"),
        (True, "JPEGImages/2.JPEG", None, r"val.txt, line 1: the image '2' is not in .*JPEGImages \(1 of 4 images"),
        (False, "JPEGImages/2.JPEG", None, "2.xml: the image '2' is not in"),
        (False, "Annotations/2.xml", None, r"there is no file .*2.xml"),
        (False, "Annotations/2.xml", "<annotation>", "2.xml: this is not XML .*line 1"),
        (False, "Annotations/2.xml", "<a><object><difficult>0</difficult></object></a>", "object 1 needs a name"),
        (False, "Annotations/2.xml", LAUGHS, "2.xml: a document type"),
        (False, "Annotations/2.xml", LAUGHS.encode("utf-16"), "2.xml: a document type or a zero byte"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, lists: bool, file: str, text: str | bytes | None, message: str
) -> None:
    year = make_year(tmp_path / "VOC2007", lists=lists, xml=not lists)
    if text is None:
        (year / file).unlink()
    else:
        (year / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message) as caught:
        read_voc(year)
    assert "\n" not in str(caught.value)


def test_an_image_of_two_parts_and_missing_labels_are_refused(tmp_path: Path) -> None:
    year = make_year(tmp_path / "VOC2007", lists=True, xml=False)
    for c in CLASSES:
        (year / "ImageSets" / "Main" / f"{c}_test.txt").write_text("4 1\n1 1\n")
    with pytest.raises(UserError, match=r"aeroplane_test.txt names an image twice or one of another list"):
        read_voc(year)
    (tmp_path / "VOC2012" / "JPEGImages").mkdir(parents=True)
    with pytest.raises(UserError, match=r"VOC2012 has neither ImageSets/Main/.* nor Annotations"):
        read_voc(tmp_path / "VOC2012")


@pytest.mark.skipif(not PACK.exists(), reason="the VOC2007 pack is not beside the repository")
def test_the_real_voc2007_has_its_known_counts() -> None:
    """Counts of the VOC2007 development kit; the imbalance ratio 2008 / 96 = 20.9 is the paper's."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(PACK) as pack:
        pack.extractall(folder)
        manifest = read_voc(Path(folder))
    pool, test = manifest.part("train", "validation"), manifest.part("test")
    assert (len(pool), len(test)) == (5011, 4952)
    assert (len(manifest.part("train")), len(manifest.part("validation"))) == (2501, 2510)
    found = describe(pool)
    assert found["cardinality"] == pytest.approx(1.458, abs=5e-4)
    assert found["imbalance_ratio"] == pytest.approx(2008 / 96)
    counts = {name: (values["positives"], values["difficult"]) for name, values in found["classes"].items()}
    assert (counts["person"], counts["sheep"]) == ((2008, 87), (96, 1))
    assert manifest.class_names == CLASSES
