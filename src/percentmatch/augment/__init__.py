"""Batched, per-sample random views: the same code on CPU and GPU."""

from percentmatch.augment.colour import COLOUR, draw_jitter, recolour
from percentmatch.augment.draws import mix, uniforms
from percentmatch.augment.geometry import GEOMETRY
from percentmatch.augment.views import NAMES, Blend, Plan, apply, draw, frame, fused_views, normalise_, resize, shrink

__all__ = ["COLOUR", "GEOMETRY", "NAMES", "Blend", "Plan", "apply", "draw", "draw_jitter", "frame", "fused_views"]
__all__ += ["mix", "normalise_", "recolour", "resize", "shrink", "uniforms"]
