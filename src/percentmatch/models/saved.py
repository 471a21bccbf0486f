"""A trained classifier in one safetensors file that says by itself how to rebuild and feed the model."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from percentmatch.errors import UserError
from percentmatch.files import check_plain
from percentmatch.models.classifier import Classifier, build_classifier
from percentmatch.models.heads import HEADS
from percentmatch.models.weights import KEY
from percentmatch.records import MOST_CLASSES, Task

NO_CARD = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
LARGEST = 4096  # pixels of a side, as in the settings of a run
MOST_CARD = 16 << 20  # letters of a card; its JSON takes many times as much memory
LONGEST = 200  # letters of a backbone's name
MOST_FACTOR = 1e30  # no product with a logit is infinite


@dataclass(frozen=True)
class Decisions:
    """How logits become probabilities and decisions, learnt from validation images.

    A probability is the sigmoid, or with one label an image the softmax, of `scale * logit + shift`; a class is decided
    for from its threshold on.
    """

    scale: tuple[float, ...]  # c, above 0
    shift: tuple[float, ...]  # c
    thresholds: tuple[float, ...]  # c; empty with one label an image, where the most probable class is decided for
    aim: str  # what the thresholds were chosen for: F1, precision 0.9, recall 0.9; or best class


@dataclass(frozen=True)
class Card:
    """What a user of the model must know about it."""

    backbone: str
    head: str  # a row of `HEADS`
    dropout: float
    image_size: int
    decode_size: int  # side of the squares that image files were decoded to
    frame: Literal["squash", "center"]
    task: Task
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    version: str
    decisions: Decisions | None = None  # None: the network's own probabilities, from 0.5 on

    @property
    def calibrated(self) -> bool:
        """Whether probabilities are others than the network's own: a calibration that does not help is not kept."""
        known = self.decisions
        return known is not None and (set(known.scale), set(known.shift)) != ({1.0}, {0.0})

    def __post_init__(self) -> None:
        names, decisions = self.class_names, self.decisions
        texts = (self.backbone, self.version, self.head, self.task, self.frame)
        numbers = [*self.mean, *self.std]
        if not isinstance(names, tuple) or not all(isinstance(text, str) for text in (*names, *texts)):
            raise TypeError("a name is not a text")
        if len(names) > MOST_CLASSES:
            raise ValueError("too many classes")
        if len(self.backbone) > LONGEST:
            raise ValueError("a backbone of that name")
        "".join(names).encode()  # a class without a UTF-8 form raises ValueError
        if not names or not all(names) or len(set(names)) < len(names):
            raise ValueError("classes must be named, each once")
        if self.head not in HEADS or self.task not in get_args(Task) or self.frame not in ("squash", "center"):
            raise ValueError("unknown head, task or frame")
        if not all(type(side) is int and 1 <= side <= LARGEST for side in (self.image_size, self.decode_size)):
            raise ValueError("a size out of range")
        if not all(isinstance(each, tuple) for each in (self.mean, self.std)) or isinstance(self.dropout, bool):
            raise TypeError("dropout, mean or std of another type")
        if not 0 <= self.dropout <= 1 or len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError("dropout, mean or std out of range")
        if decisions is not None:
            lists = (decisions.scale, decisions.shift, decisions.thresholds)
            num_thresholds = len(names) if self.task == "multi-label" else 0
            if [*map(len, lists)] != [len(names), len(names), num_thresholds] or min(decisions.scale) <= 0:
                raise ValueError("the decisions do not fit the classes")
            if not isinstance(decisions.aim, str) or not all(isinstance(each, tuple) for each in lists):
                raise TypeError("decisions of another type")
            if not all(0 <= threshold <= 1 for threshold in decisions.thresholds):
                raise ValueError("a threshold is no probability")
            numbers += chain(*lists)
        if any(isinstance(number, bool) or not abs(number) <= MOST_FACTOR for number in numbers):
            raise ValueError("a number is not finite")


def read_card(fields: Mapping[str, Any]) -> Card:
    """A card from what `asdict` made of it and JSON kept. Raises one of NO_CARD if it is none."""
    values = _frozen(fields)
    if values.get("decisions") is not None:
        values["decisions"] = Decisions(**_frozen(values["decisions"]))
    return Card(**values)


def _frozen(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values with tuples in place of JSON's lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def classifier_of(card: Card) -> Classifier:
    """The model that a card names, with random weights."""
    options = {name: getattr(card, name) for name in ("backbone", "head", "image_size", "dropout")}
    return build_classifier(**options, num_classes=len(card.class_names))


def classifier_bytes(model: nn.Module, card: Card) -> bytes:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return save(tensors, metadata={KEY: json.dumps(asdict(card))})


def load_classifier(path: Path, device: torch.device) -> tuple[Classifier, Card]:
    """The model in eval mode, and its card."""
    try:
        check_plain(path, None)
        with open(path, "rb"), safe_open(path, framework="pt") as file:  # which calls what it may not read missing
            text = file.metadata()[KEY]
            if len(text) > MOST_CARD:
                raise ValueError("a card that long")
            card = read_card(json.loads(text))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        if sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("head.")) < len(card.class_names):
            raise ValueError("fewer weights than classes")
    except FileNotFoundError:
        raise UserError(f"there is no model '{path}'; check the path, or wait until the run has finished") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot read the model '{path}': {reason}; check the path and its permissions") from error
    except (SafetensorError, *NO_CARD) as error:
        raise UserError(f"'{path}' is not a model saved by percentmatch ({type(error).__name__})") from error
    model = classifier_of(card)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"the weights in '{path}' do not fit the {card.backbone} they name") from error
    return model.to(device).eval(), card
