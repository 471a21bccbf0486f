"""What do the asymmetric loss's gammas and clip change? With labels alone, on validation images.

    python benchmarks/loss_suspects.py --root FOLDER --out runs/losses --results FILE.json --photographs TEXT

FOLDER is that of start_suspects.py, and so is the recipe: 224 pixels, from a linear probe, BatchNorm frozen.
"""

from functools import partial
from unittest.mock import patch

from start_suspects import ALONE, LARGE, RECIPE
from suspects import Suspect, search

from percentmatch.losses import LOSSES, asymmetric_loss


def asl(negative: float, positive: float, clip: float) -> Suspect:
    function = partial(asymmetric_loss, gamma_negative=negative, gamma_positive=positive, clip=clip)
    return Suspect({**ALONE, **LARGE, "options": {"loss": "asl"}}, lambda config: patch.dict(LOSSES, asl=function))


SUSPECTS = {
    "BCE": Suspect({**ALONE, **LARGE}),
    "ASL, gammas 4 and 0, clip 0.05": asl(4, 0, 0.05),
    "ASL, gammas 4 and 1, clip 0.05": asl(4, 1, 0.05),
    "ASL, gammas 2 and 0, clip 0.05": asl(2, 0, 0.05),
    "ASL, gammas 4 and 0, no clip": asl(4, 0, 0),
    "focal, gammas 2 and 2, no clip": asl(2, 2, 0),
}

if __name__ == "__main__":
    search(__doc__, RECIPE, SUSPECTS, labeled=200)
