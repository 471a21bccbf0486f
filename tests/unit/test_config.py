"""Settings given in Python are checked as those of files and flags are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from percentmatch.config import Config, DataSettings, PretrainSettings, View
from percentmatch.data import Data, Images
from percentmatch.errors import UserError
from percentmatch.train import train

TINY = Config(
    data="scenes",
    scenes_pool=60,
    scenes_test=20,
    validation=20,
    labeled=20,
    image_size=32,
    backbone="test_resnet",
    head="linear",
    labeled_batch=4,
)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"optimizer": "sgd"}, "optimizer must be one of adam, adamw, not 'sgd'"),
        ({"precision": "fp16"}, "precision must be one of auto, float32, bfloat16, float64, not 'fp16'"),
        ({"task": "single_label"}, "task must be one of multi-label, single-label"),
        ({"frame": "crop"}, "frame must be one of squash, center"),
        ({"lr": "3e-4"}, "lr must be a float, not '3e-4'"),
        ({"total_steps": 3.0}, "total_steps must be a int, not 3.0"),
        ({"deterministic": 1}, "deterministic must be a bool, not 1"),
        ({"strong_view": {"ops": 2}}, "strong_view must be a View"),
    ],
)
def test_wrong_types_and_choices_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Config(**values)


def test_what_fits_is_taken_as_it_is() -> None:
    config = Config(labeled=500, lr=1, strong_view=View(ops=1))
    assert (config.labeled, config.lr, config.strong_view.ops) == (500, 1, 1)
    assert isinstance(config.labeled, int)
    with pytest.raises(UserError, match="split_kind must be one of"):
        DataSettings(split_kind="foo")  # ty: ignore[invalid-argument-type]
    with pytest.raises(UserError, match="view must be a View"):
        PretrainSettings(view=None)  # ty: ignore[invalid-argument-type]


def images(**changed: Any) -> Images:
    tables = {name: torch.zeros(2, 3, dtype=torch.uint8) for name in ("targets", "known")}
    given = {
        "pixels": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        **tables,
        "ids": ["a", "b"],
        "class_names": list("xyz"),
    }
    return Images(**{**given, **changed})


def test_images_given_in_python_are_checked() -> None:
    assert images().ids == ("a", "b")
    assert images().class_names == ("x", "y", "z")
    for changed, sentence in (
        ({"pixels": np.zeros((2, 3, 4, 4), np.uint8)}, "pixels must be a torch.Tensor, not ndarray"),
        ({"targets": np.zeros((2, 3), np.uint8)}, "targets must be a torch.Tensor, not ndarray"),
        ({"ids": (1, 2)}, "ids must be texts"),
    ):
        with pytest.raises(UserError, match=sentence):
            images(**changed)
    small = images(pixels=torch.zeros(2, 3, 2, 2, dtype=torch.uint8), ids=("c", "d"))
    with pytest.raises(UserError, match="pool and test must have images of one size"):
        Data(images(), small)


def test_one_label_an_image_is_asked_of_python_too(tmp_path: Path) -> None:
    several = images(targets=torch.ones(2, 3, dtype=torch.uint8), known=torch.ones(2, 3, dtype=torch.uint8))
    nothing = images(
        pixels=torch.zeros(0, 3, 4, 4, dtype=torch.uint8), ids=(), targets=several.targets[:0], known=several.known[:0]
    )
    config = Config(task="single-label", image_size=4, validation=0)
    with pytest.raises(UserError, match=r"image 'a' has 3 labels \(2 images have not exactly one\)"):
        train(config, tmp_path / "run", data=Data(several, nothing))
    assert not (tmp_path / "run").exists()


def test_the_callers_draws_go_on(tmp_path: Path) -> None:
    torch.manual_seed(7)
    wanted = torch.rand(2)
    torch.manual_seed(7)
    first = torch.rand(1)
    train(replace(TINY, total_steps=1), tmp_path / "run")
    assert torch.equal(torch.cat([first, torch.rand(1)]), wanted)
