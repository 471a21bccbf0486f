"""Tables for the terminal."""

import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from percentmatch.errors import several, visible

MOST_ROWS = 1000
WIDE = 160  # columns of a table that goes to a file or another program


def percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f}"


def cell(name: str) -> str:
    """The name of a class or file in a table: no part of it is read as markup, or steers the terminal."""
    return escape(visible(name))


def figures(name: str, *columns: str) -> Table:
    """An empty table of names, which are never cut since they tell rows apart, and figures."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(name, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def show(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def first(classes: dict[str, Any]) -> list[tuple[str, Any]]:
    """The classes that a table shows; says so where they are not all."""
    if len(classes) > MOST_ROWS:
        print(f"the first {MOST_ROWS} of {len(classes):,} classes:")
    return list(classes.items())[:MOST_ROWS]


def show_scores(scores: dict[str, Any]) -> None:
    table = figures("class", "AP", "AUC", "11-point AP", "positives")
    for name, row in first(scores["classes"]):
        values = (percent(row[key]) for key in ("AP", "AUC", "AP_11point"))
        table.add_row(cell(name), *values, str(row["positives"]))
    table.add_section()
    table.add_row("mean", *(percent(scores[key]) for key in ("mAP", "AUC", "mAP_11point")), "")
    show(table)
    if "accuracy" in scores:
        print(f"Accuracy {percent(scores['accuracy'])}")
    if counted := scores.get("difficult_as_positive"):
        shown = "  ".join(f"{name} {percent(counted[key])}" for name, key in (("mAP", "mAP"), ("AUC", "AUC")))
        print(f"With difficult pairs counted as positive: {shown}  11-point mAP {percent(counted['mAP_11point'])}")
    for key, what in (("left_out_AP", "positives"), ("left_out_AUC", "positives or negatives")):
        if scores[key]:
            print(f"Left out of the mean for want of {what}: {visible(several(scores[key]))}")
    if scores["num_pairs_ignored"]:
        print(f"{scores['num_pairs_ignored']} pairs of image and class were ignored (label unknown or difficult)")


def show_decisions(summary: dict[str, Any]) -> None:
    """What `decide` found: the error of the probabilities, and the threshold of each class."""
    errors, decisions = summary["calibration"], summary["decisions"]
    before, after = errors["ece_before"], errors["ece_after"]
    print(f"calibration error (ECE) {before:.4f} before, {after:.4f} after, on {errors['num_images']} images")
    if "classes" not in decisions:
        return
    table = figures("class", "positives", "threshold", "precision", "recall", "F1")
    for name, row in first(decisions["classes"]):
        reached = (percent(row[key]) for key in ("precision", "recall", "F1"))
        table.add_row(cell(name), str(row["positives"]), f"{row['threshold']:.4f}", *reached)
    show(table)
    print(f"Thresholds for {'the best F1' if decisions['aim'] == 'F1' else decisions['aim']}")
    notes = {
        "missed": "Not reached, so the nearest is taken",
        "few_positives": "Few positives, so thresholds and figures are what the probabilities expect",
        "without_positives": "Without a positive, so the threshold is 0.5",
    }
    for key, note in notes.items():
        if decisions[key]:
            print(f"{note}: {visible(several(decisions[key]))}")


def show_stats(facts: dict[str, Any]) -> None:
    """What `describe` counted; of the pairs of classes, the ten that are seen together most often."""
    parts = ", ".join(f"{count:,} {part or 'of no part'}" for part, count in facts["parts"].items())
    parts = f" ({parts})" if set(facts["parts"]) != {""} else ""
    print(f"{facts['images']:,} images{parts}, {facts['labeled_images']:,} with labels")
    for name, key in (("labels an image", "cardinality"), ("most over least frequent class", "imbalance_ratio")):
        print(f"{name}: {facts[key]:.3f}" if facts[key] is not None else f"{name}: n/a")
    table = figures("class", "prevalence, %", "positives", "negatives", "difficult", "unknown")
    for name, row in first(facts["classes"]):
        counts = (f"{row[key]:,}" for key in ("positives", "negatives", "difficult", "unknown"))
        table.add_row(cell(name), percent(row["prevalence"]), *counts)
    show(table)
    names, together = list(facts["classes"]), facts["co_occurrence"]
    if together is None:  # too many classes
        return
    pairs = [(together[a][b], a, b) for a in range(len(names)) for b in range(a) if together[a][b]]
    if pairs:
        print("\nMost often together:")
    for count, a, b in sorted(pairs, reverse=True)[:10]:
        print(visible(f"  {names[b]} and {names[a]}: {count:,}"))
