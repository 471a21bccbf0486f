"""How often the unlabeled images show the classes: looked at by a linear probe before the first step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from percentmatch.console.notices import doing
from percentmatch.methods import options_of
from percentmatch.records import scores_of
from percentmatch.scoring.prevalence import prevalence_ratio
from percentmatch.training.run import Run, RunPool

OPTION = "prevalence_ratio"
LOOKED_AT = 500  # unlabeled images


def choose_prevalence(run: Run, given: Mapping[str, Any]) -> str | None:
    """Set the option of a run that starts as a probe, if its method has it and it was not given; a line if not 1."""
    config, unlabeled, labeled = run.config, run.loader.unlabeled, run.labeled
    wanted = OPTION in options_of(config.method) and OPTION not in given.get("options", {})
    if not (wanted and run.probe and labeled and len(unlabeled)) or config.task == "single-label":
        return None
    doing("looking at the unlabeled images")
    rows = unlabeled[:: max(len(unlabeled) // LOOKED_AT, 1)][:LOOKED_AT]
    pool, _ = RunPool(run).scores("student", rows)
    held_out = scores_of(run.probe.held_out, config.task)
    targets, known = labeled.labels.targets.dense(), labeled.labels.known.dense()
    ratio = round(prevalence_ratio(held_out, targets, known, pool.cpu()), 2)
    run.use(replace(config, options={**config.options, OPTION: ratio}))
    if ratio == 1:
        return None
    shown = f"the unlabeled images show the classes about {ratio:.0%} as often as the labeled ones"
    return f"{shown} (estimated on {len(rows)} of them): --option {OPTION}={ratio}; give 1 for as often"
