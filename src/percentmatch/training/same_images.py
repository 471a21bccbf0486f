"""A run continues on the images it began with, not on others of the same names."""

from pathlib import Path

import torch
from torch import Tensor

from percentmatch.data import Data, Split
from percentmatch.errors import UserError, several
from percentmatch.runs.checkpoint import Checkpoint

FIRST = 3  # names in a message


class SeenImages:
    """Fingerprints of a run's images, and of the shards that it streams from."""

    def __init__(self, data: Data, split: Split, *, scored: bool = True) -> None:
        own = [*split.labeled, *split.unlabeled, *(split.validation if scored else ())]
        tested = split.test if scored else ()
        self.names = {"images": [*own, *tested], "shards": [*data.stream.shards.paths] if data.stream else []}
        shards = data.stream.fingerprints() if data.stream else torch.zeros(0, dtype=torch.int64)
        self.found = {
            "images": torch.cat([data.pool.fingerprints(own), data.test.fingerprints(tested)]),
            "shards": shards,
        }

    def state_dict(self) -> dict[str, Tensor]:
        return self.found

    def check(self, state: Checkpoint, folder: Path) -> None:
        """Refuse other images than those of a checkpoint, by their names; older versions noted none."""
        for kind, now in self.found.items():
            then = state.get(kind, now)
            if not isinstance(then, Tensor) or then.dtype != now.dtype or then.shape != now.shape:
                raise ValueError(f"{kind} of another run")
            then = then.to(now.device)
            changed = ((then != now) & (then != 0) & (now != 0)).nonzero().flatten().tolist()
            if changed:
                names = several([self.names[kind][row] for row in changed], FIRST)
                how = "put them back as they were, or start a new run"
                raise UserError(f"the {kind} {names} have changed since '{folder}' was begun; {how}")
