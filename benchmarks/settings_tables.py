"""Tables of all settings and presets, read from the code: `tables.py` writes them into docs/settings.md."""

import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from percentmatch.settings.config import Config
from percentmatch.settings.declare import declared, help_lines
from percentmatch.settings.presets import PRESETS
from percentmatch.settings.views import StrongView, View


def settings_tables() -> str:
    """A table for each group of flags, then one for the settings of views."""
    groups: dict[str, list[str]] = {name: [] for name in ("Data", "Model", "Training", "Views", "Run")}
    about, explained, kinds = declared(Config), _explained(Config), get_type_hints(Config)
    for each in fields(Config):
        default = each.default if each.default is not MISSING else each.default_factory()  # ty: ignore
        if each.name != "options" and not is_dataclass(default):
            kind = kinds[each.name]
            others = [choice for choice in get_args(kind) if choice != default] if get_origin(kind) is Literal else []
            also = f", or {', '.join(map(_shown, others))}" if others else ""
            own = f" | {about[each.name].own}" if about[each.name].group != "Data" else ""
            row = f"| `--{each.name.replace('_', '-')}` | {_shown(default)}{also}{own} | {explained[each.name]} |"
            groups[about[each.name].group].append(row)
    head = ["| flag | default | own data | |", "|---|---|---|---|"]
    heads = {"Data": ["| flag | default | |", "|---|---|---|"]}
    parts = ["\n".join([f"## {group}", "", *heads.get(group, head), *rows, ""]) for group, rows in groups.items()]
    usual, strong, explained = View(), StrongView(), _explained(View)
    rows = []
    for each in fields(View):
        own, other = (_shown(getattr(view, each.name)) for view in (usual, strong))
        default = own if own == other else f"{own}, of strong views {other}"
        views = {name: about[f"{name}_view"].own_view or {} for name in ("labeled", "weak", "strong")}
        chosen = "; ".join(f"{name} {view[each.name]}" for name, view in views.items() if each.name in view)
        rows.append(f"| `.{each.name.replace('_', '-')}` | {default} | {chosen} | {explained[each.name]} |")
    said = "After `--labeled-view`, `--weak-view` and `--strong-view`, as in `--weak-view.crop-scale 0.8`:"
    return "\n".join([*parts, "## A view", "", said, "", *head, *rows, ""])


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


def _explained(cls: type) -> dict[str, str]:
    """The text below each setting, by its name."""
    return {name: text.replace("|", "\\|") for name, text in help_lines(cls).items()}
