"""Tables of the methods and their options."""

from rich.table import Table

from percentmatch.console.tables import show
from percentmatch.methods import METHODS, method_row, options_of


def show_methods() -> None:
    table = Table("method", "what it does", box=None)
    for name, row in METHODS.items():
        table.add_row(name, row.summary)
    show(table)
    print("\nOptions of one: percentmatch methods NAME")


def show_method(name: str) -> None:
    row = method_row(name)
    print(f"{name}: {row.summary}\n")
    table = Table("option", "default", "meaning", box=None)
    for option in options_of(name).values():
        choices = f" [{' | '.join(option.choices)}]" if option.choices else ""
        table.add_row(option.name, str(option.default), option.help + choices.replace("[", "\\["))
    show(table)
    print("\nSet one with --option NAME=VALUE, or under `options:` in a config file.")
