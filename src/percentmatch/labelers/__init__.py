"""Labelers: scores in, pseudo-labels out. Each can be used alone, in anybody's training loop."""

from percentmatch.labelers.adamatch import AdaMatch
from percentmatch.labelers.base import Labeler, select
from percentmatch.labelers.dash import Dash
from percentmatch.labelers.fixed import FixedThreshold
from percentmatch.labelers.flexmatch import FlexMatch
from percentmatch.labelers.freematch import FreeMatch
from percentmatch.labelers.percentmatch import PercentMatch
from percentmatch.labelers.priormatch import PriorMatch
from percentmatch.labelers.softmatch import SoftMatch
from percentmatch.labelers.uda import UDA

__all__ = ["UDA", "AdaMatch", "Dash", "FixedThreshold", "FlexMatch", "FreeMatch", "Labeler", "PercentMatch"]
__all__ += ["PriorMatch", "SoftMatch", "select"]
