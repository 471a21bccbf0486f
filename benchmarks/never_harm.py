"""Is the model that `train` hands over for own data never worse than fine-tuning on the labels alone?

    python benchmarks/never_harm.py --voc2007 VOCdevkit/VOC2007 --voc2012 VOCdevkit/VOC2012 --coco COCO \
        --out runs/harm --results results/never_harm.json --photographs TEXT   # needs offline-weights

Three data sets with 50, 160 and 500 labels and 1,000 unlabeled images of the same kind, and three tasks whose pool
shows none of the classes. Three splits each; the classes are those that the labels show; 800 images of the validation
parts are scored. The settings are those that `train` chooses on two CPU cores, on whatever device is there. The same
command goes on after an interruption.
"""

import argparse
import csv
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tables import write_json

from percentmatch.runs.run_folder import RunFolder
from percentmatch.training.resolve import Amount, Machine, choose
from percentmatch.training.start import train_given
from percentmatch.use.grid_results import summary

POOL, TESTED = 1000, 800
METHODS = ("supervised", "priormatch", "probe")
ANIMALS = ("bird", "cat", "cow", "dog", "horse", "sheep")
VEHICLES = ("aeroplane", "bicycle", "boat", "bus", "car", "motorbike", "train")
AS_COCO = {"aeroplane": "airplane", "motorbike": "motorcycle"}
Shown = dict[Path, frozenset[str]]  # the classes of each image


@dataclass(frozen=True)
class Task:
    data: str
    labels: int
    classes: tuple[str, ...] = ()  # all, or these alone
    other_pool: bool = False  # photographs of COCO that show none of the classes

    def __str__(self) -> str:
        return f"{self.data}, {self.labels} labels{', a pool without the classes' * self.other_pool}"


TASKS = [Task(data, labels) for data in ("VOC2007", "VOC2012", "COCO") for labels in (50, 160, 500)]
TASKS += [
    Task("VOC2007", 160, ANIMALS, True),
    Task("VOC2007", 500, ANIMALS, True),
    Task("VOC2012", 160, VEHICLES, True),
]


def voc(root: Path, part: str) -> Shown:
    """The images of a part; difficult objects count as absent."""
    lists = root / "ImageSets" / "Main"
    shows: dict[str, set[str]] = {name: set() for name in (lists / f"{part}.txt").read_text().split()}
    for file in lists.glob(f"*_{part}.txt"):
        for name, mark in map(str.split, file.read_text().splitlines()):
            if mark == "1":
                shows[name].add(file.stem.removesuffix(f"_{part}"))
    return {root / "JPEGImages" / f"{name}.avif": frozenset(classes) for name, classes in shows.items()}


def coco(root: Path, part: str) -> Shown:
    known = json.loads((root / "annotations" / f"instances_{part}.json").read_text())
    names = {each["id"]: each["name"] for each in known["categories"]}
    shows: dict[int, set[str]] = {each["id"]: set() for each in known["images"]}
    for each in known["annotations"]:
        shows[each["image_id"]].add(names[each["category_id"]])
    found = {root / part / each["file_name"]: frozenset(shows[each["id"]]) for each in known["images"]}
    return {path: classes for path, classes in found.items() if path.exists()}


def write_task(task: Task, parts: Mapping[str, tuple[Shown, Shown]], seed: int, folder: Path) -> dict[str, str]:
    """The labels and the list of unlabeled images of one split, as settings."""
    train, tested = parts[task.data]
    draw = random.Random(seed)
    learnt = draw.sample(sorted(train), len(train))
    shown_by_labels = set().union(*(train[path] for path in learnt[: task.labels]))
    names = sorted(shown_by_labels.intersection(task.classes or shown_by_labels))
    pool = learnt[task.labels : task.labels + POOL]
    if task.other_pool:
        without = {AS_COCO.get(name, name) for name in names}
        others = parts["COCO"][0]
        pool = draw.sample(sorted(path for path, shown in others.items() if not shown & without), POOL)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "labels.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "part", *names])
        for part, shown, paths in (
            ("", train, learnt[: task.labels]),
            ("test", tested, random.Random(0).sample(sorted(tested), TESTED)),
        ):
            rows.writerows([str(path), part, *(int(name in shown[path]) for name in names)] for path in paths)
    (folder / "pool.txt").write_text("".join(f"{path}\n" for path in pool))
    images = str(next(iter(train)).parent)
    return {"labels": str(folder / "labels.csv"), "images": images, "unlabeled": str(folder / "pool.txt")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("voc2007", "voc2012", "coco", "out", "results"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--photographs", required=True, help="which copies they are, for the table")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=1e9, help="no run is begun after so many minutes")
    parser.add_argument("--set", type=json.loads, default={}, help="settings of all runs, as JSON")
    asked, began = parser.parse_args(), time.monotonic()
    parts = {
        "VOC2007": (voc(asked.voc2007, "train"), voc(asked.voc2007, "val")),
        "VOC2012": (voc(asked.voc2012, "train"), voc(asked.voc2012, "val")),
        "COCO": (coco(asked.coco, "train2014"), coco(asked.coco, "val2014")),
    }
    runs = json.loads(asked.results.read_text())["runs"] if asked.results.exists() else []
    for seed in asked.seeds:
        for task in TASKS:
            for method in METHODS:
                group = f"{task}: {method}"
                if any((run["group"], run["seed"]) == (group, seed) for run in runs):
                    continue
                if time.monotonic() - began > 60 * asked.minutes:
                    return
                own = write_task(task, parts, seed, asked.out / f"{task}-{seed}")
                classes = len(task.classes) or (80 if task.data == "COCO" else 20)
                amount = Amount(task.labels, POOL, classes, 224)
                chosen = choose({"method": method, "weights": "offline"}, amount, Machine("cpu", 2, "offline")).settings
                given = {
                    **chosen,
                    **own,
                    "only_named": True,
                    "seed": seed,
                    "split_seed": seed,
                    "eval_every": 0,
                    **asked.set,
                }
                folder = RunFolder(asked.out / f"{task}-{seed}" / method)
                train_given(given, folder.path, resume=folder.config.exists(), choose_rest=not folder.config.exists())
                found = summary(folder, group)
                del found["training"]
                found["settings"] = {name: value for name, value in found["settings"].items() if name not in own}
                runs.append(found)
                write_json(asked.results, {"photographs": asked.photographs, "runs": runs})
                print(f"{group}, seed {seed}: {100 * found['test']['ema']['mAP']:.1f}", flush=True)


if __name__ == "__main__":
    main()
