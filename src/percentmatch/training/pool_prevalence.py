"""How often the unlabeled images show the classes: looked at by a linear probe before the first step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from percentmatch.console.notices import doing
from percentmatch.distributed.group import least_over_ranks
from percentmatch.methods import options_of
from percentmatch.records import scores_of
from percentmatch.scoring.predictions import probabilities
from percentmatch.scoring.prevalence import prevalence_ratio
from percentmatch.training.run import Run

OPTION = "prevalence_ratio"
LOOKED_AT, PLACES = 500, 5  # unlabeled images; of a stream, from so many places


def choose_prevalence(run: Run, given: Mapping[str, Any]) -> str | None:
    """Set the option of a run that starts as a probe, if its method has it and it was not given; a line if not 1."""
    config, labeled = run.config, run.labeled
    wanted = OPTION in options_of(config.method) and OPTION not in given.get("options", {})
    if not (wanted and run.probe and labeled) or config.task == "single-label":
        return None
    doing("looking at the unlabeled images")
    pixels = _unlabeled(run)
    with torch.compiler.set_stance("force_eager"):
        pool = probabilities(run.model, pixels, run.card, run.device)  # (m, c)
    held_out = scores_of(run.probe.held_out, config.task)
    targets, known = labeled.labels.targets.dense(), labeled.labels.known.dense()
    found = prevalence_ratio(held_out, targets, known, pool)
    ratio = round(float(least_over_ranks(torch.tensor(found, dtype=torch.float64))), 2)  # ranks may round differently
    run.use(replace(config, options={**config.options, OPTION: ratio}))
    if ratio == 1:
        return None
    shown = f"the unlabeled images show the classes about {ratio:.0%} as often as the labeled ones"
    how = f"to expect as many positives as among the labels, add --option {OPTION}=1"
    return f"{shown} (estimated from {len(pixels)} of them), so {OPTION} is {ratio}; {how}"


def _unlabeled(run: Run) -> Tensor:
    """Some unlabeled images, spread over all of them: (m, 3, h, w)."""
    rows, pixels = run.loader.unlabeled, run.loader.pixels
    if stream := pixels.stream:
        places = min(PLACES, len(stream))
        count = min(LOOKED_AT, len(stream)) // places
        return torch.cat([stream.rows(len(stream) * place // places, count) for place in range(places)])
    count = min(LOOKED_AT, len(rows))
    return pixels.pool[rows[torch.arange(count) * len(rows) // count].to(pixels.pool.device)]
