"""Tables for the terminal."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from percentmatch.errors import visible

MOST_ROWS = 1000
MOST_ITEMS = 5  # of a finding
WIDE = 160  # columns of a table that goes to a file or another program
STATISTICS = {
    "mean number of labels per image": "cardinality",
    "imbalance ratio (most frequent class / least frequent class)": "imbalance_ratio",
}


def percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f}"


def points(difference: float) -> str:
    """A difference of fractions in points, without a minus before a zero."""
    return f"{round(100 * difference, 1) + 0.0:+.1f}"


def cell(name: str) -> str:
    """The name of a class or file in a table: nothing in it is read as markup, or steers the terminal."""
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
    """The classes that a table shows; prints how many there are where they are not all."""
    if len(classes) > MOST_ROWS:
        print(f"the first {MOST_ROWS} of {len(classes):,} classes:")
    return list(classes.items())[:MOST_ROWS]


def show_stats(facts: dict[str, Any]) -> None:
    """Print what `describe` counted; of the pairs of classes, the ten that are seen together most often."""
    named = {subset or "not assigned to train, validation or test": count for subset, count in facts["parts"].items()}
    subsets = ", ".join(f"{count:,} {name}" for name, count in named.items())
    subsets = f" ({subsets})" if set(facts["parts"]) != {""} else ""
    print(f"{facts['images']:,} images{subsets}, {facts['labeled_images']:,} with labels")
    for name, key in STATISTICS.items():
        print(f"{name}: {facts[key]:.3f}" if facts[key] is not None else f"{name}: n/a")
    table = figures("class", "prevalence, %", "positives", "negatives", "difficult", "unknown")
    for name, row in first(facts["classes"]):
        counts = (f"{row[key]:,}" for key in ("positives", "negatives", "difficult", "unknown"))
        table.add_row(cell(name), percent(row["prevalence"]), *counts)
    show(table)
    names, together = list(facts["classes"]), facts["co_occurrence"] or ()  # None of too many classes
    pairs = [(together[a][b], a, b) for a in range(len(together)) for b in range(a) if together[a][b]]
    if pairs:
        print("\nMost often together:")
    for count, a, b in sorted(pairs, reverse=True)[:10]:
        print(visible(f"  {names[b]} and {names[a]}: {count:,}"))


def show_findings(found: dict[str, Any], out: Path | None) -> None:
    """What `check_data` found: a row for each finding, then its first few items."""
    subsets = "  ".join(f"{name} {count:,}" for name, count in (found["parts"] or {}).items())
    print(f"{found['images']:,} images  {subsets}")
    table = Table("level", "check", box=None, padding=(0, 2, 0, 0))
    table.add_column("count", justify="right")
    table.add_column("what")
    for finding in found["findings"]:
        table.add_row(finding["level"], finding["check"], f"{finding['count']:,}", cell(finding["text"]))
    Console().print(table if found["findings"] else "nothing found")
    for finding in found["findings"]:
        items = finding["items"]
        if items:
            print(f"\n{finding['check']}")
        for item in items[:MOST_ITEMS]:
            print(visible(f"  {item['text']}"))
        if len(items) > MOST_ITEMS:
            rest = f"all in {out}" if out else "--out FILE.json lists all"
            print(f"  and {len(items) - MOST_ITEMS} more; {rest}")
    for sentence in found["not_checked"]:
        print(f"\nnot checked: {sentence}")
