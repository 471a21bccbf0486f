"""Labels in every format that is understood, found out by themselves, and one sentence for each mistake."""

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from percentmatch.data import Manifest, detected, load_images, read_labels, read_manifest, split_manifest
from percentmatch.data.pixels.cache import cache_folder
from percentmatch.data.readers import parquet
from percentmatch.errors import UserError
from percentmatch.settings.config import Config, DataSettings
from percentmatch.use.suggest import relative_names

IMAGES = ("a.jpg", "b.jpg", "c.jpg", "d.jpg")
WANTED = {"a.jpg": {"cat", "dog"}, "b.jpg": {"dog"}, "c.jpg": set()}  # what every example says, and of d.jpg nothing
UNKNOWN = {"d.jpg"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    for name in IMAGES:
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / name).touch()
    return tmp_path


def said(manifest: Manifest) -> tuple[dict[str, set[str]], set[str]]:
    """The positive classes of each image of which something is known, and the images of which nothing is."""
    known, shown = manifest.labels.known.dense().any(1).tolist(), {}
    for name, row, some in zip(manifest.ids, manifest.labels.targets.dense().tolist(), known, strict=True):
        if some:
            shown[name] = {manifest.class_names[c] for c, one in enumerate(row) if one}
    return shown, {name for name, some in zip(manifest.ids, known, strict=True) if not some}


def task(image: str, *annotations: list[str], **more: object) -> dict:
    results = [
        {"result": [{"type": "choices", "value": {"choices": names}}] if names else [], "was_cancelled": False}
        for names in annotations
    ]
    return {"id": 1, "data": {"image": image}, "annotations": results, **more}


TASKS = [
    task("/data/upload/7/0a1b2c3d-a.jpg", ["cat", "dog"]),
    task("https://host/some/where/b.jpg?token=1", ["dog"]),
    task("/data/local-files/?d=photos%2Fc.jpg", []),
    task("s3://bucket/photos/d.jpg"),
]
MIN_ABOUT = {"id": 1, "annotator": 1, "annotation_id": 9, "created_at": "x", "updated_at": "x", "lead_time": 2.5}
MIN = [
    {"image": "/data/upload/7/0a1b2c3d-a.jpg", "pets": {"choices": ["cat", "dog"]}, **MIN_ABOUT},
    {"image": "b.jpg", "pets": "dog", **MIN_ABOUT},
    {"image": "c.jpg", **MIN_ABOUT},
]


def coco() -> dict:
    pairs = [("a.jpg", 1), ("a.jpg", 4), ("a.jpg", 4), ("b.jpg", 4)]
    return {
        "images": [{"id": n, "file_name": name} for n, name in enumerate(IMAGES[:3])],
        "categories": [{"id": 1, "name": "cat"}, {"id": 4, "name": "dog"}],
        "annotations": [{"image_id": IMAGES.index(name), "category_id": which} for name, which in pairs],
    }


def sample(image: str, *names: str, tags: tuple[str, ...] = ()) -> dict:
    labels = [{"_cls": "Classification", "label": name, "tags": []} for name in names]
    return {"filepath": image, "tags": list(tags), "pets": {"_cls": "Classifications", "classifications": labels}}


SAMPLES = [sample("data/a.jpg", "cat", "dog"), sample("/else/where/b.jpg", "dog", tags=("test", "blurry"))]
SAMPLES += [sample("data/c.jpg"), {"filepath": "data/d.jpg", "tags": [], "pets": None}]
LINES = [
    {"file_name": "a.jpg", "labels": ["cat", "dog"]},
    {"file_name": "b.jpg", "labels": ["dog"], "split": "test"},
    {"file_name": "c.jpg", "labels": []},
    {"file_name": "d.jpg", "labels": None},
]
LS_CSV = """annotation_id,annotator,created_at,id,image,lead_time,pets,updated_at
9,1,x,1,/data/upload/7/0a1b2c3d-a.jpg,2.5,"{""choices"": [""cat"", ""dog""]}",x
9,1,x,2,/data/upload/7/0a1b2c3d-b.jpg,2.5,dog,x
9,1,x,3,c.jpg,2.5,,x
"""
FORMATS = {
    "commas": ("labels.csv", "image,labels\na.jpg,cat;dog\nb.jpg,dog\nc.jpg,\nd.jpg,?\n"),
    "semicolons": ("labels.csv", "image;labels\na.jpg;cat,dog\nb.jpg;dog\nc.jpg;\nd.jpg;?\n"),
    "tabs": ("labels.tsv", "Path\tTags\na.jpg\tcat|dog\nb.jpg\tdog\nc.jpg\t\nd.jpg\t?\n"),
    "lists": ("metadata.csv", 'file_name,labels\na.jpg,"[\'cat\', \'dog\']"\nb.jpg,"[""dog""]"\nc.jpg,[]\nd.jpg,?\n'),
    "one-hot": ("labels.csv", "image,cat,dog\na.jpg,1,1\nb.jpg,0,1\nc.jpg,0,0\nd.jpg,,\n"),
    "JSON lines": ("metadata.jsonl", "\n".join(map(json.dumps, LINES)) + "\n"),
    "JSON lines, text": (
        "metadata.jsonl",
        "\n".join(
            json.dumps({**line, "labels": line["labels"] and ", ".join(line["labels"])}) for line in LINES
        ).replace('"labels": []', '"labels": ""'),
    ),
    "JSON lines, one-hot": (
        "more.jsonl",
        "\n".join(
            json.dumps(
                {"file_name": line["file_name"]}
                | {c: line["labels"] and int(c in line["labels"]) for c in ("cat", "dog")}
            )
            for line in [*LINES[:2], LINES[3]]
        )
        + '\n{"file_name": "c.jpg", "cat": false, "dog": 0}',
    ),
    "COCO": ("instances_mine.json", json.dumps(coco())),
    "Label Studio": ("project-7.json", json.dumps(TASKS)),
    "Label Studio, short": ("project-7.json", json.dumps(MIN)),
    "Label Studio, CSV": ("project-7.csv", LS_CSV),
    "FiftyOne, places": (
        "labels.json",
        json.dumps({"classes": ["cat", "dog"], "labels": {"a": [0, 1], "b": 1, "c": [], "d": None}}),
    ),
    "FiftyOne, names": (
        "labels.json",
        json.dumps(
            {"classes": None, "labels": {"a": [{"label": "cat"}, {"label": "dog"}], "b": "dog", "c": [], "d": None}}
        ),
    ),
    "FiftyOne, samples": ("samples.json", json.dumps({"samples": SAMPLES})),
}
WITHOUT_D = ("COCO", "Label Studio, short", "Label Studio, CSV")


@pytest.mark.parametrize("given", ["the file", "its folder"])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_says_the_same(kind: str, given: str, folder: Path) -> None:
    name, text = FORMATS[kind]
    (folder / "given").mkdir()
    (folder / "given" / name).write_text(text)
    place = folder / "given" / (name if given == "the file" else "")
    manifest = read_labels(place, folder / "photos")
    assert manifest.class_names == ("cat", "dog")
    shown, unknown = said(manifest)
    assert shown == WANTED
    assert unknown == (set() if kind in WITHOUT_D else UNKNOWN)
    assert all(path.is_file() for path in manifest.paths)
    parts = dict(zip(manifest.ids, manifest.parts, strict=True))
    assert parts["b.jpg"] == ("test" if kind in ("JSON lines", "JSON lines, text", "FiftyOne, samples") else "")


@pytest.mark.parametrize("kind", ["one-hot", "COCO", "Label Studio", "FiftyOne, places", "FiftyOne, samples"])
def test_classes_may_be_chosen(kind: str, folder: Path) -> None:
    name, text = FORMATS[kind]
    (folder / name).write_text(text)
    manifest = read_labels(folder / name, folder / "photos", classes=["dog"])
    assert (manifest.class_names, manifest.labels.targets.dense().tolist()[:3]) == (("dog",), [[1], [1], [0]])


def test_images_are_found_where_the_formats_keep_them(folder: Path) -> None:
    photos = folder / "photos"
    (folder / "export").mkdir()
    photos.rename(folder / "export" / "data")
    labels = folder / "export" / "labels.json"
    labels.write_text(json.dumps({"classes": None, "labels": {"a": "cat"}}))
    assert read_labels(labels).paths == (folder / "export/data/a.jpg",)
    (folder / "export" / "samples.json").write_text(json.dumps({"samples": SAMPLES[:1]}))
    assert read_labels(folder / "export" / "samples.json").ids == ("data/a.jpg",)
    (folder / "annotations").mkdir()
    (folder / "export" / "data").rename(folder / "train2030")
    (folder / "annotations" / "instances_train2030.json").write_text(json.dumps(coco()))
    assert read_labels(folder / "annotations" / "instances_train2030.json").paths[0] == folder / "train2030/a.jpg"


def test_fiftyone_tells_in_data_json_where_the_images_are(folder: Path) -> None:
    """Names that are not those of the files, whose folder was moved; --images finds them by the end of the path."""
    (folder / "photos" / "sub").mkdir()
    (folder / "photos" / "sub" / "a.jpg").touch()
    (folder / "export").mkdir()
    labels = {"one": [0, 1], "two": 1, "three": [], "four": None}
    places = {"one": "/old/place/sub/a.jpg", "two": "/old/place/b.jpg", "three": "C:\\old\\c.jpg", "four": "/old/d.jpg"}
    (folder / "export" / "labels.json").write_text(json.dumps({"classes": ["cat", "dog"], "labels": labels}))
    (folder / "export" / "data.json").write_text(json.dumps(places))
    manifest = read_labels(folder / "export", folder / "photos")
    assert manifest.ids == ("sub/a.jpg", "b.jpg", "c.jpg", "d.jpg")
    assert said(manifest) == ({"sub/a.jpg": {"cat", "dog"}, "b.jpg": {"dog"}, "c.jpg": set()}, {"d.jpg"})
    with pytest.raises(UserError, match=r"image 'one': the image '/old/place/sub/a.jpg' is not in .*export .*give"):
        read_labels(folder / "export")
    (folder / "export" / "data.json").write_text("[1]")
    with pytest.raises(UserError, match=r"data\.json must say the path of each image by its name; export"):
        read_labels(folder / "export", folder / "photos")


def test_fiftyone_may_name_images_by_their_whole_paths(folder: Path) -> None:
    content = {"classes": None, "labels": {"/old/photos/a.jpg": ["cat", "dog"], "b": "dog", "c.jpg": [], "d": None}}
    (folder / "labels.json").write_text(json.dumps(content))
    assert said(read_labels(folder / "labels.json", folder / "photos")) == (WANTED, UNKNOWN)
    (folder / "photos" / "b.png").touch()
    with pytest.raises(UserError, match=r"json, image 'b': b\.jpg and b\.png have this name; give a folder without"):
        read_labels(folder / "labels.json", folder / "photos")


def test_metadata_in_part_folders(folder: Path) -> None:
    for part, image in (("train", "a.jpg"), ("validation", "b.jpg"), ("test", "c.jpg")):
        (folder / "set" / part).mkdir(parents=True)
        (folder / "photos" / image).rename(folder / "set" / part / image)
        (folder / "set" / part / "metadata.jsonl").write_text(json.dumps({"file_name": image, "labels": ["cat"]}))
    manifest = read_labels(folder / "set")
    assert dict(zip(manifest.ids, manifest.parts, strict=True)) == {
        "test/c.jpg": "test",
        "train/a.jpg": "train",
        "validation/b.jpg": "validation",
    }
    assert all(path.is_file() for path in manifest.paths)
    own = {"labels": ["dog"], "split": "test", "file_name": "c.jpg"}  # in another order, and with what the folder says
    (folder / "set" / "test" / "metadata.jsonl").write_text(json.dumps(own))
    again = read_labels(folder / "set")
    assert (again.ids, again.parts, again.paths) == (manifest.ids, manifest.parts, manifest.paths)
    assert again.labels.targets.dense().tolist() == [[0, 1], [1, 0], [1, 0]]
    own = {"file_name": "c.jpg", "labels": ["cat"], "split": "train"}
    (folder / "set" / "test" / "metadata.jsonl").write_text(json.dumps(own))
    with pytest.raises(UserError, match=r"test/metadata\.jsonl, line 1: it says 'train' and lies in the folder 'test'"):
        read_labels(folder / "set")
    (folder / "set" / "test" / "metadata.jsonl").write_text(json.dumps({"file_name": "c.jpg", "tags": ["cat"]}))
    with pytest.raises(UserError, match=r"train/metadata\.jsonl has other columns than .*test/metadata\.jsonl"):
        read_labels(folder / "set")


def test_a_folder_for_each_class(folder: Path) -> None:
    """Case and depth do not matter; what lies beside the classes has no label; a class may be called `train`."""
    for name in ("cat/1.jpg", "train/sub/2.PNG", "3.jpg", "Unlabeled/4.jpg", ".git/5.jpg"):
        (folder / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "set" / name).touch()
    manifest = read_labels(folder / "set")
    assert manifest.class_names == ("cat", "train")
    assert said(manifest) == ({"cat/1.jpg": {"cat"}, "train/sub/2.PNG": {"train"}}, {"3.jpg", "Unlabeled/4.jpg"})
    assert set(manifest.parts) == {""}
    assert all(path.is_file() for path in manifest.paths)
    chosen = read_labels(folder / "set", classes=["train"])
    assert said(chosen) == ({"cat/1.jpg": set(), "train/sub/2.PNG": {"train"}}, {"3.jpg", "Unlabeled/4.jpg"})
    (folder / "set" / "labels.csv").write_text("image,labels\n3.jpg,dog\n")
    assert read_labels(folder / "set").class_names == ("dog",)


def test_a_folder_for_each_class_of_each_subset(folder: Path) -> None:
    names = ("train/cat/1.jpg", "train/dog/1.jpg", "Val/cat/2.jpg", "test/dog/3.jpg", "test/4.jpg", "unlabeled/5.jpg")
    for name in names:
        (folder / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "set" / name).touch()
    manifest = read_labels(folder / "set")
    shown = {
        "train/cat/1.jpg": {"cat"},
        "train/dog/1.jpg": {"dog"},
        "Val/cat/2.jpg": {"cat"},
        "test/dog/3.jpg": {"dog"},
    }
    assert said(manifest) == (shown, {"test/4.jpg", "unlabeled/5.jpg"})
    subsets = ["validation", "test", "test", "train", "train", ""]
    assert dict(zip(manifest.ids, manifest.parts, strict=True)) == dict(zip(sorted(names), subsets, strict=True))
    for place in ("train", "Val", "unlabeled"):  # without images for two classes it is no such folder
        shutil.rmtree(folder / "set" / place)
    (folder / "set" / "valid").mkdir()
    (folder / "set" / "valid" / "6.jpg").touch()
    with pytest.raises(UserError, match=r"the folder .*set holds no file of labels; give the file itself"):
        read_labels(folder / "set")


def test_a_folder_that_is_no_subset_beside_subsets_is_refused(folder: Path) -> None:
    """Else the subsets would be taken for classes, and the test images for training."""
    for name in ("train/cat/1.jpg", "train/dog/1.jpg", "test/cat/2.jpg", "docs/3.jpg"):
        (folder / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "set" / name).touch()
    with pytest.raises(UserError, match=r"beside the folders of subsets \(test, train\) there is 'docs'; move 'docs'"):
        read_labels(folder / "set")


def test_a_parquet_file_that_swells_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal images are in the file once; nothing of them stays in the cache."""
    monkeypatch.setattr(parquet, "MOST_GROWTH", (100, 1 << 20))
    pa, written = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"image": [{"bytes": bytes(1 << 19), "path": "x"}] * 64, "label": ["cat", "dog"] * 32})
    for pages in (1 << 30, 1):  # in a dictionary, or not
        written.write_table(table, folder / "x.parquet", compression="zstd", dictionary_pagesize_limit=pages)
        assert (folder / "x.parquet").stat().st_size < 20_000
        with pytest.raises(UserError, match=r"x\.parquet unpacks to more than \d MiB, far more than it has"):
            read_labels(folder / "x.parquet")
    assert not list(cache_folder().glob("*images*"))


def test_a_parquet_file_with_paths_only_is_told(folder: Path) -> None:
    pa, written = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([{"bytes": None, "path": "a.jpg"}] * 3, kind)
    written.write_table(pa.table({"image": images, "label": ["cat", "dog", "cat"]}), folder / "x.parquet")
    with pytest.raises(UserError, match="holds only the paths of its images, not their bytes"):
        read_labels(folder / "x.parquet")


def test_images_of_a_parquet_file_are_named_by_their_rows(folder: Path) -> None:
    """Lists for people hold no path into the cache."""
    save_parquet(folder / "x.parquet", "label", ["cat", "dog", "cat"])
    names = ["x/00000001.jpg", "x/00000003.jpg"]
    config = detected(Config.from_dict({"labels": str(folder / "x.parquet")}))
    assert relative_names(names, config) == names


def test_two_processes_unpack_one_parquet_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one ends while the first one is at work, which then takes what is there."""
    save_parquet(folder / "x.parquet", "label", ["cat", "dog", "cat"])
    beside, others = parquet.beside, []

    def slow(path: Path) -> Path:
        if not others:
            others.append(None)
            others[0] = read_labels(folder / "x.parquet")
        return beside(path)

    monkeypatch.setattr(parquet, "beside", slow)
    manifest = read_labels(folder / "x.parquet")
    assert manifest.paths == others[0].paths
    assert all(path.is_file() for path in manifest.paths)


def save_parquet(file: Path, labels: object, values: list, feature: dict | None = None, **more: list) -> None:
    """A table with an image of one colour in each row, as the Hub's `datasets` writes it."""
    pa, written = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pictures = []
    for n in range(len(values)):
        buffer = io.BytesIO()
        Image.new("RGB", (4, 4), (n, n, n)).save(buffer, "PNG")
        pictures.append({"bytes": buffer.getvalue(), "path": "../../etc/passwd"})
    about = {"huggingface": json.dumps({"info": {"features": {labels: feature}}})} if feature else {}
    table = pa.table({"image": pictures, labels: values, **more}).replace_schema_metadata(about)
    file.parent.mkdir(parents=True, exist_ok=True)
    written.write_table(table, file)


def test_parquet_files_with_images_in_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers stand for the names in the file's metadata, -1 and null for nothing; file names tell the subset.

    The images are unpacked once; the path that a file gives them is not used.
    """
    several = {"_type": "Sequence", "feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    save_parquet(folder / "set/data/train-00000-of-00001.parquet", "labels", [[0, 1], [], None], several)
    save_parquet(folder / "set/data/test-00000-of-00001.parquet", "labels", [[1]], several)
    for unpacked in (True, False):
        manifest = read_labels(folder / "set")
        assert ("unpacking the images of" in capsys.readouterr().err) is unpacked
        train, test = "train-00000-of-00001", "test-00000-of-00001"
        names = [f"{train}/0000000{n}.jpg" for n in (1, 2, 3)]
        shown = {f"{test}/00000001.jpg": {"dog"}, names[0]: {"cat", "dog"}, names[1]: set()}
        assert said(manifest) == (shown, {names[2]})
        assert manifest.parts == ("test", "train", "train", "train")
        pixels = load_images(manifest, size=4, folder=folder / "cache").pixels
        assert pixels[:, 0, 0, 0].tolist() == [0, 0, 1, 2]
    one = folder / "one.parquet"
    save_parquet(one, "label", [1, -1, 0], {"names": ["cat", "dog"], "_type": "ClassLabel"}, split=["", "", "test"])
    manifest = read_labels(one)
    assert said(manifest) == ({"one/00000001.jpg": {"dog"}, "one/00000003.jpg": {"cat"}}, {"one/00000002.jpg"})
    assert manifest.parts == ("", "", "test")
    save_parquet(one, "tags", [["cat"], ["dog", "cat"]])
    assert [*said(read_labels(one))[0].values()] == [{"cat"}, {"cat", "dog"}]


def test_a_parquet_file_that_cannot_be_read_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "x.parquet"
    with pytest.raises(UserError, match=r"cannot read the file .*x\.parquet \(No such file .*\); check the path"):
        read_labels(file)
    file.write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(UserError, match=r"x\.parquet cannot be read as Parquet \(.*\); download or write it again"):
        read_labels(file)
    save_parquet(file, "labels", [[0], [2]], {"feature": {"names": ["cat", "dog"]}})
    with pytest.raises(UserError, match=r"x\.parquet, row 2: 2 is no number of the 2 classes; correct the file"):
        read_labels(file)
    save_parquet(file, "colour", [[0], [2]])
    with pytest.raises(UserError, match=r"needs one column of images .* one called labels or .*it has image, colour"):
        read_labels(file)
    assert not [*(folder / "cache").glob(".*.part")]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r'install it by pip install "percentmatch\[parquet\]"$'):
        read_labels(file)


def test_annotators_who_differ_leave_a_class_unknown_unless_one_is_the_truth(folder: Path) -> None:
    """Of cat and dog against cat and cow, only cat is sure; a skipped annotation does not count; drawn boxes do."""
    box = {"result": [{"type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["cow"]}}, {"type": "rating"}]}
    skipped = {"result": [{"type": "choices", "value": {"choices": ["dog"]}}], "was_cancelled": True}
    truth = task("c.jpg", ["cat"], ["dog"])
    truth["annotations"][1]["ground_truth"] = True
    tasks = [task("a.jpg", ["cat", "dog"], ["cat", "cow"]), task("b.jpg"), truth]
    tasks[1]["annotations"] = [skipped, box]
    (folder / "x.json").write_text(json.dumps(tasks))
    manifest = read_labels(folder / "x.json", folder / "photos")
    assert manifest.class_names == ("cat", "cow", "dog")
    assert manifest.labels.known.dense().tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]
    assert (manifest.labels.targets.dense() * manifest.labels.known.dense()).tolist() == [
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
    ]


def test_what_was_drawn_counts_in_short_exports_too(folder: Path) -> None:
    about = {"x": 1.5, "y": 2, "original_width": 8}
    boxes = [{**about, "rectanglelabels": ["cow"]}, {**about, "polygonlabels": ["cat", "cow"]}, about]
    answers = [boxes, ["dog"], [], {"choices": ["cat", "dog"]}]
    (folder / "y.csv").write_text(LS_CSV.replace(",dog,", ",[other],"))
    assert read_labels(folder / "y.csv", folder / "photos").class_names == ("[other]", "cat", "dog")
    short = [{"image": name, "pets": answer, **MIN_ABOUT} for name, answer in zip(IMAGES, answers, strict=True)]
    (folder / "x.json").write_text(json.dumps(short))
    with open(folder / "x.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, short[0].keys())
        writer.writeheader()
        writer.writerows({**each, "pets": json.dumps(each["pets"])} for each in short)
    for name in ("x.json", "x.csv"):
        manifest = read_labels(folder / name, folder / "photos")
        assert manifest.class_names == ("cat", "cow", "dog")
        assert manifest.labels.targets.dense().tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1]]


MALFORMED = {
    "no list": ("x.csv", 'image,labels\na.jpg,"[cat"\n', r"x\.csv, line 2: '\[cat' is no list of labels"),
    "no object": (
        "x.jsonl",
        '{"file_name": "a.jpg", "labels": []}\n[1]\n',
        r"x\.jsonl, line 2: this is no JSON object",
    ),
    "no file name": ("x.jsonl", '{"labels": []}\n', r"x\.jsonl, line 1: there is no file_name"),
    "a line without file name": (
        "x.jsonl",
        '{"file_name": "a.jpg", "labels": ["cat"]}\n{"labels": ["cat"]}',
        r"x\.jsonl, line 2: there is no file_name",
    ),
    "labels that are an object": (
        "x.jsonl",
        '{"file_name": "a.jpg", "label": {"a": 1}}',
        r"line 1: .* is no list of labels",
    ),
    "empty lines": ("x.jsonl", "\n", r"x\.jsonl is empty"),
    "torn JSON": ("x.json", '[{"a": 1},\n{"b"', r"x\.json, line 2: this is not JSON"),
    "FiftyOne, a file an image": (
        "manifest.json",
        json.dumps({"type": "eta.core.datasets.LabeledImageDataset", "index": [{"data": "data/a.jpg"}]}),
        r"manifest\.json: FiftyOne's image labels .*; export the dataset as FiftyOneImageClassificationDataset or",
    ),
    "FiftyOne, one of these": ("a.json", '{"attrs": {"attrs": []}}', r"a\.json: FiftyOne's image labels with one"),
    "other JSON": ("x.json", '{"a": 1}', r"x\.json: this JSON is neither COCO .* Label Studio .* FiftyOne"),
    "no task": ("x.json", "[1]", r"x\.json, task 1: this is no task"),
    "task without image": ("x.json", '[{"data": {"text": "hi"}, "annotations": []}]', r"task 1: it names no images"),
    "bad annotations": (
        "x.json",
        '[{"data": {"image": "a.jpg"}, "annotations": 3}]',
        r"task 1: 'annotations' is no list",
    ),
    "bad result": (
        "x.json",
        '[{"data": {"image": "a.jpg"}, "annotations": [{}]}]',
        r"task 1: an annotation has no list",
    ),
    "bad choices": ("x.json", json.dumps([task("a.jpg", [1])]), r"task 1: \[1\] are no choices"),
    "levels": (
        "x.json",
        json.dumps([{**task("a.jpg", []), "annotations": [{"result": [{"type": "taxonomy", "value": {}}]}]}]),
        r"x\.json, task 1: the answer is a taxonomy",
    ),
    "levels, short": ("x.json", '[{"image": "a.jpg", "x": [["animal", "cat"]]}]', r"task 1: the answer is a taxonomy"),
    "levels in a CSV": ("x.csv", LS_CSV.replace("choices", "taxonomy"), r"x\.csv, line 2: the answer is a taxonomy"),
    "a rating": ("x.json", '[{"image": "a.jpg", "x": {"rating": 4}}]', r"task 1: \{'rating': 4\} are no choices"),
    "two parts": (
        "x.json",
        json.dumps({"samples": [sample("a.jpg", "cat", tags=("train", "blurry", "test"))]}),
        r"x\.json, sample 1: its tags name the subsets test and train; keep one",
    ),
    "two answers": ("x.json", '[{"image": "a.jpg", "x": "cat", "y": "dog"}]', r"task 1: .* the answers 'x', 'y'"),
    "no task at all": ("x.json", "[]", r"x\.json names no image"),
    "missing image": (
        "x.json",
        json.dumps([task("/data/upload/1/z.jpg", ["cat"])]),
        r"x\.json, task 1: the image .*z\.jpg' is not in",
    ),
    "two answers in a CSV": ("x.csv", LS_CSV.replace("created_at", "more"), r"x\.csv: .* the answers 'more', 'pets'"),
    "torn cell": ("x.csv", LS_CSV.replace(']}"', '"'), r"x\.csv, line 2: .* is not JSON"),
    "place beyond the classes": (
        "x.json",
        '{"classes": ["cat"], "labels": {"a": 1}}',
        r"x\.json, image 'a': 1 is no label",
    ),
    "label beyond the classes": (
        "x.json",
        '{"classes": ["cat"], "labels": {"a": "cow"}}',
        r"x\.json, image 'a': 'cow' is no",
    ),
    "labels no object": ("x.json", '{"classes": null, "labels": []}', r"x\.json: 'labels' must name images"),
    "image that is not there": (
        "x.json",
        '{"classes": null, "labels": {"z": "cat"}}',
        r"x\.json, image 'z': the image 'z' is not in",
    ),
    "no filepath": (
        "x.json",
        json.dumps({"samples": [sample("a.jpg", "cat"), {"pets": None}]}),
        r"x\.json, sample 2: it has no filepath",
    ),
    "samples no list": ("x.json", '{"samples": 1}', r"x\.json: 'samples' must be a list"),
    "several fields": (
        "x.json",
        json.dumps({"samples": [{**sample("a.jpg", "cat"), "more": {"_cls": "Classification", "label": "x"}}]}),
        r"x\.json has the fields more, pets of classifications",
    ),
    "no field": ("x.json", '{"samples": [{"filepath": "a.jpg"}]}', r"x\.json has no field of classifications"),
    "odd field": (
        "x.json",
        json.dumps({"samples": [sample("a.jpg", "cat"), {"filepath": "b.jpg", "pets": {"_cls": "Detections"}}]}),
        r"x\.json, sample 2: its labels are no classifications",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_labels_are_one_sentence_with_file_and_place(case: str, folder: Path) -> None:
    name, text, sentence = MALFORMED[case]
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        read_labels(folder / name, folder / "photos")
    assert "\n" not in str(caught.value)


def test_of_several_fields_the_ground_truth_counts(folder: Path) -> None:
    both = {**sample("a.jpg", "cat"), "ground_truth": {"_cls": "Classification", "label": "dog"}}
    (folder / "x.json").write_text(json.dumps({"samples": [both]}))
    assert said(read_labels(folder / "x.json", folder / "photos"))[0] == {"a.jpg": {"dog"}}


def test_a_folder_without_labels_or_with_several(folder: Path) -> None:
    with pytest.raises(UserError, match=r"the folder .*photos holds no file of labels; give the file itself"):
        read_labels(folder / "photos")
    for name in ("x.csv", "y.csv"):
        (folder / "photos" / name).touch()
    with pytest.raises(UserError, match=r"photos holds x\.csv and y\.csv; give the file itself"):
        read_labels(folder / "photos")
    (folder / "photos" / "labels.csv").write_text("image,labels\na.jpg,cat\n")
    assert read_labels(folder / "photos").ids == ("a.jpg",)


# which kind of data the settings name


@pytest.mark.parametrize("layout", ["", "VOC2007", "VOCdevkit/VOC2012"])
@pytest.mark.parametrize("name", ["root", "labels"])
def test_a_voc_folder_is_known_by_its_layout(name: str, layout: str, tmp_path: Path) -> None:
    (tmp_path / layout / "JPEGImages").mkdir(parents=True)
    found = detected(DataSettings(**{name: str(tmp_path)}))
    assert (found.data, found.root, found.labels) == ("voc", str(tmp_path), "")
    assert found.split_kind == "every-class"  # whichever command looks: `train` must not validate on what was warmed up
    assert detected(found) == found
    assert detected(DataSettings(data="voc", root=str(tmp_path))).split_kind == "random"  # an experiment


def test_a_coco_folder_is_known_by_its_layout(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    with pytest.raises(UserError, match=r"--root: .* neither like VOC \(JPEGImages\) nor like COCO"):
        detected(DataSettings(root=str(tmp_path)))
    (tmp_path / "annotations" / "instances_train2014.json").touch()
    assert detected(DataSettings(root=str(tmp_path))).data == "coco"
    assert detected(Config(labels=str(tmp_path), lr=1)).root == str(tmp_path)
    with pytest.raises(UserError, match="--root: there is no folder nowhere"):
        detected(DataSettings(root="nowhere"))


def test_labels_alone_are_files_and_numbers_of_scenes_are_scenes() -> None:
    assert detected(DataSettings(labels="labels.csv")).data == "files"
    assert detected(DataSettings(scenes_pool=10)) == DataSettings(data="scenes", scenes_pool=10, split_kind="random")
    assert detected(DataSettings(data="voc", root="x")).data == "voc"  # what is said is not looked at
    assert detected(Config(data="custom")).data == "custom"
    with pytest.raises(UserError, match=r"^no data is named; give your labels by --labels .* --data scenes"):
        detected(DataSettings(images="photos"))


def test_own_files_keep_every_class_and_nothing_else_does(folder: Path) -> None:
    """One image of eight shows b, drawn for validation by this seed; kept for learning unless random is asked for."""
    rows = [f"{n}.jpg,{'b' if n == 3 else 'a'}" for n in range(8)]
    for n in range(8):
        (folder / "photos" / f"{n}.jpg").touch()
    (folder / "labels.csv").write_text("\n".join(["image,labels", *rows]))
    places = {"labels": str(folder / "labels.csv"), "images": str(folder / "photos")}

    def validated(**changed: object) -> bool:
        """Whether any of 30 seeds validates on the only image of b."""
        found = []
        for seed in range(30):
            settings = DataSettings.from_dict({**places, "validation": 3, "split_seed": seed, **changed})
            found.append("3.jpg" in split_manifest(settings, read_manifest(settings)).validation)
        return any(found)

    assert not validated()
    assert not validated(split_kind="every-class")
    assert validated(split_kind="random")


def test_an_unknown_label_cell_takes_no_part(folder: Path) -> None:
    (folder / "x.csv").write_text("image,labels\na.jpg,cat\nb.jpg,?\n")
    manifest = read_labels(folder / "x.csv", folder / "photos")
    assert manifest.class_names == ("cat",)
    assert torch.equal(manifest.labels.known.dense(), torch.tensor([[1], [0]], dtype=torch.uint8))


# the examples of docs/your-data.md

PAGE = (Path(__file__).parents[3] / "docs" / "your-data.md").read_text()
EXAMPLES = dict(re.findall(r'```\w+ title="(\S+)"\n(.*?)```', PAGE, re.DOTALL))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_in_the_documents_say_what_they_are_said_to(name: str, tmp_path: Path) -> None:
    file, voc = tmp_path / name, name.startswith("VOC")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(EXAMPLES[name])
    images = file.parents[1] / "JPEGImages" if voc else tmp_path / "photos"
    images.mkdir()
    for image in ("001.jpg", "002.jpg", "003.jpg"):
        (images / image).touch()
    places = {"root": str(tmp_path)} if voc else {"labels": str(file), "images": str(images)}
    shown, unknown = said(read_manifest(DataSettings.from_dict(places)))
    assert shown == (
        {"001": {"cat", "sofa"}} if voc else {"001.jpg": {"cat", "sofa"}, "002.jpg": set(), "003.jpg": {"dog"}}
    )
    assert not unknown


def test_every_format_has_an_example() -> None:
    names = {
        "labels.csv",
        "onehot.csv",
        "metadata.jsonl",
        "instances.json",
        "project-1.json",
        "labels.json",
        "samples.json",
    }
    assert EXAMPLES.keys() == names | {"VOC2007/Annotations/001.xml"}
