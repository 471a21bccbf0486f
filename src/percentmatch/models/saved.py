"""A trained classifier in one safetensors file that says by itself how to rebuild and feed the model."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from percentmatch.records import Task

KEY = "percentmatch"
NO_CARD = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
LARGEST = 4096  # pixels of a side, as in the settings of a run


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
    """What a user of the model must know of it."""

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

    def __post_init__(self) -> None:
        names, known = self.class_names, self.decisions
        texts = (self.backbone, self.version, self.head, self.task, self.frame)
        if not isinstance(names, tuple) or not all(isinstance(text, str) for text in (*names, *texts)):
            raise TypeError("a name is no text")
        "".join(names).encode()  # a class without a UTF-8 form raises ValueError
        if not names or not all(names) or len(set(names)) < len(names):
            raise ValueError("classes must be named, each once")
        if self.head not in HEADS or self.task not in get_args(Task) or self.frame not in ("squash", "center"):
            raise ValueError("unknown head, task or frame")
        if not all(isinstance(side, int) and 1 <= side <= LARGEST for side in (self.image_size, self.decode_size)):
            raise ValueError("a size out of range")
        if not 0 <= self.dropout <= 1 or len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError("dropout, mean or std out of range")
        _check_finite(self.mean, self.std)
        if known is None:
            return
        _check_finite(known.scale, known.shift, known.thresholds)
        sizes = [len(self.class_names)] * 2 + [len(self.class_names) if self.task == "multi-label" else 0]
        if [len(known.scale), len(known.shift), len(known.thresholds)] != sizes or min(known.scale) <= 0:
            raise ValueError("the decisions do not fit the classes")


def _check_finite(*groups: Sequence[float]) -> None:
    if not all(math.isfinite(number) for numbers in groups for number in numbers):
        raise ValueError("a number is not finite")


def read_card(fields: Mapping[str, Any]) -> Card:
    """A card from what `asdict` made of it and JSON kept. Raises one of NO_CARD if it is none."""
    values = _frozen(fields)
    if values.get("decisions") is not None:
        values["decisions"] = Decisions(**_frozen(values["decisions"]))
    return Card(**values)


def _frozen(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def classifier_of(card: Card) -> Classifier:
    """The model that a card names, with random weights."""
    num_classes, size = len(card.class_names), card.image_size
    return build_classifier(
        card.backbone, num_classes=num_classes, head=card.head, image_size=size, dropout=card.dropout
    )


def classifier_bytes(model: nn.Module, card: Card) -> bytes:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return save(tensors, metadata={KEY: json.dumps(asdict(card))})


def load_classifier(path: Path, device: torch.device) -> tuple[Classifier, Card]:
    """The model in eval mode, and its card."""
    try:
        check_plain(path, None)
        with safe_open(path, framework="pt") as file:
            card = read_card(json.loads(file.metadata()[KEY]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except FileNotFoundError:
        raise UserError(f"there is no model '{path}'; has the run finished?") from None
    except (OSError, SafetensorError, *NO_CARD) as error:
        raise UserError(f"'{path}' is not a model saved by percentmatch ({type(error).__name__})") from error
    model = classifier_of(card)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"the weights in '{path}' do not fit the {card.backbone} they name") from error
    return model.to(device).eval(), card
