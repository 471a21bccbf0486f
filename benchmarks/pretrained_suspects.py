"""What makes unlabeled images pay from pretrained weights: one change at a time, on validation images.

    python benchmarks/pretrained_suspects.py --root FOLDER --out runs/pretrained --results FILE.json --photographs TEXT

FOLDER holds VOCdevkit/VOC2007 without the lists of the test half (ImageSets/Main/*test.txt), so that no run sees it:
the official train half is learnt from, the val half is scored. Some suspects are no settings of the program; they
replace one of its functions here. Each finished model is also scored at a larger size and over two flips.
The same command goes on after an interruption.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from suspects import Patch, Suspect, search
from torch import Tensor, nn
from torch.nn import functional as F

from percentmatch import Config
from percentmatch.data import load_data
from percentmatch.methods.weak_to_strong import WeakToStrong
from percentmatch.models import load_classifier
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.predictions import evaluate, probabilities
from percentmatch.settings.declare import merge
from percentmatch.settings.presets import preset_values

Network = Callable[[Tensor], Tensor]
LOCAL = 0.6  # of the side, for each of four crops


class Seen(nn.Module):
    """A network whose logits of images are `how(network, images)`."""

    def __init__(self, how: Callable[[Network, Tensor], Tensor], network: nn.Module) -> None:
        super().__init__()
        self.how, self.network = how, network

    def forward(self, images: Tensor) -> Tensor:
        return self.how(self.network, images)


def teacher_sees(how: Callable[[Network, Tensor], Tensor]) -> Patch:
    usual = WeakToStrong.forward

    def forward(method: WeakToStrong, model: nn.Module, batch: Any, teacher: nn.Module) -> Any:
        return usual(method, model, batch, Seen(how, teacher))

    return lambda config: patch.object(WeakToStrong, "forward", forward)


def mean_logit(logits: list[Tensor]) -> Tensor:
    """The logit of the mean probability."""
    return torch.stack([each.float().sigmoid() for each in logits]).mean(0).logit(1e-6)


def both_flips(teacher: Network, images: Tensor) -> Tensor:
    return mean_logit([teacher(images), teacher(images.flip(3))])


def crops(images: Tensor) -> list[Tensor]:
    """Four crops that overlap, each as large as the image."""
    size = images.shape[-1]
    side = round(LOCAL * size)
    corners = [(y, x) for y in (0, size - side) for x in (0, size - side)]
    parts = [images[:, :, y : y + side, x : x + side] for y, x in corners]
    return [F.interpolate(part, size=size, mode="bilinear", align_corners=False) for part in parts]


def with_crops(teacher: Network, images: Tensor) -> Tensor:
    """The mean of the whole image and the likeliest of its four crops."""
    local = torch.stack([teacher(part).float() for part in crops(images)]).amax(0)
    return mean_logit([teacher(images), local])


def larger(teacher: Network, images: Tensor) -> Tensor:
    """Networks read images better that are a little larger than in training (Touvron et al. 2019)."""
    return teacher(F.interpolate(images, scale_factor=8 / 7, mode="bilinear", align_corners=False))


RECIPE = {
    **preset_values("voc2007-best"),
    "backbone": "tf_efficientnet_lite0",
    "weights": "offline",
    "official_validation": True,
    "head_start": "prior",
    "lr": 1e-4,
    "total_steps": 1000,
    "eval_every": 0,
    "save_every": 1000,
}
SUPERVISED = {"method": "supervised", "options": {"loss": "bce"}}
PROBE = {"head_start": "probe", "freeze_batch_norm": True}
LEARNS = {"head_start": "probe"}
SEVEN = {"labeled_batch": 16, "unlabeled_ratio": 7}
SOON = {**SEVEN, "options": {"warmup_steps": 50}}
SHARP = {**PROBE, **SEVEN, "options": {"warmup_steps": 50, "temperature": 0.5}}
TEN = {"ops": 10, "cutout_ratio": 0.5}
LONG = {"total_steps": 3000, "save_every": 3000}
SUSPECTS: dict[str, Suspect] = {
    "probe": Suspect({"method": "probe", "options": {}, "head_start": "probe"}),
    "supervised": Suspect(SUPERVISED),
    "priormatch": Suspect(),
    "supervised, probe": Suspect({**SUPERVISED, **PROBE}),
    "priormatch, probe": Suspect(PROBE),
    "supervised, probe, BatchNorm learns": Suspect({**SUPERVISED, **LEARNS}),
    "priormatch, probe, BatchNorm learns": Suspect(LEARNS),
    "supervised, probe, backbone 0.3": Suspect({**SUPERVISED, **PROBE, "lr": 3e-4, "backbone_lr_ratio": 0.3}),
    "supervised, probe, 500 steps": Suspect({**SUPERVISED, **PROBE, "total_steps": 500}),
    "supervised, probe, 300 steps": Suspect({**SUPERVISED, **PROBE, "total_steps": 300}),
    "supervised, probe, 500 steps, lr 2e-4": Suspect({**SUPERVISED, **PROBE, "total_steps": 500, "lr": 2e-4}),
    "supervised, probe, no mixup": Suspect({**SUPERVISED, **PROBE, "mixup": 0.0}),
    "supervised, probe, crops of 0.5": Suspect({**SUPERVISED, **PROBE, "labeled_view": {"crop_scale": 0.5}}),
    "priormatch, probe, seven": Suspect({**PROBE, **SEVEN}),
    "priormatch, probe, seven, warm-up 50": Suspect({**PROBE, **SEVEN, "options": {"warmup_steps": 50}}),
    "priormatch, probe, seven, lr 2e-4": Suspect({**PROBE, **SEVEN, "lr": 2e-4}),
    "priormatch, probe, seven, long": Suspect({**PROBE, **SEVEN, **LONG}),
    "priormatch, probe, seven, long, lr 2e-4": Suspect({**PROBE, **SEVEN, **LONG, "lr": 2e-4}),
    "priormatch, probe, seven, BatchNorm learns": Suspect({**LEARNS, **SOON}),
    "priormatch, probe, seven, sharper 0.7": Suspect(merge(SHARP, {"options": {"temperature": 0.7}})),
    "priormatch, probe, seven, sharper 0.5": Suspect(SHARP),
    "priormatch, probe, seven, sharper 0.3": Suspect(merge(SHARP, {"options": {"temperature": 0.3}})),
    "priormatch, probe, seven, sharper 0.5, ten operations": Suspect({**SHARP, "strong_view": TEN}),
    "priormatch, probe, seven, sharper 0.5, weight 2": Suspect(merge(SHARP, {"options": {"weight": 2.0}})),
    "priormatch, probe, seven, sharper 0.5, backbone 0.3": Suspect({**SHARP, "lr": 3e-4, "backbone_lr_ratio": 0.3}),
    "priormatch, probe, seven, sharper 0.5, no mixup": Suspect({**SHARP, "mixup": 0.0}),
    "priormatch, probe, seven, sharper 0.5, long": Suspect({**SHARP, **LONG}),
    "priormatch, probe, sharper 0.5": Suspect({**PROBE, "options": SHARP["options"]}),
    "priormatch, probe, seven, weight 3": Suspect({**PROBE, **SEVEN, "options": {"weight": 3.0}}),
    "priormatch, probe, both flips": Suspect(PROBE, teacher_sees(both_flips)),
    "priormatch, probe, crops": Suspect(PROBE, teacher_sees(with_crops)),
    "priormatch, probe, seven, crops": Suspect({**PROBE, **SOON}, teacher_sees(with_crops)),
    "priormatch, probe, seven, larger": Suspect({**PROBE, **SOON}, teacher_sees(larger)),
    "priormatch, probe, crops of 0.5": Suspect({**PROBE, "strong_view": {"crop_scale": 0.5}}),
    "priormatch, probe, ten operations": Suspect({**PROBE, "strong_view": TEN}),
    **{
        f"{method}, probe, seven": Suspect({"method": method, **PROBE, **SEVEN, "options": {"loss": "bce", **more}})
        for method, more in {
            "cap": {"warmup_steps": 50},
            "mat": {"warmup_steps": 50},
            "dicap": {"warmup_steps": 50},
            "fixmatch": {"variant": "symmetric", "scores": "teacher"},
            "percentmatch": {"warmup_steps": 50, "scores": "teacher"},
        }.items()
    },
}


def other_scores(folder: RunFolder, config: Config) -> dict[str, Any]:
    """The validation scores of a finished model that is read in other ways."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, card = load_classifier(folder.model, device)
    data, split = load_data(config), folder.read_split()
    validation = data.pool.part(split.validation)

    def scored(network: nn.Module, size: int = card.image_size) -> dict[str, float | None]:
        found = probabilities(network, validation.pixels, replace(card, image_size=size), device)
        means = evaluate(found, validation, config.task).means
        return {name: means[name] for name in ("mAP", "AUC")}

    larger = round(card.image_size * 8 / 7)
    scores = {"as it is": scored(model), "both flips": scored(Seen(both_flips, model)), "8/7": scored(model, larger)}
    return {"read in other ways": scores}


if __name__ == "__main__":
    search(__doc__, RECIPE, SUSPECTS, after=other_scores)
