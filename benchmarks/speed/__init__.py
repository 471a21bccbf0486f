"""How fast training is on this machine, part by part, and beside a conventional pipeline."""

from speed.bench import PARTS, run_speed
from speed.sheets import Sheet, sheets

__all__ = ["PARTS", "Sheet", "run_speed", "sheets"]
