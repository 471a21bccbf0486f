"""The one exception a user's mistake raises: a single sentence that says what is wrong and what to do."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

LONGEST = 2000  # letters of a sentence; what a file holds may be quoted in it
LISTED = 100  # choices, and letters of a name, that are worth comparing or listing
# controls, also of direction, and what ends a line
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """Bad input. The command line prints the message alone, on one line, and exits with code 2."""

    def __init__(self, sentence: str) -> None:
        half, sentence = LONGEST // 2, " ".join(sentence.splitlines())
        super().__init__(sentence if len(sentence) <= LONGEST else f"{sentence[:half]} ... {sentence[-half:]}")


class Diverged(UserError):
    """A training whose numbers are no longer finite."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`; did you mean 'clip_grad'?` if some choice is close to `name`, else the list of choices."""
    known = sorted(choices)
    short = [choice for choice in known if len(choice) <= LISTED]
    close = get_close_matches(name, short, n=1, cutoff=0.6) if len(name) <= LISTED else []
    return f"; did you mean '{close[0]}'?" if close else f"; choose from: {several(known)}"


def several(names: Sequence[str], most: int = LISTED) -> str:
    """The names in one line; of more than `most`, the first ones and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def visible(text: str) -> str:
    """The text with control characters written as escapes, so that no name of a file or class steers a terminal."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
