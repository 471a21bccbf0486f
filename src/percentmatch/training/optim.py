"""Optimizer, learning-rate schedule and the EMA of the weights."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from percentmatch.settings.config import Config

START_DIVISOR, END_DIVISOR = 25.0, 1e4  # as torch's OneCycleLR


def build_optimizer(model: nn.Module, config: Config, device: torch.device) -> torch.optim.Optimizer:
    """Adam or AdamW; weight decay on tensors of two or more dimensions only.

    Where the backbone learns at another rate than the head, it has groups of its own.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    ratio_of = {name: config.backbone_lr_ratio if name.startswith("backbone.") else 1.0 for name, _ in trained}
    groups = [
        {"params": chosen, "weight_decay": config.weight_decay if decays else 0.0, "lr_ratio": ratio}
        for ratio in sorted({*ratio_of.values()}, key=lambda ratio: ratio != 1)  # the log tells the first group's rate
        for decays in (True, False)
        if (chosen := [p for name, p in trained if ratio_of[name] == ratio and (p.ndim >= 2) is decays])
    ]
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, **device_options(config.lr, device))


def device_options(lr: float, device: torch.device) -> dict[str, Any]:
    """On a GPU the learning rate is a tensor and the step can be captured."""
    cuda = device.type == "cuda"
    rate = torch.tensor(lr, device=device) if cuda else lr
    return {"lr": rate, "fused": cuda, "capturable": cuda}


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what was saved for each parameter. The rest are settings, which are the run's own, on its own device.

    ValueError if it is not of such an optimizer and such parameters.
    """
    own = optimizer.state_dict()["param_groups"]
    if [group["params"] for group in state["param_groups"]] != [group["params"] for group in own]:
        raise ValueError("other parameters")
    parameters = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    for number, moments in state["state"].items():
        shapes = {name: value.is_floating_point() and value.shape for name, value in moments.items()}
        shape = parameters[number].shape
        if isinstance(number, bool) or shapes != {"step": torch.Size(), "exp_avg": shape, "exp_avg_sq": shape}:
            raise ValueError("moments of other parameters")
    optimizer.load_state_dict({"state": state["state"], "param_groups": own})


def lr_at(step: int, *, max_lr: float, total_steps: int, warmup_ratio: float) -> float:
    """The one-cycle rate: a cosine up to `max_lr`, then a cosine down to almost nothing."""
    peak, last = max(warmup_ratio * total_steps - 1, 0), total_steps - 1
    if step < peak:
        start, end, progress = max_lr / START_DIVISOR, max_lr, step / peak
    else:
        start, end = max_lr, max_lr / START_DIVISOR / END_DIVISOR
        progress = (step - peak) / (last - peak) if last > peak else 0
    return end + (start - end) / 2 * (1 + math.cos(math.pi * progress))


def set_lr(optimizer: torch.optim.Optimizer, lr: Tensor) -> None:
    """From a tensor () on the optimizer's device."""
    for group in optimizer.param_groups:
        rate = lr * group.get("lr_ratio", 1.0)  # checkpoints of older versions have none
        if lr.is_cuda:
            group["lr"].copy_(rate)
        else:
            group["lr"] = float(rate)


class Ema:
    """The EMA of a model's weights and buffers, in eval mode: the teacher, and the model that is scored.

    Early on the average is short, (1 + step) / (10 + step), so that it does not remember the random start.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    def weight(self, step: int) -> float:
        """The weight of the student in the average after a step."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: nn.Module, weight: Tensor) -> None:
        """Move towards the student by `weight` (), a tensor on its device."""
        teacher, student = self.model.state_dict(), model.state_dict()
        averaged = [name for name, value in teacher.items() if value.is_floating_point()]
        old, new = [teacher[name] for name in averaged], [student[name] for name in averaged]
        if weight.is_cuda:
            moves = torch._foreach_sub(new, old)
            torch._foreach_mul_(moves, weight.float())
            torch._foreach_add_(old, moves)
        else:
            torch._foreach_lerp_(old, new, float(weight))
        counters = [name for name in teacher if name not in set(averaged)]  # BatchNorm's
        if counters:
            torch._foreach_copy_([teacher[name] for name in counters], [student[name] for name in counters])
