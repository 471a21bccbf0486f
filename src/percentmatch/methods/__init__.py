"""The methods by name. A new one is a file and a row here."""

from collections.abc import Mapping
from dataclasses import dataclass

from percentmatch.errors import UserError, did_you_mean
from percentmatch.labelers import (
    UDA,
    AdaMatch,
    Dash,
    FixedThreshold,
    FlexMatch,
    FreeMatch,
    Labeler,
    PercentMatch,
    SoftMatch,
)
from percentmatch.methods.base import Method
from percentmatch.methods.cap import CAP
from percentmatch.methods.curriculum_labeling import CurriculumLabeling
from percentmatch.methods.mean_teacher import MeanTeacher
from percentmatch.methods.mixmatch import MixMatch
from percentmatch.methods.options import Option, declared_options
from percentmatch.methods.pi_model import PiModel
from percentmatch.methods.pseudo_label import PseudoLabel
from percentmatch.methods.supervised import Supervised
from percentmatch.methods.temporal_ensembling import TemporalEnsembling
from percentmatch.methods.ups import UPS
from percentmatch.methods.weak_to_strong import CalibratedToStrong, WeakToStrong
from percentmatch.records import Facts, Task, check_task

__all__ = [
    "METHODS",
    "CalibratedToStrong",
    "Method",
    "Option",
    "Row",
    "Supervised",
    "WeakToStrong",
    "build_method",
    "method_row",
    "num_students",
    "options_of",
]


@dataclass(frozen=True)
class Row:
    """A method class, its labeler if it takes one, and the line that `percentmatch methods` prints."""

    method: type[Method]
    labeler: type[Labeler] | None
    summary: str


METHODS: dict[str, Row] = {
    "supervised": Row(Supervised, None, "labeled images only"),
    "pseudo_label": Row(PseudoLabel, None, "the student's own hard predictions, on the same view (Lee 2013)"),
    "pi_model": Row(PiModel, None, "two weak views of an image should score alike (Laine and Aila 2017)"),
    "temporal_ensembling": Row(
        TemporalEnsembling, None, "an image should score as it did before, on average (Laine and Aila 2017)"
    ),
    "mean_teacher": Row(
        MeanTeacher, None, "the student should score as its moving average does (Tarvainen and Valpola 2017)"
    ),
    "mixmatch": Row(MixMatch, None, "sharpened guesses, and mixup of all images (Berthelot et al. 2019)"),
    "uda": Row(WeakToStrong, UDA, "sharpened soft targets of confident pairs (Xie et al. 2020)"),
    "fixmatch": Row(WeakToStrong, FixedThreshold, "one fixed threshold for all classes (Sohn et al. 2020)"),
    "flexmatch": Row(WeakToStrong, FlexMatch, "thresholds that rise as a class is learnt (Zhang et al. 2021)"),
    "dash": Row(CalibratedToStrong, Dash, "a shrinking bound on the loss of a pseudo-label (Xu et al. 2021)"),
    "adamatch": Row(CalibratedToStrong, AdaMatch, "aligned scores, relative thresholds (Berthelot et al. 2022)"),
    "freematch": Row(CalibratedToStrong, FreeMatch, "thresholds that follow the model's confidence (Wang et al. 2023)"),
    "softmatch": Row(CalibratedToStrong, SoftMatch, "every pair, weighted by its confidence (Chen et al. 2023)"),
    "percentmatch": Row(WeakToStrong, PercentMatch, "percentile thresholds and gap-gated weights (Huang et al. 2022)"),
    "ups": Row(UPS, None, "confident pairs that are certain under dropout, in generations (Rizve et al. 2021)"),
    "curriculum_labeling": Row(
        CurriculumLabeling, None, "the easiest 20, 40, ... 100% of the pool, in rounds (Cascante-Bonilla et al. 2021)"
    ),
    "cap": Row(CAP, None, "each class's labeled share of the pool, every pass anew (Xie et al. 2023)"),
}


def method_row(name: str) -> Row:
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{did_you_mean(name, METHODS)}")
    return METHODS[name]


def options_of(name: str) -> dict[str, Option]:
    """What can be set for a method: the keyword-only parameters of its labeler and of the method itself."""
    row = method_row(name)
    return {option.name: option for part in (row.labeler, row.method) if part for option in declared_options(part)}


def checked_options(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """The options with their proper types; an unknown one or a wrong type is refused."""
    known = options_of(name)
    for key in options:
        if key not in known:
            raise UserError(f"unknown option '{key}' for method '{name}'{did_you_mean(key, known)}")
    return {key: known[key].parse(value) for key, value in options.items()}


def num_students(name: str, options: Mapping[str, object]) -> int:
    """How many students divide the steps of a run: more than one where each round begins with a new one."""
    defaults = {option.name: option.default for option in options_of(name).values()}
    return method_row(name).method.num_students({**defaults, **checked_options(name, options)})


def build_method(
    name: str, facts: Facts, task: Task = "multi-label", options: Mapping[str, object] | None = None
) -> Method:
    """The method `name` with its options."""
    row, given = method_row(name), checked_options(name, options or {})
    check_task(task)
    if row.labeler is None:
        return row.method(facts, task=task, **given)
    mine = {option.name for option in declared_options(row.labeler)}
    labeler = row.labeler(facts, task=task, **{key: given[key] for key in given if key in mine})
    return row.method(labeler, task=task, **{key: given[key] for key in given if key not in mine})
