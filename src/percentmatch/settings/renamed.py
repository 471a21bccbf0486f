"""Settings that earlier versions wrote, read under their present names.

This holds for run folders, configuration files, grids and results files; their measurements do not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from percentmatch.errors import UserError


@dataclass(frozen=True)
class Renamed:
    """A method that was an option of another one."""

    method: str  # its former name
    when: Mapping[str, object]  # with these options
    now: str
    defaults: Mapping[str, object]  # former defaults of options, where the present ones differ
    no_effect: frozenset[str]  # options that had no effect there
    gone: Mapping[str, tuple[object, ...]]  # options that were removed from `method`: these values, or () for all
    obvious: Mapping[str, object]  # values of removed options that are now always used
    advice: str


TABLE = (
    Renamed(
        method="percentmatch",
        when={"selection": "all", "gate": "none"},
        now="priormatch",
        defaults={
            "targets": "hard",
            "bins": "uniform",
            "num_bins": 100,
            "bias_correction": False,
            "loss": "asl",
            "scores": "student",
        },
        no_effect=frozenset(
            {"upper_percentile", "lower_percentile", "schedule", "schedule_ratio", "strict_ratio"}
            | {f"{gate}_{end}" for gate in ("gap", "logit_gap", "auc") for end in ("start", "full")}
        ),
        gone={"selection": ("all",), "targets": ()},
        obvious={"targets": "hard"},
        advice="use --method priormatch, which labels every pair at its class's prevalence and has no gate",
    ),
)


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the names, the method and the options that now mean the same."""
    settings = dict(settings)
    if isinstance(settings.get("prior_bias"), bool):
        settings.setdefault("head_start", "prior" if settings.pop("prior_bias") else "random")
    options: Mapping[str, Any] = settings.get("options") or {}
    for row in TABLE if isinstance(options, Mapping) else ():
        if settings.get("method", row.method) == row.method and row.when.items() <= options.items():
            kept = {name: value for name, value in options.items() if name not in {*row.when, *row.no_effect}}
            return {**settings, "method": row.now, "options": {**row.defaults, **kept}}
        if settings.get("method") == row.method and options:
            kept = {name: value for name, value in options.items() if row.obvious.get(name) != value}
            return {**settings, "options": kept}
    return settings


def refuse_gone(method: str, options: Mapping[str, object]) -> None:
    """Refuse options that were removed from the method, and say which method has them."""
    for row in TABLE:
        for name, values in row.gone.items() if method == row.method else ():
            if name in options and (not values or options[name] in values):
                raise UserError(f"option '{name}={options[name]}' is not one of {method} any more: {row.advice}")
