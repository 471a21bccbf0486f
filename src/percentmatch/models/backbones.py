"""Backbones by name: timm's, and first-version ResNets, which timm does not have."""

from difflib import get_close_matches
from typing import Any

import timm
from timm.models import PretrainedCfg
from timm.models.resnet import Bottleneck

from percentmatch.errors import UserError, did_you_mean

# of ResNets made of bottlenecks; timm has no model of these names
FIRST_VERSIONS = {f"{name}_v1": name for name in ("resnet50", "resnet101", "resnet152", "test_resnet")}


def create_backbone(name: str, **options: Any) -> Any:
    """timm's model of this name, with `options` as `timm.create_model` takes them.

    `resnet50_v1` is ResNet50 as first published (He et al. 2015), and as Keras and Caffe have it: in the first block of
    a stage the first convolution takes the stride, not the second. The tensors are the same, the function is not.
    """
    model = timm.create_model(FIRST_VERSIONS.get(name, name), **options)
    for block in model.modules():
        if isinstance(block, Bottleneck) and name in FIRST_VERSIONS:
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return model


def backbone_cfg(name: str) -> Any:
    """timm's record of a model (its input size, its weights); for an unknown name an error with the closest one."""
    if name in FIRST_VERSIONS:
        return PretrainedCfg(architecture=name)  # no weights, any size
    architecture, dot, tag = name.partition(".")
    if not timm.is_model(architecture):
        close = get_close_matches(name, [*timm.list_models(), *FIRST_VERSIONS], n=1, cutoff=0.6)
        hint = did_you_mean(name, close) if close else "; `timm.list_models()` lists those there are"
        raise UserError(f"unknown backbone '{name}'{hint}")
    tags = timm.list_models(f"{architecture}.*", pretrained=True)
    if dot and name not in tags:
        raise UserError(f"backbone '{architecture}' has no weights '{tag}'{did_you_mean(name, [architecture, *tags])}")
    return timm.get_pretrained_cfg(name)
