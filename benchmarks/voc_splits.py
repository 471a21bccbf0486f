"""Write the labeled images of our VOC2007 splits as lists of ids: `uv run python benchmarks/voc_splits.py VOCdevkit`.

The other training images are unlabeled. `percentmatch data split --preset voc2007-paper --labeled N --split-seed S`
draws the same, with the digest that is also in every result.
"""

import sys
from pathlib import Path

from percentmatch.data import make_split, read_manifest
from percentmatch.settings.config import Config
from percentmatch.settings.presets import PRESETS

FOLDER = Path(__file__).parents[1] / "results/voc2007/splits"


def main(root: str) -> None:
    settings = Config.from_dict({**PRESETS["voc2007-paper"], "root": root})
    manifest = read_manifest(settings)
    places = list(zip(manifest.ids, manifest.parts, strict=True))
    pool, test = ([name for name, part in places if (part == "test") == tested] for tested in (False, True))
    FOLDER.mkdir(exist_ok=True)
    for labeled in (500, 1000):
        for seed in range(5):
            split = make_split(pool, test, labeled=labeled, seed=seed)
            about = f"# {labeled} labeled images of VOC2007 trainval, seed {seed}, digest {split.digest}"
            (FOLDER / f"{labeled}-seed{seed}.txt").write_text("\n".join([about, *split.labeled]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
