"""Settings given in Python are checked as those of files and flags are."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from percentmatch.data import Data, Images
from percentmatch.data.labels import Labels
from percentmatch.errors import UserError
from percentmatch.settings.config import Config, DataSettings, PretrainSettings
from percentmatch.settings.declare import declared, help_lines
from percentmatch.settings.views import View


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
    given = {
        "pixels": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        "labels": Labels.none(2, 3),
        "ids": ["a", "b"],
        "class_names": list("xyz"),
    }
    return Images(**{**given, **changed})


def test_images_given_in_python_are_checked() -> None:
    assert images().ids == ("a", "b")
    assert images().class_names == ("x", "y", "z")
    for changed, sentence in (
        ({"pixels": np.zeros((2, 3, 4, 4), np.uint8)}, "pixels must be a torch.Tensor, not ndarray"),
        ({"labels": np.zeros((2, 3), np.uint8)}, "labels must be Labels, not ndarray; make them by Labels.of"),
        ({"ids": (1, 2)}, "ids must be texts"),
    ):
        with pytest.raises(UserError, match=sentence):
            images(**changed)
    small = images(pixels=torch.zeros(2, 3, 2, 2, dtype=torch.uint8), ids=("c", "d"))
    with pytest.raises(UserError, match="pool and test must have images of one size"):
        Data(images(), small)


@pytest.mark.parametrize("settings", [Config, PretrainSettings, View])
def test_a_setting_is_declared_once_with_its_help_line(settings: Any) -> None:
    names = {each.name for each in fields(settings)}
    assert declared(settings).keys() == names <= help_lines(settings).keys()
    assert all(each.group for each in declared(settings).values()) or settings is View
    assert all(text.endswith(".") for text in help_lines(settings).values())


def test_a_value_out_of_its_declared_range_is_refused() -> None:
    for values, sentence in (
        ({"dropout": 1.5}, "dropout must lie between 0 and 1, not 1.5"),
        ({"lr": 0.0}, "lr must be above 0 and at most 1000, not 0.0"),
        ({"lr": float("nan")}, "lr must be above 0 and at most 1000, not nan"),
        ({"weak_view": {"crop_scale": 0}}, "crop_scale must be above 0 and at most 1, not 0"),
    ):
        with pytest.raises(UserError, match=sentence):
            Config.from_dict(values)
