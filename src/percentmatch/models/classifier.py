"""A timm backbone under a head, and modes that a model has for the length of a `with` block."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from percentmatch.errors import UserError
from percentmatch.models.backbones import backbone_cfg, create_backbone
from percentmatch.models.heads import head_class
from percentmatch.models.heads.base import Head
from percentmatch.models.weights import OFFLINE_BACKBONES, fill, load_file, pretrained, read_offline, read_weights

LARGE = 512  # pixels of a side; what a network keeps for the gradient of a larger image takes gigabytes
DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.MultiheadAttention)


class Classifier(nn.Module):
    """Images (n, 3, h, w), normalised with `mean` and `std` -> logits (n, c)."""

    def __init__(self, backbone: Any, head: Head) -> None:
        super().__init__()
        self.backbone: Any = backbone  # a timm model: forward_features, forward_head, num_features
        self.head = head
        self.mean = tuple(map(float, backbone.pretrained_cfg.get("mean") or IMAGENET_DEFAULT_MEAN))
        self.std = tuple(map(float, backbone.pretrained_cfg.get("std") or IMAGENET_DEFAULT_STD))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.read(images))

    def read(self, images: Tensor) -> Tensor:
        """What the head sees."""
        images = images.to(next(self.parameters()).dtype)  # float64 if the weights are
        return _features(self.backbone, images, self.head.reads)

    def pooled(self, images: Tensor) -> Tensor:
        """The backbone's own pooling, whatever the head reads: (n, d)."""
        return _features(self.backbone, images.to(next(self.parameters()).dtype), "pooled")


def _features(backbone: Any, images: Tensor, reads: str) -> Tensor:
    """What a head that `reads` "tokens" or "pooled" sees: (n, t, d), or the backbone's own pooling of it (n, d)."""
    features = backbone.forward_features(images)
    if reads == "tokens":
        return to_tokens(features, backbone.num_features)
    return backbone.forward_head(features, pre_logits=True)


def to_tokens(features: Tensor, width: int) -> Tensor:
    """(n, d, h, w), (n, h, w, d) or (n, t, d), where d is `width` -> tokens (n, t, d)."""
    if not isinstance(features, Tensor):
        raise ValueError("it gives several feature maps, a head reads one")
    if features.ndim == 3 and features.shape[2] == width:
        return features
    if features.ndim == 4 and features.shape[1] == width:
        return features.flatten(2).transpose(1, 2)
    if features.ndim == 4 and features.shape[3] == width:
        return features.flatten(1, 2)
    raise ValueError(f"features of shape {tuple(features.shape)} are no map or sequence of width {width}")


def build_classifier(
    backbone: str,
    *,
    num_classes: int,
    head: str = "ml-decoder",
    image_size: int = 224,
    weights: str = "none",
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Classifier:
    """Any timm model by name, or `resnet50_v1` (see `create_backbone`).

    `bias` (c,) is what a new head starts at, if not at random.

    `weights`: "none" (random), "pretrained" (timm's), "offline" (of OFFLINE_BACKBONES, from a package), or a file
    (.safetensors, .pt, .pth, .bin) with a timm model's state dict or a whole Classifier's; of the latter the head is
    used too if it fits, else the log says it is random.
    Parameters that the head never reads (such as a ConvNeXt's last norm under an ML-Decoder) are frozen, so that
    every trainable parameter gets a gradient.
    """
    new_head = head_class(head, dropout)
    if num_classes < 1 or image_size < 1:
        raise UserError(f"num_classes ({num_classes}) and image_size ({image_size}) must be at least 1")
    cfg = backbone_cfg(backbone)
    if weights == "pretrained" and not cfg.has_weights:
        raise UserError(f"timm has no pretrained weights for '{backbone}'; use --weights none or give a file")
    if weights == "offline" and backbone not in OFFLINE_BACKBONES:
        those = ", ".join(OFFLINE_BACKBONES)
        raise UserError(f"--weights offline are those of {those}, not of '{backbone}'; name one of these by --backbone")
    state = {} if weights in ("none", "pretrained", "offline") else read_weights(Path(weights))
    img_size = image_size if cfg.fixed_input_size else None  # timm drops a None
    try:
        trunk = create_backbone(backbone, num_classes=0, img_size=img_size)
        side = image_size if img_size or image_size <= LARGE else LARGE // 2 + image_size % (LARGE // 2)
        width = _connect(trunk, side, new_head.reads)  # which do not depend on the size where any will do
    except Exception as error:  # timm's model families refuse a size in many ways
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"backbone '{backbone}' cannot be used at {image_size} pixels: {reason}") from error
    options = {"dropout": dropout} if new_head.takes_dropout else {}
    classifier = Classifier(trunk, new_head(width, num_classes, **options))
    if bias is not None:
        classifier.head.bias.data.copy_(bias)

    if weights == "pretrained":
        trunk.load_state_dict(pretrained(backbone, img_size).state_dict())
    elif weights == "offline":
        fill(trunk, *read_offline(trunk, backbone))
    elif weights != "none":
        load_file(trunk, classifier.head, state, Path(weights), backbone, img_size)
    return classifier


@torch.enable_grad()
def _connect(backbone: Any, image_size: int, reads: str) -> int:
    """One blank image through the backbone: the width the head will see; what it does not depend on is frozen."""
    backbone.eval()
    features = _features(backbone, torch.zeros(1, 3, image_size, image_size), reads)
    parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(features.sum(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)
    backbone.train()
    return features.shape[-1]


def can_fetch(name: str) -> bool:
    """Whether timm's weights of a backbone can be had now; if so they are in the Hub's cache afterwards."""
    with suppress(UserError):
        pretrained(name, None)
        return True
    return False


def drops(model: nn.Module) -> bool:
    """Whether some of the model's dropout has an effect."""
    layers = (module for module in model.modules() if isinstance(module, DROPPING))
    return any((layer.dropout if isinstance(layer, nn.MultiheadAttention) else layer.p) > 0 for layer in layers)


def freeze_batch_norm(model: nn.Module) -> None:
    """Let BatchNorm normalise by its running statistics also in training, and leave them as they are."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.training = False


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Eval mode; afterwards every module has its earlier mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def dropout_on(model: nn.Module) -> Generator[None]:
    """Eval mode with dropout on, also in attention: each pass is a draw (Gal and Ghahramani 2016)."""
    with evaluating(model):
        for module in model.modules():
            if isinstance(module, DROPPING):
                module.training = True  # not its children, which have a mode of their own
        yield
