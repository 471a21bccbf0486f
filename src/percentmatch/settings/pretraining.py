"""Every setting of a pretraining, declared once, as those of a run are."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated

from percentmatch.settings.config import MANY, MODEL, MOST_PIXELS, TRAINING, VIEWS, Config, SharedSettings, View
from percentmatch.settings.declare import Setting


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


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(SharedSettings):
    """The settings of a self-supervised warm start."""

    image_size: Annotated[int, MODEL(low=1, high=MOST_PIXELS)] = 128
    """Side of the square views, in pixels; it may be smaller than that of the training that follows."""
    cache_size: Annotated[int, MODEL(low=0, high=MOST_PIXELS)] = 0
    """Side of the squares that image files are kept at; 0: twice image_size."""

    total_steps: Annotated[int, TRAINING(low=1, high=MANY)] = 2800
    """Optimizer steps."""
    batch: Annotated[int, TRAINING(low=2, high=65_536)] = 256
    """Images a step, two views of each."""
    temperature: Annotated[float, TRAINING(low=0.001, high=100)] = 0.2
    """Of the loss: the lower, the more the most similar of the other images count."""
    lr: Annotated[float, TRAINING(above=0, high=1000)] = 1e-3
    """Largest learning rate of the one-cycle schedule."""
    lr_warmup_ratio: Annotated[float, TRAINING(low=0, high=1)] = 0.1
    """Fraction of the steps in which the learning rate rises."""
    weight_decay: Annotated[float, TRAINING(low=0, high=1000)] = 0.05
    """On weights of two or more dimensions (AdamW); biases and norms are left alone."""

    view: Annotated[PretrainView, VIEWS()] = field(default_factory=PretrainView)
    """How each of the two views is made."""

    def as_config(self) -> Config:
        """A run's settings with the same images and optimizer, for what reads those."""
        ours, theirs = ({field.name for field in dataclasses.fields(cls)} for cls in (PretrainSettings, Config))
        shared = {name: getattr(self, name) for name in ours & theirs}
        side = self.cache_size or min(2 * self.image_size, MOST_PIXELS)
        return dataclasses.replace(Config(**shared), cache_size=side, optimizer="adamw")
