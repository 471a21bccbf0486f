"""From what was given to what runs: one function that chooses the rest, and in whose answer nothing is "auto"."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from percentmatch.data import Data, Source, check_classes, count_split
from percentmatch.data.pixels.cache import cores
from percentmatch.data.pixels.decode import BadImage
from percentmatch.data.pixels.images import size_of
from percentmatch.methods import method_row, num_students, options_of, own_options
from percentmatch.models.classifier import can_fetch
from percentmatch.models.heads import head_class
from percentmatch.models.weights import OFFLINE_BACKBONE, OFFLINE_EXTRA, backbone_of, offline_file
from percentmatch.settings.config import NO_FILE, OF_THE_MACHINE, Config, DataSettings, PretrainSettings
from percentmatch.settings.declare import merge
from percentmatch.settings.presets import PRESETS

PRETRAINED_BACKBONE = {"cpu": OFFLINE_BACKBONE, "cuda": "resnet50"}
RANDOM_BACKBONE = {"cpu": "resnet18", "cuda": "resnet50"}
SAMPLED = 32  # images whose size is looked at
STEP = 32  # image sizes are multiples of this
LONG = 1000  # steps from which on a run gains by strong views and mixup
GENTLE = PRESETS["voc2007-best"]["weak_view"]  # shows the labeler nearly the whole image
MOVES = 0.1  # how far the weights of a file may go: steps x learning rate
ALONE, WITH_UNLABELED, PAPER = "supervised", "priormatch", "percentmatch"  # methods to choose from
OF_STEPS = {"total_steps", "labeled_batch", "head_start", "freeze_batch_norm", "optimizer", "lr", "mixup"}
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
    free_bytes: int = 0  # of a GPU's memory

    def __str__(self) -> str:
        return "a GPU" if self.device == "cuda" else f"{self.cores} CPU core{'s' * (self.cores > 1)}"


@dataclass(frozen=True)
class Seen:
    """What a look at the data and at the machine has found."""

    data: DataSettings  # where the data is, of what kind it is and how it is split
    machine: Machine
    kept_images: int = 0  # that are kept decoded, not streamed
    amount: Amount | None = None  # of the user's own data, for which settings are chosen; else defaults are taken
    file_backbone: str = ""  # that the file --weights names as its own


@dataclass(frozen=True)
class Resolved:
    """All settings of a run, what was given of them, and a line about each group of those that were chosen."""

    config: Config
    given: dict[str, Any]
    reasons: tuple[str, ...] = ()


class Choice(NamedTuple):
    """Settings, those that were given among them, and a line about each group of those that were chosen."""

    settings: dict[str, Any]
    reasons: tuple[str, ...] = ()


def resolve(given: Mapping[str, Any], seen: Seen) -> Resolved:
    """All settings from those given and from what was seen of data and machine. Pure: it looks at nothing else."""
    own = {"backbone": seen.file_backbone} if seen.file_backbone and "backbone" not in given else {}
    choice = choose({**own, **given}, seen.amount, seen.machine) if seen.amount else Choice({**own, **given})
    reasons = (*choice.reasons, f"backbone {own['backbone']}, as {given['weights']} says") if own else choice.reasons
    config = Config.from_dict({**choice.settings, **seen.data.to_dict()}, source="settings")
    return Resolved(for_machine(config, seen), dict(given), reasons)


def resolve_pretraining(given: Mapping[str, Any], seen: Seen) -> tuple[PretrainSettings, Config, tuple[str, ...]]:
    """The same for a pretraining: its settings, those that a loop reads, and the lines about what was chosen."""
    choice = choose_pretraining(given, seen.amount, seen.machine) if seen.amount else Choice(dict(given))
    settings = PretrainSettings.from_dict({**choice.settings, **seen.data.to_dict()}, source="settings")
    config = for_machine(settings.as_config(), seen)
    return replace(settings, device=config.device), config, choice.reasons


def for_machine(config: Config, seen: Seen) -> Config:
    """The settings with what suits the machine instead of "auto"."""
    on_gpu = seen.machine.device == "cuda"
    fits = not on_gpu or seen.kept_images * 3 * config.decode_size**2 < seen.machine.free_bytes / 2
    automatic = {
        "device": seen.machine.device,
        "precision": "bfloat16" if on_gpu else "float32",
        "images_on": "device" if fits else "host",
    }
    return replace(config, **{name: each for name, each in automatic.items() if getattr(config, name) == "auto"})


def choose(given: Mapping[str, Any], data: Amount, machine: Machine) -> Choice:
    """What was not given, by rules of thumb; what was given stays as it is."""
    on_gpu = machine.device == "cuda"
    options = given.get("options", {})
    weights = given.get("weights", machine.weights)
    pretrained, imagenet = weights != "none", weights in ("pretrained", "offline")
    backbones = {
        "none": RANDOM_BACKBONE[machine.device],
        "pretrained": PRETRAINED_BACKBONE[machine.device],
        "offline": OFFLINE_BACKBONE,
    }
    enough = data.unlabeled * 5 >= data.labeled  # unlabeled images, to use them
    method = given.get("method") or (method_with(options) if enough else ALONE)
    row = method_row(method)
    if on_gpu:
        side, usual_batch, passes, fewest, most = 224, 36, 60, 1000, 10_000
    elif pretrained:
        side, steps_a_core = (224, 50) if imagenet else (160, 100)  # larger images are worth more than more steps
        usual_batch, passes, fewest, most = 16, 15, 100, min(steps_a_core * machine.cores, 4000)
    else:
        side, usual_batch, passes, fewest, most = 64, 16, 40, 300, min(250 * machine.cores, 4000)
    if not row.method.trains:
        side = 224  # each image is read once
    batch = given.get("labeled_batch", min(usual_batch, max(data.labeled, 4)))
    students = num_students(method, options)
    total = given.get("total_steps", students * min(max(passes * data.labeled // batch, fewest), most))
    steps = -(-total // students)  # of one student
    optimizer = given.get("optimizer", "adamw")
    head = head_class(given.get("head", "linear"))
    short = steps < LONG
    view = {"ops": 1 if short else 3, "crop_scale": 0.5 if short else 0.3, "cutout_ratio": 0.0}
    from_teacher = row.teacher_scores and options.get("scores") != "student"
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
        "dropout": 0.2 if row.method.needs_dropout and head.takes_dropout else 0.0,
        "head_start": "probe" if (imagenet and head.takes_probe) or not row.method.trains else "prior",
        "freeze_batch_norm": imagenet,
        "optimizer": optimizer,
        "lr": _rate(steps, imagenet=imagenet) if pretrained else 1e-3,
        "weight_decay": 0.05 if optimizer == "adamw" else 1e-4,
        "mixup": 0.0 if short else 0.5,
        "labeled_view": view,
        "weak_view": GENTLE if from_teacher and not short else view,
        "strong_view": {"ops": 3 if short else 8, "crop_scale": view["crop_scale"]},
        "method": method,
    }
    if known := own_options(method, max(min(steps // 5, 300), 1), imagenet=imagenet):
        chosen["options"] = known
    settings = merge(chosen, given)
    return Choice(settings, _reasons(settings, given, data, machine, students))


def _rate(steps: int, *, imagenet: bool) -> float:
    """The learning rate from weights that have learnt."""
    return 1e-4 if imagenet else float(f"{min(max(MOVES / steps, 1e-4), 1e-3):.1e}")


def choose_pretraining(given: Mapping[str, Any], data: Amount, machine: Machine) -> Choice:
    """The same for a pretraining, which sees labeled and unlabeled images alike."""
    images, on_gpu = data.labeled + data.unlabeled, machine.device == "cuda"
    side, usual_batch, passes, fewest, most = 64, 64, 100, 100, 250 * machine.cores
    if on_gpu:
        side, usual_batch, passes, fewest, most = 128, 256, 20, 2800, 10_000
    power = min(usual_batch, max(images, 2)).bit_length() - 1  # so that most numbers of ranks divide the batch
    batch = given.get("batch", 2**power)
    total = given.get("total_steps", min(max(passes * images // batch, fewest), most))
    chosen = {
        "backbone": RANDOM_BACKBONE[machine.device],
        "image_size": min(side, max(-(-data.side // STEP) * STEP, STEP)),
        "batch": batch,
        "total_steps": total,
        "log_every": min(max(total // 20, 1), 50),
        "save_every": max(total // 5, 1),
    }
    settings = merge(chosen, given)
    size = f"{settings['image_size']} pixels, {total:,} steps of {batch} images: for {machine}"
    if given.keys() >= {"backbone", "image_size", "total_steps", "batch"}:
        return Choice(settings)
    return Choice(settings, (f"chosen for {images:,} images (flags change it):", f"  {settings['backbone']}, {size}"))


def method_with(options: Mapping[str, Any]) -> str:
    """The method that uses unlabeled images with these options: one that only the paper's rule has asks for that."""
    return WITH_UNLABELED if options.keys() <= options_of(WITH_UNLABELED).keys() else PAPER


def _reasons(
    settings: Mapping[str, Any], given: Mapping[str, Any], data: Amount, machine: Machine, students: int
) -> tuple[str, ...]:
    """A line about each group of settings, with those of them that were not given."""
    says = {name: f"{value:,}" if isinstance(value, int) else value for name, value in settings.items()}
    each = f" for {students} students in turn" if students > 1 else ""
    groups = (
        {"backbone": says["backbone"], "weights": WHERE.get(says["weights"], f"weights of {says['weights']}")},
        {
            "image_size": f"{says['image_size']} pixels",
            "total_steps": f"{says['total_steps']} steps{each}",
            "labeled_batch": f"{says['labeled_batch']} labeled images a step",
        },
        {"method": f"{says['method']}: there are {f'{data.unlabeled:,}' if data.unlabeled else 'no'} unlabeled images"},
        {
            "head": f"{says['head']} head",
            "head_start": "started as a linear probe" if says["head_start"] == "probe" else "",
            "freeze_batch_norm": "BatchNorm frozen" if says["freeze_batch_norm"] else "",
            "optimizer": says["optimizer"],
            "lr": f"learning rate {says['lr']:g}",
            "mixup": f"mixup {says['mixup']:g}",
        },
    )
    trains = method_row(settings["method"]).method.trains
    silent = given.keys() | (set() if trains else OF_STEPS)
    lines = [", ".join(words for name, words in group.items() if words and name not in silent) for group in groups]
    amount = f"{data.labeled:,} labeled images of {data.classes} classes, on {machine}"
    return (f"chosen for {amount} (flags change it):", *(f"  {line}" for line in lines if line)) if any(lines) else ()


def look(
    settings: Config | PretrainSettings,
    given: Mapping[str, Any],
    source: Source | None,
    data: Data | None,
    device: torch.device,
    *,
    choose_rest: bool,
) -> Seen:
    """What there is of data and machine. `data` was given in Python; else there is a `source`, not decoded yet."""
    where = DataSettings(**{each.name: getattr(settings, each.name) for each in fields(DataSettings)})
    complete = {each.name for each in fields(settings)} - OF_THE_MACHINE.keys() <= given.keys()  # a run's config.yaml
    manifest = source.manifest if source and data is None else None
    choose_rest = choose_rest and manifest is not None and not complete
    trains = isinstance(settings, Config)  # a pretraining begins at random weights
    weights = _best_weights(given, device.type) if choose_rest and trains else "none"
    machine = Machine("cpu", cores(), weights)
    if device.type == "cuda":
        machine = Machine("cuda", cores(), weights, torch.cuda.mem_get_info(device)[0])
    named = given.get("weights")
    file_backbone = "" if named in NO_FILE or "backbone" in given else backbone_of(Path(named)) or ""
    if source is None or manifest is None:
        kept = len(data.pool) if data else settings.scenes_pool
        return Seen(where, machine, kept, file_backbone=file_backbone)
    check_classes(source.settings, manifest)
    amount = None
    if choose_rest:
        labeled, unlabeled = count_split(source.settings, manifest)
        if source.shards:
            labeled, unlabeled = labeled * trains, len(source.shards)  # a pretraining sees the stream alone
        amount = Amount(labeled, unlabeled, len(manifest.class_names), _side(manifest.paths))
    kept = sum(subset != "test" for subset in manifest.parts)
    return Seen(where, machine, kept, amount, file_backbone)


def _best_weights(given: Mapping[str, Any], device: str) -> Literal["pretrained", "offline", "none"]:
    if "weights" in given:
        return "none"  # of no use
    if can_fetch(given.get("backbone", PRETRAINED_BACKBONE[device])):
        return "pretrained"
    return "offline" if offline_file(given.get("backbone", OFFLINE_BACKBONE)) else "none"


def _side(paths: Sequence[Path]) -> int:
    """The median longer side of some of the images; those that cannot be read are named when all are decoded."""
    sides = []
    for path in paths[:: max(len(paths) // SAMPLED, 1)]:
        with suppress(BadImage):
            sides.append(max(size_of(path)))
    return int(statistics.median(sides)) if sides else 224
