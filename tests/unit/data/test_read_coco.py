"""MS-COCO: a small file in the true layout, and files that are not COCO."""

import json
from pathlib import Path

import pytest

from percentmatch.data.readers.coco import read_coco
from percentmatch.errors import UserError

NAMES = """person;bicycle;car;motorcycle;airplane;bus;train;truck;boat;traffic light;fire hydrant;stop sign
parking meter;bench;bird;cat;dog;horse;sheep;cow;elephant;bear;zebra;giraffe;backpack;umbrella;handbag;tie
suitcase;frisbee;skis;snowboard;sports ball;kite;baseball bat;baseball glove;skateboard;surfboard;tennis racket;bottle
wine glass;cup;fork;knife;spoon;bowl;banana;apple;sandwich;orange;broccoli;carrot;hot dog;pizza;donut;cake;chair;couch
potted plant;bed;dining table;toilet;tv;laptop;mouse;remote;keyboard;cell phone;microwave;oven;toaster;sink;refrigerator
book;clock;vase;scissors;teddy bear;hair drier;toothbrush"""
STANDARD = tuple(NAMES.replace("\n", ";").split(";"))  # the 80 classes in their usual order
HOLES = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # ids from 1 to 90 that no category has


def make() -> dict:
    """Three images: a person and a crowd of them and a toothbrush; nothing; only a crowd of books."""
    ids = [number for number in range(1, 91) if number not in HOLES]
    categories = [{"supercategory": "x", "id": i, "name": name} for i, name in zip(ids, STANDARD, strict=True)]
    polygon, counts = [[510.66, 423.01, 511.72, 420.03, 510.45, 423.01]], {"counts": [272, 2, 4], "size": [4, 5]}
    found = [(9, 1, 0), (9, 1, 1), (9, 90, 0), (30, 84, 1)]  # (image, category, iscrowd)
    return {
        "info": {"year": 2014, "version": "1.0"},
        "licenses": [{"id": 1, "name": "x", "url": "x"}],
        "images": [
            {"id": i, "file_name": f"COCO_train2014_{i:012}.jpg", "height": 4, "width": 5, "license": 1, "coco_url": ""}
            for i in (30, 9, 25)
        ],
        "annotations": [
            {
                "id": 900 + number,
                "image_id": image,
                "category_id": category,
                "iscrowd": crowd,
                "area": 1.5,
                "bbox": [0.0, 0.5, 1.0, 1.5],
                "segmentation": counts if crowd else polygon,
            }
            for number, (image, category, crowd) in enumerate(found)
        ],
        "categories": categories[::-1],  # any order in the file
    }


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "train2014").mkdir()
    for entry in make()["images"]:
        (tmp_path / "train2014" / entry["file_name"]).touch()
    return tmp_path / "train2014"


def write(images: Path, content: object) -> Path:
    file = images.parent / "instances.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_the_true_layout(images: Path) -> None:
    manifest = read_coco(write(images, make()), images, part="train")
    assert manifest.class_names == STANDARD
    assert manifest.ids == tuple(f"COCO_train2014_{i:012}.jpg" for i in (30, 9, 25))
    assert manifest.paths[1] == images / "COCO_train2014_000000000009.jpg"
    assert [[STANDARD[i] for i in row.nonzero()] for row in manifest.labels.targets.dense()] == [
        ["book"],
        ["person", "toothbrush"],
        [],
    ]
    assert manifest.labels.known.dense().all()
    assert not manifest.labels.difficult.dense().any()
    assert manifest.parts == ("train",) * 3
    assert manifest.sources[1].endswith("instances.json, image id 9")


def test_images_without_annotations_can_be_left_out(images: Path) -> None:
    file = write(images, make())
    assert read_coco(file, images, keep_empty=False).ids == read_coco(file, images).ids[:2]
    file = write(images, make() | {"annotations": []})
    assert not read_coco(file, images).labels.targets.dense().any()
    with pytest.raises(UserError, match=r"instances.json has no annotation"):
        read_coco(file, images, keep_empty=False)


def test_a_file_with_indents_says_the_same_and_errors_keep_their_line(images: Path) -> None:
    """Outlines are cut out before parsing; here each takes many lines, in front and at the end of an entry."""
    content = make()
    content["annotations"][0] = dict(reversed(content["annotations"][0].items()))
    text = json.dumps(content, indent=1)
    manifest, wanted = read_coco(write(images, text), images), read_coco(write(images, make()), images)
    assert (manifest.ids, manifest.labels.targets.dense().tolist()) == (
        wanted.ids,
        wanted.labels.targets.dense().tolist(),
    )
    with pytest.raises(UserError, match=f"line {text.count(chr(10)) + 2}: this is not JSON"):
        read_coco(write(images, text + "\n}"), images)


def changed(key: str, place: int, **fields: object) -> dict:
    content = make()
    content[key][place] |= fields
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("annotations", 2, image_id=7), "annotation 3: there is no image 7; remove"),
        (changed("annotations", 3, category_id=12), "annotation 4: there is no category 12; remove"),
        (changed("annotations", 0, category_id=None), "entry 1 of 'annotations' has no good 'category_id'"),
        (changed("annotations", 0, image_id=[9]), "entry 1 of 'annotations' has no good 'image_id'"),
        (changed("images", 1, file_name=""), "entry 2 of 'images' has no good 'file_name'"),
        (changed("images", 1, file_name="no.jpg"), r"image id 9: the image 'no.jpg' is not in .* \(1 of 3 images"),
        (changed("images", 1, file_name="COCO_train2014_000000000030.jpg"), "id 30 and .*id 9 give .* different"),
        (changed("images", 1, id=30), "'images' has 30 twice"),
        (changed("categories", 0, id=1), "'categories' has 1 twice"),
        (changed("categories", 0, name="person"), "'categories' has 'person' twice"),
        (make() | {"images": []}, "'images' is empty"),
        (make() | {"categories": {}}, "not a COCO instances file: it has no list 'categories'"),
        (make() | {"images": ["a.jpg"]}, "entry 1 of 'images' has no good 'id'"),
        ({"a.jpg": ["cat"]}, "not a COCO instances file: it has no list 'images'"),
        ([1, 2], "not a COCO instances file: it has no list 'images'"),
        ("{\n'images': 1}", "instances.json, line 2: this is not JSON"),
        ("", "instances.json, line 1: this is not JSON"),
        ("[" * 100_000, "instances.json cannot be read as JSON"),
        (f'{{"images": {"9" * 5000}}}', "instances.json cannot be read as JSON"),
    ],
)
def test_what_is_not_coco_is_refused_in_one_sentence(images: Path, content: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_coco(write(images, content), images)
    assert "\n" not in str(caught.value)
    assert "instances.json" in str(caught.value)


def test_missing_files_are_named(images: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*no.json"):
        read_coco(images / "no.json", images)
    with pytest.raises(UserError, match=r"there is no folder .*gone"):
        read_coco(write(images, make()), images / "gone")
