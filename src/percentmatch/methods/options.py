"""Options are declared once, in a signature; here they are read from it, for the command line and the config."""

import inspect
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from percentmatch.errors import UserError


@dataclass(frozen=True)
class Option:
    """A keyword-only parameter of a method or its labeler, with the help its docstring gives."""

    name: str
    kind: Any  # int, float, bool, str or a Literal
    default: object
    help: str

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def parse(self, value: object) -> object:
        """`value` as this option's type; text from the command line is converted."""
        if self.choices:
            if value not in self.choices:
                raise UserError(f"option '{self.name}' must be one of {', '.join(self.choices)}, not '{value}'")
            return value
        try:
            if self.kind is bool and isinstance(value, str):
                return {"true": True, "false": False}[value.lower()]
            if isinstance(value, bool) != (self.kind is bool) or (self.kind is int and float(value) != int(value)):  # ty: ignore
                raise ValueError
            return self.kind(value)
        except (ValueError, KeyError, TypeError, OverflowError):
            raise UserError(f"option '{self.name}' must be a {self.kind.__name__}, not '{value}'") from None


def declared_options(cls: type) -> list[Option]:
    """The keyword-only parameters of a class, but for the task."""
    lines = {}
    for line in inspect.getdoc(cls).splitlines():  # ty: ignore
        name, colon, text = line.partition(": ")
        if colon and name.isidentifier():
            lines[name] = text
        elif lines and line.startswith("    "):
            lines[next(reversed(lines))] += " " + line.strip()
    signature = inspect.signature(cls.__init__, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != "task"]
    return [Option(p.name, p.annotation, p.default, lines[p.name]) for p in parameters]
