"""Tables for the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from percentmatch.methods import METHODS, method_row, options_of


def percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f}"


def show_methods() -> None:
    table = Table("method", "what it does", box=None)
    for name, row in METHODS.items():
        table.add_row(name, row.summary)
    Console().print(table)
    print("\nOptions of one: percentmatch methods NAME")


def show_method(name: str) -> None:
    row = method_row(name)
    print(f"{name}: {row.summary}\n")
    table = Table("option", "default", "meaning", box=None)
    for option in options_of(name).values():
        choices = f" [{' | '.join(option.choices)}]" if option.choices else ""
        table.add_row(option.name, str(option.default), option.help + choices.replace("[", "\\["))
    Console().print(table)
    print("\nSet one with --option NAME=VALUE, or under `options:` in a config file.")


def show_scores(scores: dict[str, Any]) -> None:
    table = Table("class", box=None)
    for column in ("AP", "AUC", "11-point AP", "positives"):
        table.add_column(column, justify="right")
    for name, row in scores["classes"].items():
        values = (percent(row[key]) for key in ("AP", "AUC", "AP_11point"))
        table.add_row(name, *values, str(row["positives"]))
    table.add_section()
    table.add_row("mean", *(percent(scores[key]) for key in ("mAP", "AUC", "mAP_11point")), "")
    Console().print(table)
    if "accuracy" in scores:
        print(f"Accuracy {percent(scores['accuracy'])}")
    for key, what in (("left_out_AP", "positives"), ("left_out_AUC", "positives or negatives")):
        if scores[key]:
            print(f"Left out of the mean for want of {what}: {', '.join(scores[key])}")
    if scores["num_pairs_ignored"]:
        print(f"{scores['num_pairs_ignored']} pairs of image and class were ignored (label unknown)")
