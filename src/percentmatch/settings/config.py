"""Every setting of a run, declared once: typed, checked on construction, the same in flags, files and Python.

Defaults are the paper's where it gives a value, but for the frame (docs/design.md). This module imports no torch, so
that `--help` is quick.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from cyclopts import Parameter

from percentmatch.errors import UserError, did_you_mean
from percentmatch.settings.renamed import renamed

DATA, MODEL, VIEWS, TRAINING, RUN = (Parameter(group=name) for name in ("Data", "Model", "Views", "Training", "Run"))


@dataclass(frozen=True, kw_only=True)
class View:
    """How one view of an image is made."""

    ops: int = 3
    """Random operations (RandAugment) applied to each image."""
    strength: float = 1.0
    """Largest operation strength: 0 leaves images alone, 1 is the standard RandAugment range."""
    crop_scale: float = 1.0
    """Smallest share of the area a random resized crop keeps; 1 turns the crop off."""
    flip: bool = True
    """Flip half of the images left to right."""
    cutout_ratio: float = 0.5
    """Largest side of the square that is cut out, as a share of the image side; 0 turns it off."""

    def __post_init__(self) -> None:
        _require(0 <= self.ops <= 32, "ops", self.ops, "must lie between 0 and 32")
        _require(0 <= self.strength <= 1, "strength", self.strength, "must lie between 0 and 1")
        _require(0 < self.crop_scale <= 1, "crop_scale", self.crop_scale, "must be above 0 and at most 1")
        _require(0 <= self.cutout_ratio <= 1, "cutout_ratio", self.cutout_ratio, "must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class StrongView(View):
    """The strong view: as the weak one, with more operations."""

    ops: int = 8
    """Random operations (RandAugment) applied to each image."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which images, which labels, and how they are divided."""

    data: Annotated[Literal["auto", "files", "voc", "coco", "shards", "scenes", "custom"], DATA] = "auto"
    """Your own files (--labels), Pascal VOC, MS-COCO or tar shards (--root), or scenes drawn by the program; auto: what
    is named. custom marks data given in Python."""
    root: Annotated[str, DATA] = ""
    """The folder of VOC (or VOCdevkit) or of COCO (with annotations, train2014, val2014), or of tar shards that hold
    labels."""
    year: Annotated[int, DATA] = 0
    """Of VOC or COCO, where the folder holds several years; 0 takes the only one."""
    labels: Annotated[str, DATA] = ""
    """Of your own files: a CSV file (image and labels, or image and a column a class), metadata.csv or metadata.jsonl,
    COCO instances, or an export of Label Studio or FiftyOne; a folder with one of these; also a VOC or COCO folder."""
    images: Annotated[str, DATA] = ""
    """The folder that the paths in --labels begin at; empty is the folder of that file."""
    unlabeled: Annotated[str, DATA] = ""
    """More images, without labels: a folder, or a text file with one path a line; or tar shards, which are streamed: a
    folder with .tar files, one such file, or a pattern such as pool/{000..099}.tar."""
    shuffle_buffer: Annotated[int, DATA] = 10_000
    """Of streamed shards: images that are shuffled with each other, beside the order of the shards."""
    classes: Annotated[str, DATA] = ""
    """The classes to learn, separated by commas; empty takes all. In a column of labels, any other is an error."""
    drop_empty: Annotated[bool, DATA] = False
    """Leave out COCO images without annotations."""
    skip_bad_images: Annotated[bool, DATA] = False
    """List images that cannot be read and go on without them."""
    verify_cache: Annotated[bool, DATA] = False
    """Compare the decoded images with the content of the files, not only with their size and time."""
    scenes_pool: Annotated[int, DATA] = 4000
    """Scenes drawn for training: labeled, unlabeled and validation."""
    scenes_test: Annotated[int, DATA] = 1000
    """Scenes drawn for the final test."""
    task: Annotated[Literal["multi-label", "single-label"], DATA] = "multi-label"
    """Several labels an image, or exactly one."""
    labeled: Annotated[float, DATA] = 0
    """Images whose labels are used: a share of those that have labels if below 1, else their number; 0 takes all."""
    validation: Annotated[float, DATA] = 0.1
    """Images with labels kept for validation: a share if below 1, else their number."""
    official_validation: Annotated[bool, DATA] = False
    """Validate on VOC's own val part instead. Rows of --labels whose part says validation are always used so."""
    split_kind: Annotated[Literal["auto", "random", "every-class"], DATA] = "auto"
    """At random, as in the paper, or so that every class is labeled and validated where possible; auto does that for
    your own files."""
    split_seed: Annotated[int, DATA] = 0
    """Seed of the split into labeled, unlabeled and validation images."""
    split_file: Annotated[str, DATA] = ""
    """Take the parts from a split.json, of another run or of `percentmatch data split`; nothing is drawn then."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_limits(self)
        for name in ("labeled", "validation"):
            value = getattr(self, name)
            _require(value < 1 or value == int(value), name, value, "must be a share below 1 or a whole number")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> Self:
        """Settings from plain values, as read from YAML; unknown names and wrong types are refused."""
        return _build(cls, renamed(values) if isinstance(values, Mapping) else values, source, "")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Config(DataSettings):
    """The settings of one run."""

    backbone: Annotated[str, MODEL] = "resnet50"
    """Any timm model."""
    head: Annotated[Literal["ml-decoder", "linear"], MODEL] = "ml-decoder"
    """Class queries over the feature map, or one linear layer over its mean."""
    weights: Annotated[str, MODEL] = "none"
    """Start from "none" (random), "pretrained" (timm's), "offline" (tf_efficientnet_lite0's, installed) or a file."""
    prior_bias: Annotated[bool, MODEL] = False
    """A new head starts at the classes' frequencies among the labels; else it first has to learn that most are rare."""
    dropout: Annotated[float, MODEL] = 0.0
    """Before the linear head."""
    image_size: Annotated[int, MODEL] = 224
    """Side of the square the model sees, in pixels."""
    images_on: Annotated[Literal["auto", "device", "host"], RUN] = "auto"
    """Keep all decoded images on the GPU, on the host, or on the GPU where they leave half of its free memory."""
    cache_size: Annotated[int, MODEL] = 0
    """Side of the squares that image files are kept at; 0: what the smallest crop needs, at most 8/7 of image_size."""

    method: Annotated[str, TRAINING] = "percentmatch"
    """How unlabeled images are used; `percentmatch methods` lists them."""
    options: Annotated[dict[str, Any], Parameter(parse=False)] = field(default_factory=dict)
    """Options of the method, by name."""
    total_steps: Annotated[int, TRAINING] = 7000
    """Optimizer steps."""
    labeled_batch: Annotated[int, TRAINING] = 36
    """Labeled images a step (B)."""
    unlabeled_ratio: Annotated[int, TRAINING] = 1
    """Unlabeled images a step, as a multiple of the labeled ones (mu)."""
    accumulate: Annotated[int, TRAINING] = 1
    """Split each step's batch into this many forward passes to save memory; BatchNorm sees the parts."""
    optimizer: Annotated[Literal["adam", "adamw"], TRAINING] = "adam"
    """Weight decay inside the gradient (adam) or apart from it (adamw)."""
    lr: Annotated[float, TRAINING] = 3e-4
    """Largest learning rate of the one-cycle schedule."""
    lr_warmup_ratio: Annotated[float, TRAINING] = 0.2
    """Share of the steps in which the learning rate rises."""
    weight_decay: Annotated[float, TRAINING] = 1e-4
    """On weights of two or more dimensions; biases and norms are left alone."""
    clip_grad: Annotated[float, TRAINING] = 0.0
    """Largest gradient norm; 0 does not clip."""
    ema_decay: Annotated[float, TRAINING] = 0.999
    """Of the averaged model, which is the one evaluated and saved; never more than (1 + step) / (10 + step)."""
    precision: Annotated[Literal["auto", "float32", "bfloat16", "float64"], TRAINING] = "auto"
    """Autocast; auto is bfloat16 on a GPU and float32 on a CPU."""

    mixup: Annotated[float, VIEWS] = 0.0
    """Blend labeled images and their labels in pairs, by shares from Beta(mixup, mixup); 0 turns it off."""
    cutmix: Annotated[float, VIEWS] = 0.0
    """Paste a box of one labeled image into another, area from Beta(cutmix, cutmix); with mixup, each half the time."""
    frame: Annotated[Literal["squash", "center"], VIEWS] = "squash"
    """Squeeze the whole image into a square, or keep its central square."""
    labeled_view: Annotated[View, VIEWS] = field(default_factory=View)
    """The view of labeled images."""
    weak_view: Annotated[View, VIEWS] = field(default_factory=View)
    """The view pseudo-labels come from."""
    strong_view: Annotated[StrongView, VIEWS] = field(default_factory=StrongView)
    """The view pseudo-labels teach."""

    seed: Annotated[int, RUN] = 0
    """Seed of everything but the split."""
    log_every: Annotated[int, RUN] = 50
    """Steps between log rows."""
    eval_every: Annotated[int, RUN] = 500
    """Steps between validations; 0 validates at the end only."""
    save_every: Annotated[int, RUN] = 500
    """Steps between checkpoints."""
    device: Annotated[str, RUN] = "auto"
    """auto, cpu, cuda or cuda:N."""
    cuda_graph: Annotated[bool, RUN] = True
    """On a GPU, capture the step once and replay it."""
    compile: Annotated[bool, RUN] = False
    """Compile the network by torch.compile: about a minute at the start, for long runs of networks that gain by it."""
    deterministic: Annotated[bool, RUN] = False
    """On a GPU, use only operations that repeat exactly."""

    @property
    def decode_size(self) -> int:
        """`cache_size`, or what it stands for."""
        if self.cache_size:
            return self.cache_size
        smallest_crop = min(view.crop_scale for view in (self.labeled_view, self.weak_view, self.strong_view))
        return min(math.ceil(self.image_size / math.sqrt(smallest_crop)), math.ceil(self.image_size * 8 / 7))

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.lr > 0, "lr", self.lr, "must be above 0")
        divides = self.labeled_batch % self.accumulate == 0
        _require(divides, "accumulate", self.accumulate, f"must divide labeled_batch ({self.labeled_batch})")


@dataclass(frozen=True, kw_only=True)
class PretrainView(View):
    """The two views of an image that a warm start makes alike: a small crop, other colours, and operations."""

    ops: int = 2
    """Random operations (RandAugment) applied to each image."""
    crop_scale: float = 0.15
    """Smallest share of the area a random resized crop keeps; 1 turns the crop off."""
    cutout_ratio: float = 0.0
    """Largest side of the square that is cut out, as a share of the image side; 0 turns it off."""
    jitter: float = 0.5
    """Strength of random changes of brightness, contrast, saturation and hue; above 0, a fifth of the views is grey."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 <= self.jitter <= 1, "jitter", self.jitter, "must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(DataSettings):
    """The settings of a self-supervised warm start."""

    backbone: Annotated[str, MODEL] = "resnet50"
    """Any timm model; it starts at random."""
    image_size: Annotated[int, MODEL] = 128
    """Side of the square views, in pixels; it may be smaller than that of the training that follows."""
    cache_size: Annotated[int, MODEL] = 0
    """Side of the squares that image files are kept at; 0: twice image_size."""

    total_steps: Annotated[int, TRAINING] = 2800
    """Optimizer steps."""
    batch: Annotated[int, TRAINING] = 256
    """Images a step, two views of each."""
    temperature: Annotated[float, TRAINING] = 0.2
    """Of the loss: the lower, the more the most similar of the other images count."""
    lr: Annotated[float, TRAINING] = 1e-3
    """Largest learning rate of the one-cycle schedule."""
    lr_warmup_ratio: Annotated[float, TRAINING] = 0.1
    """Share of the steps in which the learning rate rises."""
    weight_decay: Annotated[float, TRAINING] = 0.05
    """On weights of two or more dimensions (AdamW); biases and norms are left alone."""

    frame: Annotated[Literal["squash", "center"], VIEWS] = "squash"
    """Squeeze the whole image into a square, or keep its central square."""
    view: Annotated[PretrainView, VIEWS] = field(default_factory=PretrainView)
    """How each of the two views is made."""

    seed: Annotated[int, RUN] = 0
    """Seed of everything but the split."""
    log_every: Annotated[int, RUN] = 50
    """Steps between log rows."""
    save_every: Annotated[int, RUN] = 500
    """Steps between checkpoints."""
    device: Annotated[str, RUN] = "auto"
    """auto, cpu, cuda or cuda:N."""
    deterministic: Annotated[bool, RUN] = False
    """On a GPU, use only operations that repeat exactly."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.lr > 0, "lr", self.lr, "must be above 0")

    def as_config(self) -> Config:
        """A run's settings with the same images and optimizer, for what reads those."""
        shared = {each.name for each in dataclasses.fields(self)} & {each.name for each in dataclasses.fields(Config)}
        side = self.cache_size or min(2 * self.image_size, int(_LIMITS["cache_size"][1]))
        same = {name: getattr(self, name) for name in shared}
        return dataclasses.replace(Config(**same), cache_size=side, optimizer="adamw")


_MANY = 1_000_000_000
_LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("scenes_pool", "scenes_test"), (1, 1_000_000)),
    "shuffle_buffer": (1, 100_000_000),
    **dict.fromkeys(("total_steps", "log_every", "save_every"), (1, _MANY)),
    **dict.fromkeys(("labeled_batch", "unlabeled_ratio", "accumulate"), (1, 65_536)),
    **dict.fromkeys(("seed", "split_seed"), (0, 2**62)),
    **dict.fromkeys(("dropout", "ema_decay", "lr_warmup_ratio"), (0, 1)),
    **dict.fromkeys(("mixup", "cutmix"), (0, 100)),
    "batch": (2, 65_536),
    "temperature": (0.001, 100),
    "image_size": (1, 4096),
    "cache_size": (0, 4096),
    "labeled": (0, _MANY),
    "validation": (0, _MANY),
    "eval_every": (0, _MANY),
    "year": (0, 9999),
    "lr": (0, 1000),
    "weight_decay": (0, 1000),
    "clip_grad": (0, _MANY),
}


_hints_of = lru_cache(get_type_hints)


def _check_types(settings: DataSettings) -> None:
    for name, kind in _hints_of(type(settings)).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(kind):
            _require(isinstance(value, View), name, value, "must be a View")
        else:
            _require(not (kind is float and isinstance(value, str)), name, repr(value), "must be a float")
            _checked(kind, value, name)


def _check_limits(settings: DataSettings) -> None:
    for name in _LIMITS.keys() & {each.name for each in dataclasses.fields(settings)}:
        value, (low, high) = getattr(settings, name), _LIMITS[name]
        _require(low <= value <= high, name, value, f"must lie between {low} and {high}")


def _require(condition: bool, name: str, value: object, sentence: str) -> None:
    if not condition:
        raise UserError(f"{name} {sentence}, not {value}")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, nested mappings merged."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their names, nested ones with dots."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _build(cls: Any, values: Mapping[str, Any], source: str, prefix: str) -> Any:
    if not isinstance(values, Mapping):
        raise UserError(f"{source}: '{prefix.rstrip('.')}' must hold names and values, not {values!r}")
    hints = get_type_hints(cls)
    checked = {}
    for name, value in values.items():
        if name not in hints:
            raise UserError(f"{source}: unknown setting '{prefix}{name}'{did_you_mean(str(name), hints)}")
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            checked[name] = _build(kind, value, source, f"{prefix}{name}.")
        else:
            checked[name] = _checked(kind, value, f"{source}: '{prefix}{name}'")
    return cls(**checked)


def _checked(kind: Any, value: Any, what: str) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UserError(f"{what} must be one of {', '.join(get_args(kind))}, not {value!r}")
        return value
    kind = get_origin(kind) or kind
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"{what} holds a zero byte; take it out")
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):  # YAML 1.1 reads 3e-4 as text
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{what} must be a {kind.__name__}, not {value!r}")
    return value
