"""The same network, trained faster on a GPU: ResNets with normalisation, addition and ReLU in one kernel."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn
from torch.nn import functional as F

from percentmatch.models.classifier import Classifier


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any]:
    """`fused_norm.norm_act` and `fused_pool.max_pool`, or twice None without triton."""
    try:
        from percentmatch.models.fused_norm import norm_act
        from percentmatch.models.fused_pool import max_pool
    except ImportError:
        return None, None
    return norm_act, max_pool


def forked(norm: Any, x: Tensor, residual: Tensor | None = None, *, relu: bool = True) -> tuple[Tensor, Tensor]:
    """relu(norm(x) + residual) of an nn.BatchNorm2d, twice; by one kernel where it trains on a GPU."""
    kernel = _kernels()[0] if norm.training and x.is_cuda else None
    if kernel:
        return kernel(norm, x, residual, relu=relu)
    y = nn.BatchNorm2d.forward(norm, x)
    y = y if residual is None else y + residual
    y = F.relu(y) if relu else y
    return y, y


class QuickNorm(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return forked(self, input, relu=False)[0]


class QuickNormRelu(nn.BatchNorm2d):
    """With the ReLU that follows, which is then left out."""

    def forward(self, input: Tensor) -> Tensor:
        return forked(self, input)[0]


class QuickPool(nn.MaxPool2d):
    def forward(self, input: Tensor) -> Tensor:
        return _kernels()[1](input) if self.training and input.is_cuda else super().forward(input)


class _Block:
    """One that can pass its output on twice: for the next block's convolution, and for its shortcut."""

    forks = False

    def forward(self: Any, x: Any) -> Any:  # a tensor, or one twice
        x, shortcut = x if isinstance(x, tuple) else (x, x)
        shortcut = shortcut if self.downsample is None else self.downsample(shortcut)
        *inner, (conv, norm) = self.layers()
        for convolve, normalise in inner:
            x, _ = forked(normalise, convolve(x))
        y = forked(norm, conv(x), shortcut)
        return y if self.forks else y[0]


class QuickBasicBlock(_Block, BasicBlock):
    def layers(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.conv1, self.bn1), (self.conv2, self.bn2)]


class QuickBottleneck(_Block, Bottleneck):
    def layers(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)]


QUICK: dict[type[nn.Module], type[nn.Module]] = {BasicBlock: QuickBasicBlock, Bottleneck: QuickBottleneck}


def quicken(model: Classifier, device: torch.device) -> Classifier:
    """The same model, parameters and names, in place; unchanged on a CPU and where it is no plain ResNet."""
    backbone = model.backbone
    if device.type != "cuda" or not _kernels()[0] or type(backbone) is not ResNet:
        return model
    blocks: list[Any] = [module for module in backbone.modules() if type(module) in QUICK]
    for block in blocks:
        if _plain(block):
            block.__class__ = QUICK[type(block)]
        if block.downsample is not None and _learns(block.downsample[-1]):
            block.downsample[-1].__class__ = QuickNorm
    for block, following in pairwise(blocks):  # in the order of the forward pass
        block.forks = isinstance(block, _Block) and isinstance(following, _Block)
    if _learns(backbone.bn1) and type(backbone.act1) is nn.ReLU:
        backbone.bn1.__class__, backbone.act1 = QuickNormRelu, nn.Identity()
    pool = backbone.maxpool
    if type(pool) is nn.MaxPool2d and (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (3, 2, 1, 1):
        pool.__class__ = QuickPool
    return model


def _plain(block: Any) -> bool:
    """Convolution, normalisation and ReLU only."""
    last = block.bn3 if isinstance(block, Bottleneck) else block.bn2
    acts = [block.act1, block.act2, *([block.act3] if isinstance(block, Bottleneck) else [])]
    extras = (block.se, block.drop_path)
    return (
        all(_learns(norm) for norm in {block.bn1, block.bn2, last})
        and all(type(act) is nn.ReLU for act in acts)
        and all(extra is None for extra in extras)
        and all(type(extra) is nn.Identity for extra in (block.drop_block, block.aa))
    )


def _learns(norm: nn.Module) -> bool:
    """Whether it is torch's own, with weights and moving statistics."""
    return type(norm) is nn.BatchNorm2d and norm.affine and norm.track_running_stats and norm.momentum is not None
