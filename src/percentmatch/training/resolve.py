"""Settings for data that somebody brings, where nothing was said: sensible for its amount and for the machine."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from percentmatch.data import check_classes, detected, read_manifest, split_manifest, unlabeled_shards
from percentmatch.data.pixels.cache import cores
from percentmatch.data.pixels.decode import BadImage, size_of
from percentmatch.distributed.device import pick_device
from percentmatch.methods import checked_options, method_row, num_students, options_of
from percentmatch.models.classifier import can_fetch
from percentmatch.models.weights import OFFLINE_BACKBONE, OFFLINE_EXTRA, offline_file
from percentmatch.settings.config import Config, merge
from percentmatch.settings.presets import PRESETS

PRETRAINED_BACKBONE = {"cpu": OFFLINE_BACKBONE, "cuda": "resnet50"}
RANDOM_BACKBONE = {"cpu": "resnet18", "cuda": "resnet50"}
SAMPLED = 32  # images whose size is looked at
STEP = 32  # image sizes are multiples of this
LONG = 1000  # steps from which on a run gains by strong views and mixup
GENTLE = PRESETS["voc2007-best"]["weak_view"]  # shows the labeler nearly the whole image
MOVES = 0.1  # how far pretrained weights may go: steps x learning rate
ALONE, WITH_UNLABELED, PAPER = "supervised", "priormatch", "percentmatch"  # methods to choose from
WHERE = {
    "pretrained": "ImageNet weights from the Hub",
    "offline": "ImageNet weights from the installed package, without the Hub",
    "none": f"random weights, as none can be had here; better ones: {OFFLINE_EXTRA}, or a connection to the Hub",
}


@dataclass(frozen=True)
class Amount:
    """How much data there is."""

    labeled: int
    unlabeled: int
    classes: int
    side: int  # pixels of the longer side of a typical image


@dataclass(frozen=True)
class Machine:
    """What it is trained on."""

    device: Literal["cpu", "cuda"]
    cores: int
    weights: Literal["pretrained", "offline", "none"]  # the best that can be had


@dataclass(frozen=True)
class Choice:
    """Settings, those that were given among them, and a line about each group of those that were chosen."""

    settings: dict[str, Any]
    reasons: tuple[str, ...]


def choose(given: Mapping[str, Any], data: Amount, machine: Machine) -> Choice:
    """What was not given, by rules of thumb; what was given stays as it is."""
    on_gpu = machine.device == "cuda"
    weights = given.get("weights", machine.weights)
    pretrained = weights != "none"
    backbones = {
        "none": RANDOM_BACKBONE[machine.device],
        "pretrained": PRETRAINED_BACKBONE[machine.device],
        "offline": OFFLINE_BACKBONE,
    }
    if on_gpu:
        side, usual_batch, passes, fewest, most = 224, 36, 60, 1000, 10_000
    elif pretrained:
        side, usual_batch, passes, fewest, most = 160, 16, 15, 100, min(100 * machine.cores, 4000)
    else:
        side, usual_batch, passes, fewest, most = 64, 16, 40, 300, min(250 * machine.cores, 4000)
    batch = given.get("labeled_batch", min(usual_batch, max(data.labeled, 4)))
    method = given.get("method") or _method(given.get("options", {}), data)
    row = method_row(method)
    students = num_students(method, given.get("options", {}))
    total = given.get("total_steps", students * min(max(passes * data.labeled // batch, fewest), most))
    steps = -(-total // students)  # of one student
    optimizer = given.get("optimizer", "adamw")
    short = steps < LONG
    view = {"ops": 1 if short else 3, "crop_scale": 0.5 if short else 0.3, "cutout_ratio": 0.0}
    taught = row.teacher_scores and given.get("options", {}).get("scores") != "student"
    chosen: dict[str, Any] = {
        "weights": weights,
        "backbone": backbones.get(weights, Config.backbone),  # a file: as `pretrain` and the presets have it
        "image_size": min(side, max(-(-data.side // STEP) * STEP, STEP)),
        "labeled_batch": batch,
        "total_steps": total,
        "log_every": min(max(total // 20, 1), 50),
        "eval_every": max(total // 5, 1),
        "save_every": max(total // 5, 1),
        "ema_decay": min(max(round(1 - 10 / steps, 4), 0.9), 0.999),
        "head": "linear",
        "dropout": 0.2 if row.method.needs_dropout and given.get("head") != "ml-decoder" else 0.0,
        "prior_bias": True,
        "optimizer": optimizer,
        "lr": float(f"{min(max(MOVES / steps, 1e-4), 1e-3):.1e}") if pretrained else 1e-3,
        "weight_decay": 0.05 if optimizer == "adamw" else 1e-4,
        "mixup": 0.0 if short else 0.5,
        "labeled_view": view,
        "weak_view": GENTLE if taught and not short else view,
        "strong_view": {"ops": 3 if short else 8, "crop_scale": view["crop_scale"]},
        "method": method,
    }
    usual = {**row.own_data, "warmup_steps": max(min(steps // 5, 300), 1)}
    if options := {name: value for name, value in usual.items() if name in options_of(method)}:
        chosen["options"] = options
    settings = merge(chosen, given)
    return Choice(settings, _reasons(settings, given, data, machine))


def _method(options: Mapping[str, Any], data: Amount) -> str:
    """Unlabeled images are used where there are enough; an option that only the paper's rule has asks for that."""
    if data.unlabeled * 5 < data.labeled:
        return ALONE
    return WITH_UNLABELED if options.keys() <= options_of(WITH_UNLABELED).keys() else PAPER


def _reasons(settings: Mapping[str, Any], given: Mapping[str, Any], data: Amount, machine: Machine) -> tuple[str, ...]:
    says = {name: f"{value:,}" if isinstance(value, int) else value for name, value in settings.items()}
    students = num_students(settings["method"], settings.get("options", {}))
    where = "a GPU" if machine.device == "cuda" else f"{machine.cores} CPU cores"
    others = f"{data.unlabeled:,} unlabeled images" if data.unlabeled else "no unlabeled images"
    groups: dict[tuple[str, ...], str] = {
        ("backbone", "weights"): f"{says['backbone']}: {WHERE.get(says['weights'], 'weights of ' + says['weights'])}",
        ("image_size", "total_steps", "labeled_batch"): (
            f"{says['image_size']} pixels, {says['total_steps']} steps of {says['labeled_batch']} labeled images"
            f"{f', for {students} students in turn' if students > 1 else ''}: for {where}"
        ),
        ("method",): f"{says['method']}: there are {others}",
        ("head", "optimizer", "lr", "mixup"): (
            f"{says['head']} head, {says['optimizer']}, learning rate {says['lr']:g}, mixup {says['mixup']:g}"
        ),
    }
    lines = [line for names, line in groups.items() if not all(name in given for name in names)]
    if not lines:
        return ()
    amount = f"{data.labeled:,} labeled images of {data.classes} classes"
    return (f"chosen for {amount} (flags change it):", *(f"  {line}" for line in lines))


def choose_for(settings: Config, given: Mapping[str, Any]) -> Choice | None:
    """The choice for the data that settings name, after a look at it and at the machine; none for made-up scenes."""
    checked_options(settings.method, settings.options)
    settings = detected(settings)
    if settings.data not in ("files", "voc", "coco", "shards"):
        return None
    device = pick_device(settings.device, deterministic=settings.deterministic)
    manifest = read_manifest(settings, say=_silent)
    check_classes(settings, manifest)
    split = split_manifest(settings, manifest, say=_silent)
    shards = unlabeled_shards(settings)
    unlabeled = len(split.unlabeled) if shards is None else len(shards)
    amount = Amount(len(split.labeled), unlabeled, len(manifest.class_names), _side(manifest.paths))
    kind: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
    return choose(given, amount, Machine(kind, cores(), _best_weights(given, kind)))


def _best_weights(given: Mapping[str, Any], device: str) -> Literal["pretrained", "offline", "none"]:
    if "weights" in given:
        return "none"  # of no use
    backbone = given.get("backbone", PRETRAINED_BACKBONE[device])
    if can_fetch(backbone):
        return "pretrained"
    return "offline" if given.get("backbone", OFFLINE_BACKBONE) == OFFLINE_BACKBONE and offline_file() else "none"


def _side(paths: Sequence[Path]) -> int:
    """The median longer side of some of the images; those that cannot be read are told of when all are decoded."""
    sides = []
    for path in paths[:: max(len(paths) // SAMPLED, 1)]:
        with suppress(BadImage):
            sides.append(max(size_of(path)))
    return int(statistics.median(sides)) if sides else 224


def _silent(sentence: str) -> None:
    """The same sentence is said when the run begins."""
