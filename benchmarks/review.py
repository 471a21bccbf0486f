"""Does `percentmatch review` find wrong labels? And which threshold is safe with few validation images?

    python benchmarks/review.py --root VOCdevkit --photographs "which copy they are"   # needs offline-weights

Features of VOC2007's 5,011 trainval photographs by tf_efficientnet_lite0, as ImageNet left it. For the review, 5% of
the positive labels are removed and as many false ones added, drawn at random; what was wrong in the data before counts
as a false alarm. For thresholds, a probe of 500 labels is calibrated and cut on 16 to 1,000 other images, and scored on
3,011 more. Writes results/voc2007/review.json and thresholds.json, and the tables in the docs.
"""

import argparse
import statistics
from dataclasses import replace
from typing import Any

import torch
from backbones import frozen
from tables import ROOT, fill, review_table, thresholds_table, write_json
from torch import Tensor

from percentmatch.data import load_data
from percentmatch.models import Card
from percentmatch.runs.run_folder import environment
from percentmatch.scoring.calibration import best_thresholds, between, decide, decisions_of
from percentmatch.scoring.decisions import score_decisions
from percentmatch.settings.config import Config
from percentmatch.training.probe import fit_probe, remembered_features
from percentmatch.use.review import doubts

SEEDS = (0, 1, 2)  # the rule was chosen with seed 10
SHARE = 0.05
LENGTHS = (100, 250, 500, 1000)
SETTINGS: dict[str, Any] = {
    "data": "voc",
    "year": 2007,
    "backbone": "tf_efficientnet_lite0",
    "weights": "offline",
    "image_size": 224,
    "device": "cpu",
}
LABELED, REST, DRAWS = 500, 2000, 5
HELD_OUT = (16, 30, 50, 100, 200, 500, 1000)


def features(root: str) -> tuple[Tensor, Tensor, Tensor, Card]:
    """Features, targets and known of the trainval photographs, and the card of their model."""
    config, cpu = Config.from_dict({**SETTINGS, "root": root}), torch.device("cpu")
    pool = load_data(config).pool
    model, card = frozen(config, pool.class_names)
    return remembered_features(model, pool, card, cpu), *pool.scoring_labels(count_difficult=False), card


def spoiled(targets: Tensor, known: Tensor, seed: int) -> Tensor:
    """The targets without some of their positives, and with as many false ones."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [((targets == value) & (known > 0)).nonzero() for value in (1, 0)]
    number, changed = round(SHARE * len(pairs[0])), targets.clone()
    for each in pairs:
        row, column = each[torch.randperm(len(each), generator=generator)[:number]].T
        changed[row, column] = 1 - targets[row, column]
    return changed


def review_run(x: Tensor, targets: Tensor, known: Tensor, seed: int) -> dict[str, Any]:
    given = spoiled(targets, known, seed)
    wrong = given != targets
    _, doubt = doubts(x, given, known, seed=seed)
    order = doubt.flatten().sort(descending=True).indices[: max(LENGTHS)]
    hits, removed = wrong.flatten()[order], (targets > given).flatten()[order]
    return {
        "seed": seed,
        "errors": int(wrong.sum()),
        "labels": int(known.sum()),
        "found": {str(n): int(hits[:n].sum()) for n in LENGTHS},
        "found_removed": {str(n): int(removed[:n].sum()) for n in LENGTHS},
    }


def threshold_runs(x: Tensor, targets: Tensor, known: Tensor, card: Card, seed: int) -> list[dict[str, Any]]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    first, rest = order[:LABELED], order[REST:]
    probe = fit_probe(x[first], targets[first], known[first], seed=seed)
    logits, rows = x.double() @ probe.weight.T + probe.bias, []
    for number in HELD_OUT:
        for draw in range(DRAWS):
            drawn = torch.randperm(REST - LABELED, generator=torch.Generator().manual_seed(draw))[:number]
            mine = order[LABELED:REST][drawn]
            labels = targets[mine].double(), known[mine].double()
            found = decide(logits[mine], *labels, task=card.task, class_names=card.class_names)
            if found is None:
                continue
            decisions = found[0]
            affine = torch.tensor([decisions.scale, decisions.shift], dtype=torch.float64)
            z = logits[mine] * affine[0] + affine[1]
            half = torch.full((z.shape[1],), 0.5)
            own = between(*best_thresholds(z, *labels)[:2])
            rules = {"used": torch.tensor(decisions.thresholds, dtype=torch.float64), "half": half}
            rules["own"] = torch.where((labels[0] * labels[1]).sum(0) > 0, own, 0.5)
            rules["expected"] = between(*best_thresholds(z, z.sigmoid(), labels[1])[:2])
            for name, each in rules.items():
                changed = replace(card, decisions=replace(decisions, thresholds=tuple(each.tolist())))
                scores = score_decisions(
                    decisions_of(logits[rest], changed), targets[rest], known[rest], card.class_names
                )
                values = {"macro": scores.macro.values["F1"], "micro": scores.micro.values["F1"]}
                rows.append({"seed": seed, "draw": draw, "images": number, "rule": name, **values})
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--root", required=True)
    arguments.add_argument("--photographs", required=True, help="which copy they are, for the tables")
    arguments.add_argument("--only", choices=("review", "thresholds"))
    given = arguments.parse_args()
    torch.set_num_threads(1)
    x, targets, known, card = features(given.root)
    facts = {"photographs": given.photographs, "seeds": SEEDS, "backbone": card.backbone, "images": len(x)}
    facts |= environment(torch.device("cpu"))
    if given.only != "review":
        cuts = [row for seed in SEEDS for row in threshold_runs(x, targets, known, card, seed)]
        means = [
            {"rule": rule, "images": n, **{key: _spread(cuts, rule, n, key) for key in ("macro", "micro")}}
            for rule in ("used", "expected", "own", "half")
            for n in HELD_OUT
        ]
        results = {**facts, "labeled": LABELED, "scored": len(x) - REST, "draws": DRAWS, "means": means}
        write_json(ROOT / "results/voc2007/thresholds.json", results)
        fill(ROOT / "docs/predict-and-export.md", "thresholds", thresholds_table(results))
    if given.only != "thresholds":
        found = {**facts, "share": SHARE, "runs": [review_run(x, targets, known, seed) for seed in SEEDS]}
        write_json(ROOT / "results/voc2007/review.json", found)
        fill(ROOT / "docs/review.md", "review", review_table(found))


def _spread(rows: list[dict[str, Any]], rule: str, images: int, key: str) -> list[float]:
    """Mean and standard deviation over the draws of all seeds."""
    values = [row[key] for row in rows if (row["rule"], row["images"]) == (rule, images)]
    return [round(each, 4) for each in (statistics.mean(values), statistics.stdev(values))]


if __name__ == "__main__":
    main()
