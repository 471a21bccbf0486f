"""What the number of classes costs, piece by piece of a run: results/classes.json.

`uv run python benchmarks/classes.py` (some minutes, on Linux); then `benchmarks/tables.py`
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tables import ROOT, classes_table, write_json

from percentmatch.data import describe, load_data, read_manifest, split_data
from percentmatch.labelers import PercentMatch
from percentmatch.records import Scores
from percentmatch.report import write_report
from percentmatch.runs.run_folder import RunFolder, environment
from percentmatch.scoring.predictions import evaluate, probabilities
from percentmatch.settings.config import Config
from percentmatch.training.loop import save, train_step
from percentmatch.training.results import finish_run, log_training
from percentmatch.training.run import Run, labels_digest
from percentmatch.use.predict import predict

CLASSES = (20, 100, 1000, 10_000)
POOL, TEST, VALIDATION, LABELED, LABELS, SIDE, STEPS = 2000, 500, 200, 1000, 10, 32, 10
PREDICTED, REPEATS = 100, 3


class Watch:
    """The fastest of some calls of each piece of work, in seconds of the processor: others may use the machine, too."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, do: Callable[[], Any], repeats: int = 1) -> Any:
        times, answer = [], None
        for _ in range(repeats):
            began = time.process_time()
            answer = do()
            times.append(time.process_time() - began)
        self.seconds[name] = min(times)
        return answer


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def write_data(folder: Path, num_classes: int) -> Path:
    """Noise with LABELS labels an image, spread evenly over the classes: a labels.csv."""
    generator = torch.Generator().manual_seed(0)
    rows = ["image,labels,part"]
    for number in range(POOL + TEST):
        pixels = torch.randint(256, (SIDE, SIDE, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(folder / f"{number:05}.png")
        shown = sorted({(number * LABELS + place) % num_classes for place in range(LABELS)})
        labels = ";".join(f"class {each:05}" for each in shown)
        rows.append(f"{number:05}.png,{labels},{'test' if number >= POOL else ''}")
    file = folder / "labels.csv"
    file.write_text("\n".join(rows) + "\n")
    return file


def measure(num_classes: int, folder: Path) -> dict[str, object]:
    labels, out, watch = write_data(folder, num_classes), RunFolder(folder / "run"), Watch()
    config = Config(
        data="files",
        labels=str(labels),
        labeled=LABELED,
        validation=VALIDATION,
        image_size=SIDE,
        backbone="test_resnet",
        head="linear",
        total_steps=STEPS + 1,
        weights="none",
        options={"warmup_steps": 0, "gap_start": 0.0, "gap_full": 0.1},
    )
    load_data(config)  # decodes the images into the cache
    manifest = watch("read the labels", lambda: read_manifest(config), REPEATS)
    watch("count them", lambda: describe(manifest), REPEATS)
    data = load_data(config)
    split = watch("split", lambda: split_data(config, data), REPEATS)
    watch("hash the labels", lambda: labels_digest(data, split), REPEATS)
    before = peak_bytes()
    run = Run(config, out, data, torch.device("cpu"))
    out.create(config, {}, run.split, run.device)
    train_step(run, 0)
    steps = iter(range(1, STEPS + 1))
    watch("training step", lambda: train_step(run, next(steps)), STEPS)
    run.step = STEPS + 1
    labeler, weak = PercentMatch(run.facts), torch.rand(config.labeled_batch, num_classes)
    watch("labeler in it", lambda: labeler(Scores(weak, STEPS)), STEPS)
    watch("log row", lambda: log_training(run))
    watch("checkpoint", lambda: (save(run), out.checkpoints.wait()))
    scores = probabilities(run.ema.model, run.test.pixels, run.card, run.device)
    watch("metrics of the test images", lambda: evaluate(scores, run.test, "multi-label"), REPEATS)
    watch("end of the run", lambda: finish_run(run))
    trained = peak_bytes()
    images = [folder / f"{number:05}.png" for number in range(PREDICTED)]
    watch("predict", lambda: predict(out.path, images, folder / "predicted.csv"))
    watch("report", lambda: write_report([out.path], folder / "report.html"))
    files = {"last.pt": out.checkpoints.last, "model.safetensors": out.model, "metrics.json": out.metrics}
    files |= {"report": folder / "report.html", "predictions": folder / "predicted.csv", "log row": out.log.path}
    tables = vars(data.pool.labels).values()
    sparse = sum(each.nbytes for table in tables for each in (table.usual, table.starts, table.columns))
    sizes = {"labels of the pool": sparse, "the same dense": 3 * POOL * num_classes}
    return {
        "classes": num_classes,
        "seconds": watch.seconds,
        "bytes": sizes | {name: os.path.getsize(file) for name, file in files.items()},
        "peak_bytes": {"before training": before, "training": trained, "report": peak_bytes()},
    }


def main() -> None:
    if len(sys.argv) > 1:  # one number of classes, in a process of its own
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as place:
            os.environ["PERCENTMATCH_CACHE"] = f"{place}/cache"
            print(json.dumps(measure(int(sys.argv[1]), Path(place))))
        return
    load, rows = os.getloadavg()[0], []
    for number in CLASSES:
        done = subprocess.run([sys.executable, __file__, str(number)], stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    about: dict[str, float] = {
        "pool": POOL,
        "test": TEST,
        "validation": VALIDATION,
        "labeled": LABELED,
        "labels_an_image": LABELS,
    }
    about |= {"side": SIDE, "predicted": PREDICTED, "load_average_before": load}
    results = {**about, **environment(torch.device("cpu")), "rows": rows}
    write_json(ROOT / "results" / "classes.json", results)
    print(classes_table(results))


if __name__ == "__main__":
    main()
