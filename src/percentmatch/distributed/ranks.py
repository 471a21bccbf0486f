"""Which of several processes this one is, by the variables of torchrun or of Slurm. Needs no torch."""

import os
import re
from typing import NamedTuple

from percentmatch.errors import UserError

SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
NAMES = tuple(SLURM)


class Launched(NamedTuple):
    """This process is number `rank` of `size`, and number `local_rank` on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0


def launched() -> Launched:
    """How this process was started; alone if neither torchrun nor srun did it.

    The tasks of an srun learn from this where the first of them listens, as torchrun's do from torchrun.
    """
    if "RANK" not in os.environ and all(name in os.environ for name in SLURM.values()):
        os.environ |= {name: os.environ[theirs] for name, theirs in SLURM.items()}
        os.environ.setdefault("MASTER_ADDR", _first_host())
        job, step = (int(os.environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        os.environ.setdefault("MASTER_PORT", str(20_000 + (job + 211 * step) % 20_000))  # a job may have several steps
    if not all(name in os.environ for name in NAMES):
        return Launched()
    try:
        found = Launched(*(int(os.environ[name]) for name in NAMES))
    except ValueError:
        raise UserError("RANK, WORLD_SIZE and LOCAL_RANK must be numbers, as torchrun sets them; unset them") from None
    if not 0 <= found.rank < found.size:
        raise UserError(f"RANK is {found.rank} of WORLD_SIZE {found.size}; let torchrun or srun set them")
    return found


def _first_host() -> str:
    """The first machine of a step, from a list as Slurm writes it: gpu[007-009,12],login."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    first = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(piece or "" for piece in first.groups()) if first and re.search(r"[,\[]", nodes) else "127.0.0.1"


def restarts() -> int:
    """How often torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
