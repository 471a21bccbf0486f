"""The same network, trained faster on a GPU: normalisation, addition and ReLU in one kernel."""

from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from timm.layers import BatchNormAct2d
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn
from torch.nn import functional as F

from percentmatch.models.classifier import Classifier


@lru_cache(maxsize=1)
def _kernels() -> Any:
    """The kernels of this package by name, or None without triton."""
    with suppress(ImportError):
        from percentmatch.models.kernels import norm, pool

        return SimpleNamespace(norm_act=norm.norm_act, forked_relu=norm.forked_relu, max_pool=pool.max_pool)
    return None


def _here(layer: nn.Module, x: Tensor) -> Any:
    """The kernels, where a layer trains on a GPU."""
    return _kernels() if layer.training and x.is_cuda else None


def forked(norm: Any, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """relu(norm(x) + residual) of an nn.BatchNorm2d, twice; by one kernel where it trains on a GPU."""
    if kernels := _here(norm, x):
        return kernels.forked_relu(norm, x, residual)
    y = nn.BatchNorm2d.forward(norm, x)
    y = F.relu(y if residual is None else y + residual)
    return y, y


class QuickNorm(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        kernels = _here(self, input)
        return kernels.norm_act(self, input) if kernels else super().forward(input)


class QuickNormRelu(nn.BatchNorm2d):
    """With the ReLU that follows, which is then left out."""

    def forward(self, input: Tensor) -> Tensor:
        return forked(self, input)[0]


ACTS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.ReLU: 1, nn.ReLU6: 2}  # as `norm` numbers them


class QuickNormAct(BatchNormAct2d):
    """timm's, with its activation in the same kernel if that is a ReLU or ReLU6, else after it."""

    def forward(self, x: Tensor) -> Tensor:
        kernels, act = _here(self, x), ACTS.get(type(self.act))
        if not kernels:
            return super().forward(x)
        return self.act(kernels.norm_act(self, x)) if act is None else kernels.norm_act(self, x, act=act)


class QuickPool(nn.MaxPool2d):
    def forward(self, input: Tensor) -> Tensor:
        kernels = _here(self, input)
        return kernels.max_pool(input) if kernels else super().forward(input)


class _Block:
    """One that can pass its output on twice: for the next block's convolution, and for its shortcut."""

    forks = False

    def forward(self: Any, x: Any) -> Any:  # a tensor, or one twice
        x, shortcut = x if isinstance(x, tuple) else (x, x)
        shortcut = shortcut if self.downsample is None else self.downsample(shortcut)
        *inner, (conv, norm) = _layers(self)
        for convolve, normalise in inner:
            x, _ = forked(normalise, convolve(x))
        y = forked(norm, conv(x), shortcut)
        return y if self.forks else y[0]


class QuickBasicBlock(_Block, BasicBlock): ...


class QuickBottleneck(_Block, Bottleneck): ...


QUICK: dict[type[nn.Module], type[nn.Module]] = {BasicBlock: QuickBasicBlock, Bottleneck: QuickBottleneck}


def quicken(model: Classifier, device: torch.device) -> Classifier:
    """Swap in the faster layers, in place, on a GPU; parameters and names stay the same."""
    backbone = model.backbone
    if device.type != "cuda" or not _kernels():
        return model
    if type(backbone) is ResNet:
        _quicken_resnet(backbone)
    for module in backbone.modules():
        if _learns(module, nn.BatchNorm2d):
            module.__class__ = QuickNorm
        elif _learns(module, BatchNormAct2d) and type(module.drop) is nn.Identity:
            module.__class__ = QuickNormAct
    return model


def spare_search(model: Classifier, device: torch.device) -> None:
    """Switch cuDNN's search off for depthwise layers: it takes half a minute for each of them and gains nothing."""
    layers = (module for module in model.backbone.modules() if isinstance(module, nn.Conv2d))
    if device.type == "cuda" and any(layer.groups == layer.in_channels > 1 for layer in layers):
        torch.backends.cudnn.benchmark = False


def _quicken_resnet(backbone: Any) -> None:
    """Blocks whose norms also add the shortcut, and the first pooling."""
    blocks: list[Any] = [module for module in backbone.modules() if type(module) in QUICK]
    for block in blocks:
        if _plain(block):
            block.__class__ = QUICK[type(block)]
    for block, following in pairwise(blocks):  # in the order of the forward pass
        block.forks = isinstance(block, _Block) and isinstance(following, _Block)
    if _learns(backbone.bn1, nn.BatchNorm2d) and type(backbone.act1) is nn.ReLU:
        backbone.bn1.__class__, backbone.act1 = QuickNormRelu, nn.Identity()
    pool = backbone.maxpool
    if type(pool) is nn.MaxPool2d and (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (3, 2, 1, 1):
        pool.__class__ = QuickPool


def _layers(block: Any) -> list[tuple[nn.Module, nn.Module]]:
    """The convolutions of a block, each with the normalisation after it."""
    last = [(block.conv3, block.bn3)] if isinstance(block, Bottleneck) else []
    return [(block.conv1, block.bn1), (block.conv2, block.bn2), *last]


def _plain(block: Any) -> bool:
    """Convolution, normalisation and ReLU only."""
    acts = [block.act1, block.act2, *([block.act3] if isinstance(block, Bottleneck) else [])]
    return (
        all(_learns(norm, nn.BatchNorm2d) for _, norm in _layers(block))
        and all(type(act) is nn.ReLU for act in acts)
        and block.se is block.drop_path is None
        and type(block.drop_block) is type(block.aa) is nn.Identity
    )


def _learns(norm: Any, kind: type[nn.Module]) -> bool:
    """Whether it is of this kind and has weights and moving statistics."""
    return type(norm) is kind and norm.affine and norm.track_running_stats and norm.momentum is not None
