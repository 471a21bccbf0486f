"""Hostile input, case by case: what is no plain file, what leaves its folder, what swells, and names that act."""

import csv
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from bombs import archive
from worlds import CARD, Bomb, Escape, Guard, Reader, inside, limited, make_world, picture

from percentmatch.cli.main import main
from percentmatch.data import read_labels, read_voc, unlabeled_manifest
from percentmatch.data.checks.findings import _alike
from percentmatch.data.pixels.decode import BadImage, decode
from percentmatch.data.pixels.images import size_of
from percentmatch.data.readers.folder import read_folder
from percentmatch.data.readers.table import RISKY, read_table
from percentmatch.errors import UserError, did_you_mean, visible
from percentmatch.files import parse_yaml
from percentmatch.runs.run_folder import PretrainFolder, RunFolder
from percentmatch.use.export import model_card
from percentmatch.use.predict import _csv_lines

SLOWEST = 10  # seconds for one bomb, on a busy machine


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def readers(base: Path) -> list[Reader]:
    made = make_world(base)
    for reader in made:
        reader.file.write_bytes(reader.seeds[0])
    return made


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_what_is_no_plain_file_is_refused_and_nobody_waits_for_it(readers: list[Reader], kind: str, base: Path) -> None:
    for reader in readers:
        place = reader.file
        if reader.name in ("upload form", "VOC part list", "names of images"):  # no file of their own
            continue
        before = place.read_bytes()
        place.unlink()
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
        else:
            place.symlink_to("/dev/zero" if kind == "device" else place)
        try:
            with limited():
                reader.read(reader.file)
            refused = False
        except UserError as error:
            refused = len(str(error).splitlines()) == 1
        finally:
            place.rmdir() if kind == "folder" else place.unlink()
            place.write_bytes(before)
        absent = kind == "loop" and reader.name.startswith("report, ")  # a file that need not be there
        listed = reader.name in ("VOC list", "VOC XML", "FiftyOne data.json")  # among what a folder holds
        assert refused or absent or listed, reader.name


def test_the_guard_hears_what_no_file_may_cause(tmp_path: Path) -> None:
    """Each of these is allowed before the guard watches, and raises while it does; inside its folder it may be."""
    inner = tmp_path / "inner"
    inner.mkdir()
    acts: list[Callable[[], object]] = [
        lambda: (tmp_path / "x").write_text("x"),
        lambda: os.rename(inner / "x", tmp_path / "y"),
        lambda: (tmp_path / "folder").mkdir(),
        lambda: os.symlink("x", tmp_path / "link"),
        lambda: os.truncate(tmp_path / "x", 0),
        lambda: subprocess.run(["true"], check=True),
        lambda: os.system("true"),
        lambda: socket.create_connection(("127.0.0.1", 9)),
    ]
    guard = Guard(inner)
    with guard.watching():
        (inner / "x").write_text("x")
        for act in acts:
            with pytest.raises(Escape):
                act()
    for act in acts[:-1]:
        act()


def test_a_pipe_among_images_is_a_bad_image_and_a_link_to_itself_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(picture("PNG"))
    (tmp_path / "c.png").symlink_to(tmp_path / "c.png")
    (tmp_path / "labels.csv").write_text("image,labels\nb.png,x\n")
    with limited():
        assert read_labels(tmp_path / "labels.csv").ids == ("b.png",)
        with pytest.raises(BadImage, match="not a plain file"):
            size_of(tmp_path / "a.png")
        (tmp_path / "labels.csv").write_text("image,labels\nc.png,x\n")
        with pytest.raises(UserError, match=r"'c\.png' is not in"):
            read_labels(tmp_path / "labels.csv")


def test_folders_within_folders_are_read_so_far(tmp_path: Path) -> None:
    """The system allows some 2,000, which Python 3.11 cannot walk down, and looking for links in each takes minutes."""
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for depth in range(1500):
            os.mkdir("d")
            os.chdir("d")
            if depth == 50:
                Path("a.png").touch()
                assert len(read_folder(tmp_path).ids) == 1
        with limited(), pytest.raises(UserError, match="has folders 64 deep and more; give the one that holds"):
            read_folder(tmp_path)
    finally:
        os.chdir(here)
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


OUTSIDE = [
    "../secret.png",
    "{base}/secret.png",
    "photos/../../secret.png",
    "..\\secret.png",
    "/etc/../{base}/secret.png",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize(
    "kind", ["instances.json", "m.jsonl", "metadata.csv", "studio.json", "studio.csv", "s.json", "f.json"]
)
def test_files_that_programs_write_do_not_name_images_outside_their_folder(
    kind: str, path: str, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for file in (photos / "a.png", tmp_path / "secret.png"):
        file.write_bytes(picture("PNG", 8))
    path = path.format(base=tmp_path)
    kinds = {"_cls": "Classification", "label": "cat"}
    coco = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": path}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"image_id": 1, "category_id": 1}],
    }
    content = {
        "instances.json": json.dumps(coco),
        "m.jsonl": "\n".join(json.dumps({"file_name": name, "labels": ["cat"]}) for name in ("a.png", path)),
        "metadata.csv": f"file_name,labels\na.png,cat\n{path},cat\n",
        "studio.json": json.dumps([{"image": name, "choice": "cat"} for name in ("a.png", path)]),
        "studio.csv": f"annotation_id,lead_time,image,choice\n1,2,a.png,cat\n1,2,{path},cat\n",
        "s.json": json.dumps({"samples": [{"filepath": name, "ground_truth": kinds} for name in ("a.png", path)]}),
        "f.json": json.dumps({"classes": ["cat"], "labels": {"a": 0, path: 0}}),
    }[kind]
    (tmp_path / kind).write_text(content)
    with pytest.raises(UserError, match=r"secret\.png' is not in .*photos \(1 of 2 images are missing\)"):
        read_labels(tmp_path / kind, photos)


def test_a_path_outside_is_found_by_its_end_where_exports_tell_of_another_machine(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for file in (tmp_path / "photos" / "secret.png", tmp_path / "secret.png"):
        file.write_bytes(picture("PNG", 8))
    (tmp_path / "x.json").write_text(json.dumps([{"image": "../secret.png", "choice": "cat"}]))
    manifest = read_labels(tmp_path / "x.json", tmp_path / "photos")
    assert manifest.paths == (tmp_path / "photos" / "secret.png",)
    inside(tmp_path / "photos")(manifest)


@pytest.mark.parametrize("path", OUTSIDE)
def test_files_that_people_write_may_name_any_image(path: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "secret.png").write_bytes(picture("PNG", 8))
    path = path.format(base=tmp_path)
    (tmp_path / "photos" / "labels.csv").write_text(f"image,labels\n{path},cat\n")
    (tmp_path / "photos" / "list.txt").write_text(path)
    for found in (
        read_labels(tmp_path / "photos" / "labels.csv"),
        unlabeled_manifest(tmp_path / "photos" / "list.txt", ["x"]),
    ):
        assert [os.path.realpath(place) for place in found.paths] == [os.path.realpath(tmp_path / "secret.png")]


@pytest.mark.parametrize("name", ["../a", "/etc/a", "x\\a"])
def test_a_part_list_of_voc_names_ids_not_paths(name: str, tmp_path: Path) -> None:
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text(f"{name}\n")
    with pytest.raises(UserError, match=r"train\.txt names .* which is a path; write the ids"):
        read_voc(tmp_path)


@pytest.mark.fuzz
def test_bombs_are_refused_within_a_gibibyte_and_seconds(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("bombs.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    read = {name for name, _, said in rows if said == "read"}
    assert read == {"full.png", "large.jpg", "path.json"}
    assert len(rows) > 35
    assert max(float(seconds) for _, seconds, _ in rows) < SLOWEST


YAMLS = {
    "a: &a [1]\nb: *a": "aliases .* are not read; write it out",
    "a: !!python/object/apply:os.system [id]": "could not determine a constructor",
    "a: !!int ''": "not valid YAML",
    "a: !!timestamp x": "not valid YAML",
    "a: 2024-13-45": "month must be in 1..12",
    f"a: 0x{'f' * 50}": "this number is too long",
    "[" * 3000: "nested too deeply",
}


@pytest.mark.parametrize("text", YAMLS, ids=range(len(YAMLS)))
def test_yaml_is_values_and_nothing_else(text: str) -> None:
    with pytest.raises(UserError, match=YAMLS[text]) as caught:
        parse_yaml(text, "'x'")
    assert "\n" not in str(caught.value)
    assert parse_yaml("a: [1, 2.5, 3e-4, x]", "'x'") == yaml.safe_load("a: [1, 2.5, 3e-4, x]")


def test_numbers_that_are_none_are_damage(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for row in ('{"step": NaN, "kind": "x"}', '{"step": 1, "kind": "x", "loss": Infinity}'):
        folder.log.path.write_text(f'{row}\n{{"step": 2, "kind": "x"}}\n')
        with pytest.raises(UserError, match=r"log\.jsonl', line 1, is damaged"):
            folder.log.rows()


def test_a_cell_that_lists_labels_is_data_and_no_program(tmp_path: Path) -> None:
    """Emoji come in two halves in JSON; numpy writes lists without commas, which Python would join to one label."""
    (tmp_path / "a.png").touch()
    file = tmp_path / "labels.csv"

    def names(cell: str) -> tuple[str, ...]:
        with open(file, "w", newline="") as out:
            csv.writer(out).writerows([["image", "labels"], ["a.png", cell]])
        return read_table(file).class_names

    assert names(json.dumps(["\U0001f436", "b"])) == ("b", "\U0001f436")
    assert names(str(["it's", 'a "b"', 3])) == ("3", 'a "b"', "it's")
    assert names("[1, 'x',]") == ("1", "x")
    for cell in ("['a' 'b']", "[__import__('os')]", "[1.5]", "['a'", "[[]]", "{'a': 1}", "['\\x']"):
        with pytest.raises(UserError, match="is no list of labels"):
            names(cell)


def test_no_cell_begins_like_a_formula_whatever_divides_cells() -> None:
    """A spreadsheet that divides at semicolons or tabs must not find a formula inside a path."""
    out = io.StringIO()
    paths = [Path(name) for name in ("a;=1+1.jpg", "b\t@x.jpg", "-c.jpg", "d.jpg")]
    classes = ["=big", "cat"]
    _csv_lines(out, paths, torch.full((4, 2), 0.5), torch.ones(4, 2), classes, header=True)
    for mark in ",;\t":
        for row in csv.reader(io.StringIO(out.getvalue()), delimiter=mark):
            assert not [cell for cell in row if cell.startswith(RISKY)]
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [Path(row["image"]) for row in rows] == paths


def test_no_name_steers_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert visible("a\x1b[2Jb\u202ec\udcff\u00e9\u200d") == "a\\x1b[2Jb\\u202ec\\udcff\u00e9\u200d"
    monkeypatch.setattr(sys, "argv", ["percentmatch", "data", "stats", "--labels", str(tmp_path / "\x1b[2J.csv")])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\\x1b[2J.csv" in said
    (tmp_path / "a.png").write_bytes(picture("PNG"))
    (tmp_path / "labels.csv").write_text('image,labels\na.png,"\x1b[31mred[/]"\n')
    monkeypatch.setattr(sys, "argv", ["percentmatch", "data", "stats", "--labels", str(tmp_path / "labels.csv")])
    main()
    assert "\x1b" not in capsys.readouterr().out


def test_a_sentence_stays_readable_whatever_it_quotes() -> None:
    assert str(UserError("x" * 2000)) == "x" * 2000
    assert str(UserError("a  b\nc")) == "a  b c"
    long = str(UserError("a" * 5000 + "z" * 5000))
    assert len(long) < 2100
    assert long.startswith("aaa")
    assert long.endswith("zzz")
    assert did_you_mean("clas99", [f"class{n}" for n in range(200)]) == "; did you mean 'class99'?"
    assert did_you_mean("x" * 200, [f"class{n:03}" for n in range(200)]).endswith("class099 and 100 more")


IMPOSSIBLE = [
    *({"image_size": size} for size in (0, 5000, None)),
    *({"decode_size": size} for size in (0, 10**9, 1.5)),
    *({"class_names": names} for names in ("abc", ["a", "a", "b"], ["a", "\ud800", "b"], ["a", "", "b"], [1, 2, 3])),
    *({"mean": numbers} for numbers in ([1, 2], [float("nan")] * 3, "abc")),
    *({"std": numbers} for numbers in ([0, 1, 1], [10**400] * 3)),
    *({name: "x"} for name in ("head", "task", "frame", "dropout", "decisions")),
    *({"decisions": {name: [1, 1, float("inf")]}} for name in ("scale", "shift", "thresholds")),
    {"dropout": 7},
    {"backbone": None},
]


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_a_model_that_says_impossible_things_is_refused(
    change: dict, base: Path, readers: list[Reader], tmp_path: Path
) -> None:
    reader = next(each for each in readers if each.name == "model.safetensors")
    data = reader.seeds[0]
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    card = json.loads(header["__metadata__"]["percentmatch"])
    inner = change.get("decisions")
    card |= {"decisions": card["decisions"] | inner} if isinstance(inner, dict) else change
    header["__metadata__"]["percentmatch"] = json.dumps(card)
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(UserError, match=r"m\.safetensors' is not a model saved by percentmatch"):
        reader.read(tmp_path / "m.safetensors")


def test_a_pickle_that_acts_is_not_run(readers: list[Reader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Bomb("touch hacked")}, tmp_path / "x.pt")
    for name in ("checkpoint .pt", "weights .pt"):
        reader = next(each for each in readers if each.name == name)
        with pytest.raises(UserError, match=r"x\.pt"):
            reader.read(tmp_path / "x.pt")
    assert not (tmp_path / "hacked").exists()


def test_an_archive_that_swells_is_refused(readers: list[Reader], tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(archive(2))
    for name in ("checkpoint .pt", "weights .pt"):
        reader = next(each for each in readers if each.name == name)
        with pytest.raises(UserError, match=r"x\.pt' .*\(ValueError\)"):
            reader.read(tmp_path / "x.pt")


def test_the_card_of_a_model_holds_no_markup_of_a_class() -> None:
    names = ("[a](http://x)", "<script>", "b|c`")
    text = model_card(replace(CARD, class_names=names), {})
    assert "](http" not in text
    assert "<script>" not in text
    assert "&#91;a&#93;(http://x)" in text


def test_a_picture_that_is_a_page_is_told_apart(tmp_path: Path) -> None:
    cases = {
        b"<svg xmlns='x'/>": "SVG",
        b"<?xml version='1.0'?><svg/>": "SVG",
        b"<!DOCTYPE html><p>": "HTML",
        b"<html>": "HTML",
    }
    for content, word in cases.items():
        (tmp_path / "x.jpg").write_bytes(content)
        with pytest.raises(UserError, match=word):
            decode(tmp_path / "x.jpg", 8, "squash")


DAMAGED = [{"step": None}, {"minutes": "x"}, {"seed": True}, {"test": 5}, {"test": {"ema": {}}}, {"step": 10**400}]


@pytest.mark.parametrize("change", [*DAMAGED, {"calibration": []}, {"validation": []}], ids=range(len(DAMAGED) + 2))
def test_figures_that_are_none_are_damage(change: dict, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"step": 1, "minutes": 0.5, "seed": 0}))
    assert RunFolder(tmp_path).read_metrics()["step"] == 1
    (tmp_path / "metrics.json").write_text(json.dumps({"step": 1, "minutes": 0.5, "seed": 0, **change}))
    with pytest.raises(UserError, match=r"metrics\.json' is damaged .*; restore the file"):
        RunFolder(tmp_path).read_metrics()
    (tmp_path / "pretrain.json").write_text(json.dumps({"images": 1, "steps": 2, "loss": None, "minutes": 1}))
    with pytest.raises(UserError, match=r"pretrain\.json' is damaged \(ValueError: loss is null\)"):
        PretrainFolder(tmp_path).read_result()


def test_names_are_compared_only_where_that_is_quick() -> None:
    assert _alike("aeroplanes", "aeroplane")
    assert not _alike("x" * 101, "x" * 100 + "y")
