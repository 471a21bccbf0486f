"""The heads by name. A new one is a file and a row here."""

from percentmatch.errors import UserError, did_you_mean
from percentmatch.models.heads.base import Head
from percentmatch.models.heads.linear import LinearHead
from percentmatch.models.heads.ml_decoder import MLDecoder

HEADS: dict[str, type[Head]] = {"ml-decoder": MLDecoder, "linear": LinearHead}


def head_class(name: str, dropout: float = 0.0) -> type[Head]:
    """The class of a head; an error if there is none, or if it does not take this dropout."""
    if name not in HEADS:
        raise UserError(f"unknown head '{name}'{did_you_mean(name, HEADS)}")
    if dropout and not HEADS[name].takes_dropout:
        takers = " or ".join(other for other, head in HEADS.items() if head.takes_dropout)
        raise UserError(f"dropout {dropout} is for the {takers} head; '{name}' sets its own: leave it at 0")
    return HEADS[name]
