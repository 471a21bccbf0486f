from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from percentmatch.use.predict import Predictor as Predictor

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`Predictor` is imported when it is asked for: it needs torch, and `percentmatch --help` does not."""
    if name != "Predictor":
        raise AttributeError(f"module 'percentmatch' has no attribute '{name}'")
    from percentmatch.use.predict import Predictor

    return Predictor
