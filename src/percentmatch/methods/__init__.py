"""The methods by name. A new one is a file and a row here.

Options are declared once, in a signature; here they are read from it, for the command line and the config.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_origin

from percentmatch import labelers
from percentmatch.errors import UserError, did_you_mean
from percentmatch.methods.base import Method, Probe, Supervised
from percentmatch.methods.mixmatch import MixMatch
from percentmatch.methods.ramped import MeanTeacher, PiModel, PseudoLabel, TemporalEnsembling
from percentmatch.methods.rounds import CAP, UPS, CurriculumLabeling
from percentmatch.methods.weak_to_strong import WeakToStrong
from percentmatch.records import Facts, Task, check_task
from percentmatch.settings.renamed import refuse_gone

__all__ = ["METHODS", "Method", "Option", "Row", "Supervised", "WeakToStrong"]


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


@dataclass(frozen=True)
class Row:
    """A method class, its labeler if it takes one, and the line that `percentmatch methods` prints."""

    method: type[Method]
    labeler: type[labelers.Labeler] | None
    summary: str
    defaults: Mapping[str, object] = field(default_factory=dict)  # of options, where they differ from the signature's
    # options that are chosen for somebody's own data: ASL lifts the scores, and most thresholds are for probabilities
    own_data: Mapping[str, object] = field(default_factory=lambda: {"loss": "bce"})
    from_imagenet: Mapping[str, object] = field(default_factory=dict)  # the same, where it starts from ImageNet weights

    @property
    def warmup_options(self) -> tuple[str, ...]:
        """The options that say when unlabeled images begin to teach."""
        return (self.labeler or self.method).warmup_options

    @property
    def teacher_scores(self) -> bool:
        """Whether a labeler is given the scores of the EMA model, by default."""
        return self.labeler is not None and {**self.defaults, **self.own_data}.get("scores") == "teacher"


BCE = {"loss": "bce"}  # of labelers that take scores for probabilities: ASL lifts nearly every pair above a threshold

METHODS: dict[str, Row] = {
    "supervised": Row(Supervised, None, "labeled images only"),
    "probe": Row(Probe, None, "labeled images only: a linear classifier on the frozen backbone", own_data={}),
    "pseudo_label": Row(PseudoLabel, None, "the student's own hard predictions, on the same view (Lee 2013)"),
    "pi_model": Row(PiModel, None, "two weak views of an image should score alike (Laine and Aila 2017)"),
    "temporal_ensembling": Row(
        TemporalEnsembling, None, "an image should score as it did before, on average (Laine and Aila 2017)"
    ),
    "mean_teacher": Row(
        MeanTeacher, None, "the student should score as its moving average does (Tarvainen and Valpola 2017)"
    ),
    "mixmatch": Row(MixMatch, None, "sharpened guesses, and mixup of all images (Berthelot et al. 2019)"),
    "uda": Row(WeakToStrong, labelers.UDA, "sharpened soft targets of confident pairs (Xie et al. 2020)"),
    "fixmatch": Row(WeakToStrong, labelers.FixedThreshold, "one fixed threshold for all classes (Sohn et al. 2020)"),
    "flexmatch": Row(WeakToStrong, labelers.FlexMatch, "thresholds that rise as a class is learnt (Zhang et al. 2021)"),
    "dash": Row(WeakToStrong, labelers.Dash, "a shrinking bound on the loss of a pseudo-label (Xu et al. 2021)", BCE),
    "adamatch": Row(
        WeakToStrong, labelers.AdaMatch, "aligned scores, relative thresholds (Berthelot et al. 2022)", BCE
    ),
    "freematch": Row(
        WeakToStrong, labelers.FreeMatch, "thresholds that follow the model's confidence (Wang et al. 2023)", BCE
    ),
    "softmatch": Row(
        WeakToStrong, labelers.SoftMatch, "every pair, weighted by its confidence (Chen et al. 2023)", BCE
    ),
    "percentmatch": Row(
        WeakToStrong,
        labelers.PercentMatch,
        "percentile thresholds and gap-gated weights (Huang et al. 2022)",
        own_data={"scores": "teacher"},
    ),
    "mat": Row(
        WeakToStrong,
        labelers.MAT,
        "each class's threshold has the largest F1 on the labels (Xiao et al. 2024)",
        {"scores": "teacher"},
    ),
    "dicap": Row(
        WeakToStrong,
        labelers.DiCaP,
        "pseudo-labels weighted by their probability of being right, calibrated on held-out labels (Han et al. 2026)",
        {"scores": "teacher"},
    ),
    "priormatch": Row(
        WeakToStrong,
        labelers.PriorMatch,
        "soft pseudo-labels for all pairs; each class's mean matches its prevalence",
        {"loss": "bce", "scores": "teacher"},
        from_imagenet={"temperature": 0.5},
    ),
    "ups": Row(UPS, None, "confident pairs that are certain under dropout, in generations (Rizve et al. 2021)"),
    "curriculum_labeling": Row(
        CurriculumLabeling, None, "the easiest 20, 40, ... 100% of the pool, in rounds (Cascante-Bonilla et al. 2021)"
    ),
    "cap": Row(
        CAP, None, "top scores of each class are positive, as many as its prevalence gives, each pass (Xie et al. 2023)"
    ),
}


def method_row(name: str) -> Row:
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{did_you_mean(name, METHODS)}")
    return METHODS[name]


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


def options_of(name: str) -> dict[str, Option]:
    """What can be set for a method: the keyword-only parameters of its labeler and of the method itself."""
    row = method_row(name)
    declared = [option for cls in (row.labeler, row.method) if cls for option in declared_options(cls)]
    return {option.name: replace(option, default=row.defaults.get(option.name, option.default)) for option in declared}


def checked_options(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options with their proper types; an unknown one or a wrong type is refused."""
    known = options_of(name)
    refuse_gone(name, options)
    for key in options:
        if key not in known:
            raise UserError(f"unknown option '{key}' for method '{name}'{did_you_mean(str(key), known)}")
    return {key: known[key].parse(value) for key, value in options.items()}


def all_options(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options with those that are not given, none of them checked."""
    return {key: option.default for key, option in options_of(name).items()} | dict(options)


def own_options(name: str, warmup_steps: int, *, imagenet: bool) -> dict[str, Any]:
    """The options that somebody's own data gets instead of the defaults; `imagenet` tells the start weights."""
    row = method_row(name)
    usual = {**row.own_data, **(row.from_imagenet if imagenet else {}), "warmup_steps": warmup_steps}
    return {option: value for option, value in usual.items() if option in options_of(name)}


def own_options_in_words(name: str) -> dict[str, str]:
    """The same for any number of steps and any start weights."""
    imagenet = {**method_row(name).from_imagenet, "prevalence_ratio": "estimated"}
    words = {
        **method_row(name).own_data,
        **{option: f"from ImageNet weights {value}" for option, value in imagenet.items()},
        "warmup_steps": "steps / 5, at most 300",
    }
    return {option: str(value) for option, value in words.items() if option in options_of(name)}


def num_students(name: str, options: Mapping[str, object]) -> int:
    """How many students divide the steps of a run: more than one where each round begins with a new one."""
    return method_row(name).method.num_students(all_options(name, checked_options(name, options)))


def uses_unlabeled(name: str) -> bool:
    """Whether a method learns from unlabeled images; for a method that this version does not know, True."""
    return name not in METHODS or bool(METHODS[name].method.views)


def labeled_loss_of(name: str, options: Mapping[str, object]) -> object:
    """The name of the loss of the labeled images, None where this version does not know the method."""
    row = METHODS.get(name)
    return row and all_options(name, options).get("loss", row.method.own_loss)


def build_method(
    name: str, facts: Facts, task: Task = "multi-label", options: Mapping[str, object] | None = None
) -> Method:
    """The method `name` with its options."""
    row = method_row(name)
    given: dict[str, Any] = {**row.defaults, **checked_options(name, options or {})}
    check_task(task)
    if row.labeler is None:
        return row.method(facts, task=task, **given)
    mine = {option.name for option in declared_options(row.labeler)}
    labeler = row.labeler(facts, task=task, **{key: given[key] for key in given if key in mine})
    return row.method(labeler, task=task, **{key: given[key] for key in given if key not in mine})
