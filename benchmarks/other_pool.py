"""Do unlabeled images that show none of the classes do harm? Animals of VOC2007, and photographs of COCO without any.

    python benchmarks/other_pool.py --voc VOCdevkit/VOC2007 --coco COCO --photographs TEXT   # needs offline-weights

220 images of VOC's train half have labels, the first 800 of its val half are scored, 1,000 of COCO's val2014 are the
pool. Trains what `train` chooses on this machine with three methods, the last one also without its look at the pool;
writes results/other_pool.json and the table in docs/experiments.md.
"""

import argparse
import csv
import json
import random
import shutil
import tempfile
from pathlib import Path

from tables import ROOT, fill, other_pool_table, write_json

from percentmatch import fit
from percentmatch.runs.run_folder import RunFolder
from percentmatch.use.grid_results import summary

ANIMALS = ("bird", "cat", "cow", "dog", "horse", "sheep")
LABELED, TRAIN, TESTED, POOL = 220, 1200, 800, 1000


def write_labels(voc: Path, file: Path) -> None:
    """A column for each animal; difficult ones count as absent."""
    lists, shows = voc / "ImageSets" / "Main", {}
    for part in ("train", "val"):
        for animal in ANIMALS:
            lines = (lists / f"{animal}_{part}.txt").read_text().splitlines()
            shows |= {(animal, name): int(mark == "1") for name, mark in map(str.split, lines)}
    train, tested = ((lists / f"{part}.txt").read_text().split() for part in ("train", "val"))
    train = train[:TRAIN]
    random.Random(0).shuffle(train)
    with open(file, "w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(["image", "part", *ANIMALS])
        for part, names in (("", train[:LABELED]), ("test", tested[:TESTED])):
            rows.writerows([f"{name}.avif", part, *(shows[animal, name] for animal in ANIMALS)] for name in names)


def copy_pool(coco: Path, folder: Path) -> None:
    known = json.loads((coco / "annotations" / "instances_val2014.json").read_text())
    ids = {each["id"] for each in known["categories"] if each["name"] in ANIMALS}
    shown = {each["image_id"] for each in known["annotations"] if each["category_id"] in ids}
    names = [each["file_name"] for each in known["images"] if each["id"] not in shown]
    folder.mkdir()
    for path in [path for name in names if (path := coco / "val2014" / name).exists()][:POOL]:
        shutil.copy(path, folder)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--voc", type=Path, required=True)
    arguments.add_argument("--coco", type=Path, required=True)
    arguments.add_argument("--photographs", required=True, help="which copies they are, for the table")
    given, runs = arguments.parse_args(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_labels(given.voc, folder / "labels.csv")
        copy_pool(given.coco, folder / "pool")
        for group, options in {
            "probe": {},
            "supervised": {},
            "priormatch": {},
            "priormatch, prevalence_ratio=1": {"prevalence_ratio": 1.0},
            "priormatch, prevalence_ratio=1, temperature=1": {"prevalence_ratio": 1.0, "temperature": 1.0},
        }.items():
            fit(
                labels=str(folder / "labels.csv"),
                images=str(given.voc / "JPEGImages"),
                only_named=True,
                unlabeled=str(folder / "pool"),
                weights="offline",
                method=group.partition(",")[0],
                options=options,
                out=folder / group,
            )
            runs.append(summary(RunFolder(folder / group), group))
    for run in runs:
        for place in ("labels", "images", "unlabeled"):  # of this machine
            run["settings"].pop(place)
    results = {"photographs": given.photographs, "runs": runs}
    write_json(ROOT / "results" / "other_pool.json", results)
    fill(ROOT / "docs" / "experiments.md", "other_pool", other_pool_table(results))


if __name__ == "__main__":
    main()
