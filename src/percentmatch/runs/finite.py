"""Whether the numbers in a file of a run are some, before anything is computed or drawn from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from percentmatch.errors import UserError
from percentmatch.files import read_json

DAMAGE = (KeyError, TypeError, ValueError, AttributeError)  # what a check of values raises
MOST = 1e300  # beyond any number that a run writes


def read_sound(path: Path, check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """A JSON file in which `check` finds what it looks for."""
    values = read_json(path)
    try:
        check(values)
    except DAMAGE as error:
        raise UserError(f"'{path}' is damaged ({type(error).__name__}: {error}); restore the file") from None
    return values


def check_scores(scores: dict[str, Any]) -> None:
    check_numbers(scores, "num_images")
    for name in ("mAP", "AUC"):
        check_number(scores[name])
    for name in ("mAP_11point", "accuracy"):
        check_number(scores.get(name))
    for values in scores["classes"].values():
        for name in ("AP", "AUC", "positives"):
            check_number(values[name])


def check_numbers(row: dict[str, Any], *names: str) -> None:
    """Raise one of DAMAGE where a name is missing or no number."""
    for name in names:
        check_number(row[name])
        if row[name] is None:
            raise ValueError(f"{name} is null")


def check_number(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    if not abs(value) < MOST:
        raise ValueError(f"{value!r:.40} is no finite number")
