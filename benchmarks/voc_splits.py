"""Write the labeled images of our VOC splits as lists of ids: `uv run python benchmarks/voc_splits.py VOCdevkit`.

Of the years that the folder holds. The other training images are unlabeled. `percentmatch data split --preset
voc2007-paper --labeled N --split-seed S` draws the same, with the digest that is also in every result; for VOC2012 it
is `--preset voc2012-field`, whose seed 1 is the split of CAP, D2L and DiCaP.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from percentmatch.data import read_manifest
from percentmatch.data.split import split_manifest
from percentmatch.settings.config import Config
from percentmatch.settings.presets import PRESETS

RESULTS = Path(__file__).parents[1] / "results"
SPLITS = {  # seed and fraction or number of labeled images
    "voc2007-paper": [(seed, labeled) for labeled in (500, 1000) for seed in range(5)],
    "voc2012-field": [*((seed, labeled) for seed in (1, 2, 3) for labeled in (0.05, 0.1)), (1, 0.15), (1, 0.2)],
}


def lists(preset: str, root: str) -> Iterator[tuple[str, str]]:
    """The name and the content of each file."""
    settings = {**PRESETS[preset], "root": root}
    manifest = read_manifest(Config.from_dict(settings))
    for seed, labeled in SPLITS[preset]:
        split = split_manifest(Config.from_dict({**settings, "split_seed": seed, "labeled": labeled}), manifest)
        half = "train" if split.validation else "trainval"
        about = f"# {len(split.labeled)} labeled images of VOC{settings['year']} {half}, seed {seed}"
        yield f"{len(split.labeled)}-seed{seed}.txt", "\n".join([f"{about}, digest {split.digest}", *split.labeled, ""])


if __name__ == "__main__":
    for preset in SPLITS:
        year = preset.partition("-")[0]
        if (Path(sys.argv[1]) / year.upper()).is_dir():
            folder = RESULTS / year / "splits"
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in lists(preset, sys.argv[1]):
                (folder / name).write_text(content)
