"""Settings as flags, and the settings that flags, a file, a preset and a run to be resumed give together."""

from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Parameter

from percentmatch.errors import UserError, did_you_mean
from percentmatch.settings.config import Config, DataSettings, PretrainSettings, to_repeat
from percentmatch.settings.declare import declared, help_lines, merge, nested
from percentmatch.settings.presets import PRESETS, preset_values
from percentmatch.settings.renamed import renamed

DOT = "__"  # stands for the dot of --weak-view.ops in the name of a field

ConfigFile = Annotated[
    Path | None, Parameter(group="Run", help="A YAML file of settings, such as a run's config.yaml.")
]
Preset = Annotated[str | None, Parameter(group="Run", help=f"A named set of settings: {', '.join(PRESETS)}.")]
RunFolder = Annotated[Path, Parameter(help="The run folder.")]
ModelPath = Annotated[Path, Parameter(help="A run folder, an exported folder or a model.safetensors.")]
ImagesFolder = Annotated[
    Path | None,
    Parameter(help="The folder that the paths in --labels are relative to; by default the folder of that file."),
]
JsonFile = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]  # a hyphen alone is standard output
Thresholds = Annotated[
    Path | None,
    Parameter(help='Thresholds chosen by hand, instead of the model\'s own: {"thresholds": {"cat": 0.42}}.'),
]
Device = Annotated[str, Parameter(help="auto, cpu, cuda or cuda:N.")]
Moved = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative="",
        help="NAME=PATH of root, labels or images, if the run's own data was moved; may be repeated.",
    ),
]


def flags_of(settings: type) -> type:
    """A dataclass of the flags of some settings; each is None unless it is given."""
    made = make_dataclass(f"{settings.__name__}Flags", _fields(settings), kw_only=True, frozen=True)
    made.__module__ = __name__  # where cyclopts looks for the types
    return made


def _fields(
    settings: type, prefix: str = "", group: str = "", view: Mapping[str, str] | None = None
) -> list[tuple[str, Any, Any]]:
    hints, about, text = get_type_hints(settings), declared(settings), help_lines(settings)
    found = []
    for each in fields(settings):  # ty: ignore[invalid-argument-type]
        flag = prefix + each.name.replace("_", "-")
        default = each.default if each.default is not MISSING else each.default_factory()  # ty: ignore
        heading = about[each.name].group or group
        if is_dataclass(default):
            found += _fields(type(default), f"{flag}.", heading, about[each.name].own_view or {})
        elif each.name != "options":  # --option NAME=VALUE
            own = about[each.name].own if view is None else view.get(each.name)
            shown = f"{default}; own data: {own}" if own else str(default)
            parameter = Parameter(
                name=f"--{flag}",
                negative=f"--{prefix}no-{each.name.replace('_', '-')}" if hints[each.name] is bool else None,
                group=heading,
                help=text[each.name],
                show_default=(lambda _, shown=shown: shown) if shown else False,
            )
            name = flag.replace("-", "_").replace(".", DOT)
            found.append((name, Annotated[hints[each.name] | None, parameter], field(default=None)))  # ty: ignore[invalid-type-form]
    return found


def given_by(flags: Any) -> dict[str, Any]:
    """The settings whose flags were given."""
    found: dict[str, Any] = {}
    for each in fields(flags):
        value = getattr(flags, each.name)
        if value is not None:
            found = merge(found, nested(each.name.replace(DOT, "."), value))
    return found


def gather(
    settings: type[Any],
    flags: Any,
    *,
    config: Path | None = None,
    preset: str | None = None,
    options: list[str] | None = None,
    resumed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is given: flags before the file `config`, that before the preset, or before the run that is `resumed`."""
    if preset is not None and preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'{did_you_mean(preset, PRESETS)}")
    flagged = given_by(flags)
    if options:
        flagged["options"] = read_pairs(options, "--option momentum=0.99")
    known = {each.name for each in fields(settings)}
    file: dict[str, Any] = {}
    if config:
        from percentmatch.files import read_yaml

        file = to_repeat(read_yaml(config), str(config))
        (Config if issubclass(Config, settings) else settings).from_dict(file, source=str(config))
    base = dict(resumed) if resumed is not None else preset_values(preset, flagged.get("method", file.get("method")))
    given = renamed({name: value for name, value in merge(merge(base, file), flagged).items() if name in known})
    return _as_typed(given, settings.from_dict(given, source="settings").to_dict())


def _as_typed(given: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `typed` for what is given: YAML reads 3e-4 as text."""
    return {
        name: _as_typed(value, typed[name]) if isinstance(value, Mapping) else typed[name]
        for name, value in given.items()
    }


def read_pairs(pairs: list[str] | None, example: str = "--set root=/data/coco") -> dict[str, str]:
    """What NAME=VALUE pairs of a flag say; the last one of a name counts."""
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"{example.split()[0]} takes NAME=VALUE, such as {example}, not '{pair}'")
        found[name.strip()] = value.strip()
    return found


def over_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Settings from NAME=VALUE pairs: values read as YAML, dots for nested names."""
    from percentmatch.files import parse_yaml

    settings: dict[str, Any] = {}
    for name, text in read_pairs(pairs).items():
        settings = merge(settings, nested(name, parse_yaml(text, f"--set {name}: '{text}'")))
    return settings


if TYPE_CHECKING:
    ConfigFlags = DataFlags = PretrainFlags = SimpleNamespace
else:
    ConfigFlags, DataFlags, PretrainFlags = map(flags_of, (Config, DataSettings, PretrainSettings))
