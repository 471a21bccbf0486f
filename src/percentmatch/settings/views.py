"""How a view of an image is made: the settings of random operations, crops, flips and cutouts. Imports no torch."""

from dataclasses import dataclass
from typing import Annotated

from percentmatch.settings.declare import Setting, check

OWN_VIEW = {"ops": "1, from 1,000 steps 3", "crop_scale": "0.5, from 1,000 steps 0.3", "cutout_ratio": "0"}
OWN_WEAK_VIEW = {
    **OWN_VIEW,
    "ops": "1, where the student labels 3 from 1,000 steps",
    "strength": "from 1,000 steps 0.5",
    "crop_scale": "0.5, from 1,000 steps 0.8",
}
OWN_STRONG_VIEW = {"ops": "3, from 1,000 steps 8", "crop_scale": OWN_VIEW["crop_scale"]}


@dataclass(frozen=True, kw_only=True)
class View:
    """How one view of an image is made."""

    ops: Annotated[int, Setting(low=0, high=32)] = 3
    """Random operations (RandAugment) applied to each image."""
    strength: Annotated[float, Setting(low=0, high=1)] = 1.0
    """Largest operation strength: 0 leaves images alone, 1 is the standard RandAugment range."""
    crop_scale: Annotated[float, Setting(above=0, high=1)] = 1.0
    """Smallest fraction of the area that a random resized crop keeps; 1 turns the crop off."""
    flip: Annotated[bool, Setting()] = True
    """Flip half of the images left to right."""
    cutout_ratio: Annotated[float, Setting(low=0, high=1)] = 0.5
    """Largest side of the square that is cut out, as a fraction of the image side; 0 turns it off."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class StrongView(View):
    """The strong view: as the weak one, with more operations."""

    ops: Annotated[int, Setting(low=0, high=32)] = 8
    """Random operations (RandAugment) applied to each image."""


@dataclass(frozen=True, kw_only=True)
class PretrainView(View):
    """The two views of an image that pretraining makes similar: a small crop, other colours, and operations."""

    ops: Annotated[int, Setting(low=0, high=32)] = 2
    """Random operations (RandAugment) applied to each image."""
    crop_scale: Annotated[float, Setting(above=0, high=1)] = 0.15
    """Smallest fraction of the area that a random resized crop keeps; 1 turns the crop off."""
    cutout_ratio: Annotated[float, Setting(low=0, high=1)] = 0.0
    """Largest side of the square that is cut out, as a fraction of the image side; 0 turns it off."""
    jitter: Annotated[float, Setting(low=0, high=1)] = 0.5
    """Strength of random changes of brightness, contrast, saturation and hue; above 0, a fifth of the views is grey."""
