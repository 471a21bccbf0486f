"""Several runs beside each other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from percentmatch.data.labels import TABLES
from percentmatch.report.curves import figure, validation_means
from percentmatch.report.entry import Entry
from percentmatch.report.figures import Line, chart, fewer, intervals
from percentmatch.report.markup import Html, join, tag
from percentmatch.report.scoring import ScoredPart
from percentmatch.report.summary import changed_settings, mean_intervals
from percentmatch.report.tables import Cell, Ends, count, percent, share, signed, span, table
from percentmatch.scoring.intervals import ENOUGH, interval


def comparison(entries: Sequence[Entry], classes: Sequence[str], most_points: int) -> Html:
    """Scores, gains over the first run, and the curves of all."""
    part = compared_part(entries)
    first = entries[0]
    swatches = [tag("li", tag("span", class_="swatch", data_s=n), e.run.name) for n, e in enumerate(entries)]
    about = [f"Gains are over the first run, {first.run.name}, in points."]
    if part and len({_images(entry, part) for entry in entries}) > 1:
        about.append(f"The runs were not scored on the same {part} images, so a gain is also one of images.")
    elif part and all(paired(first, entry, part) for entry in entries[1:]):
        about.append(
            "Their 95% intervals resample the same images for both runs. The seed of the training moves gains, too, "
            "which no interval here tells: compare several seeds before you trust one. Of 20 classes, one misses 0 by "
            f"chance; a class with fewer than {ENOUGH} positives has no interval."
        )
    figures = _curves(entries, most_points)
    gains = _class_gains(entries, classes, part) if part else None
    return join(
        tag("p", " ".join(about)),
        tag("ul", *swatches, class_="legend"),
        _score_table(entries, part),
        tag("div", *([gains[0]] if gains else []), *figures, class_="figures"),
        gains[1] if gains else None,
        _settings_table(entries),
    )


def compared_part(entries: Sequence[Entry]) -> str | None:
    """The part on which all runs have final scores."""
    for part in ("test", "validation"):
        if all(entry.run.metrics and part in entry.run.metrics for entry in entries):
            return part
    return None


def paired(first: Entry, second: Entry, part: str) -> tuple[ScoredPart, ScoredPart] | None:
    """Both runs' scores, if they are of the same images in the same order, with the same classes and labels."""
    parts = [entry.scored.parts.get(part) if entry.scored else None for entry in (first, second)]
    if not parts[0] or not parts[1] or first.class_names != second.class_names:
        return None
    images = parts[0].images, parts[1].images
    tables = [[getattr(each.labels, name) for each in images] for name in TABLES]
    same = images[0].ids == images[1].ids and all(
        torch.equal(*rows) for table in tables for rows in zip(*(each.blocks() for each in table), strict=True)
    )
    return (parts[0], parts[1]) if same else None


def _images(entry: Entry, part: str) -> tuple[str, ...]:
    return getattr(entry.run.split, part) if entry.run.split else ()


def _gain(first: Entry, entry: Entry, part: str, name: str) -> tuple[float | None, Ends | None]:
    """Of a mean, with its interval where the images are the same."""
    scores = [each.run.metrics[part]["ema"][name] for each in (first, entry)]
    both = paired(first, entry, part)
    gain = None if None in scores else scores[1] - scores[0]
    if gain is None or not both:
        return gain, None
    means = [each.resampled.mean_ap if name == "mAP" else each.resampled.mean_auc for each in both]
    return gain, interval((means[1] - means[0])[:, None])[0]


def _score_table(entries: Sequence[Entry], part: str | None) -> Html:
    rows = []
    for entry in entries:
        run, found = entry.run, entry.run.final()
        cells: list[Cell | Html | str] = [run.config.method]
        scored = (part, run.metrics[part]["ema"]) if part else found
        for name in ("mAP", "AUC"):
            value = scored[1][name] if scored else None
            reach = mean_intervals(entry, part)[name] if part else None
            cells.append(Cell(join(percent(value), tag("small", span(reach)) if reach else None), value))
            if part:
                gain, ends = _gain(entries[0], entry, part, name)
                own = entry is entries[0]
                text = join(signed(gain), tag("small", f"{signed(ends[0])} to {signed(ends[1])}") if ends else None)
                cells.append(Cell("" if own else text, None if own else gain))
        cells.append(count(run.metrics["step"] if run.metrics else run.last_step))
        minutes = run.metrics["minutes"] if run.metrics else None
        cells.append(Cell("not finished" if minutes is None else f"{minutes:g}", minutes))
        rows.append((run.name, cells))
    per_mean = [["mAP", "gain in mAP"], ["AUC", "gain in AUC"]] if part else [["mAP"], ["AUC"]]
    columns = ["method", *per_mean[0], *per_mean[1], "steps", "minutes"]
    words = f"the {part} images, averaged weights" if part else "their newest validation images or test images"
    return table(f"All runs on {words}, in percent; small: 95% intervals", columns, rows, first="run")


def _class_gains(entries: Sequence[Entry], classes: Sequence[str], part: str) -> tuple[Html, Html] | None:
    """The gain in AP of every class that all runs know: as a figure and as a table."""
    shown = [{entry.class_names[place] for place in entry.shown} for entry in entries]
    shared = [name for name in classes if all(name in each for each in shown)]
    places = {name: place for place, name in enumerate(classes)}
    if not shared:
        return None
    aps = [[entry.run.metrics[part]["ema"]["classes"][name]["AP"] for name in shared] for entry in entries]
    ends = [_class_intervals(entries[0], entry, part) for entry in entries]
    picture_rows, rows = [], []
    for place, name in enumerate(shared):
        values = []
        cells = [share(aps[0][place])]
        for n in range(1, len(entries)):
            mine, theirs = aps[n][place], aps[0][place]
            gain = None if mine is None or theirs is None else mine - theirs
            reach = (ends[n] or {}).get(name)
            if gain is not None:
                values.append((n, 100 * gain, (100 * reach[0], 100 * reach[1]) if reach else None))
            small = tag("small", f"{signed(reach[0])} to {signed(reach[1])}") if reach and gain is not None else None
            text = join(signed(gain), small)
            cells += [share(mine), Cell(text, gain)]
        picture_rows.append((name, places[name], values))
        rows.append((name, cells))
    caption = f"Over {entries[0].run.name}, in points"
    reach_words = " Lines are 95% intervals." if any(ends[1:]) else ""
    best = "; ".join(f"{name} {' and '.join(f'{v:+.1f}' for _, v, _ in values)}" for name, _, values in picture_rows)
    drawn = intervals(
        "compare-gains", f"Gain in AP of each class. {caption}", best, rows=picture_rows, x_label="gain in AP, points"
    )
    columns = ["AP " + entries[0].run.name]
    columns += [word for entry in entries[1:] for word in (f"AP {entry.run.name}", "gain")]
    numbers = [places[name] for name in shared]
    legend = [(n, entry.run.name) for n, entry in enumerate(entries) if n]
    whole = table(
        f"AP of each class on the {part} images, in percent", columns, rows, first="class", class_index=numbers
    )
    return figure(drawn, "Gain in AP, class by class", f"{caption}.{reach_words}", legend), tag(
        "details", tag("summary", "The gains as a table"), whole
    )


def _class_intervals(first: Entry, entry: Entry, part: str) -> dict[str, Ends | None] | None:
    both = paired(first, entry, part)
    if not both:
        return None
    difference: Tensor = both[1].resampled.ap - both[0].resampled.ap  # (r, c)
    targets, known = both[0].images.scoring_labels(count_difficult=False)
    positives = (targets * known).sum(0, dtype=torch.long).tolist()
    found = zip(entry.class_names, interval(difference), positives, strict=True)
    return {name: ends if number >= ENOUGH else None for name, ends, number in found}


def _curves(entries: Sequence[Entry], most: int) -> list[Html]:
    """Curves of all runs, one figure a quantity."""
    quantities = {
        "mAP": ("mAP on validation images", "", "mAP, %", 100),
        "AUC": ("AUC on validation images", "", "AUC, %", 100),
        "loss": ("Loss", "Methods add different terms, so only runs of one method compare.", "loss", 1),
    }
    figures = []
    last_step = max(max(entry.run.last_step for entry in entries), 1)
    for name, (title, words, label, factor) in quantities.items():
        lines = []
        for n, entry in enumerate(entries):
            rows = [(r["step"], r) for r in entry.run.train] if name == "loss" else validation_means(entry.run)
            points = [(step, None if row[name] is None else factor * row[name]) for step, row in rows]
            if points:
                lines.append(Line(name=entry.run.name, points=fewer(points, most), series=n, marked=name != "loss"))
        if not lines:
            continue
        ends = "; ".join(f"{x.name} {x.points[-1][1]:.3g}" for x in lines if x.points[-1][1] is not None)
        picture = chart(
            f"compare-{name}",
            title,
            f"Last values: {ends}.",
            lines=lines,
            x_label="step",
            y_label=label,
            x_range=(0, last_step),
        )
        figures.append(figure(picture, title, words, [(line.series or 0, line.name) for line in lines]))
    return figures


def _settings_table(entries: Sequence[Entry]) -> Html | None:
    """Settings in which the runs differ."""
    mine = [{name: value for name, value, _ in changed_settings(entry.run.config)} for entry in entries]
    usual = [{name: default for name, _, default in changed_settings(entry.run.config)} for entry in entries]
    names = list(dict.fromkeys(name for each in mine for name in each))
    defaults = {name: value for each in usual for name, value in each.items()}
    rows = [(name, [each.get(name, defaults[name]) for each in mine]) for name in names]
    rows = [("seed", [str(entry.run.config.seed) for entry in entries]), *rows]
    rows = [(name, values) for name, values in rows if len(set(values)) > 1]
    if not rows:
        return None
    columns = [entry.run.name for entry in entries]
    whole = table("Settings in which the runs differ", columns, rows, first="setting", sortable=False)
    return tag("details", tag("summary", f"Settings in which the runs differ ({len(rows)})"), whole)
