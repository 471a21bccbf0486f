"""Batched, per-sample random views: the same code on CPU and GPU."""

from percentmatch.augment.blend import Blend
from percentmatch.augment.colour import COLOUR
from percentmatch.augment.draws import mix, uniforms
from percentmatch.augment.frame import frame, shrink
from percentmatch.augment.geometry import GEOMETRY
from percentmatch.augment.jitter import draw_jitter, recolour
from percentmatch.augment.views import (
    NAMES,
    OPERATIONS,
    Plan,
    apply,
    draw,
    fused_views,
    normalise,
    resize,
)

__all__ = [
    "COLOUR",
    "GEOMETRY",
    "NAMES",
    "OPERATIONS",
    "Blend",
    "Plan",
    "apply",
    "draw",
    "draw_jitter",
    "frame",
    "fused_views",
    "mix",
    "normalise",
    "recolour",
    "resize",
    "shrink",
    "uniforms",
]
