"""A command line that does not fit: one sentence that says what to change."""

from collections.abc import Iterable
from difflib import get_close_matches

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

# what other programs call it: our options, and a remark
ELSEWHERE = {
    ("--epochs", "--epoch", "--max-epochs", "--num-epochs"): (
        "--total-steps",
        "training is counted in steps of one batch each",
    ),
    ("--batch-size", "--batch"): ("--labeled-batch", "that of the labeled images"),
    ("--steps", "--max-steps", "--num-steps", "--iterations"): ("--total-steps", ""),
    ("--learning-rate",): ("--lr", ""),
    ("--model", "--arch", "--architecture"): ("--backbone", ""),
    ("--output", "--output-dir", "--save-dir"): ("--out", ""),
}


def sentence(error: CycloptsError) -> str:
    command = " ".join(error.command_chain or ()) or "percentmatch"
    if isinstance(error, MissingArgumentError) and error.argument:
        name, help_ = error.argument.name, f"percentmatch {command} --help"
        if {*error.argument.names} & {*(error.root_input_tokens or ())}:
            return f"{command}: {name} needs a value after it; {help_} says which"
        if not error.argument.field_info.is_keyword_only:
            name = name.removeprefix("--").upper()
        return f"{command} needs {name}; {help_} says what it is"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        words = " ".join(map(str, error.unused_tokens))
        return f"{command} does not know what '{words}' is for; put its option before it, or quotes around a path"
    if isinstance(error, UnknownOptionError):
        known = [name for argument in error.argument_collection for name in argument.names]
        return f"{command} has no option {_unknown(str(error.token.keyword or error.token.value), known, command)}"
    return str(error)


def _unknown(given: str, known: Iterable[str], command: str) -> str:
    name = given.partition("=")[0]
    for others, (ours, remark) in ELSEWHERE.items():
        if name in others and ours in known:
            return f"{name}; give {ours}{f': {remark}' if remark else ''}"
    word, words = name.lstrip("-"), [each.lstrip("-") for each in known]
    close = [each for each in words if each.startswith(f"{word}.")] or get_close_matches(word, words, n=1, cutoff=0.7)
    return f"{name}; " + (f"did you mean --{close[0]}?" if close else f"percentmatch {command} --help lists them")
