"""Semi-supervised multi-label image classification: what `import percentmatch` offers.

Each name is imported when it is first asked for: most need torch, and `percentmatch --help` does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # the same names for editors and type checkers
    from percentmatch.labelers import MAT as MAT
    from percentmatch.labelers import UDA as UDA
    from percentmatch.labelers import AdaMatch as AdaMatch
    from percentmatch.labelers import Dash as Dash
    from percentmatch.labelers import DiCaP as DiCaP
    from percentmatch.labelers import FixedThreshold as FixedThreshold
    from percentmatch.labelers import FlexMatch as FlexMatch
    from percentmatch.labelers import FreeMatch as FreeMatch
    from percentmatch.labelers import Labeler as Labeler
    from percentmatch.labelers import PercentMatch as PercentMatch
    from percentmatch.labelers import PriorMatch as PriorMatch
    from percentmatch.labelers import SoftMatch as SoftMatch
    from percentmatch.methods import METHODS as METHODS
    from percentmatch.report.notebook import fit as fit
    from percentmatch.settings.config import Config as Config
    from percentmatch.settings.config import PretrainSettings as PretrainSettings
    from percentmatch.training.start import pretrain as pretrain
    from percentmatch.training.start import train as train
    from percentmatch.use.predict import Predictor as Predictor

else:
    _MODULES = {  # the module of each name
        "train": "training.start",
        "fit": "report.notebook",
        "pretrain": "training.start",
        "Config": "settings.config",
        "PretrainSettings": "settings.config",
        "Predictor": "use.predict",
        "METHODS": "methods",
        **dict.fromkeys(("Labeler", "AdaMatch", "Dash", "DiCaP", "FixedThreshold"), "labelers"),
        **dict.fromkeys(
            ("FlexMatch", "FreeMatch", "MAT", "PercentMatch", "PriorMatch", "SoftMatch", "UDA"), "labelers"
        ),
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'percentmatch' has no attribute '{name}'")
        return getattr(import_module(f"percentmatch.{_MODULES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})
