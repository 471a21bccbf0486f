"""What the model decides on the largest part that was scored, and sliders to choose other thresholds."""

from typing import Any

import torch
from torch import Tensor

from percentmatch.errors import several
from percentmatch.report.markup import MISSING, Cell, Html, join, percent, table, tag
from percentmatch.report.scoring import PageRun, ScoredRun
from percentmatch.scoring.calibration import FEW
from percentmatch.scoring.decisions import DECISION_METRICS, Estimates
from percentmatch.scoring.intervals import Ends

ENDS = (0.001, 0.002, 0.005)  # rare classes are decided for near 0
GRID = (0.0, *ENDS, *(n / 100 for n in range(1, 100)), *(round(1 - end, 3) for end in reversed(ENDS)), 1.0)
COARSE = 5  # every fifth, on a page of very many classes


def decisions(entry: PageRun) -> Html | None:
    scored = entry.scored
    if not scored or not scored.decisions or not scored.gallery_subset:
        return None
    found, images = scored.decisions, scored.subsets[scored.gallery_subset].images
    slides = found.thresholds is not None
    rows = []
    for position, name, number in entry.shown_classes:
        row = found.classes[name]
        cells = _estimates(row.scores)
        if found.thresholds is not None:
            chosen = found.thresholds[position]
            slider = tag(
                "input",
                type="range",
                class_="slider",
                min=0,
                max=len(grid_of(entry)) - 1,
                step=1,
                value=_nearest(grid_of(entry), chosen),
                aria_label=f"threshold of {name}",
                data_run=entry.key,
                data_position=position,
                data_class=number,
                autocomplete="off",
                disabled=True,
            )
            cells = [Cell(slider), Cell(f"{chosen:.4f}", chosen), *cells]
        rows.append((name, cells))
    titles = [metric.title for metric in DECISION_METRICS.values()]
    heads = ["class", *["slider", "threshold"] * slides, *(f"{title}, %" for title in titles)]
    caption = f"Decisions on the {len(images):,} {scored.gallery_subset} images, with 95% intervals"
    means = (("all pairs (micro)", found.micro), ("mean of classes (macro)", found.macro))
    whole = [(name, _estimates(each)) for name, each in means]
    whole.append(("exact match", [Cell(with_ends(found.exact_match, found.exact_match_interval))] + [Cell("")] * 2))
    about = [rule(scored), "An exact match is an image with every label right."]
    if few := few_positives(scored):
        names = "every class" if len(few) == len(entry.class_names) else several(few)
        about.append(
            f"Thresholds are rough where fewer than {FEW} of the validation images that chose them show the class: "
            f"{names}."
        )
    return join(
        tag("p", " ".join(about)),
        table("All classes together", ["", *(f"{title}, %" for title in titles)], whole, sortable=False),
        _tools(entry) if slides else None,
        table(caption, heads, rows, class_index=entry.shown_index),
    )


def _tools(entry: PageRun) -> Html:
    """What the page's script fills in: nothing here works without it."""
    command = f"percentmatch predict {entry.run.path} IMAGES --thresholds thresholds.json"
    about = (
        "Move a slider to choose another threshold for a class; its figures follow, but not those of all classes "
        "together. Thresholds that are chosen for these images look a little better on them than on others. The file "
        "has those of all classes, for "
    )
    words = tag("p", about, tag("code", command), ".")
    link = tag("a", "Download thresholds.json", class_="download", download="thresholds.json", data_run=entry.key)
    reset = tag("button", "Back to the model's own", type="button", class_="reset", data_run=entry.key)
    return tag("div", words, tag("p", link, " ", reset), class_="tools", hidden=True)


def rule(scored: ScoredRun) -> str:
    """What makes a label a predicted one."""
    if scored.task == "single-label":
        return "The predicted label is the most probable one."
    if scored.aim is None:
        return (
            "The model has no thresholds, because it had no validation images: a label counts as predicted from the "
            f"score on that has the best F1 on these {scored.gallery_subset} images."
        )
    aim = "the best F1" if scored.aim == "F1" else scored.aim
    return (
        "A label counts as predicted where percentmatch predict decides for it: from the threshold on that the model "
        f"keeps for the class, chosen for {aim}."
    )


def few_positives(scored: ScoredRun) -> list[str]:
    """Classes whose threshold few validation images speak for."""
    if scored.task == "single-label" or scored.aim is None or "validation" not in scored.subsets:
        return []
    targets, known = scored.subsets["validation"].images.scoring_labels(count_difficult=False)
    counts = (targets * known).sum(0, dtype=torch.long).tolist()
    return [name for name, count in zip(scored.class_names, counts, strict=True) if count < FEW]


def with_ends(value: float | None, ends: Ends | None) -> Html:
    """A share in percent, with its interval in small."""
    small = tag("small", f"{percent(ends[0])} to {percent(ends[1])}") if ends else None
    return join(MISSING if value is None else percent(value), small)


def _estimates(scores: Estimates) -> list[Cell]:
    values = scores.values
    return [Cell(with_ends(values[name], scores.intervals[name]), values[name]) for name in DECISION_METRICS]


def grid_of(entry: PageRun) -> tuple[float, ...]:
    """The thresholds that a slider offers."""
    return GRID if entry.most_points >= 100 else GRID[::COARSE]


def _nearest(grid: tuple[float, ...], threshold: float) -> int:
    return min(range(len(grid)), key=lambda n: abs(grid[n] - threshold))


def slider_data(entry: PageRun) -> dict[str, Any] | None:
    """For the page's script: thresholds of all classes, and how many images each step of a slider decides for."""
    scored = entry.scored
    if not scored or not scored.gallery_subset or not scored.decisions or scored.decisions.thresholds is None:
        return None
    subset, grid, shown = scored.subsets[scored.gallery_subset], grid_of(entry), list(entry.shown)
    targets, known = (each[:, shown] > 0 for each in subset.images.scoring_labels(count_difficult=False))
    scores = subset.probabilities[:, shown]  # (n, k)
    right, chosen = (counts_at(grid, scores, each) for each in (targets & known, known))
    columns = zip(shown, right.T.tolist(), chosen.T.tolist(), (targets & known).sum(0).tolist(), strict=True)
    return {
        "grid": grid,
        "names": entry.class_names,
        "own": scored.decisions.thresholds,
        "classes": {position: {"right": a, "chosen": b, "positives": n} for position, a, b, n in columns},
    }


def counts_at(grid: tuple[float, ...], scores: Tensor, counted: Tensor) -> Tensor:
    """How many counted pairs of each class have at least each score of the grid: (n, k) -> (g, k)."""
    return torch.stack([((scores >= threshold) & counted).sum(0) for threshold in grid])
