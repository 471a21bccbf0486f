"""What changes a recipe's score: one change at a time, on validation images. Shared by the scripts."""

import argparse
import contextlib
import fnmatch
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tables import write_json

from percentmatch import Config, train
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.declare import merge
from percentmatch.use.grid_results import summary

Patch = Callable[[Config], contextlib.AbstractContextManager]


def nothing(config: Config) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


@dataclass(frozen=True)
class Suspect:
    """Settings that differ from the recipe, and functions of the program that are replaced for the length of a run."""

    settings: dict[str, Any] = field(default_factory=dict)
    patched: Patch = nothing


def search(
    about: str | None,
    recipe: Mapping[str, Any],
    suspects: Mapping[str, Suspect],
    *,
    labeled: int = 500,
    after: Callable[[RunFolder, Config], dict[str, Any]] | None = None,
) -> None:
    """Train each suspect and keep its scores in a results file; what is there already is not run again.

    `after` measures more of a finished run, which goes into its results.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--photographs", required=True, help="which copy they are, for the tables")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no run is begun that would end later")
    parser.add_argument("--only", nargs="+", default=["*"], help="names, or patterns of names")
    parser.add_argument("--labeled", type=int, nargs="+", default=[labeled])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", type=json.loads, default={}, help="settings of all runs, as JSON")
    asked = parser.parse_args()
    began, longest = time.monotonic(), 0.0
    done = json.loads(asked.results.read_text())["runs"] if asked.results.exists() else []
    chosen = [name for name in suspects if any(fnmatch.fnmatchcase(name, pattern) for pattern in asked.only)]
    for seed in asked.seeds:
        for count in asked.labeled:
            for name in chosen:
                group, started = f"{name}-labeled={count}", time.monotonic()
                if any((run["group"], run["seed"]) == (group, seed) for run in done):
                    continue
                if started - began + longest > 60 * asked.minutes:
                    return
                shared = {"root": asked.root, "labeled": count, "seed": seed, "split_seed": seed}
                settings = merge(merge(recipe, {**shared, **asked.set}), suspects[name].settings)
                config = Config.from_dict(settings)
                folder = RunFolder(asked.out / f"{group}-seed{seed}")
                with suspects[name].patched(config):
                    train(config, folder.path, resume=folder.config.exists())
                    found = summary(folder, group) | (after(folder, config) if after else {})
                found["settings"]["root"] = Path(asked.root).name
                done.append(found)
                write_json(asked.results, {"photographs": asked.photographs, "runs": done})
                score = found["validation"]
                print(f"{group}: {100 * score['ema']['mAP']:.1f}, raw {100 * score['model']['mAP']:.1f}", flush=True)
                longest = max(longest, time.monotonic() - started)
