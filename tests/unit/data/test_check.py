"""Each defect is planted in clean data and found; clean data gives no finding."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageEnhance

from percentmatch.cli.data import _embedder
from percentmatch.cli.main import main
from percentmatch.data import Images
from percentmatch.data.checks.check import check_data, looks, unlike
from percentmatch.data.checks.duplicates import near_pairs
from percentmatch.data.checks.findings import needed
from percentmatch.data.pixels import cache
from percentmatch.data.scenes import draw_scenes
from percentmatch.settings.config import DataSettings

SIZE = 96


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "FEW", 100)  # without processes that decode, but for the 200 images of clean data
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.fixture(scope="module")
def scenes() -> Images:
    return draw_scenes(200, size=SIZE, seed=5, task="single-label")


def picture(scenes: Images, row: int) -> Image.Image:
    return Image.fromarray(scenes.pixels[row].permute(1, 2, 0).numpy())


class Photos:
    """Scenes as JPEG files: `photos` with labels.csv, its last rows for the test, and `more` without labels."""

    def __init__(self, folder: Path, scenes: Images, labeled: int = 60, unlabeled: int = 10) -> None:
        self.folder, self.scenes, self.labeled = folder, scenes, labeled
        for place in ("photos", "more"):
            (folder / place).mkdir()
        self.rows = {}
        for row in range(labeled):
            self.save(picture(scenes, row), f"photos/{row}.jpg")
            self.rows[f"{row}.jpg"] = [("cat", "dog", "sofa")[row % 3], "test" if row >= labeled - 12 else ""]
        for row in range(labeled, labeled + unlabeled):
            self.save(picture(scenes, row), f"more/{row}.jpg")

    def save(self, image: Image.Image, name: str, **options: object) -> None:
        image.save(self.folder / name, **{"quality": 92, **options})

    def check(self, *more: str, **settings: object) -> dict[str, dict]:
        """Findings by their check. `more` are rows as text, below the others."""
        lines = ["image,labels,part", *(f"{name},{','.join(cells)}" for name, cells in self.rows.items()), *more]
        (self.folder / "labels.csv").write_text("\n".join(lines))
        defaults = {"images": str(self.folder / "photos"), "unlabeled": str(self.folder / "more"), "validation": 9}
        given = DataSettings(**{"labels": str(self.folder / "labels.csv"), **defaults, **settings})
        self.result = check_data(given, say=lambda _: None)
        json.dumps(self.result, allow_nan=False)
        found = {finding["check"]: finding for finding in self.result["findings"]}
        assert len(found) == len(self.result["findings"])
        assert self.result["serious"] == any(finding["level"] == "serious" for finding in found.values())
        return found


@pytest.fixture
def photos(tmp_path: Path, scenes: Images) -> Photos:
    return Photos(tmp_path, scenes)


def images_of(finding: dict) -> list[list[str]]:
    return [item["images"] for item in finding["items"]]


def test_clean_data_gives_no_finding(tmp_path: Path, scenes: Images) -> None:
    photos = Photos(tmp_path, scenes, labeled=140, unlabeled=60)
    assert photos.check() == {}
    assert photos.result["images"] == 200
    assert photos.result["parts"] == {"labeled": 119, "unlabeled": 60, "validation": 9, "test": 12}
    assert photos.result["not_checked"] == []


def test_unreadable_images_are_all_listed_and_the_others_checked(photos: Photos) -> None:
    whole = (photos.folder / "photos/3.jpg").read_bytes()
    (photos.folder / "photos/3.jpg").write_bytes(whole[: len(whole) // 2])
    (photos.folder / "photos/7.jpg").write_bytes(b"")
    (photos.folder / "more/62.jpg").write_text("no image at all")
    (photos.folder / "photos/9.jpg").write_bytes((photos.folder / "photos/6.jpg").read_bytes())
    found = photos.check()
    assert images_of(found["unreadable"]) == [["3.jpg"], ["7.jpg"], ["62.jpg"]]
    assert "labels.csv, line 5" in found["unreadable"]["items"][0]["text"]
    assert found["unreadable"]["level"] == "serious"
    assert images_of(found["duplicates"]) == [["6.jpg", "9.jpg"]]


def test_duplicates_of_each_kind(photos: Photos) -> None:
    """Labels agree, as rows 3 apart have the same one, and all are in one part: nothing is serious."""
    (photos.folder / "photos/4.jpg").write_bytes((photos.folder / "photos/1.jpg").read_bytes())
    original = (photos.folder / "photos/2.jpg").read_bytes()
    comment = b"\xff\xfe\x00\x07words"  # a JPEG segment of 7 bytes right behind the start mark
    (photos.folder / "photos/5.jpg").write_bytes(original[:2] + comment + original[2:])
    photos.save(picture(photos.scenes, 6), "photos/9.jpg", quality=40)
    photos.save(picture(photos.scenes, 6).resize((150, 120)), "photos/12.jpg")
    for side in (50, 60):
        photos.save(Image.new("RGB", (side, side), "white"), f"more/blank {side}.png")
    found = photos.check(validation=0)
    assert list(found) == ["duplicates", "blank"]
    assert images_of(found["blank"]) == [["blank 50.png"], ["blank 60.png"]]
    kinds = {tuple(item["images"]): item["kind"] for item in found["duplicates"]["items"]}
    assert kinds == {
        ("1.jpg", "4.jpg"): "same bytes",
        ("2.jpg", "5.jpg"): "same pixels",
        ("6.jpg", "9.jpg", "12.jpg"): "near",
        ("blank 50.png", "blank 60.png"): "near",
    }
    assert not photos.result["serious"]


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.resize((48, 64)),
        lambda image: image.resize((400, 300), Image.Resampling.BICUBIC),
        lambda image: image.crop((6, 6, 90, 90)),
        lambda image: image.crop((0, 4, 92, 92)),
        lambda image: ImageEnhance.Brightness(image).enhance(0.75),
        lambda image: ImageEnhance.Contrast(ImageEnhance.Brightness(image).enhance(1.1)).enhance(1.15),
    ],
    ids=["smaller", "larger", "cropped", "cropped and longer", "darker", "lighter"],
)
def test_near_duplicates_are_found_and_nothing_else(
    change: Callable[[Image.Image], Image.Image], scenes: Images
) -> None:
    changed = [change(picture(scenes, row)).resize((SIZE, SIZE)) for row in range(60)]
    pixels = torch.stack([torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) for image in changed])
    for both, apart in ((torch.cat([scenes.pixels, pixels]), 200), (torch.cat([pixels, scenes.pixels]), 60)):
        pairs = {(one, other) for one, other, _ in near_pairs(both, range(len(both)))}
        assert pairs <= {(row, apart + row) for row in range(60)}
        assert len(pairs) >= 59


def test_scenes_have_no_near_duplicates_nor_have_flat_pictures() -> None:
    several = draw_scenes(400, size=64)
    assert near_pairs(several.pixels, range(400)) == []
    grey = torch.arange(100, 140, 4).view(10, 1, 1, 1).repeat(1, 3, 64, 64).byte()
    grey[:, :, :32] += 1  # the same faint outline
    assert near_pairs(grey, range(10)) == []
    assert near_pairs(several.pixels, [3]) == []


def test_the_search_in_blocks_equals_that_in_one(monkeypatch: pytest.MonkeyPatch, scenes: Images) -> None:
    both = torch.cat([scenes.pixels, scenes.pixels.flip(0)])
    whole = near_pairs(both, range(400))
    assert {(one, other) for one, other, _ in whole} >= {(row, 399 - row) for row in range(200)}
    monkeypatch.setattr("percentmatch.data.checks.duplicates.MATRIX", 400 * 7)
    assert near_pairs(both, range(400)) == whole


def test_leaks_between_parts(photos: Photos) -> None:
    """12 test images, the last. Exact from labeled to test, near from unlabeled to test."""
    (photos.folder / "photos/48.jpg").write_bytes((photos.folder / "photos/0.jpg").read_bytes())
    photos.save(picture(photos.scenes, 50), "more/60.jpg", quality=50)
    found = photos.check()
    assert images_of(found["leak"]) == [["0.jpg", "48.jpg"], ["50.jpg", "60.jpg"]]
    assert found["leak"]["items"][1]["parts"] == ["test", "unlabeled"]
    assert photos.result["serious"]
    assert "conflicting labels" not in found


def test_a_leak_between_labeled_and_validation_images(photos: Photos) -> None:
    for row in range(6, 12):
        photos.rows[f"{row}.jpg"][1] = "validation"
    photos.save(picture(photos.scenes, 6), "photos/0.jpg", quality=50)
    photos.save(picture(photos.scenes, 7), "more/61.jpg", quality=50)  # unlabeled and validation: a duplicate only
    found = photos.check()
    assert images_of(found["leak"]) == [["0.jpg", "6.jpg"]]
    assert found["duplicates"]["count"] == 2


def test_conflicting_labels_of_copies(photos: Photos) -> None:
    """1.jpg is a dog, 3.jpg a cat; 63.jpg has no label, so it contradicts nobody."""
    (photos.folder / "photos/3.jpg").write_bytes((photos.folder / "photos/1.jpg").read_bytes())
    photos.save(picture(photos.scenes, 8), "more/63.jpg", quality=50)
    found = photos.check(validation=0)
    assert images_of(found["conflicting labels"]) == [["1.jpg", "3.jpg"]]
    assert found["conflicting labels"]["items"][0]["labels"] == ["dog", "cat"]
    assert "leak" not in found
    assert found["duplicates"]["count"] == 2
    assert photos.result["serious"]


def test_all_mistakes_of_a_table_are_listed_at_once(photos: Photos) -> None:
    """Line 62 is the first of `more`: 60 rows and the header stand above it."""
    more = ["0.jpg,dog,", "gone.jpg,cat,", "1.jpg,dog,test", "2.jpg,persn,", "59.jpg,cat,nowhere", "far.jpg,dog,"]
    found = photos.check(*more, classes="cat,dog,sofa")
    assert [item["image"] for item in found["missing image"]["items"]] == ["gone.jpg", "far.jpg"]
    assert "line 63" in found["missing image"]["items"][0]["text"]
    assert [item["label"] for item in found["unknown class"]["items"]] == ["persn"]
    assert images_of(found["conflicting labels"]) == [["0.jpg"], ["2.jpg"]]
    assert "line 2 and" in found["conflicting labels"]["items"][0]["text"]
    assert images_of(found["leak"]) == [["1.jpg"]]
    assert found["bad row"]["count"] == 1
    assert "line 66" in found["bad row"]["items"][0]["text"]
    assert {finding["level"] for finding in found.values()} == {"serious"}
    assert photos.result["images"] == 70


def test_a_row_filled_in_below_one_that_knew_nothing_is_no_conflict(photos: Photos) -> None:
    """Rows 0 to 2 say ?; below they are filled in, once as none of the classes. A missing image makes it lenient."""
    for row in range(3):
        photos.rows[f"{row}.jpg"][0] = "?"
    found = photos.check("0.jpg,cat,", "1.jpg,,", "2.jpg,?,", "gone.jpg,cat,")
    assert not {"conflicting labels", "leak"} & {*found}
    assert images_of(found["no label"]) == [["1.jpg"]]
    assert "line 63" in found["no label"]["items"][0]["text"]
    assert photos.result["parts"]["unlabeled"] == 11  # those of `more`, and 2.jpg
    lines = ["image,cat,dog", *(f"{row}.jpg,{row % 2},{(row + 1) % 2}" for row in range(40)), "40.jpg,?,", "40.jpg,,1"]
    (photos.folder / "one_hot.csv").write_text("\n".join([*lines, "gone.jpg,1,1"]))
    places = {"labels": str(photos.folder / "one_hot.csv"), "images": str(photos.folder / "photos")}
    result = check_data(DataSettings(**places, only_named=True))
    assert "conflicting labels" not in {finding["check"] for finding in result["findings"]}
    assert result["parts"]["unlabeled"] == 0


def test_a_column_for_each_class_may_hold_mistakes_too(tmp_path: Path, photos: Photos) -> None:
    """Two bad rows; the column `note` is left out by --classes, whatever it holds."""
    cells = {"3.jpg": "1,x,0,why", "5.jpg": "2,0,0,?", "8.jpg": "0,0,0,-"}
    rows = [f"{row}.jpg,{cells.get(f'{row}.jpg', f'{row % 2},{(row + 1) % 2},?,')}" for row in range(40)]
    (tmp_path / "one_hot.csv").write_text("\n".join(["image,cat,dog,sofa,note", *rows, "lost.jpg,0,1,0,"]))
    settings = DataSettings(labels=str(tmp_path / "one_hot.csv"), images=str(tmp_path / "photos"), classes="cat,dog")
    found = {finding["check"]: finding for finding in check_data(settings)["findings"]}
    assert found["missing image"]["count"] == 1
    assert ["line 5" in found["bad row"]["items"][0]["text"], found["bad row"]["count"]] == [True, 2]
    assert images_of(found["no label"]) == [["8.jpg"]]


def test_class_names_that_look_like_another(photos: Photos) -> None:
    """40 x person; persn and prson once each; Person is a variant at any count; dgo has its letters in another order.

    `scene 1` and `scene 2` differ in a number, `cat` and `car` in one letter of three (ratio 4 / 6).
    """
    names = ["person"] * 34 + ["Person"] * 4 + ["persn", "prson", "dgo", "car"]
    for row, name in enumerate(names):
        photos.rows[f"{row}.jpg"][0] = f"{name};cat;dog;scene 1"
    photos.rows["50.jpg"][0] = "scene 2"
    for row in (43, 44, 45):  # `sofa` stays on four images: too many for a slip
        photos.rows[f"{row}.jpg"][0] = "sofas"
    found = photos.check(validation=0)
    slips = {item["label"]: item["like"] for item in found["class names"]["items"]}
    assert slips == {"persn": "person", "prson": "person", "Person": "person", "dgo": "dog"}
    assert found["class names"]["level"] == "warning"


def test_classes_with_too_few_images(photos: Photos) -> None:
    """Of 48 images to learn from, 16 each show cat, dog and sofa; 3 show `bird`, none for the test."""
    for row in range(3):
        photos.rows[f"{row}.jpg"][0] += ";bird"
    found = photos.check(labeled=20, validation=2)
    item = next(item for item in found["few positives"]["items"] if item["class"] == "bird")
    assert (item["images"], item["test"]) == (3, 0)
    assert item["needed"] == needed(48, 20, 0, 5) < needed(48, 20, 2, 5)  # every class is validated where possible
    assert found["few positives"]["level"] == "warning"
    found = photos.check(classes="cat,dog,sofa,bird,goat")
    assert {i["class"]: i["images"] for i in found["few positives"]["items"]} == {"bird": 3, "goat": 0}
    assert found["few positives"]["level"] == "serious"


def test_how_many_images_a_class_needs_is_the_smallest_number_that_suffices() -> None:
    """Against exact binomial coefficients."""

    def chance(total: int, shown: int, drawn: int, least: int) -> float:
        below = sum(math.comb(shown, k) * math.comb(total - shown, drawn - k) for k in range(min(least, drawn + 1)))
        return 1 - below / math.comb(total, drawn)

    for total, labeled, validation, enough in ((100, 90, 10, 5), (1000, 100, 100, 5), (60, 20, 9, 1), (50, 50, 0, 5)):
        count = needed(total, labeled, validation, enough)

        def good(shown: int, total=total, labeled=labeled, validation=validation, enough=enough) -> bool:
            seen = chance(total, shown, labeled, enough) >= 0.95
            return seen and (not validation or chance(total, shown, validation, 1) >= 0.95)

        assert good(count)
        assert count == enough or not good(count - 1)
    assert needed(50, 50, 0, 5) == 5


def test_a_split_that_cannot_be_drawn_is_a_finding(photos: Photos) -> None:
    found = photos.check(labeled=500)
    assert "labeled=500" in found["split"]["text"]
    assert photos.result["serious"]
    assert photos.result["parts"] is None


def test_images_with_another_number_of_labels(photos: Photos) -> None:
    photos.rows["3.jpg"][0], photos.rows["4.jpg"][0] = "", "cat;dog"
    found = photos.check()
    assert images_of(found["no label"]) == [["3.jpg"]]
    assert not photos.result["serious"]
    found = photos.check(task="single-label")
    assert images_of(found["number of labels"]) == [["3.jpg"], ["4.jpg"]]
    assert photos.result["serious"]


def test_small_and_long_images(photos: Photos) -> None:
    photos.save(picture(photos.scenes, 60).resize((20, 30)), "more/60.jpg")
    photos.save(picture(photos.scenes, 61).resize((300, 50)), "more/61.jpg")
    found = photos.check()
    assert images_of(found["tiny"]) == [["60.jpg"]]
    assert images_of(found["long"]) == [["61.jpg"]]
    assert found["tiny"]["level"] == "note"


def test_unlabeled_images_unlike_the_labeled_ones(tmp_path: Path, scenes: Images) -> None:
    photos = Photos(tmp_path, scenes, labeled=140, unlabeled=50)
    page = Image.new("RGB", (96, 120), "white")
    page.paste((0, 0, 0), (10, 20, 80, 26))
    photos.save(page, "more/page.jpg")
    noise = torch.randint(0, 256, (96, 96, 3), generator=torch.Generator().manual_seed(0)).byte()
    photos.save(Image.fromarray(noise.numpy()), "more/noise.png")
    found = photos.check()
    assert list(found) == ["unlike the labeled"]
    assert sorted(images_of(found["unlike the labeled"])) == [["noise.png"], ["page.jpg"]]
    assert found["unlike the labeled"]["level"] == "warning"


def test_unlabeled_images_that_differ_as_a_whole() -> None:
    known = looks(draw_scenes(100, size=64).pixels)
    same = looks(draw_scenes(100, size=64, first=100).pixels)
    other = looks(255 - draw_scenes(100, size=64, first=200).pixels)
    assert unlike(known, same, whiten=True)[1] < 0.2
    assert unlike(known, other, whiten=True)[1] > 0.35


def test_the_distance_is_that_to_the_nearest_of_the_other_half() -> None:
    """On a line, without whitening: both halves of 0, 1, ..., 99 are spread alike, so 50 is usual and 1000 is not."""
    labeled = torch.arange(100.0)[:, None]
    ratio = unlike(labeled, torch.tensor([[50.0], [110.0], [1000.0]]), whiten=False)[0]
    assert ratio[0] < 0.5
    assert ratio[0] < ratio[1] < ratio[2]
    assert ratio[2] > 10


def run(*tokens: object) -> int:
    sys.argv = ["percentmatch", *map(str, tokens)]
    try:
        main()
    except SystemExit as exit_:
        return int(exit_.code or 0)
    return 0


def test_the_command_its_table_its_file_and_its_exit_codes(photos: Photos, capsys: pytest.CaptureFixture[str]) -> None:
    photos.check()
    flags = "--labels", photos.folder / "labels.csv", "--images", photos.folder / "photos"
    assert run("data", "check", *flags) == 0
    assert "nothing found" in capsys.readouterr().out
    (photos.folder / "photos/3.jpg").write_bytes(b"")
    out = photos.folder / "new/findings.json"
    assert run("data", "check", *flags, "--out", out) == 1
    shown = capsys.readouterr().out
    assert "unreadable" in shown
    assert "3.jpg" in shown
    assert json.loads(out.read_text())["findings"][0]["check"] == "unreadable"
    for wrong in (
        ("--labels", photos.folder / "none.csv"),
        (*flags, "--out", photos.folder),
        (*flags, "--weights", "none"),
        (*flags, "--root", photos.folder),
        (*flags, "--unlabeled", photos.folder / "nowhere"),
    ):
        assert run("data", "check", *wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_features_compare_unlabeled_with_labeled_images(tmp_path: Path, scenes: Images) -> None:
    """The one feature is how red an image is; by colours and edges together the image would be usual."""
    photos = Photos(tmp_path, scenes, labeled=80, unlabeled=20)
    reddest = max(range(80, 100), key=lambda row: float(scenes.pixels[row, 0].float().mean()))
    photos.check()
    settings = DataSettings(
        labels=str(tmp_path / "labels.csv"), images=str(tmp_path / "photos"), unlabeled=str(tmp_path / "more")
    )
    sizes = []

    def redness(pixels: torch.Tensor) -> torch.Tensor:
        sizes.append(pixels.shape[1:])
        red = pixels[:, 0].float().mean((1, 2))
        return red.where(red < scenes.pixels[reddest, 0].float().mean() - 1, 1000.0)[:, None]

    found = check_data(settings, embed=redness, size=72)["findings"]
    assert [finding["check"] for finding in found] == ["unlike the labeled"]
    assert [f"{reddest}.jpg"] in images_of(found[0])
    assert set(sizes) == {(3, 72, 72)}


def test_a_backbone_gives_its_pooled_features(tmp_path: Path, photos: Photos) -> None:
    network = timm.create_model("test_resnet", num_classes=0).eval()
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    pixels = photos.scenes.pixels[:70]  # more than go through at a time
    mean, std = (torch.tensor(network.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    with torch.inference_mode():
        wanted = torch.nn.functional.normalize(network((pixels / 255 - mean) / std), dim=1)
    found = _embedder("test_resnet", str(tmp_path / "weights.pt"), SIZE, "cpu")(pixels)
    torch.testing.assert_close(found, wanted)
    photos.check()
    flags = "--labels", photos.folder / "labels.csv", "--images", photos.folder / "photos", "--image-size", 40
    assert run("data", "check", *flags, "--backbone", "test_resnet", "--weights", tmp_path / "weights.pt") == 0
