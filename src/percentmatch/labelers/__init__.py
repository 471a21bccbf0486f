"""Labelers: scores in, pseudo-labels out. Each can be used alone, in anybody's training loop."""

from percentmatch.labelers.base import Labeler, select
from percentmatch.labelers.fixed import FixedThreshold
from percentmatch.labelers.percentmatch import PercentMatch

__all__ = ["FixedThreshold", "Labeler", "PercentMatch", "select"]
