"""What is measured. Each part writes its figures as soon as it has them; the unit is in a figure's name."""

import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from percentmatch.data import Data, Images
from percentmatch.data.labels import Labels
from percentmatch.data.pixels.cache import cores, open_cache
from percentmatch.data.readers.folder import read_folder
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UserError, did_you_mean
from percentmatch.files import replacing_named
from percentmatch.labelers import PercentMatch
from percentmatch.losses import asymmetric_loss, mean_over_images
from percentmatch.methods import METHODS, build_method
from percentmatch.models import build_classifier
from percentmatch.models.heads import head_class
from percentmatch.records import Facts, Scores
from percentmatch.runs.run_folder import RunFolder, environment
from percentmatch.scoring.predictions import probabilities
from percentmatch.settings.config import Config
from percentmatch.training.loop import EAGER_STEPS, Replay, autocast, check_finite, save, train_step
from percentmatch.training.resolve import for_machine, look
from percentmatch.training.results import log_training
from percentmatch.training.run import Run, refresh
from speed.conventional import Conventional, Files, load
from speed.pictures import write_photographs
from speed.sheets import show
from speed.timing import Times, peak_bytes, ratio, rounds, wait

NUM_CLASSES = 20
VOC_TEST_IMAGES = 4952
LABELER_IMAGES, LABELER_CLASSES, LABELER_BINS = 36, (20, 80, 1000, 10_000), (100, 256)
NEVER_ENDING = 1_000_000  # steps: no round of a method ends while it is timed
Figures = dict[str, Any]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Settings:
    """What is timed. The defaults are the paper's on a GPU and the demo's on a CPU."""

    backbone: str
    head: str
    image_size: int
    labeled_batch: int
    steps: int  # a round
    num_images: int
    repeats: int  # rounds


DEFAULTS = {
    "cuda": Settings("resnet50", "ml-decoder", 224, 36, steps=50, num_images=5011, repeats=5),
    "cpu": Settings("test_resnet", "linear", 40, 36, steps=3, num_images=256, repeats=3),
}


class Bench:
    """The images and the machine that all parts share."""

    def __init__(self, settings: Settings, device: torch.device, folder: Path, images: Path | None = None) -> None:
        self.settings, self.device, self.folder = settings, device, folder
        self.cuda, self.warmup = device.type == "cuda", 8 if device.type == "cuda" else 1
        self.few = min(settings.repeats, 3)  # rounds of what takes long
        config = self.config("percentmatch")
        build_classifier(config.backbone, num_classes=NUM_CLASSES, head=config.head, image_size=config.image_size)
        number = settings.num_images
        self.paths = list(read_folder(images).paths[:number]) if images else write_photographs(folder, number)
        if len(self.paths) < 2:
            raise UserError(f"--images: '{images}' holds one image; give a folder with at least two")
        self.size = config.decode_size
        pixels = self.cached(folder / "cache")
        self.data = Data(self._images(pixels, "pool"), self._images(pixels[:1], "test"))

    def _images(self, pixels: Tensor, name: str) -> Images:
        """With made-up labels: about two classes an image."""
        draw = torch.rand(len(pixels), NUM_CLASSES, generator=torch.Generator().manual_seed(0))
        targets = (draw < 0.1).to(torch.uint8)
        ids = tuple(f"{name} {n}" for n in range(len(pixels)))
        return Images(pixels, Labels.of(targets), ids, tuple(f"class {n}" for n in range(NUM_CLASSES)))

    def cached(self, folder: Path) -> Tensor:
        return open_cache(self.paths, size=self.size, frame="squash", folder=folder).pixels

    def config(self, method: str, **changes: Any) -> Config:
        settings = self.settings
        return Config(
            data="custom",
            validation=0,
            method=method,
            backbone=settings.backbone,
            head=settings.head,
            dropout=0.1 if head_class(settings.head).takes_dropout else 0.0,  # as in the ML-Decoder; UPS needs some
            image_size=settings.image_size,
            labeled_batch=settings.labeled_batch,
            total_steps=NEVER_ENDING,
            log_every=min(50, settings.steps),
            **changes,
        )

    def run(self, method: str = "percentmatch", **changes: Any) -> Run:
        config = self.config(method, labeled=max(len(self.paths) // 10, 1), **changes)
        seen = look(config, {}, None, self.data, self.device, choose_rest=False)
        run = Run(for_machine(config, seen), RunFolder(Path(tempfile.mkdtemp(dir=self.folder))), self.data, self.device)
        run.folder.create(config, {}, run.split, self.device)
        return run

    def time(self, calls: dict[str, Call], *, steps: int = 0, warmup: int = 0, repeats: int = 0) -> Times:
        settings = self.settings
        return rounds(
            calls,
            self.device,
            warmup=warmup or self.warmup,
            steps=steps or settings.steps,
            repeats=repeats or settings.repeats,
        )

    def captured(self, call: Call) -> Call:
        """As a step is made in training: replayed on a GPU."""
        if not self.cuda:
            return call
        replay = Replay(self.device)

        def replayed() -> None:
            replay(call)
            if replay.calls > EAGER_STEPS and replay.graph is None:
                raise RuntimeError("the step cannot be captured as a CUDA graph")

        return replayed

    def rate(self, ms: float, run: Run) -> float:
        return 1e3 * run.images_per_step / ms

    def free(self) -> None:
        """Give back the memory of what is no longer needed."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)


def network_step(run: Run, images: Tensor, targets: Tensor) -> None:
    """Forward, loss, backward, optimizer, and nothing else."""
    run.optimizer.zero_grad(set_to_none=True)
    with autocast(run.config, run.device):
        loss = mean_over_images(asymmetric_loss(run.model(images), targets))
    loss.backward()
    run.optimizer.step()


def loop_step(run: Run) -> None:
    """A turn of the loop in `train`, without validation, checkpoints and the progress bar."""
    refresh(run, run.step)
    train_step(run, run.step)
    run.step += 1
    if run.step % run.config.log_every == 0:
        check_finite(run)
        log_training(run)


def fixed_batch(run: Run) -> tuple[Callable[[], Tensor], Tensor]:
    """A function that makes all views of one step anew, side by side, and their targets."""
    drawn = run.draw(0)
    sent = run.sender.send(drawn)

    def views() -> Tensor:
        batch = run.loader.make(drawn, sent)
        return torch.cat([view for view in (batch.images, batch.weak, batch.strong) if view is not None])

    targets = run.loader.make(drawn, sent).targets
    return views, targets.repeat(len(run.loader.views), 1)


def network(bench: Bench, figures: Figures) -> None:
    run, plain = bench.run(), bench.run(cuda_graph=False)  # a network of each, as training would have it
    views, targets = fixed_batch(run)
    images = views()
    calls: dict[str, Call] = {"eager": lambda: network_step(plain, images, targets)}
    if bench.cuda:
        calls["captured"] = bench.captured(lambda: network_step(run, images, targets))
    for name, times in bench.time(calls).items():
        ms = statistics.median(times)
        figures |= {f"{name}_ms": ms, f"{name}_images_per_s": bench.rate(ms, run)}
    figures["images_per_step"] = run.images_per_step


def loop(bench: Bench, figures: Figures) -> None:
    whole = bench.run()
    for _ in range(bench.warmup):
        loop_step(whole)
    wait(bench.device)
    figures["peak_memory_bytes"] = peak_bytes(bench.device)
    bare = bench.run()
    views, targets = fixed_batch(bare)
    images = views()
    times = bench.time(
        {"network": bench.captured(lambda: network_step(bare, images, targets)), "loop": lambda: loop_step(whole)}
    )
    network_ms, loop_ms = (statistics.median(times[name]) for name in ("network", "loop"))
    figures |= {"network_ms": network_ms, "loop_ms": loop_ms, "loop_images_per_s": bench.rate(loop_ms, whole)}
    figures["loop_over_network_ratio"] = ratio(times, "loop", "network")
    bench.free()
    times = bench.time(
        {
            "views": bench.captured(views),
            "network_and_views": bench.captured(lambda: network_step(bare, views(), targets)),
            "draw": lambda: whole.draw(whole.step),
        }
    )
    figures |= {f"{name}_ms": statistics.median(each) for name, each in times.items()}
    figures["views_over_loop_ratio"] = figures["views_ms"] / loop_ms
    saves = bench.time({"": lambda: save(whole)}, steps=1, warmup=1, repeats=bench.few)
    figures["checkpoint_ms"] = statistics.median(saves[""])


def labeler(bench: Bench, figures: Figures) -> None:
    figures |= {"images": LABELER_IMAGES, "rows": []}
    for num_classes in LABELER_CLASSES:
        for num_bins in LABELER_BINS:
            positives = torch.full((num_classes,), 5.0, dtype=torch.float64)
            facts = Facts(positives, torch.full_like(positives, 100), 100, 1000, NEVER_ENDING)
            percentmatch = PercentMatch(facts, num_bins=num_bins).to(bench.device)
            weak = torch.rand(LABELER_IMAGES, num_classes, device=bench.device)
            scores = Scores(weak, torch.zeros((), dtype=torch.int64, device=bench.device))
            calls: dict[str, Call] = {"ms": bench.captured(lambda each=percentmatch, scores=scores: each(scores))}
            if bench.cuda:
                calls["eager_ms"] = lambda each=percentmatch, scores=scores: each(scores)
            times = bench.time(calls, steps=10 * bench.settings.steps)
            row: Figures = {"classes": num_classes, "bins": num_bins}
            row |= {name: statistics.median(each) for name, each in times.items()}
            row["state_bytes"] = sum(value.nbytes for value in percentmatch.state_dict().values())
            figures["rows"].append(row)


def cache(bench: Bench, figures: Figures) -> None:
    """Read, decoded and written to the file that training maps; each time anew."""

    def build() -> None:
        with tempfile.TemporaryDirectory(dir=bench.folder, ignore_cleanup_errors=True) as folder:
            bench.cached(Path(folder))

    ms = statistics.median(bench.time({"": build}, steps=1, warmup=1, repeats=bench.few)[""])
    many = len(bench.paths)
    figures |= {"images": many, "size_pixels": bench.size, "images_per_s": 1e3 * many / ms}
    figures["file_bytes"] = statistics.mean(path.stat().st_size for path in bench.paths)


def evaluation(bench: Bench, figures: Figures) -> None:
    run, pixels = bench.run(), bench.data.pool.pixels
    call = lambda: probabilities(run.ema.model, pixels, run.card, bench.device)  # noqa: E731
    ms = statistics.median(bench.time({"": call}, steps=1, warmup=1, repeats=bench.few)[""])
    rate = 1e3 * len(pixels) / ms
    figures |= {"images": len(pixels), "images_per_s": rate, "seconds_for_4952_images": VOC_TEST_IMAGES / rate}


def conventional(bench: Bench, figures: Figures) -> None:
    """Both loops run FixMatch. Ours is timed before and after each number of workers, while none is busy."""
    ours = bench.run("fixmatch")
    config, device, rows = ours.config, bench.device, ours.loader
    theirs = Conventional(config, build_method("fixmatch", ours.facts), NUM_CLASSES, device)
    labeled, unlabeled = ([bench.paths[row] for row in each.tolist()] for each in (rows.labeled, rows.unlabeled))
    files = Files(config, theirs.model, labeled, bench.data.pool.labels.targets[rows.labeled].float(), unlabeled)
    first = theirs.send(default_collate([files[row % len(files)] for row in range(config.labeled_batch)]))
    times = bench.time({"loop": lambda: loop_step(ours), "fixed": lambda: theirs.step(first)})
    figures |= {"network_ms": statistics.median(times["fixed"]), "rows": []}
    for workers in sorted({min(number, cores()) for number in (1, 4, 8, cores())}):
        row: Figures = {"workers": workers}
        try:
            row["ms"] = statistics.median(loaded(bench, theirs, files, workers))
        except Exception as error:  # noqa: BLE001  such as too little shared memory for so many
            row["failed"] = reason(error)
        figures["rows"].append(row)
        gc.collect()
        times["loop"] += bench.time({"loop": lambda: loop_step(ours)}, repeats=bench.few)["loop"]
    loop_ms = statistics.median(times["loop"])
    figures |= {"loop_ms": loop_ms, "loop_images_per_s": bench.rate(loop_ms, ours)}
    for row in (each for each in figures["rows"] if "ms" in each):
        row |= {"images_per_s": bench.rate(row["ms"], ours), "over_loop_ratio": row["ms"] / loop_ms}


def loaded(bench: Bench, theirs: Conventional, files: Files, workers: int) -> list[float]:
    """ms a step of the conventional loop with so many workers, round by round."""
    batches = load(files, bench.settings.labeled_batch, workers, bench.device)
    return bench.time(
        {"": lambda: theirs.step(next(batches))},
        steps=workers * -(-8 // workers),  # whole rounds of the workers, which finish almost together
        warmup=max(bench.warmup, 3 * workers),  # what was made ahead while nobody took it is used up
        repeats=bench.few,
    )[""]


def methods(bench: Bench, figures: Figures) -> None:
    """PercentMatch and FixMatch in turns, then every method in turns with supervised; rounds are not relabeled."""
    figures |= {"pairs": [], "rows": []}
    for scores in ("student", "teacher"):
        pair = {name: steps_of(bench.run(name, options={"scores": scores})) for name in ("fixmatch", "percentmatch")}
        times = bench.time(pair)
        row: Figures = {"scores": scores, **{f"{name}_ms": statistics.median(times[name]) for name in pair}}
        row["percentmatch_over_fixmatch_ratio"] = ratio(times, "percentmatch", "fixmatch")
        figures["pairs"].append(row)
        del pair
        bench.free()
    supervised = steps_of(bench.run("supervised"))
    for name in METHODS:
        try:
            calls = {"supervised": supervised} | ({name: steps_of(bench.run(name))} if name != "supervised" else {})
            times = bench.time(calls, steps=-(-bench.settings.steps // 2), repeats=bench.few)
            relative = ratio(times, name, "supervised")
            row = {"method": name, "ms": statistics.median(times[name]), "over_supervised_ratio": relative}
        except Exception as error:  # noqa: BLE001  the other methods are worth having
            row = {"method": name, "failed": reason(error)}
        figures["rows"].append(row)
        calls = {}
        bench.free()


def steps_of(run: Run) -> Call:
    """A function that takes one step of a run after the other."""

    def step() -> None:
        train_step(run, run.step)
        run.step += 1

    return step


PARTS: dict[str, Callable[[Bench, Figures], None]] = {
    "network": network,
    "loop": loop,
    "labeler": labeler,
    "cache": cache,
    "evaluation": evaluation,
    "conventional": conventional,
    "methods": methods,
}


def run_speed(
    out: Path, *, parts: Sequence[str] = tuple(PARTS), images: Path | None = None, device: str = "auto", **given: Any
) -> dict[str, Any]:
    """Measure `parts`, print them, and write the figures to the JSON file `out` after each part.

    `images` is a folder of image files to use instead of made-up ones; `given` replaces some of `Settings`. A part that
    fails is written down with its reason.
    """
    for part in parts:
        if part not in PARTS:
            raise UserError(f"--parts: unknown part '{part}'{did_you_mean(part, PARTS)}")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file")
    if given.get("steps") is not None and given["steps"] < 1:
        raise UserError(f"--steps must be at least 1, not {given['steps']}")
    place, busy = pick_device(device, deterministic=False), load_average()
    settings = replace(DEFAULTS[place.type], **{name: value for name, value in given.items() if value is not None})
    with tempfile.TemporaryDirectory(prefix="percentmatch-speed-", ignore_cleanup_errors=True) as folder:
        bench = Bench(settings, place, Path(folder), images)
        if busy > cores() / 2:
            print(f"other programs keep this machine busy (load average {busy:.1f}): all is slower", file=sys.stderr)
        results = {
            **environment(place),
            "cpu_cores": cores(),
            "load_average_before": busy,
            "settings": {**asdict(settings), "num_images": len(bench.paths), "classes": NUM_CLASSES},
            "parts": {},
        }
        write(out, results)
        for part in (name for name in PARTS if name in parts):
            print(f"measuring {part}", file=sys.stderr, flush=True)
            figures = results["parts"][part] = {}
            try:
                PARTS[part](bench, figures)
            except Exception as error:  # noqa: BLE001  whatever fails, the other parts are worth having
                figures["failed"] = reason(error)
            bench.free()
            write(out, results)
            show(part, figures)
    return results


def load_average() -> float:
    """Processes that ran or waited to run in the last minute; 0 where the system does not say."""
    return 0.0 if sys.platform == "win32" else round(os.getloadavg()[0], 2)


def reason(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def write(out: Path, results: dict[str, Any]) -> None:
    with replacing_named(out) as file:
        file.write(json.dumps(results, indent=1, allow_nan=False) + "\n")
