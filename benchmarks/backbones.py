"""Which of the installed backbones is worth its time on a CPU?

    python benchmarks/backbones.py --root VOCdevkit --photographs "which copy they are"   # needs offline-weights

Each is frozen, and a linear probe of its features learns from 500 or 1,000 labels of VOC2007; the times of reading an
image and of a training step are the smallest of some turns, in which the backbones alternate. Writes
results/voc2007/backbones.json and the table in docs/backbones.md.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from tables import ROOT, backbones_table, fill, write_json
from torch import nn

from percentmatch.data import Data, load_data, split_data
from percentmatch.losses import binary_cross_entropy, mean_over_images
from percentmatch.models import Card, Classifier, build_classifier, freeze_batch_norm
from percentmatch.models.weights import OFFLINE_BACKBONES
from percentmatch.runs.run_folder import environment
from percentmatch.scoring.table import score
from percentmatch.settings.config import Config
from percentmatch.training.probe import fit_probe, remembered_features

CPU, SEEDS, LABELED, SIZE = torch.device("cpu"), (0, 1, 2), (500, 1000), 224
TURNS, READ, TRAINED = 5, 32, 16  # images at a time
SETTINGS: dict[str, Any] = {"data": "voc", "year": 2007, "validation": 0, "image_size": SIZE, "device": "cpu"}


def frozen(config: Config, class_names: tuple[str, ...]) -> tuple[Classifier, Card]:
    """The model with the installed weights, and its card."""
    options: dict[str, Any] = {"head": "linear", "dropout": 0.0, "image_size": config.image_size}
    model = build_classifier(config.backbone, num_classes=len(class_names), weights="offline", **options).eval()
    shape: dict[str, Any] = {"decode_size": config.decode_size, "frame": config.frame, "task": config.task}
    names: dict[str, Any] = {"class_names": class_names, "mean": model.mean, "std": model.std, "version": ""}
    return model, Card(config.backbone, **options, **shape, **names)


def probes(model: Classifier, card: Card, data: Data, config: Config) -> list[dict[str, Any]]:
    """The test mAP of a probe for each number of labels and seed, on the splits of voc2007_probe.yaml."""
    features = {row: x for images in (data.pool, data.test) for row, x in _rows(model, card, images)}
    test = torch.stack([features[name] for name in data.test.ids]).double()
    targets, known = data.test.scoring_labels(count_difficult=False)
    rows = []
    for labeled in LABELED:
        for seed in SEEDS:
            drawn = Config.from_dict({**config.to_dict(), "labeled": labeled, "split_seed": seed})
            split = split_data(drawn, data)
            mine = data.pool.part(split.labeled).labels
            x = torch.stack([features[name] for name in split.labeled])
            probe = fit_probe(x, mine.targets.dense(), mine.known.dense())
            scores = (test @ probe.weight.T + probe.bias).sigmoid()
            found = score(scores, targets, known, card.class_names).means["mAP"]
            rows.append({"labeled": labeled, "seed": seed, "split": split.digest, "mAP": found})
    return rows


def _rows(model: Classifier, card: Card, images: Any) -> Any:
    return zip(images.ids, remembered_features(model, images, card, CPU), strict=True)


def seconds(models: dict[str, Classifier], work: Callable[[Classifier], object]) -> dict[str, float]:
    """The quickest of some turns for each."""
    found = {name: float("inf") for name in models}
    for _ in range(TURNS):
        for name, model in models.items():
            began = time.perf_counter()
            work(model)
            found[name] = min(found[name], time.perf_counter() - began)
    return found


def read(model: Classifier) -> None:
    with torch.inference_mode():
        model.eval()(torch.zeros(READ, 3, SIZE, SIZE))


def train(model: nn.Module) -> None:
    freeze_batch_norm(model.train())
    logits = model(torch.zeros(TRAINED, 3, SIZE, SIZE))
    mean_over_images(binary_cross_entropy(logits, torch.zeros_like(logits))).backward()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--root", required=True)
    arguments.add_argument("--photographs", required=True, help="which copy they are, for the table")
    given = arguments.parse_args()
    config = Config.from_dict({**SETTINGS, "backbone": OFFLINE_BACKBONES[0], "root": given.root})
    data, models, rows = load_data(config), {}, []
    for name in OFFLINE_BACKBONES:
        mine = Config.from_dict({**config.to_dict(), "backbone": name})
        models[name], card = frozen(mine, data.pool.class_names)
        rows.append({"backbone": name, "probes": probes(models[name], card, data, mine)})
        print(rows[-1], flush=True)
    reads, trains = seconds(models, read), seconds(models, train)
    for row in rows:
        name = row["backbone"]
        millions = sum(each.numel() for each in models[name].backbone.parameters()) / 1e6
        row |= {"millions": millions, "reads": READ / reads[name], "trains": TRAINED / trains[name]}
    about = {"photographs": given.photographs, "seeds": SEEDS, "image_size": SIZE, **environment(CPU)}
    results = {**about, "backbones": rows}
    write_json(ROOT / "results/voc2007/backbones.json", results)
    fill(ROOT / "docs/backbones.md", "backbones", backbones_table(results))


if __name__ == "__main__":
    main()
