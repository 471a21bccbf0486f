"""What does a streamed pool cost in memory and in time? results/stream.json.

    uv run python benchmarks/stream.py      # about 10 minutes on 2 cores

20,000 made-up JPEG files of 64 pixels are written into shards. Memory: a small network trains on the stream for three
passes, with a buffer of less than a fiftieth of the pool; resident memory of the process is read fifty times a pass.
Time: the same training from the stream and from images decoded before, in turns of some steps each; once with a network
so quick that decoding takes a tenth of its time, and once with a slower one, as real ones are. Also: images that
the stream alone gives in a second, and how long it takes to find them in their shards.
"""

import argparse
import io
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tables import ROOT, fill, stream_table, write_json

from percentmatch.data import Data, Images, Stream, load_images, open_shards, unlabeled_manifest, write_shards
from percentmatch.data.labels import Labels
from percentmatch.runs.run_folder import RunFolder, environment
from percentmatch.settings.config import Config
from percentmatch.training.loop import train_step
from percentmatch.training.run import Run

CLASSES = tuple("abcd")
LABELED = 200
CPU = torch.device("cpu")


def make_files(folder: Path, number: int) -> None:
    """Smooth noise: about 2 kB each."""
    generator = np.random.default_rng(0)
    for each in range(number):
        place = folder / f"{each // 1000:03d}"
        place.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((64, 64), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        (place / f"{each:06d}.jpg").write_bytes(file.getvalue())


def build(config: Config, pixels: torch.Tensor, stream: Stream | None) -> Run:
    """A run whose first images are labeled; the others, or those of the stream, are not."""
    targets = torch.randint(0, 2, (len(pixels), 4), generator=torch.Generator().manual_seed(0)).byte()
    known = torch.ones_like(targets)
    known[LABELED:] = 0
    pool = Images(pixels, Labels.of(targets, known), tuple(map(str, range(len(pixels)))), CLASSES)
    return Run(config, RunFolder(Path(tempfile.mkdtemp())), Data(pool, pool.part(()), stream=stream), CPU)


def settings(backbone: str, image_size: int, labeled_batch: int) -> Config:
    """Six times as many unlabeled as labeled images a step, two views of the former."""
    return Config(
        data="custom",
        backbone=backbone,
        image_size=image_size,
        head="linear",
        labeled_batch=labeled_batch,
        unlabeled_ratio=6,
        validation=0,
        total_steps=100_000,
        device="cpu",
    )


def measure_memory(config: Config, stream: Stream) -> dict[str, Any]:
    """Resident megabytes over three passes of training."""
    run = build(config, stream.rows(0, LABELED), stream)
    u = config.labeled_batch * config.unlabeled_ratio
    steps, found = -(-len(stream) // u), []
    for step in range(3 * steps):
        train_step(run, step)
        if step % max(steps // 50, 1) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            found.append({"pass": round(step / steps, 3), "MB": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)})
    stream.close()
    largest = [max(row["MB"] for row in found if int(row["pass"]) == number) for number in range(3)]
    return {
        "images": len(stream),
        "buffer": stream.buffer,
        "pool_over_buffer": round(len(stream) / stream.buffer, 1),
        "largest_MB_of_each_pass": largest,
        "resident": found,
    }


def measure_speed(config: Config, cached: Run, streamed: Run, steps: int, rounds: int) -> dict[str, Any]:
    """Unlabeled images a second of each, in turns; the first turn does not count."""
    seconds: dict[str, list[float]] = {"cached": [], "streamed": []}
    work = {"cached": 0.0, "streamed": 0.0}
    for turn in range(rounds + 1):
        for name, run in (("cached", cached), ("streamed", streamed)):
            began, worked = time.perf_counter(), time.process_time()
            for step in range(turn * steps, (turn + 1) * steps):
                train_step(run, step)
            if turn:
                seconds[name].append((time.perf_counter() - began) / steps)
                work[name] += (time.process_time() - worked) / steps / rounds
    u = config.labeled_batch * config.unlabeled_ratio
    ratios = [one / other for one, other in zip(seconds["cached"], seconds["streamed"], strict=True)]
    return {
        "backbone": config.backbone,
        "image_size": config.image_size,
        "unlabeled_images_a_step": u,
        "steps_a_turn": steps,
        "turns": rounds,
        **{f"{name}_images_per_s": round(u / statistics.median(values), 1) for name, values in seconds.items()},
        **{f"{name}_processor_ms_per_step": round(1000 * value, 1) for name, value in work.items()},
        "streamed_over_cached": {
            "median_of_turns": round(statistics.median(ratios), 3),
            "of_each_turn": [round(ratio, 3) for ratio in ratios],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "stream.json")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--buffer", type=int, default=380)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the other core is for the stream
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        make_files(home / "files", given.images)
        manifest = unlabeled_manifest(home / "files", CLASSES)
        began = time.perf_counter()
        write_shards(manifest, home / "shards", shard_mb=4)
        written = time.perf_counter() - began
        began = time.perf_counter()
        shards = open_shards(str(home / "shards"), cache=home / "cache")
        results: dict[str, Any] = {
            **environment(CPU),
            "load_average_before": round(os.getloadavg()[0], 2),
            "shards": len(shards.paths),
            "write_shards_images_per_s": round(given.images / written),
            "find_images_in_shards_per_s": round(given.images / (time.perf_counter() - began)),
        }
        quick = settings("test_resnet", 40, 12)

        def stream(config: Config) -> Stream:
            return Stream(shards, size=config.decode_size, buffer=given.buffer)

        alone, began = stream(quick), time.perf_counter()
        for start in range(0, given.images // 2, 72):
            alone.rows(start, 72, ahead=[start + 72 * later for later in range(1, 9)])
        results["stream_alone_images_per_s"] = round(given.images / 2 / (time.perf_counter() - began))
        alone.close()
        results["memory"] = measure_memory(quick, stream(quick))
        results["speed"] = []
        for config, steps in ((quick, 20), (settings("resnet18", 48, 4), 10)):
            pixels = load_images(manifest, size=config.decode_size, folder=home / "cache").pixels
            cached = build(replace(config, labeled=LABELED), pixels, None)
            streamed = build(replace(config, labeled=LABELED), pixels[:LABELED].clone(), stream(config))
            results["speed"].append(measure_speed(config, cached, streamed, steps, given.rounds))
    write_json(given.out, results)
    if given.out == ROOT / "results" / "stream.json":
        fill(ROOT / "docs" / "shards.md", "stream", stream_table(results))


if __name__ == "__main__":
    main()
