"""Declares settings, builds them from plain values, checks them, and tells those given from those chosen for a run."""

import ast
import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from percentmatch.errors import UserError, did_you_mean

GIVEN, CHOSEN = "given", "chosen"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of a setting beside its type, its default and the help line below it."""

    group: str = ""  # heading in --help
    above: float = -math.inf  # the value must be larger
    low: float = -math.inf
    high: float = math.inf
    kinds: tuple[str, ...] = ()  # of data that it is for; none means all
    path: Literal["", "data", "more"] = ""  # a file or folder: what a run is scored on, or what it only learns from
    resumable: bool = False  # whether a resumed run may change it; it always may change a path
    machine: bool = False  # whether its automatic value depends on the machine
    own: str = ""  # in words, what is chosen for own data instead of the default
    own_view: Mapping[str, str] | None = None  # the same for each setting of a view
    draws: bool = False  # decides how the split is drawn, so a split file replaces it


@lru_cache
def declared(cls: Any) -> dict[str, Setting]:
    """The declaration of each setting of a dataclass, by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {each.name: getattr(hints[each.name], "__metadata__", [Setting()])[0] for each in dataclasses.fields(cls)}


@lru_cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(Path(file).read_text("utf-8")).body if isinstance(node, ast.ClassDef)}


@lru_cache
def help_lines(cls: Any) -> dict[str, str]:
    """The text below each setting of a dataclass and of those it derives from, by its name."""
    lines: dict[str, str] = {}
    for each in [each for each in reversed(cls.__mro__) if dataclasses.is_dataclass(each)]:
        for field, text in pairwise(_classes(inspect.getfile(each))[each.__name__].body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                lines[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return lines


_hints_of = lru_cache(get_type_hints)


def check(settings: Any) -> None:
    """Refuse values of the wrong type or out of their range."""
    for name, kind in _hints_of(type(settings)).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(kind):
            good = dataclasses.is_dataclass(value) and isinstance(value, kind.__mro__[-2])  # a View
            require(good, name, value, "must be a View")
        else:
            require(not (kind is float and isinstance(value, str)), name, repr(value), "must be a float")
            _checked(kind, value, name)
    for name, about in declared(type(settings)).items():
        value = getattr(settings, name)
        if about.above > -math.inf:
            most = f" and at most {about.high:g}" if about.high < math.inf else ""
            require(about.above < value <= about.high, name, value, f"must be above {about.above:g}{most}")
        elif about.high < math.inf:
            require(about.low <= value <= about.high, name, value, f"must lie between {about.low} and {about.high}")


def require(condition: bool, name: str, value: object, sentence: str) -> None:
    if not condition:
        raise UserError(f"{name} {sentence}, not {value}")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, nested mappings merged."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their names, nested ones with dots."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def without(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`values` without those in `given`; nested mappings likewise."""
    left = {}
    for name, value in values.items():
        other = given.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            value = without(value, other)
        if name not in given or (isinstance(other, Mapping) and value):
            left[name] = value
    return left


def nested(name: str, value: Any) -> dict[str, Any]:
    """A setting whose name may have dots, as `merge` takes it."""
    return reduce(lambda inner, key: {key: inner}, reversed(name.split(".")), value)


def build(cls: Any, values: Mapping[str, Any], source: str, prefix: str = "") -> Any:
    """Settings from plain values, as read from YAML; unknown names and wrong types are refused."""
    if not isinstance(values, Mapping):
        raise UserError(f"{source}: '{prefix.rstrip('.')}' must hold names and values, not {values!r}")
    hints = get_type_hints(cls)
    checked = {}
    for name, value in values.items():
        if name not in hints:
            raise UserError(f"{source}: unknown setting '{prefix}{name}'{did_you_mean(str(name), hints)}")
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            checked[name] = build(kind, value, source, f"{prefix}{name}.")
        else:
            checked[name] = _checked(kind, value, f"{source}: '{prefix}{name}'")
    return cls(**checked)


def sections(settings: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What config.yaml holds of complete settings, some of which were given.

    `given` holds what flags, files, a preset or Python set; `chosen` holds the rest: automatic choices and defaults. A
    file that a person writes, or a config.yaml of an older version, has no such sections: everything in it is given.
    """
    return {GIVEN: dict(given), CHOSEN: without(settings.to_dict(), given)}


def has_sections(values: Mapping[str, Any], source: str) -> bool:
    if not {GIVEN, CHOSEN} & values.keys():
        return False
    if values.keys() != {GIVEN, CHOSEN} or not all(isinstance(section, Mapping) for section in values.values()):
        raise UserError(f"{source}: a run's settings have the two sections {GIVEN} and {CHOSEN}; restore the file")
    return True


def all_of(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """All settings of a file, with or without sections."""
    return merge(values[CHOSEN], values[GIVEN]) if has_sections(values, source) else dict(values)


def given_in(config: Any) -> dict[str, Any]:
    """Of settings made in Python, those that differ from the defaults."""
    defaults = type(config)().to_dict()
    return {name: value for name, value in config.to_dict().items() if value != defaults[name]}


def _checked(kind: Any, value: Any, what: str) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UserError(f"{what} must be one of {', '.join(get_args(kind))}, not {value!r}")
        return value
    kind = get_origin(kind) or kind
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"{what} holds a zero byte; take it out")
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):  # YAML 1.1 reads 3e-4 as text
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{what} must be a {kind.__name__}, not {value!r}")
    return value
