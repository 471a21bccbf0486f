"""How a short run from ImageNet weights should begin on a CPU: one change at a time, on validation images.

    python benchmarks/start_suspects.py --root FOLDER --out runs/start --results FILE.json --photographs TEXT

FOLDER holds VOCdevkit/VOC2007 whose lists are cut to the first 1,200 images of train and 800 of val, without test. 200
of the former have labels. The same command goes on after an interruption.
"""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from suspects import Patch, Suspect, search
from torch import Tensor

from percentmatch.training.loader import Pixels

SHORT = {"ops": 1, "crop_scale": 0.5, "cutout_ratio": 0.0}
RECIPE: dict[str, Any] = {
    "data": "voc",
    "official_validation": True,
    "backbone": "tf_efficientnet_lite0",
    "weights": "offline",
    "head": "linear",
    "head_start": "probe",
    "image_size": 160,
    "labeled_batch": 16,
    "total_steps": 187,
    "eval_every": 0,
    "save_every": 187,
    "ema_decay": 0.9465,
    "optimizer": "adamw",
    "lr": 1e-4,
    "weight_decay": 0.05,
    "labeled_view": SHORT,
    "weak_view": SHORT,
    "strong_view": {"ops": 3, "crop_scale": 0.5},
    "device": "cpu",
}
ALONE = {"method": "supervised", "options": {"loss": "bce"}}
PRIOR = {"method": "priormatch", "options": {"warmup_steps": 0}}
BEFORE = {"head_start": "prior", "lr": 5e-4}
FROZEN = {"freeze_batch_norm": True}
LARGE = {**FROZEN, "image_size": 224, "total_steps": 94, "save_every": 94, "ema_decay": 0.9}
WHOLE = {"weak_view": {"strength": 0.5, "crop_scale": 0.8}}  # nearly the whole image


def views_of(side: int) -> Patch:
    """Views in training are smaller than the images that are scored."""
    usual = Pixels.views

    def views(self: Pixels, drawn: Any, sent: Any) -> Tensor:
        kept, self.config = self.config, replace(self.config, image_size=side, cache_size=self.config.decode_size)
        try:
            return usual(self, drawn, sent)
        finally:
            self.config = kept

    return lambda config: patch.object(Pixels, "views", views)


SUSPECTS = {
    "probe": Suspect({"method": "probe", "options": {}}),
    "supervised, as before": Suspect({**ALONE, **BEFORE}),
    "priormatch, as before": Suspect({**PRIOR, **BEFORE, "options": {"warmup_steps": 37}}),
    "supervised, probe, 5e-4": Suspect({**ALONE, "lr": 5e-4}),
    "supervised, probe": Suspect(ALONE),
    "priormatch, probe": Suspect(PRIOR),
    "supervised, probe, frozen": Suspect({**ALONE, **FROZEN}),
    "supervised, probe, frozen, 5e-4": Suspect({**ALONE, **FROZEN, "lr": 5e-4}),
    "supervised, probe, frozen, 3e-5": Suspect({**ALONE, **FROZEN, "lr": 3e-5}),
    "priormatch, probe, frozen": Suspect({**PRIOR, **FROZEN}),
    "priormatch, probe, frozen, whole weak view": Suspect({**PRIOR, **FROZEN, **WHOLE}),
    "probe, 224": Suspect({"method": "probe", "options": {}, "image_size": 224}),
    "supervised, 224": Suspect({**ALONE, **LARGE}),
    "supervised, 224, 2e-4": Suspect({**ALONE, **LARGE, "lr": 2e-4}),
    "priormatch, 224": Suspect({**PRIOR, **LARGE}),
    "priormatch, 224, 2e-4": Suspect({**PRIOR, **LARGE, "lr": 2e-4}),
    "priormatch, 224, whole weak view": Suspect({**PRIOR, **LARGE, **WHOLE}),
    "priormatch, 224, views of 192": Suspect({**PRIOR, **LARGE}, views_of(192)),
    "priormatch, 224, views of 160": Suspect({**PRIOR, **LARGE}, views_of(160)),
}

if __name__ == "__main__":
    search(__doc__, RECIPE, SUSPECTS, labeled=200)
