"""Do fresh pretrained weights learn more from several finished models than each of these did from itself?

    python benchmarks/second_round.py --root FOLDER --out runs/rounds --results FILE.json --photographs TEXT

FOLDER as for pretrained_suspects.py. The first round trains one recipe with several seeds on one split. Their
mean probability of each pool image, over two flips and two sizes, is what the second round learns.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from pretrained_suspects import PROBE, RECIPE, SEVEN, Seen, both_flips
from tables import write_json
from torch import Tensor

from percentmatch import Config, train
from percentmatch.data import load_data
from percentmatch.labelers import PriorMatch
from percentmatch.models import load_classifier
from percentmatch.records import PseudoLabels, Scores
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.predictions import evaluate, probabilities
from percentmatch.settings.declare import merge
from percentmatch.use.grid_results import summary

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def seen_by(folder: RunFolder, pixels: Tensor, sizes: tuple[float, ...] = (1, 8 / 7)) -> Tensor:
    """The mean probability of a finished model over flips and sizes: (n, c)."""
    model, card = load_classifier(folder.model, DEVICE)
    cards = [replace(card, image_size=round(card.image_size * size)) for size in sizes]
    return torch.stack([probabilities(Seen(both_flips, model), pixels, each, DEVICE) for each in cards]).mean(0)


def taught_by(table: Tensor, share: float, temperature: float) -> Any:
    """PriorMatch whose scores are those of a table (pool, c), by so large a share; the rest is its own teacher's."""
    usual, table = PriorMatch.forward, table.to(DEVICE)

    def forward(labeler: PriorMatch, scores: Scores) -> PseudoLabels:
        fixed = (table[scores.index].logit(1e-6) / temperature).sigmoid()
        return usual(labeler, replace(scores, weak=share * fixed + (1 - share) * scores.weak))

    return patch.object(PriorMatch, "forward", forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--photographs", required=True)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--labeled", type=int, default=500)
    parser.add_argument("--set", type=json.loads, default={})
    asked = parser.parse_args()
    runs: list[dict[str, Any]] = []
    shared = {
        "root": asked.root,
        "labeled": asked.labeled,
        "split_seed": 0,
        **PROBE,
        **SEVEN,
        **asked.set,
        "options": {"warmup_steps": 50},
    }
    recipe = merge(RECIPE, shared)

    def run(name: str, settings: dict[str, Any]) -> RunFolder:
        folder = RunFolder(asked.out / name)
        train(Config.from_dict(merge(recipe, settings)), folder.path, resume=folder.config.exists())
        runs.append(summary(folder, name))
        runs[-1]["settings"]["root"] = Path(asked.root).name
        write_json(asked.results, {"photographs": asked.photographs, "runs": runs, "together": together})
        print(f"{name}: {100 * runs[-1]['validation']['ema']['mAP']:.1f}", flush=True)
        return folder

    together: dict[str, Any] = {}
    first = [run(f"first round {seed}", {"seed": seed}) for seed in range(asked.models)]
    config = Config.from_dict(recipe)
    data, split = load_data(config), first[0].read_split()
    pool, validation = data.pool.part(split.unlabeled), data.pool.part(split.validation)
    found = torch.stack([seen_by(folder, validation.pixels) for folder in first])
    plain = torch.stack([seen_by(folder, validation.pixels, (1,)) for folder in first])
    for name, scores in {
        "one, flips and sizes": found[0],
        "one, flips": plain[0],
        "all, flips": plain.mean(0),
        "all, flips and sizes": found.mean(0),
    }.items():
        together[name] = evaluate(scores, validation, config.task).means
        print(f"{name}: {100 * together[name]['mAP']:.1f}", flush=True)
    one = seen_by(first[0], pool.pixels)
    table = torch.stack([seen_by(folder, pool.pixels) for folder in first]).mean(0)
    for name, (scores, share, temperature, settings) in {
        "second, of one": (one, 1.0, 1.0, {}),
        "second, of all": (table, 1.0, 1.0, {}),
        "second, of all, 0.7": (table, 1.0, 0.7, {}),
        "second, half of all": (table, 0.5, 1.0, {}),
        "second, of all, 2e-4": (table, 1.0, 1.0, {"lr": 2e-4}),
        "second, of all, long": (table, 1.0, 1.0, {"total_steps": 3000}),
    }.items():
        with taught_by(scores, share, temperature):
            run(name, {"seed": 100, **settings})


if __name__ == "__main__":
    main()
