"""Thresholds by hand, as the report's sliders write them: {"thresholds": {"class name": 0.42}}."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from percentmatch.errors import UserError, did_you_mean, several
from percentmatch.files import read_plain, refuse_constant
from percentmatch.models import Card, Decisions


def with_thresholds(card: Card, file: str | Path | None) -> Card:
    """The card of a model with the thresholds of a file, if there is one."""
    if file is None:
        return card
    if card.task == "single-label":
        raise UserError("--thresholds is for multi-label models; with one label an image the most probable is taken")
    ones = (1.0,) * len(card.class_names)
    decisions = card.decisions or Decisions(ones, (0.0,) * len(ones), ones, "")
    chosen = read_thresholds(Path(file), card.class_names)
    return replace(card, decisions=replace(decisions, thresholds=chosen, aim="by hand"))


def read_thresholds(file: Path, class_names: Sequence[str]) -> tuple[float, ...]:
    """The threshold of each class, in the order of the classes."""
    try:
        content = json.loads(read_plain(file).decode("utf-8-sig"), parse_constant=refuse_constant)
        found = dict(content["thresholds"].items())
    except OSError as error:
        raise UserError(f"--thresholds {file}: {error.strerror or error}; name a file that is there") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        example = '{"thresholds": {"cat": 0.42, "dog": 0.5}}'
        raise UserError(f"--thresholds {file} does not hold thresholds; write JSON such as {example}") from None
    if unknown := next((name for name in found if name not in class_names), None):
        raise UserError(f"--thresholds {file}: the model has no class '{unknown}'{did_you_mean(unknown, class_names)}")
    if missing := [name for name in class_names if name not in found]:
        raise UserError(f"--thresholds {file} has no threshold for {several(missing)}; give one for each class")
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UserError(f"--thresholds {file}: the threshold of '{name}' must be from 0 to 1, not {value!r:.40}")
    return tuple(float(found[name]) for name in class_names)
