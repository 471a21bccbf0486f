"""Every setting of a run and of a pretraining, declared once: typed, checked on construction, the same everywhere.

Defaults are the paper's where it gives a value, but for the frame (docs/design.md). This module imports no torch, so
that `--help` is quick.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, Self

from percentmatch.settings.declare import CHOSEN, GIVEN, Setting, build, check, declared, has_sections, merge, require
from percentmatch.settings.renamed import renamed
from percentmatch.settings.views import OWN_STRONG_VIEW, OWN_VIEW, OWN_WEAK_VIEW, PretrainView, StrongView, View

DATA, MODEL, VIEWS, TRAINING, RUN = (
    partial(Setting, group=name) for name in ("Data", "Model", "Views", "Training", "Run")
)
MANY = 1_000_000_000
MOST_PIXELS = 4096  # a side
FILES = ("files", "voc", "coco", "shards")  # kinds of data that are read from files
IMAGE_SIZE = "on a CPU from random weights 64, a file's 160; at most that of the images"
NO_FILE = (None, "none", "pretrained", "offline")  # weights


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which images, which labels, and how they are divided."""

    data: Annotated[Literal["auto", "files", "voc", "coco", "shards", "scenes", "custom"], DATA()] = "auto"
    """Your own files (--labels), Pascal VOC, MS-COCO or tar shards (--root), or scenes drawn by the program; auto: what
    is named. custom marks data given in Python."""
    root: Annotated[str, DATA(kinds=("voc", "coco", "shards"), path="data")] = ""
    """The folder of VOC (or VOCdevkit) or of COCO (with annotations, train2014, val2014), or of tar shards that hold
    labels."""
    year: Annotated[int, DATA(kinds=("voc", "coco"), low=0, high=9999)] = 0
    """Of VOC or COCO, where the folder holds several years; 0 takes the only one."""
    labels: Annotated[str, DATA(kinds=("files",), path="data")] = ""
    """Of your own files: a CSV file (image and labels, or image and a column a class), metadata.csv or metadata.jsonl,
    COCO instances, or an export of Label Studio or FiftyOne; a folder with one of these; also a VOC or COCO folder, one
    with a folder for each class, or one with Parquet files."""
    images: Annotated[str, DATA(kinds=("files",), path="data")] = ""
    """The folder that the paths in --labels are relative to; empty is the folder of that file."""
    unlabeled: Annotated[str, DATA(kinds=FILES, path="more")] = ""
    """More images, without labels: a folder, or a text file with one path a line; or tar shards, which are streamed: a
    folder with .tar files, one such file, or a pattern such as pool/{000..099}.tar."""
    only_named: Annotated[bool, DATA(kinds=("files",))] = False
    """Leave out the images in --images that --labels does not name. Else they count as unlabeled, but for those in
    folders called test, validation or the like."""
    shuffle_buffer: Annotated[int, DATA(low=1, high=100_000_000)] = 10_000
    """Images of streamed shards are shuffled within blocks of this many; the shards come in a random order."""
    classes: Annotated[str, DATA(kinds=FILES)] = ""
    """The classes to learn, separated by commas; empty takes all. In a column of labels, any other is an error."""
    drop_empty: Annotated[bool, DATA(kinds=("coco",))] = False
    """Leave out COCO images without annotations."""
    skip_bad_images: Annotated[bool, DATA(resumable=True)] = False
    """List images that are missing or cannot be read, and continue without them."""
    verify_cache: Annotated[bool, DATA(resumable=True)] = False
    """Check the cache of decoded images against the content of the files, not only their size and time."""
    scenes_pool: Annotated[int, DATA(low=1, high=1_000_000)] = 4000
    """Scenes drawn for training: labeled, unlabeled and validation."""
    scenes_test: Annotated[int, DATA(low=1, high=1_000_000)] = 1000
    """Scenes drawn for the final test."""
    task: Annotated[Literal["multi-label", "single-label"], DATA()] = "multi-label"
    """Several labels per image, or exactly one."""
    labeled: Annotated[float, DATA(low=0, high=MANY, draws=True)] = 0
    """Images whose labels are used: a fraction of those with labels if below 1, else their number; 0 takes all."""
    validation: Annotated[float, DATA(low=0, high=MANY, draws=True)] = 0.1
    """Images with labels kept for validation: a fraction if below 1, else their number."""
    official_validation: Annotated[bool, DATA(kinds=("voc", "custom"), draws=True)] = False
    """Validate on VOC's own val part instead. Rows of --labels whose part says validation are always used so."""
    split_kind: Annotated[Literal["auto", "random", "every-class", "field"], DATA(draws=True)] = "auto"
    """random: as in the paper; every-class: each class is labeled and validated where possible (auto, for your own
    files); field: the split of CAP, D2L and DiCaP (theirs: --split-seed 1)."""
    split_seed: Annotated[int, DATA(low=0, high=2**62, draws=True)] = 0
    """Seed of the split into labeled, unlabeled and validation images."""
    split_file: Annotated[str, DATA(path="more")] = ""
    """Take the subsets from the split.json of another run or of `percentmatch data split`; nothing is drawn then."""

    def __post_init__(self) -> None:
        check(self)
        for name in ("labeled", "validation"):
            value = getattr(self, name)
            require(value < 1 or value == int(value), name, value, "must be a fraction below 1 or a whole number")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> Self:
        """Settings from plain values, as read from YAML; unknown names and wrong types are refused."""
        return build(cls, renamed(values) if isinstance(values, Mapping) else values, source)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class SharedSettings(DataSettings):
    """What a run and the pretraining that it begins from have in common."""

    backbone: Annotated[str, MODEL(own="for weights and machine")] = "resnet50"
    """Any timm model, or resnet50_v1, the original ResNet50 with the stride in the first convolution of a block."""
    frame: Annotated[Literal["squash", "center"], VIEWS()] = "squash"
    """Squeeze the whole image into a square, or keep its central square."""
    seed: Annotated[int, RUN(low=0, high=2**62)] = 0
    """Seed of everything but the split."""
    device: Annotated[str, RUN(resumable=True, machine=True)] = "auto"
    """auto, cpu, cuda or cuda:N."""
    deterministic: Annotated[bool, RUN()] = False
    """On a GPU, use only operations that repeat exactly."""
    log_every: Annotated[int, RUN(low=1, high=MANY, own="total_steps / 20, at most 50")] = 50
    """Steps between log rows."""
    save_every: Annotated[int, RUN(low=1, high=MANY, own="total_steps / 5")] = 500
    """Steps between checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Config(SharedSettings):
    """The settings of one run."""

    head: Annotated[str, MODEL(own="linear")] = "ml-decoder"
    """ml-decoder (class queries over the feature map), linear (one layer over its mean), or another of `HEADS`."""
    weights: Annotated[str, MODEL(own="the best that can be had")] = "none"
    """Start from "none" (random), "pretrained" (timm's), "offline" (tf_efficientnet_lite0 to lite2) or a file."""
    head_start: Annotated[Literal["random", "prior", "probe"], MODEL(own="prior, from ImageNet weights probe")] = (
        "random"
    )
    """Start a new head at random, at the classes' frequencies among the labels, or as a linear probe: the classifier
    that fits the labels best while the backbone stays as it is."""
    freeze_batch_norm: Annotated[bool, MODEL(own="from ImageNet weights yes")] = False
    """Keep BatchNorm's running statistics as in the start weights; do not use batch statistics."""
    dropout: Annotated[float, MODEL(low=0, high=1, own="0.2 with --method ups")] = 0.0
    """Before the linear head."""
    image_size: Annotated[int, MODEL(low=1, high=MOST_PIXELS, own=IMAGE_SIZE)] = 224
    """Side of the square the model sees, in pixels."""
    images_on: Annotated[Literal["auto", "device", "host"], RUN(resumable=True, machine=True)] = "auto"
    """Keep all decoded images on the GPU, on the host, or on the GPU where they leave half of its free memory."""
    cache_size: Annotated[int, MODEL(low=0, high=MOST_PIXELS)] = 0
    """Side of the squares that image files are kept at; 0: what the smallest crop needs, at most 8/7 of image_size."""

    method: Annotated[str, TRAINING(own="priormatch, with few unlabeled images supervised")] = "percentmatch"
    """How unlabeled images are used; `percentmatch methods` lists them."""
    options: Annotated[dict[str, Any], TRAINING()] = field(default_factory=dict)
    """Options of the method, by name."""
    total_steps: Annotated[int, TRAINING(low=1, high=MANY, own="for labels and machine")] = 7000
    """Optimizer steps."""
    labeled_batch: Annotated[int, TRAINING(low=1, high=65_536, own="16 on a CPU, 36 on a GPU")] = 36
    """Labeled images a step (B)."""
    unlabeled_ratio: Annotated[int, TRAINING(low=1, high=65_536)] = 1
    """Unlabeled images a step, as a multiple of the labeled ones (mu)."""
    accumulate: Annotated[int, TRAINING(low=1, high=65_536)] = 1
    """Split each step's batch into this many forward passes to save memory; BatchNorm sees each of them."""
    optimizer: Annotated[Literal["adam", "adamw"], TRAINING(own="adamw")] = "adam"
    """Weight decay inside the gradient (adam) or apart from it (adamw)."""
    lr: Annotated[float, TRAINING(above=0, high=1000, own="from ImageNet weights 1e-4, random 1e-3")] = 3e-4
    """Largest learning rate of the one-cycle schedule."""
    backbone_lr_ratio: Annotated[float, TRAINING(above=0, high=1000)] = 1.0
    """The backbone's learning rate, as a multiple of the head's."""
    lr_warmup_ratio: Annotated[float, TRAINING(low=0, high=1)] = 0.2
    """Fraction of the steps in which the learning rate rises."""
    weight_decay: Annotated[float, TRAINING(low=0, high=1000, own="0.05 with adamw")] = 1e-4
    """On weights of two or more dimensions; biases and norms are left alone."""
    clip_grad: Annotated[float, TRAINING(low=0, high=MANY)] = 0.0
    """Largest gradient norm; 0 does not clip."""
    ema_decay: Annotated[float, TRAINING(low=0, high=1, own="1 - 10 / total_steps, 0.9 to 0.999")] = 0.999
    """Decay of the EMA of the weights, which is evaluated and saved; at most (1 + step) / (10 + step)."""
    precision: Annotated[Literal["auto", "float32", "bfloat16", "float64"], TRAINING(machine=True)] = "auto"
    """Of the network's arithmetic; auto is bfloat16 on a GPU and float32 on a CPU."""

    mixup: Annotated[float, VIEWS(low=0, high=100, own="from 1,000 steps 0.5")] = 0.0
    """Blend labeled images and their labels in pairs, by fractions from Beta(mixup, mixup); 0 turns it off."""
    cutmix: Annotated[float, VIEWS(low=0, high=100)] = 0.0
    """Paste a box of one labeled image into another, area from Beta(cutmix, cutmix); with mixup, each half the time."""
    labeled_view: Annotated[View, VIEWS(own_view=OWN_VIEW)] = field(default_factory=View)
    """The view of labeled images."""
    weak_view: Annotated[View, VIEWS(own_view=OWN_WEAK_VIEW)] = field(default_factory=View)
    """The view pseudo-labels come from."""
    strong_view: Annotated[StrongView, VIEWS(own_view=OWN_STRONG_VIEW)] = field(default_factory=StrongView)
    """The view pseudo-labels teach."""

    eval_every: Annotated[int, RUN(low=0, high=MANY, own="total_steps / 5")] = 500
    """Steps between validations; 0 validates at the end only."""
    cuda_graph: Annotated[bool, RUN(resumable=True)] = True
    """On a GPU, capture the step once and replay it."""
    compile: Annotated[bool, RUN(resumable=True)] = False
    """Compile the network by torch.compile: about a minute at the start, for long runs of networks that gain by it."""

    @property
    def decode_size(self) -> int:
        """`cache_size`, or what it stands for."""
        if self.cache_size:
            return self.cache_size
        smallest_crop = min(view.crop_scale for view in (self.labeled_view, self.weak_view, self.strong_view))
        return min(math.ceil(self.image_size / math.sqrt(smallest_crop)), math.ceil(self.image_size * 8 / 7))

    def __post_init__(self) -> None:
        super().__post_init__()
        divides = self.labeled_batch % self.accumulate == 0
        require(divides, "accumulate", self.accumulate, f"must divide labeled_batch ({self.labeled_batch})")
        learnt = self.weights != "none" or not self.freeze_batch_norm
        require(learnt, "weights", self.weights, "must be learnt ones with freeze_batch_norm")


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(SharedSettings):
    """The settings of a self-supervised pretraining."""

    image_size: Annotated[int, MODEL(low=1, high=MOST_PIXELS, own="64 on a CPU; at most that of the images")] = 128
    """Side of the square views, in pixels; it may be smaller than that of the training that follows."""
    cache_size: Annotated[int, MODEL(low=0, high=MOST_PIXELS)] = 0
    """Side of the squares that image files are kept at; 0: twice image_size."""

    total_steps: Annotated[int, TRAINING(low=1, high=MANY, own="for images and machine")] = 2800
    """Optimizer steps."""
    batch: Annotated[int, TRAINING(low=2, high=65_536, own="64 on a CPU; at most the images")] = 256
    """Images a step, two views of each."""
    temperature: Annotated[float, TRAINING(low=0.001, high=100)] = 0.2
    """Of the loss: the lower, the more the most similar of the other images count."""
    lr: Annotated[float, TRAINING(above=0, high=1000)] = 1e-3
    """Largest learning rate of the one-cycle schedule."""
    lr_warmup_ratio: Annotated[float, TRAINING(low=0, high=1)] = 0.1
    """Fraction of the steps in which the learning rate rises."""
    weight_decay: Annotated[float, TRAINING(low=0, high=1000)] = 0.05
    """On weights of two or more dimensions (AdamW); biases and norms are left alone."""

    view: Annotated[PretrainView, VIEWS()] = field(default_factory=PretrainView)
    """How each of the two views is made."""

    def as_config(self) -> Config:
        """A run's settings with the same images and optimizer, for what reads those."""
        ours, theirs = ({each.name for each in dataclasses.fields(cls)} for cls in (PretrainSettings, Config))
        shared = {name: getattr(self, name) for name in ours & theirs}
        side = self.cache_size or min(2 * self.image_size, MOST_PIXELS)
        return dataclasses.replace(Config(**shared), cache_size=side, optimizer="adamw")


def with_absolute_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain settings whose files and folders have the same name from any working directory."""
    paths = {name: values[name] for name, about in declared(Config).items() if about.path and values.get(name)}
    if values.get("weights") not in NO_FILE:
        paths["weights"] = values["weights"]
    return {**values, **{name: os.path.abspath(path) for name, path in paths.items()}}


OF_THE_MACHINE = {name: True for name, about in declared(Config).items() if about.machine}


def to_repeat(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The settings of a file for another run, perhaps on another machine, without what was chosen for this machine."""
    if not has_sections(values, source):
        return dict(values)
    chosen = {name: value for name, value in values[CHOSEN].items() if name not in OF_THE_MACHINE}
    return merge(chosen, values[GIVEN])
