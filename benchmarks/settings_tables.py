"""Tables of all settings and presets, read from the code: `tables.py` writes them into docs/settings.md."""

import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from docstring_parser import parse_from_object

from percentmatch.settings.config import Config, StrongView, View
from percentmatch.settings.presets import PRESETS


def settings_tables() -> str:
    """A table for each group of flags, then one for the settings of views."""
    groups: dict[str, list[str]] = {}
    explained = _explained(*reversed(Config.__mro__))
    for name, hint in get_type_hints(Config, include_extras=True).items():
        group = next((each.group[0] for each in getattr(hint, "__metadata__", ()) if each.group), None)
        default = next(each for each in fields(Config) if each.name == name)
        made = default.default if default.default is not MISSING else default.default_factory()  # ty: ignore
        if group and not is_dataclass(made):
            kind = get_args(hint)[0]
            others = [each for each in get_args(kind) if each != made] if get_origin(kind) is Literal else []
            also = f", or {', '.join(map(_shown, others))}" if others else ""
            row = f"| `--{name.replace('_', '-')}` | {_shown(made)}{also} | {explained[name]} |"
            groups.setdefault(getattr(group, "name", group), []).append(row)
    head = ["| flag | default | |", "|---|---|---|"]
    parts = ["\n".join([f"## {group}", "", *head, *rows, ""]) for group, rows in groups.items()]
    usual, strong, about = View(), StrongView(), _explained(View)
    rows = []
    for each in fields(View):
        own, other = (_shown(getattr(view, each.name)) for view in (usual, strong))
        default = own if own == other else f"{own}, of strong views {other}"
        rows.append(f"| `.{each.name.replace('_', '-')}` | {default} | {about[each.name]} |")
    views = "After `--labeled-view`, `--weak-view` and `--strong-view`, as in `--weak-view.crop-scale 0.8`:"
    return "\n".join([*parts, "## A view", "", views, "", *head, *rows, ""])


def presets_table() -> str:
    """What each preset changes."""
    rows = ["| preset | what it sets |", "|---|---|"]
    for name, values in PRESETS.items():
        said = ", ".join(f"{key} {_shown(value)}" for key, value in values.items())
        rows.append(f"| `{name}` | {said} |")
    return "\n".join([*rows, ""])


def _shown(value: Any) -> str:
    if isinstance(value, dict | types.MappingProxyType):
        return "(" + ", ".join(f"{key} {_shown(each)}" for key, each in value.items()) + ")"
    return {"": "", "True": "yes", "False": "no"}.get(str(value), f"`{value}`")


def _explained(*classes: type) -> dict[str, str]:
    """The text below each field of these classes, by its name."""
    found = [each for cls in classes if is_dataclass(cls) for each in parse_from_object(cls).params]
    return {each.arg_name: " ".join((each.description or "").split()).replace("|", "\\|") for each in found}
