"""What was given for a run apart from what was chosen for it, as config.yaml keeps them.

`given` holds what flags, files, a preset or Python set; `chosen` holds the rest: automatic choices and defaults. A file
that a person writes, or a config.yaml of an older version, has no such sections: everything in it is given.
"""

from collections.abc import Mapping
from typing import Any

from percentmatch.errors import UserError
from percentmatch.settings.config import Config
from percentmatch.settings.declare import declared, merge, without

GIVEN, CHOSEN = "given", "chosen"
OF_THE_MACHINE = {name: True for name, about in declared(Config).items() if about.machine}


def sections(settings: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What config.yaml holds of complete settings, some of which were given."""
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


def to_repeat(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The settings of a file for another run, perhaps on another machine, without what was chosen for this machine."""
    if not has_sections(values, source):
        return dict(values)
    chosen = {name: value for name, value in values[CHOSEN].items() if name not in OF_THE_MACHINE}
    return merge(chosen, values[GIVEN])


def given_in(config: Any) -> dict[str, Any]:
    """Of settings made in Python, those that differ from the defaults."""
    defaults = type(config)().to_dict()
    return {name: value for name, value in config.to_dict().items() if value != defaults[name]}
