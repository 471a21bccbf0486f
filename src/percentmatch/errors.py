"""The one exception a user's mistake raises: a single sentence that says what is wrong and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Bad input. The command line prints the message alone and exits with code 2."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`; did you mean 'clip_grad'?` if some choice is close to `name`, else the list of choices."""
    known = sorted(choices)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; choose from: {', '.join(known)}"
