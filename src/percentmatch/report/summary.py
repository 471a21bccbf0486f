"""The summary of a run: a sentence, its scores, what was run and what is missing."""

from typing import Any

from percentmatch.data.split import PARTS
from percentmatch.errors import several
from percentmatch.methods import uses_unlabeled
from percentmatch.report.collect import RunRecord
from percentmatch.report.entry import Entry
from percentmatch.report.markup import Html, join, tag
from percentmatch.report.tables import percent, span, table
from percentmatch.scoring.intervals import interval
from percentmatch.settings.config import Config
from percentmatch.settings.declare import flat

DATA_WORDS = {
    "scenes": "made-up scenes",
    "files": "own files",
    "shards": "own shards",
    "voc": "Pascal VOC",
    "coco": "MS-COCO",
}
OFF = 0.002  # scores computed now may differ so much from those in metrics.json without a word


def sentence(entry: Entry) -> str:
    """The run in a sentence or two."""
    run, config = entry.run, entry.run.config
    number = ""
    if run.split:
        pool = "streamed" if run.split.stream else f"{len(run.split.unlabeled):,}"
        more = "" if not uses_unlabeled(config.method) else f" and {pool} unlabeled"
        number = f" on {len(run.split.labeled):,} labeled{more} images"
    words = DATA_WORDS.get(config.data, "data given in Python")
    if run.metrics:
        text = f"The method {config.method} trained the network {config.backbone} for {run.metrics['step']:,} steps"
        text += f"{number} ({words})"
        text += f" in {run.metrics['minutes']:g} minutes."
    else:
        text = f"This run has not finished: {config.method} has trained {config.backbone} for {run.last_step:,} of "
        text += f"{config.total_steps:,} steps{number} ({words})."
    found = run.final()
    if found:
        part, scores = found
        ends = mean_intervals(entry, part)["mAP"] if run.metrics else None
        reach = f" (95% interval {span(ends)})" if ends else ""
        text += f" Its averaged weights reach a mAP of {percent(scores['mAP'])}%{reach} and an AUC of "
        text += f"{percent(scores['AUC'])}% on {scores['num_images']:,} {part} images."
    return text


def mean_intervals(entry: Entry, part: str) -> dict[str, tuple[float, float] | None]:
    """The intervals of mAP and AUC on a part."""
    scored = entry.scored.parts.get(part) if entry.scored else None
    if scored is None:
        return {"mAP": None, "AUC": None}
    drawn, exact = scored.resampled, scored.exact
    means = {"mAP": (drawn.mean_ap, exact.mean_ap), "AUC": (drawn.mean_auc, exact.mean_auc)}
    return {name: interval(values[:, None], around=own)[0] for name, (values, own) in means.items()}


def summary(entry: Entry) -> Html:
    run = entry.run
    tiles = []
    for part in ("test", "validation"):
        scores: dict[str, Any] = run.metrics[part]["ema"] if part in run.metrics else {}
        if not scores and part == "validation" and run.validation:
            scores = run.validation[-1]
        ends = mean_intervals(entry, part)
        for name in ("mAP", "AUC", "accuracy"):
            if name in scores:
                reach = ends.get(name)
                tiles.append(_tile(f"{part} {name}", f"{percent(scores[name])}%", span(reach) if reach else ""))
    if run.metrics:
        tiles.append(_tile("minutes", f"{run.metrics['minutes']:g}", ""))
    notes = [tag("li", note) for note in _notes(entry)]
    return join(
        tag("p", sentence(entry), class_="lead"),
        tag("div", *tiles, class_="tiles") if tiles else None,
        tag("ul", *notes, class_="notes") if notes else None,
        _score_table(run),
        _facts(entry),
    )


def _tile(name: str, value: str, below: str) -> Html:
    small = tag("small", f"95%: {below}") if below else None
    return tag("div", tag("span", name), tag("strong", value), small, class_="tile")


def _notes(entry: Entry) -> list[str]:
    run, notes = entry.run, []
    if entry.missing:
        notes.append(f"Without intervals, calibration, pool scores and images: {entry.missing}.")
    if run.unseen_classes:
        notes.append(f"No labeled image shows {several(run.unseen_classes)}: never a positive pseudo-label.")
    if len(entry.shown) < len(entry.class_names):
        notes.append(
            f"Figures, images and tables show {len(entry.shown):,} of the {len(entry.class_names):,} classes, evenly "
            "from the most to the least frequent; metrics.json holds all, and means are not of these alone."
        )
    for part in ("test", "validation"):
        scores = run.metrics[part]["ema"] if run.metrics and part in run.metrics else {}
        if absent := [name for name, values in scores.get("classes", {}).items() if values["AP"] is None]:
            notes.append(f"The {part} mAP leaves out classes that no {part} image shows: {several(absent)}.")
    if not run.class_names and not entry.scored and entry.class_names:
        notes.append("Nothing names the classes yet; they are numbered in the order of the data.")
    for part, scored in (entry.scored.parts if entry.scored else {}).items():
        classes = run.metrics[part]["ema"]["classes"] if run.metrics and part in run.metrics else {}
        pairs = zip(scored.exact.ap[0].tolist(), classes.values(), strict=False)
        away = max((abs(now - then["AP"]) for now, then in pairs if then["AP"] is not None), default=0)
        if away > OFF:
            notes.append(
                f"On the {part} images the saved model now scores up to {100 * away:.1f} points of AP away from "
                "metrics.json; intervals and calibration are of the scores computed now."
            )
    return notes


def _score_table(run: RunRecord) -> Html | None:
    if not run.metrics:
        return None
    rows, more = [], {}
    for part in ("test", "validation"):
        for weights, words in (("ema", "averaged weights"), ("model", "raw weights")):
            if part in run.metrics:
                scores = run.metrics[part][weights]
                more |= dict.fromkeys(name for name in ("mAP_11point", "accuracy") if name in scores)
                rows.append((f"{part}, {words}", scores))
    columns = {"mAP": "mAP, %", "AUC": "AUC, %", "mAP_11point": "11-point mAP, %", "accuracy": "accuracy, %"}
    names = ["mAP", "AUC", *more]
    cells = [(name, [*(percent(s.get(key)) for key in names), f"{s['num_images']:,}"]) for name, s in rows]
    heads = [*(columns[name] for name in names), "images"]
    return table("Scores at the last step", heads, cells, first="part and weights", sortable=False) if rows else None


def _facts(entry: Entry) -> Html:
    run, config = entry.run, entry.run.config
    environment = run.environment
    facts = {"Run folder": str(run.path), "Method": config.method}
    facts["Data"] = DATA_WORDS.get(config.data, "given in Python")
    if run.split:
        counts = {part: f"{len(getattr(run.split, part)):,}" for part in PARTS}
        counts |= {"unlabeled": "streamed"} if run.split.stream else {}
        facts["Images"] = ", ".join(f"{number} {part}" for part, number in counts.items())
        facts["Split"] = run.split.digest
    facts["Seed"] = str(config.seed)
    if not run.metrics:
        facts["Step"] = f"{run.last_step:,} of {config.total_steps:,}"
    names = {"device": "Hardware", "commit": "Commit", "percentmatch": "Version", "torch": "torch", "python": "Python"}
    facts |= {words: str(environment[name]) for name, words in names.items() if environment.get(name)}
    changed = [
        tag("li", tag("code", name), f" {value} ", tag("small", f"(default {default})" if default != "" else ""))
        for name, value, default in changed_settings(config)
    ]
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    settings = tag("ul", *changed, class_="settings") if changed else tag("p", "All settings are the defaults.")
    return join(
        tag("dl", *rows, class_="facts"),
        tag("details", tag("summary", f"Settings that differ from the defaults ({len(changed)})"), settings),
    )


def changed_settings(config: Config) -> list[tuple[str, str, str]]:
    """Name, value and default of every setting that is not the default; options of the method have no default here."""
    mine, usual = flat(config.to_dict()), flat(Config().to_dict())
    skip = ("method", "data", "seed")
    return [(n, str(v), str(usual.get(n, ""))) for n, v in mine.items() if v != usual.get(n) and n not in skip]
