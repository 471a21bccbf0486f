"""Made-up photographs as anybody has them, and the time of the quick start on this machine.

    python benchmarks/quickstart.py                  # writes quickstart.zip: photos, more, labels.csv
    python benchmarks/quickstart.py --time           # also runs the three commands of docs/quickstart.md

With --time, writes results/quickstart.json and the figures in docs/quickstart.md. The pictures are scenes
(docs/demo.md).
"""

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from PIL import Image

from percentmatch.data.scenes import draw_scenes

LABELED, UNLABELED, TEST, SIZE = 120, 400, 150, 64


def write_zip(file: Path) -> None:
    """LABELED images with labels and TEST for the test in `photos`, named in labels.csv; UNLABELED others in `more`."""
    scenes = draw_scenes(LABELED + TEST + UNLABELED, size=SIZE)
    rows = ["image,labels,part"]
    with zipfile.ZipFile(file, "w") as archive:
        for n, (pixels, targets) in enumerate(zip(scenes.pixels, scenes.labels.targets.dense().tolist(), strict=True)):
            named = n < LABELED + TEST
            picture = io.BytesIO()
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(picture, "JPEG", quality=92)
            archive.writestr(f"{'photos' if named else 'more'}/{n:04}.jpg", picture.getvalue())
            if named:
                shown = ";".join(name for name, yes in zip(scenes.class_names, targets, strict=True) if yes)
                rows.append(f"{n:04}.jpg,{shown},{'' if n < LABELED else 'test'}")
        archive.writestr("labels.csv", "\n".join([*rows, ""]))


def commands() -> list[str]:
    """Those of the page."""
    page = (Path(__file__).parents[1] / "docs" / "quickstart.md").read_text()
    block = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[0]
    return [line.partition("  #")[0].strip() for line in block.strip().splitlines()]


def measure(folder: Path) -> dict[str, Any]:
    """Seconds of each command, and the scores of the run."""
    from percentmatch.files import read_json
    from percentmatch.runs.run_folder import RunFolder

    write_zip(folder / "quickstart.zip")
    seconds = {}
    for line in commands():
        words = shlex.split(line)
        call = [sys.executable, "-m", "percentmatch", *words[1:]] if words[0] == "percentmatch" else words
        began = time.monotonic()
        subprocess.run(call, cwd=folder, check=True)
        seconds[line] = round(time.monotonic() - began, 1)
    run = RunFolder(folder / "runs" / "first")
    settings = run.read_config().to_dict()
    return {
        "seconds": seconds,
        "test": {name: read_json(run.metrics)["test"]["ema"][name] for name in ("mAP", "AUC")},
        "settings": {name: settings[name] for name in ("backbone", "weights", "image_size", "total_steps", "method")},
        "environment": read_json(run.environment),
    }


def figures(results: dict[str, Any]) -> str:
    """One sentence for the page."""
    had, score, where = results["settings"], results["test"], results["environment"]
    return (
        f"{LABELED} labeled, {UNLABELED} unlabeled and {TEST} test pictures of {SIZE} pixels: "
        f"{sum(results['seconds'].values()) / 60:.1f} minutes for the three commands together; {had['backbone']} "
        f"(weights: {had['weights']}), {had['total_steps']} steps; test mAP {100 * score['mAP']:.1f}, AUC "
        f"{100 * score['AUC']:.1f}; {where['device']}, torch {where['torch']}.\n"
    )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--time", action="store_true")
    if not arguments.parse_args().time:
        write_zip(Path("quickstart.zip"))
        return
    from tables import ROOT, fill, write_json

    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder))
    write_json(ROOT / "results" / "quickstart.json", results)
    fill(ROOT / "docs" / "quickstart.md", "quickstart", figures(json.loads(json.dumps(results))))


if __name__ == "__main__":
    main()
