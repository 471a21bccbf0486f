"""What stands between the paper's recipe here and its published figures: one suspect at a time, on validation images.

    python benchmarks/paper_suspects.py --root FOLDER --out runs/suspects --results FILE.json --photographs TEXT

FOLDER holds VOCdevkit/VOC2007 without the lists of the test half (ImageSets/Main/*test.txt), so that no run sees it:
the official train half is learnt from, the val half is scored. Some suspects are no settings of the program; they
replace one of its functions here. The same command goes on after an interruption; `--minutes` begins no run that would
end later.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any
from unittest.mock import patch

import torch
from suspects import Patch, Suspect, search
from torch import Tensor
from torch.nn import functional as F

from percentmatch import Config
from percentmatch.augment import uniforms, views
from percentmatch.losses import LOSSES, asymmetric_loss
from percentmatch.settings.presets import preset_values
from percentmatch.training import loop
from percentmatch.training.optim import lr_at, set_lr

TRIED, SIGN = 1_000_211, 3  # random stream of the operations that are left out; numbers an operation draws


def half_the_operations(seed: int, step: int, sample: Tensor, count: int, stream: int) -> Tensor:
    """`uniforms`, by which each operation of a view is left out with probability one half: its number is then 0."""
    drawn = uniforms(seed, step, sample, count, stream)  # (n, 8 + 3 * ops)
    slots = drawn[:, 8::SIGN]  # (n, ops)
    slots[uniforms(seed, step, sample, slots.shape[1], stream + TRIED) < 0.5] = 0.0
    return drawn


def focus_with_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """ASL whose focusing weight has a gradient, as its formula is written."""
    logits, targets = logits.float(), targets.float()
    shifted = (logits.sigmoid() - 0.05).clamp(min=0)  # p_m
    return -targets * F.logsigmoid(logits) - (1 - targets) * shifted**4 * (1 - shifted).log()


@contextlib.contextmanager
def cycled_momentum(config: Config) -> Generator[None]:
    """Adam's first beta goes from 0.95 to 0.85 and back while the rate rises and falls, as torch's OneCycleLR."""
    step = iter(range(config.total_steps))

    def set_both(optimizer: torch.optim.Optimizer, lr: Tensor) -> None:
        set_lr(optimizer, lr)
        rate = lr_at(next(step), max_lr=1.0, total_steps=config.total_steps, warmup_ratio=config.lr_warmup_ratio)
        for group in optimizer.param_groups:
            group["betas"] = (0.95 - 0.1 * rate, 0.999)

    with patch.object(loop, "set_lr", set_both):
        yield


def loss(function: Callable[[Tensor, Tensor], Tensor]) -> Patch:
    return lambda config: patch.dict(LOSSES, asl=function)


def in_views(**changed: Any) -> dict[str, Any]:
    return {name: changed for name in ("labeled_view", "weak_view", "strong_view")}


def halved(config: Config) -> contextlib.AbstractContextManager:
    return patch.object(views, "uniforms", half_the_operations)


LESS_DECAY = {"weight_decay": 3e-6}
CUT = in_views(cutout_ratio=0.87)  # the same mean area, 19%, as a square of half the side that ends at the image's edge
SUPERVISED = {"method": "supervised"}
SUSPECTS: dict[str, Suspect] = {
    "percentmatch": Suspect(),
    "supervised": Suspect(SUPERVISED),
    "percentmatch, weight decay 3e-6": Suspect(LESS_DECAY),
    "supervised, weight decay 3e-6": Suspect({**SUPERVISED, **LESS_DECAY}),
    "percentmatch, half of the operations": Suspect({}, halved),
    "supervised, half of the operations": Suspect(SUPERVISED, halved),
    "percentmatch, cutout of 19%": Suspect(CUT),
    "percentmatch, labeled images without operations": Suspect({"labeled_view": {"ops": 0}}),
    "percentmatch, crops of 0.3": Suspect(in_views(crop_scale=0.3)),
    "percentmatch, momentum 0.9, 256 logit bins": Suspect(
        {"options": {"momentum": 0.9, "bins": "logit", "num_bins": 256, "bias_correction": True}}
    ),
    "percentmatch, momentum 0.995": Suspect({"options": {"momentum": 0.995}}),
    "percentmatch, teacher scores": Suspect({"options": {"scores": "teacher"}}),
    "percentmatch, gamma+ 1": Suspect({}, loss(lambda z, y: asymmetric_loss(z, y, gamma_positive=1.0))),
    "percentmatch, gradient through the focus": Suspect({}, loss(focus_with_gradient)),
    "percentmatch, learning rate 1e-3": Suspect({"lr": 1e-3}),
    "percentmatch, rise of 0.3 and cycled momentum": Suspect(
        {"lr_warmup_ratio": 0.3, "cuda_graph": False}, cycled_momentum
    ),
    "percentmatch, weight decay 0": Suspect({"weight_decay": 0.0}),
    # the paper: "not very sensitive to these hyperparameters"; and what its conclusion proposes
    **{
        f"percentmatch, {name}={value}": Suspect({"options": {name: value}})
        for name, values in (("upper_percentile", (0.96, 0.99)), ("lower_percentile", (0.05, 0.2)))
        for value in values
    },
    "percentmatch, gate from 0.4": Suspect({"options": {"gap_start": 0.4, "gap_full": 0.45}}),
    "percentmatch, gate from 0.6": Suspect({"options": {"gap_start": 0.6, "gap_full": 0.65}}),
    "percentmatch, curriculum": Suspect({"options": {"schedule": "curriculum"}}),
}


if __name__ == "__main__":
    recipe = preset_values("voc2007-paper")
    search(__doc__, {**recipe, "official_validation": True}, SUSPECTS)
