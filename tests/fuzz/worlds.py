"""A folder of valid files, a reader for each kind of them, and what may happen while one is read."""

import faulthandler
import io
import json
import os
import resource
import shutil
import signal
import sys
import tarfile
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import attacks
import torch
import yaml
from fastapi import HTTPException
from mutate import (
    Mutator,
    mutate_bytes,
    mutate_image,
    mutate_json,
    mutate_lines,
    mutate_safetensors,
    mutate_table,
    mutate_tar,
    mutate_text,
    mutate_tree,
    mutate_yaml,
)
from PIL import Image
from safetensors.torch import save

from percentmatch.data import Manifest, read_labels, read_voc, unlabeled_manifest
from percentmatch.data.pixels.decode import BadImage, decode, decode_bytes
from percentmatch.data.pixels.decode import read as read_image
from percentmatch.data.readers.rows import Report, refuse
from percentmatch.data.shards.index import labeled_manifest, open_shards
from percentmatch.data.shards.write import PLAN, write_shards
from percentmatch.data.split import Split, read_split
from percentmatch.errors import UserError, visible
from percentmatch.files import read_yaml
from percentmatch.methods import checked_options
from percentmatch.models import Card, Decisions, build_classifier, classifier_bytes, load_classifier
from percentmatch.models.weights import read_weights
from percentmatch.report import write_report
from percentmatch.runs.checkpoint import load_checkpoint
from percentmatch.runs.run_folder import PretrainFolder, RunFolder
from percentmatch.serve.uploads import files_of
from percentmatch.settings.config import Config, PretrainSettings
from percentmatch.use.export import model_card
from percentmatch.use.grid import read_grid

SECONDS = 5
IDS = ("a", "b", "c", "d")
CLASSES = ("cat", "dog", "sofa")
FORMS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
CARD = Card("test_resnet", "linear", 0.0, 32, 37, "squash", "multi-label", CLASSES, (0.5,) * 3, (0.5,) * 3, "0.1.0")
CARD = Card(**{**CARD.__dict__, "decisions": Decisions((1.0,) * 3, (0.0,) * 3, (0.5,) * 3, "F1")})


class Hang(BaseException):
    """An input took too long. No reader may catch it, so it is no Exception."""


class Escape(BaseException):
    """Something was written, started or asked for outside of the folder of the test."""


@dataclass
class Reader:
    """How one kind of file is read, and where it is put."""

    name: str
    seeds: list[bytes]
    mutate: Mutator
    read: Callable[[Path], Any]
    file: Path
    share: float = 1.0  # of the inputs that others get; slow readers get fewer
    refuses: tuple[type[Exception], ...] = (UserError,)


@dataclass
class Count:
    """What became of a reader's inputs."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0


class Guard:
    """Watches, by Python's audit events, what is opened for writing, started or connected to."""

    def __init__(self, *folders: Path) -> None:
        self.folders, self.on = tuple(os.path.realpath(folder) + os.sep for folder in folders), False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "os.fork"):
            raise Escape(f"{event} {args!r:.200}")
        if event == "open" and isinstance(args[0], str | bytes) and isinstance(args[2], int):
            writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            self._check(event, args[0]) if writes else None
        if event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.rename", "os.link", "os.symlink"):
            for path in args[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
                self._check(event, path)

    def _check(self, event: str, path: Any) -> None:
        place = os.path.realpath(os.fsdecode(path)) if not isinstance(path, int) else os.devnull
        if place != os.devnull and not place.startswith(self.folders):
            raise Escape(f"{event} {place}")

    @contextmanager
    def watching(self) -> Generator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False


@contextmanager
def limited(seconds: float = SECONDS) -> Generator[None]:
    """Raise Hang if the block takes longer; a hang inside C, where no signal is heard, ends the process."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(12 * seconds, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def make_input(reader: Reader, seed: int, number: int) -> bytes:
    """Input 0 of each seed file is the valid one; the others are mutations."""
    if number < len(reader.seeds):
        return reader.seeds[number]
    rng = Random(f"{seed} {reader.name} {number}")
    if rng.random() < ATTACKED and (known := ATTACKS.get(reader.mutate)):
        return rng.choice(known)(rng, rng.choice(reader.seeds))
    return reader.mutate(rng, rng.choice(reader.seeds), reader.seeds)


def feed(reader: Reader, data: bytes, guard: Guard, count: Count) -> None:
    """Read one input; anything but success or one sentence is raised."""
    reader.file.write_bytes(data)
    start, said = time.perf_counter(), ""
    try:
        with limited(), guard.watching():
            reader.read(reader.file)
        count.accepted += 1
    except reader.refuses as error:
        count.refused += 1
        said = str(error)
    count.inputs += 1
    count.slowest_seconds = max(count.slowest_seconds, round(time.perf_counter() - start, 2))
    assert "\n" not in said
    assert len(said) < 2100


def inside(folder: Path) -> Callable[[Manifest], None]:
    """Every image must lie in the folder, and exist there."""
    start = os.path.realpath(folder) + os.sep

    def check(manifest: Manifest) -> None:
        for path in manifest.paths:
            assert os.path.realpath(path).startswith(start), path

    return check


def labels(folder: Path, *, confined: bool = True, report: Report = refuse) -> Callable[[Path], None]:
    check = inside(folder)

    def read(file: Path) -> None:
        manifest = read_labels(file, folder, report=report)
        if confined:
            check(manifest)

    return read


def picture(form: str, side: int = 24) -> bytes:
    rng = Random(form)
    pixels = bytes(rng.randrange(256) if n % 5 else n % 256 for n in range(side * side * 3))
    image, buffer = Image.frombytes("RGB", (side, side), pixels), io.BytesIO()
    if form == "GIF":
        other = image.rotate(90)
        image.save(buffer, form, save_all=True, append_images=[other])
    else:
        image.save(buffer, form, **({"exif": Image.Exif()} if form in ("JPEG", "WEBP") else {}))
    return buffer.getvalue()


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def state(rng: Random | None = None) -> bytes:
    """A checkpoint, its structure mutated where `rng` is given."""
    values: Any = {
        "step": 3,
        "seconds": 1.5,
        "split": "ab",
        "labels": "cd",
        "model": {"w": torch.zeros(2, 3)},
        "ema": {},
    }
    values |= {"optimizer": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]}, "method": {}, "meter": {}}
    if rng:
        values = mutate_tree(rng, values)
    buffer = io.BytesIO()
    torch.save(values, buffer)
    return buffer.getvalue()


class Bomb:
    """Pickled, a call of os.system; unpickled by anything but weights_only, a file beside the test."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def mutate_checkpoint(rng: Random, data: bytes, others: Any) -> bytes:
    kind = rng.random()
    if kind < 0.5:
        return mutate_bytes(rng, data, others)
    if kind < 0.6:
        buffer = io.BytesIO()
        torch.save({"model": Bomb("touch hacked")}, buffer)
        return buffer.getvalue()
    try:
        return state(rng)
    except (RecursionError, OverflowError, RuntimeError):
        return data


ATTACKED = 0.25  # of the inputs are attacks by those who know the format
ATTACKS: dict[Mutator, tuple[attacks.Attack, ...]] = {
    mutate_json: attacks.JSONS,
    mutate_lines: attacks.JSONS,
    mutate_table: attacks.TABLES,
    mutate_text: (*attacks.ANY_TEXT, attacks.xml_piece, attacks.table_cells),
    mutate_yaml: (*attacks.ANY_TEXT, *[attacks.yaml_piece] * 4),
    mutate_image: attacks.IMAGES,
    mutate_tar: (attacks.tar_headers,),
    mutate_safetensors: (attacks.safetensors_header, attacks.safetensors_card),
    mutate_checkpoint: (attacks.checkpoint_objects, attacks.checkpoint_archive),
    mutate_bytes: (attacks.form_head, attacks.form_body),
}


def run_files() -> dict[str, bytes]:
    """A finished run, as far as the report reads it without images."""
    scores = {"mAP": 0.5, "AUC": 0.6, "num_images": 10, "mAP_11point": 0.5, "left_out_AP": [], "left_out_AUC": []}
    scores["classes"] = {name: {"AP": 0.5, "AUC": 0.6, "AP_11point": 0.5, "positives": 4} for name in CLASSES}
    classes = {name: [0.1, 0.2, None] for name in ("upper", "lower", "gap", "weights", "positive_rate")}
    rows: list[dict[str, Any]] = [{"step": 0, "kind": "start", "unseen_classes": ["sofa"]}]
    rows += [
        {"step": n, "kind": "train", "lr": 0.1, "loss": 1.0 / n, "labeled": 0.5, "classes": classes} for n in (1, 2, 3)
    ]
    rows += [{"step": 3, "kind": "validation", **scores}, {"step": 4, "kind": "refresh", "restarted": True}]
    part = {"ema": scores, "model": scores}
    metrics = {
        "method": "percentmatch",
        "seed": 0,
        "split": "x",
        "step": 4,
        "minutes": 0.1,
        "validation": part,
        "test": part,
    }
    split = Split(("a", "b"), ("c",), ("d",), ())
    return {
        "log.jsonl": "\n".join(json.dumps(row) for row in rows).encode() + b"\n",
        "metrics.json": text(metrics),
        "environment.json": text({"percentmatch": "0.1", "commit": None, "torch": "2", "device": "2 CPU cores"}),
        "split.json": split.to_json().encode(),
        "config.yaml": yaml.safe_dump(Config(data="scenes").to_dict()).encode(),
    }


GRID = {
    "preset": "demo",
    "settings": {"labeled": 20, "total_steps": 10},
    "runs": {"supervised": {"method": "supervised"}, "ours": {"method": "percentmatch", "options": {"momentum": 0.9}}},
    "grid": {"labeled_batch": [4, 8], "weak_view": [{"ops": 1}, {"ops": 2}]},
    "seeds": [0, 1],
}
FORM = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\nabc\r\n--x--\r\n'


def make_world(base: Path) -> list[Reader]:
    """Write the images below `base`, and say how each kind of file is read there. A secret image lies beside."""
    world, photos, run = base / "world", base / "world" / "photos", base / "world" / "run"
    voc = world / "voc" / "VOC2007"
    main, xml = voc / "ImageSets" / "Main", world / "xml" / "VOC2007"
    for folder in (photos / "data", run, main, voc / "JPEGImages", xml / "JPEGImages", xml / "Annotations"):
        folder.mkdir(parents=True)
    (base / "secret.png").write_bytes(picture("PNG"))
    for place in (photos, photos / "data", voc / "JPEGImages", xml / "JPEGImages"):
        for name in IDS:
            (place / f"{name}.png").write_bytes(picture("PNG", 8))
    (main / "dog_train.txt").write_text("a  1\nb  1\n")
    for name, content in run_files().items():
        (run / name).write_bytes(content)
    readers = _label_readers(world, photos, voc, main, xml)
    for form in FORMS:
        seeds = [picture(form), picture(form, 9)]
        readers.append(Reader(f"image {form}", seeds, mutate_image, _decode, world / f"x.{form.lower()}", 0.6))
    return [*readers, _shards(world), *_model_readers(world), *_run_readers(world, run, photos)]


def _decode(file: Path) -> None:
    decode(file, 16, "squash")


def _label_readers(world: Path, photos: Path, voc: Path, main: Path, xml: Path) -> list[Reader]:
    table = b"image,labels,part\na.png,cat;sofa,\nb.png,,\nc.png,dog,test\nd.png,?,\n"
    hot = b"image,cat,dog,sofa\na.png,1,0,1\nb.png,0,0,\nc.png,0,1,?\n"
    listed = b'image,labels\na.png,"[""cat"", ""sofa""]"\nb.png,"[\'dog\', 3]"\n'
    rows = [{"file_name": "a.png", "labels": ["cat", "sofa"]}, {"file_name": "b.png", "labels": []}]
    rows += [{"file_name": "c.png", "labels": None, "split": "test"}]
    coco = {
        "images": [{"id": n, "file_name": f"{name}.png"} for n, name in enumerate(IDS)],
        "categories": [{"id": n, "name": name} for n, name in enumerate(CLASSES)],
        "annotations": [{"image_id": n, "category_id": n % 3, "segmentation": [[1, 2.5, 3]]} for n in range(4)],
    }
    lines = "\n".join(map(json.dumps, rows)).encode()
    chosen = [{"type": "choices", "value": {"choices": ["cat", "sofa"]}}]
    tasks = [
        {"data": {"image": f"/data/upload/1/0f3a9c2e-{name}.png"}, "annotations": [{"result": chosen}]} for name in IDS
    ]
    short = [{"image": f"http://host/{name}.png", "choice": {"choices": ["cat"]}, "id": 1} for name in IDS]
    studio = b'annotation_id,lead_time,image,choice\n1,2.5,a.png,"{""choices"": [""cat""]}"\n2,1.0,b.png,dog\n'
    one = {"classes": list(CLASSES), "labels": {"a": [0, 2], "b": [], "c": 1, "d": None}}
    kinds = {"_cls": "Classifications", "classifications": [{"_cls": "Classification", "label": "cat"}]}
    samples = {"samples": [{"filepath": f"data/{name}.png", "tags": ["test"], "ground_truth": kinds} for name in IDS]}
    objects = b"<annotation><object><name>dog</name><difficult>0</difficult></object>"
    objects += b"<object><name>cat</name><difficult>1</difficult></object></annotation>"
    free, bound = labels(photos, confined=False), labels(photos)
    tables, ignored = [table, hot, listed], deque(maxlen=1)
    # as `data check` reads: no error of a row ends it
    all_free, all_bound = (labels(photos, confined=each, report=ignored.append) for each in (False, True))
    (xml / "Annotations" / "b.xml").write_bytes(objects)
    (xml / "Annotations" / "c.xml").write_bytes(objects)

    listed = world / "listed"
    listed.mkdir()

    def paths(file: Path) -> None:
        (listed / "labels.json").write_bytes(text(one))
        bound(listed / "labels.json")

    def lists(file: Path) -> None:
        inside(voc)(read_voc(voc))

    nus = world / "nus"
    for part, first in (("Train", "a"), ("Test", "c")):
        for place in ("ImageList", "Groundtruth/TrainTestLabels"):
            (nus / place).mkdir(parents=True, exist_ok=True)
        (nus / "ImageList" / f"{part}Imagelist.txt").write_text(f"data\\{first}.png\n{first}.png\n")
        for name in CLASSES:
            (nus / "Groundtruth" / "TrainTestLabels" / f"Labels_{name}_{part}.txt").write_text("1\n0\n")

    return [
        Reader("CSV", tables, mutate_table, free, world / "labels.csv", 2),
        Reader("CSV, all errors", tables, mutate_table, all_free, world / "l.csv"),
        Reader("JSON lines, all errors", [lines], mutate_lines, all_bound, world / "l.jsonl"),
        Reader(
            "text list",
            [b"a.png\nb.png\n"],
            mutate_text,
            lambda file: unlabeled_manifest(file, CLASSES),
            photos / "l.txt",
        ),
        Reader("metadata.csv", [table, hot], mutate_table, bound, world / "metadata.csv"),
        Reader("metadata.jsonl", [lines], mutate_lines, bound, world / "m.jsonl"),
        Reader("COCO JSON", [text(coco)], mutate_json, bound, world / "instances.json", 2),
        Reader("Label Studio JSON", [text(tasks), text(short)], mutate_json, bound, world / "studio.json"),
        Reader("Label Studio CSV", [studio], mutate_table, bound, world / "studio.csv"),
        Reader("FiftyOne labels.json", [text(one)], mutate_json, bound, world / "labels.json"),
        Reader(
            "FiftyOne data.json",
            [text({"a": "a.png", "b": "/else/where/b.png"})],
            mutate_json,
            paths,
            listed / "data.json",
        ),
        Reader("FiftyOne samples.json", [text(samples)], mutate_json, bound, world / "samples.json"),
        Reader("VOC list", [b"a  1\nb -1\n", b"a  0\n\nb\t1"], mutate_text, lists, main / "cat_train.txt"),
        Reader(
            "VOC XML", [objects], mutate_text, lambda file: inside(xml)(read_voc(xml)), xml / "Annotations" / "a.xml"
        ),
        Reader(
            "NUS-WIDE list",
            [b"data\\a.png\r\na.png\n"],
            mutate_text,
            lambda file: bound(nus),
            nus / "ImageList" / "TrainImagelist.txt",
        ),
        Reader(
            "NUS-WIDE labels",
            [b"1\n0\n", b"1 \r\n1 \r\n"],
            mutate_text,
            lambda file: bound(nus),
            nus / "Groundtruth" / "TrainTestLabels" / "Labels_cat_Train.txt",
        ),
        Reader("VOC part list", [b"a\nb\nc\n"], mutate_text, lambda file: _xml_lists(file, xml), world / "train.txt"),
    ]


def _xml_lists(file: Path, xml: Path) -> None:
    """The part list of a folder with XML files, put there for the time of reading."""
    place = xml / "ImageSets" / "Main"
    place.mkdir(parents=True, exist_ok=True)
    target = place / "train.txt"
    target.write_bytes(file.read_bytes())
    try:
        inside(xml)(read_voc(xml))
    finally:
        target.unlink()


def _shards(world: Path) -> Reader:
    """Images in a tar file, with their labels beside them."""

    def read(file: Path) -> None:
        found = open_shards(str(file), cache=world / "cache", labels=True, skip_bad=True)
        if found.noted:
            for path in labeled_manifest(found, str(file)).paths:
                with suppress(BadImage):
                    decode_bytes(read_image(path), 16, "squash")

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        members = {"a.png": picture("PNG", 8), "a.json": text({"labels": ["cat"], "unknown": ["dog"], "part": "test"})}
        members |= {"x/b.webp": picture("WEBP", 8), "x/b.cls": b"dog;sofa", "c.jpg": picture("JPEG", 8)}
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return Reader("tar shard", [out.getvalue()], mutate_tar, read, world / "shard.tar")


def _model_readers(world: Path) -> list[Reader]:
    torch.manual_seed(0)
    network = build_classifier(CARD.backbone, num_classes=3, head="linear", image_size=32).eval()
    model, tensors = classifier_bytes(network, CARD), save({"conv.weight": torch.zeros(2, 3), "b": torch.ones(4)})
    cpu = torch.device("cpu")

    def checkpoint(file: Path) -> None:
        load_checkpoint(file, cpu)

    return [
        Reader("checkpoint .pt", [state()], mutate_checkpoint, checkpoint, world / "last.pt"),
        Reader("weights .pt", [state()], mutate_checkpoint, read_weights, world / "w.pt"),
        Reader("weights .safetensors", [tensors], mutate_safetensors, read_weights, world / "w.safetensors"),
        Reader(
            "model.safetensors",
            [model],
            mutate_safetensors,
            lambda file: load_classifier(file, cpu),
            world / "m.safetensors",
            0.4,
        ),
    ]


def _run_readers(world: Path, run: Path, photos: Path) -> list[Reader]:
    files = run_files()

    def settings(file: Path) -> None:
        config = Config.from_dict(read_yaml(file), source=str(file))
        checked_options(config.method, config.options)

    def split(file: Path) -> None:
        read_split(file, pool=IDS, test=(), without_labels=("c",))

    def form(file: Path) -> None:
        head, _, body = file.read_bytes().partition(b"\n")
        files_of(body, head.decode("latin-1"))

    def report(file: Path) -> None:
        if file.name == "metrics.json":
            model_card(CARD, RunFolder(run).read_metrics())
        write_report([run], world / "page.html", images=False, say=lambda _: None)
        assert "<canary" not in (world / "page.html").read_text().lower()

    def pretraining(file: Path) -> None:
        folder = PretrainFolder(file.parent)
        folder.read_result() if file.suffix == ".json" else folder.read_settings()

    def plan(file: Path) -> None:
        write_shards(read_labels(photos / "own.csv"), file.parent, say=lambda _: None)
        for made in file.parent.glob("*.tar"):
            made.unlink()

    def names(file: Path) -> None:
        _folder_of_names(file.read_bytes(), file.with_name("named"))

    config = yaml.safe_dump(
        {"lr": 0.001, "method": "percentmatch", "options": {"momentum": 0.9}, "weak_view": {"ops": 2}}
    )
    forms = [b"multipart/form-data; boundary=x\n" + FORM, b'multipart/form-data; boundary="x"\n' + FORM]
    readers = [
        Reader("config YAML", [config.encode(), files["config.yaml"]], mutate_yaml, settings, world / "c.yaml"),
        Reader("benchmark YAML", [yaml.safe_dump(GRID).encode()], mutate_yaml, read_grid, world / "g.yaml"),
        Reader(
            "split file", [Split(("a",), ("c",), ("b",), ()).to_json().encode()], mutate_json, split, world / "s.json"
        ),
        Reader("upload form", forms, mutate_bytes, form, world / "form", refuses=(HTTPException,)),
    ]
    kinds = {"log.jsonl": mutate_lines, "metrics.json": mutate_json, "environment.json": mutate_json}
    kinds |= {"config.yaml": mutate_yaml, "split.json": mutate_json}
    start = world / "pretraining"
    start.mkdir()
    (photos / "own.csv").write_text("image,labels\na.png,cat\nb.png,dog\n")
    shards = world / "shards"
    write_shards(read_labels(photos / "own.csv"), shards, say=lambda _: None)
    for made in shards.glob("*.tar"):
        made.unlink()
    made = {"images": 10, "steps": 3, "loss": 0.5, "minutes": 0.1}
    settings_of = yaml.safe_dump(PretrainSettings(data="scenes").to_dict()).encode()
    readers += [
        Reader("pretrain.json", [text(made)], mutate_json, pretraining, start / "pretrain.json"),
        Reader("pretrain.yaml", [settings_of], mutate_yaml, pretraining, start / "pretrain.yaml"),
        Reader("plan of shards", [(shards / PLAN).read_bytes()], mutate_json, plan, shards / PLAN, 0.5),
        Reader("names of images", [b"a.png\0b.jpg\0c/d.png"], mutate_bytes, names, world / "names"),
    ]
    return readers + [
        Reader(f"report, {name}", [files[name]], kind, report, run / name, 0.3) for name, kind in kinds.items()
    ]


def _folder_of_names(content: bytes, folder: Path) -> None:
    """Read a folder of images with these names, as far as the system allows them."""
    here = os.fsencode(folder)
    try:
        for name in content.split(b"\0")[:50]:
            place = os.path.normpath(os.path.join(here, name.lstrip(b"/")))
            with suppress(OSError, ValueError):
                if place.startswith(here + b"/"):
                    os.makedirs(os.path.dirname(place), exist_ok=True)
                    Path(os.fsdecode(place)).touch()
        found = unlabeled_manifest(folder, CLASSES) if folder.exists() else None
        for name in found.ids if found else ():
            assert name in str(visible(name)) or visible(name).isprintable()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memory() -> float:
    """The most memory this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
