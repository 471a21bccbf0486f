"""Labelers: scores in, pseudo-labels out. Each can be used alone, in anybody's training loop."""

from percentmatch.labelers.adamatch import AdaMatch
from percentmatch.labelers.base import Labeler, select
from percentmatch.labelers.dash import Dash
from percentmatch.labelers.dicap import DiCaP
from percentmatch.labelers.fixed import FixedThreshold
from percentmatch.labelers.flexmatch import FlexMatch
from percentmatch.labelers.freematch import FreeMatch
from percentmatch.labelers.mat import MAT
from percentmatch.labelers.percentmatch import PercentMatch
from percentmatch.labelers.priormatch import PriorMatch
from percentmatch.labelers.softmatch import SoftMatch
from percentmatch.labelers.uda import UDA

__all__ = ["MAT", "UDA", "AdaMatch", "Dash", "DiCaP", "FixedThreshold", "FlexMatch", "FreeMatch", "Labeler"]
__all__ += ["PercentMatch", "PriorMatch", "SoftMatch", "select"]
