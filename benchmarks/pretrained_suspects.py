"""What makes unlabeled images pay from pretrained weights: one change at a time, on validation images.

    python benchmarks/pretrained_suspects.py --root FOLDER --out runs/pretrained --results FILE.json --photographs TEXT

FOLDER holds VOCdevkit/VOC2007 without the lists of the test half (ImageSets/Main/*test.txt), so that no run sees it:
the official train half is learnt from, the val half is scored. Some suspects are no settings of the program; they
replace one of its functions here. Each finished model is scored in other ways, too: with norms estimated again on plain
images, at other sizes, and over two flips. The same command goes on after an interruption.
"""

import contextlib
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from suspects import Patch, Suspect, search
from torch import Tensor, nn
from torch.nn import functional as F

from percentmatch import Config
from percentmatch.augment import frame, resize
from percentmatch.data import Images, load_data
from percentmatch.methods.weak_to_strong import WeakToStrong
from percentmatch.models import load_classifier
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.predictions import evaluate, probabilities
from percentmatch.settings.presets import preset_values
from percentmatch.training import run as training
from percentmatch.training.optim import Ema

Network = Callable[[Tensor], Tensor]
LOCAL = 0.6  # of the side, for each of four crops


def norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def freeze(model: nn.Module, device: torch.device) -> None:
    """In place of `quicken`: normalise by the statistics of the pretrained weights, which stay as they are."""
    for layer in norms(model):
        layer.eval()


def frozen_norms(config: Config) -> contextlib.AbstractContextManager:
    return patch.object(training, "quicken", freeze)


class BatchTeacher(Ema):
    """A teacher that normalises by the statistics of its own batch, as the student does."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, decay)
        for layer in norms(self.model):
            layer.train()
            layer.momentum = 0.0


def batch_teacher(config: Config) -> contextlib.AbstractContextManager:
    return patch.object(training, "Ema", BatchTeacher)


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


SUPERVISED = {"method": "supervised", "options": {"loss": "bce"}}
PROBE = {"head_start": "probe"}
SEVEN = {"labeled_batch": 16, "unlabeled_ratio": 7}
LONG = {"total_steps": 3000, "save_every": 3000}
SUSPECTS: dict[str, Suspect] = {
    "probe": Suspect({"method": "probe", "options": {}, "head_start": "probe"}),
    "supervised": Suspect(SUPERVISED),
    "priormatch": Suspect(),
    "supervised, probe": Suspect({**SUPERVISED, **PROBE}),
    "priormatch, probe": Suspect(PROBE),
    "supervised, frozen norms": Suspect({**SUPERVISED, **PROBE}, frozen_norms),
    "priormatch, frozen norms": Suspect(PROBE, frozen_norms),
    "supervised, probe, backbone 0.3": Suspect({**SUPERVISED, **PROBE, "lr": 3e-4, "backbone_lr_ratio": 0.3}),
    "supervised, probe, 500 steps": Suspect({**SUPERVISED, **PROBE, "total_steps": 500}),
    "supervised, probe, no mixup": Suspect({**SUPERVISED, **PROBE, "mixup": 0.0}),
    "supervised, probe, crops of 0.5": Suspect({**SUPERVISED, **PROBE, "labeled_view": {"crop_scale": 0.5}}),
    "priormatch, probe, seven": Suspect({**PROBE, **SEVEN}),
    "priormatch, probe, seven, lr 2e-4": Suspect({**PROBE, **SEVEN, "lr": 2e-4}),
    "priormatch, probe, seven, long": Suspect({**PROBE, **SEVEN, **LONG}),
    "priormatch, probe, seven, long, lr 2e-4": Suspect({**PROBE, **SEVEN, **LONG, "lr": 2e-4}),
    "priormatch, probe, batch teacher": Suspect(PROBE, batch_teacher),
    "priormatch, probe, both flips": Suspect(PROBE, teacher_sees(both_flips)),
    "priormatch, probe, crops": Suspect(PROBE, teacher_sees(with_crops)),
    "priormatch, probe, seven, crops": Suspect({**PROBE, **SEVEN}, teacher_sees(with_crops)),
    "priormatch, probe, crops of 0.5": Suspect({**PROBE, "strong_view": {"crop_scale": 0.5}}),
    "priormatch, probe, ten operations": Suspect({**PROBE, "strong_view": {"ops": 10, "cutout_ratio": 0.5}}),
    "cap, probe, seven": Suspect({"method": "cap", "options": {"loss": "bce", "warmup_steps": 50}, **PROBE, **SEVEN}),
}


@contextlib.contextmanager
def estimated_again(model: nn.Module, pool: Images, card: Any, device: torch.device) -> Generator[None]:
    """The norms have the statistics of the pool's plain images, and afterwards what they had."""
    layers = norms(model)
    kept = [(layer, {name: value.clone() for name, value in layer.state_dict().items()}) for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean of all batches
        layer.train()
    with torch.no_grad():
        for images in frame(pool.pixels, card.frame).split(64):
            model(resize(images.to(device), card.image_size, card.mean, card.std))
    for layer in layers:
        layer.eval()
    yield
    for layer, state in kept:
        layer.load_state_dict(state)


def other_scores(folder: RunFolder, config: Config) -> dict[str, Any]:
    """The validation scores of a finished model that is read in other ways."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, card = load_classifier(folder.model, device)
    data, split = load_data(config), folder.read_split()
    validation, pool = data.pool.part(split.validation), data.pool.part((*split.labeled, *split.unlabeled))

    def scored(network: nn.Module, size: int = card.image_size) -> dict[str, float | None]:
        found = probabilities(network, validation.pixels, replace(card, image_size=size), device)
        means = evaluate(found, validation, config.task).means
        return {name: means[name] for name in ("mAP", "AUC")}

    larger = round(card.image_size * 8 / 7)
    scores = {"as it is": scored(model), "both flips": scored(Seen(both_flips, model)), "8/7": scored(model, larger)}
    with estimated_again(model, pool, card, device):
        scores |= {"norms": scored(model), "norms, 8/7": scored(model, larger)}
    return {"read in other ways": scores}


if __name__ == "__main__":
    recipe = {
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
    search(__doc__, recipe, SUSPECTS, after=other_scores)
