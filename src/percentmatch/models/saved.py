"""A trained classifier in one safetensors file that says by itself how to rebuild and feed the model."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from percentmatch.errors import UserError
from percentmatch.models.classifier import Classifier, build_classifier
from percentmatch.records import Task

KEY = "percentmatch"


@dataclass(frozen=True)
class Card:
    """What a user of the model must know of it."""

    backbone: str
    head: Literal["ml-decoder", "linear"]
    dropout: float
    image_size: int
    decode_size: int  # side of the squares that image files were decoded to
    frame: Literal["squash", "center"]
    task: Task
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    version: str


def classifier_bytes(model: nn.Module, card: Card) -> bytes:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return save(tensors, metadata={KEY: json.dumps(asdict(card))})


def load_classifier(path: Path, device: torch.device) -> tuple[Classifier, Card]:
    """The model in eval mode, and its card."""
    try:
        with safe_open(path, framework="pt") as file:
            fields: dict[str, Any] = json.loads(file.metadata()[KEY])
            card = Card(**{name: _frozen(value) for name, value in fields.items()})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except FileNotFoundError:
        raise UserError(f"there is no model '{path}'; has the run finished?") from None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"'{path}' is not a model saved by percentmatch ({type(error).__name__})") from error
    model = build_classifier(
        card.backbone,
        num_classes=len(card.class_names),
        head=card.head,
        image_size=card.image_size,
        dropout=card.dropout,
    )
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"the weights in '{path}' do not fit the {card.backbone} they name") from error
    return model.to(device).eval(), card


def _frozen(value: Any) -> Any:
    """JSON knows no tuples."""
    return tuple(value) if isinstance(value, list) else value
