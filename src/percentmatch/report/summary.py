"""The summary of a run: a sentence, its scores, what was run and what is missing."""

from collections.abc import Sequence

from percentmatch.data.split import PARTS
from percentmatch.errors import several
from percentmatch.methods import uses_unlabeled
from percentmatch.report.collect import RunRecord
from percentmatch.report.markup import Html, join, percent, span, table, tag
from percentmatch.report.scoring import PageRun
from percentmatch.scoring.metrics import CLASS_METRICS, OVERALL_METRICS, resampled_metrics
from percentmatch.scoring.table import SUBSETS
from percentmatch.settings.config import Config
from percentmatch.settings.declare import flat

DATA_WORDS = {
    "scenes": "made-up scenes",
    "files": "own files",
    "shards": "own shards",
    "voc": "Pascal VOC",
    "coco": "MS-COCO",
}
NOT_LISTED = ("method", "data", "seed")  # settings that stand above the list
TOLERANCE = 0.002  # by which scores computed now may differ from metrics.json without a note


def sentence(entry: PageRun) -> str:
    """The run in a sentence or two."""
    run, config = entry.run, entry.run.config
    on = ""
    if run.split:
        pool = "streamed" if run.split.stream else f"{len(run.split.unlabeled):,}"
        unlabeled = f" and {pool} unlabeled" if uses_unlabeled(config.method) else ""
        on = f" on {len(run.split.labeled):,} labeled{unlabeled} images"
    on += f" ({DATA_WORDS.get(config.data, 'data given in Python')})"
    if run.minutes is None:
        text = f"This run has not finished: {config.method} has trained {config.backbone} for {run.last_step:,} of "
        text += f"{config.total_steps:,} steps{on}."
    else:
        text = f"The method {config.method} trained the network {config.backbone} for {run.last_step:,} steps{on}"
        text += f" in {run.minutes:g} minutes."
    if found := run.final():
        subset, scores = found
        ends = entry.mean_interval(subset, "AP") if run.scores else None
        text += f" Its EMA weights reach a mAP of {percent(scores.means['mAP'])}%"
        text += f" (95% interval {span(ends)})" if ends else ""
        text += f" and an AUC of {percent(scores.means['AUC'])}% on {scores.num_images:,} {subset} images."
    return text


def summary(entry: PageRun) -> Html:
    run, tiles = entry.run, []
    for subset in SUBSETS:
        scores = run.newest(subset)
        ends = {metric.mean_title: entry.mean_interval(subset, name) for name, metric in resampled_metrics().items()}
        for title, value in scores.headline().items() if scores else ():
            small = tag("small", f"95%: {span(ends[title])}") if ends.get(title) else None
            tiles.append((f"{subset} {title}", f"{percent(value)}%", small))
    if run.minutes is not None:
        tiles.append(("minutes", f"{run.minutes:g}", None))
    boxes = [tag("div", tag("span", name), tag("strong", value), small, class_="tile") for name, value, small in tiles]
    notes = [tag("li", note) for note in _notes(entry)]
    return join(
        tag("p", sentence(entry), class_="lead"),
        tag("div", *boxes, class_="tiles") if boxes else None,
        tag("ul", *notes, class_="notes") if notes else None,
        _score_table(run),
        _facts(entry),
    )


def _notes(entry: PageRun) -> list[str]:
    run, notes = entry.run, []
    if entry.missing:
        notes.append(f"Intervals, calibration, pool scores and images are missing: {entry.missing}.")
    if run.unseen_classes:
        notes.append(f"No labeled image shows {several(run.unseen_classes)}, so no pseudo-label is positive there.")
    if len(entry.shown) < len(entry.class_names):
        notes.append(
            f"Figures, images and tables show {len(entry.shown):,} of the {len(entry.class_names):,} classes, evenly "
            "from the most to the least frequent. Means are over all classes, and metrics.json lists all."
        )
    for subset, scores in run.scores.items():
        if absent := scores.left_out("AP"):
            notes.append(f"The {subset} mAP leaves out classes that no {subset} image shows: {several(absent)}.")
    if not run.class_names and not entry.scored and entry.class_names:
        notes.append("No file names the classes yet; they are numbered in the order of the data.")
    for subset, scored in (entry.scored.subsets if entry.scored else {}).items():
        then = run.scores[subset].of_classes("AP") if subset in run.scores else []
        pairs = zip(scored.exact.classes["AP"][0].tolist(), then, strict=False)
        difference = max((abs(now - ap) for now, ap in pairs if ap is not None), default=0)
        if difference > TOLERANCE:
            notes.append(
                f"On the {subset} images the saved model now scores up to {100 * difference:.1f} points of AP away "
                "from metrics.json; intervals and calibration are of the scores computed now."
            )
    return notes


def _score_table(run: RunRecord) -> Html | None:
    kinds = ((run.scores, "EMA weights"), (run.raw_scores, "raw weights"))
    found = [(f"{subset}, {words}", each[subset]) for subset in run.scores for each, words in kinds]
    titles = {each.mean: each.mean_title for each in CLASS_METRICS.values()}
    titles |= {name: metric.title for name, metric in OVERALL_METRICS.items()}
    names = [name for name in titles if any(name in scores.means | scores.overall for _, scores in found)]
    rows = [
        (words, [*(percent((scores.means | scores.overall).get(name)) for name in names), f"{scores.num_images:,}"])
        for words, scores in found
    ]
    heads = ["subset and weights", *(f"{titles[name]}, %" for name in names), "images"]
    return table("Scores at the last step", heads, rows, sortable=False) if rows else None


def _facts(entry: PageRun) -> Html:
    run, config = entry.run, entry.run.config
    data = DATA_WORDS.get(config.data, "given in Python")
    facts = {"Run folder": str(run.path), "Method": config.method, "Data": data}
    if run.split:
        counts = {name: f"{len(getattr(run.split, name)):,}" for name in PARTS}
        counts |= {"unlabeled": "streamed"} if run.split.stream else {}
        facts["Images"] = ", ".join(f"{number} {name}" for name, number in counts.items())
        facts["Split"] = run.split.digest
    facts["Seed"] = str(config.seed)
    if run.minutes is None:
        facts["Step"] = f"{run.last_step:,} of {config.total_steps:,}"
    names = {"device": "Hardware", "commit": "Commit", "percentmatch": "Version", "torch": "torch", "python": "Python"}
    facts |= {words: str(run.environment[name]) for name, words in names.items() if run.environment.get(name)}
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    given = flat(run.given)
    found = [each for each in changed_settings(config) if each[0] not in given]
    chosen = [(name, value, f"default {default}" if default != "" else "") for name, value, default in found]
    asked = [(name, str(value), "") for name, value in given.items() if name not in NOT_LISTED and value != ""]
    return join(
        tag("dl", *rows, class_="facts"),
        _settings("Settings that were given", asked),
        _settings("Settings that were chosen for data and machine", chosen),
    )


def _settings(title: str, found: Sequence[tuple[str, str, str]]) -> Html:
    """The names and values of settings, and what is to be said of each."""
    items = [
        tag("li", tag("code", name), f" {value} ", tag("small", f"({note})" if note else ""))
        for name, value, note in found
    ]
    body = tag("ul", *items, class_="settings") if items else tag("p", "None.")
    return tag("details", tag("summary", f"{title} ({len(items)})"), body)


def changed_settings(config: Config) -> list[tuple[str, str, str]]:
    """Name, value and default of every setting that is not the default; options of the method have no default here."""
    mine, usual = flat(config.to_dict()), flat(Config().to_dict())
    return [(n, str(v), str(usual.get(n, ""))) for n, v in mine.items() if v != usual.get(n) and n not in NOT_LISTED]
