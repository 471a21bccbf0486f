"""Optimizer, learning-rate schedule and the moving average of the weights."""

import copy
import math

import torch
from torch import nn

from percentmatch.config import Config

START_DIVISOR, END_DIVISOR = 25.0, 1e4  # as torch's OneCycleLR


def build_optimizer(model: nn.Module, config: Config, device: torch.device) -> torch.optim.Optimizer:
    """Adam or AdamW; weight decay on tensors of two or more dimensions only."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.lr, fused=device.type == "cuda")


def lr_at(step: int, *, max_lr: float, total_steps: int, warmup_ratio: float) -> float:
    """The one-cycle rate: a cosine up to `max_lr`, then a cosine down to almost nothing."""
    peak, last = max(warmup_ratio * total_steps - 1, 0), total_steps - 1
    start, end = max_lr / START_DIVISOR, max_lr / START_DIVISOR / END_DIVISOR
    if step < peak:
        return _cosine(start, max_lr, step / peak)
    return _cosine(max_lr, end, (step - peak) / (last - peak) if last > peak else 0)


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * progress))


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


class Ema:
    """The moving average of a model's weights and buffers, in eval mode: the teacher, and the model that is scored.

    Early on the average is short, (1 + step) / (10 + step), so that it does not remember the random start.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        mine, theirs = self.model.state_dict(), model.state_dict()
        averaged = [name for name, value in mine.items() if value.is_floating_point()]
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_([mine[name] for name in averaged], [theirs[name] for name in averaged], 1 - decay)
        for name in mine.keys() - set(averaged):  # BatchNorm's counters
            mine[name].copy_(theirs[name])
