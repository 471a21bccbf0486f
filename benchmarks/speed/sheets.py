"""The figures of each part as tables, for the terminal and the documents alike."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.markup import escape

from percentmatch.console import tables as terminal

Figures = dict[str, Any]


class Sheet(NamedTuple):
    """A table; its first column is text, the others are numbers."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def sheets(part: str, figures: Figures) -> list[Sheet]:
    """The tables of one part, of whatever it has measured."""
    return [sheet for sheet in SHEETS[part](figures) if sheet.rows]


def show(part: str, figures: Figures) -> None:
    """Print a part's tables, or why there are none."""
    for sheet in sheets(part, figures):
        table = terminal.figures(*sheet.columns)
        for row in sheet.rows:
            table.add_row(*map(escape, row))
        terminal.show(table)
        print()
    if "failed" in figures:
        print(f"{part} failed: {figures['failed']}\n")


def _network(figures: Figures) -> list[Sheet]:
    names = {"eager": "launched one by one", "captured": "replayed as a CUDA graph"}
    rows = [
        (f"network, {text}", ms(figures[f"{name}_ms"]), rate(figures[f"{name}_images_per_s"]))
        for name, text in names.items()
        if f"{name}_ms" in figures
    ]
    return [Sheet(("step", "ms", "images/s"), rows)]


def _loop(figures: Figures) -> list[Sheet]:
    names: dict[str, tuple[str, Callable[[float], str], str]] = {
        "network_ms": ("network alone", ms, " ms"),
        "views_ms": ("views alone", ms, " ms"),
        "network_and_views_ms": ("network and views", ms, " ms"),
        "draw_ms": ("drawing the step, on the host", ms, " ms"),
        "loop_ms": ("whole loop", ms, " ms"),
        "loop_images_per_s": ("whole loop", rate, " images/s"),
        "loop_over_network_ratio": ("whole loop / network", "{:.3f}".format, ""),
        "views_over_loop_ratio": ("views / whole loop", "{:.1%}".format, ""),
        "checkpoint_ms": ("one checkpoint, until it is written", ms, " ms"),
        "peak_memory_bytes": ("peak memory", lambda value: f"{value / 2**30:.2f}", " GiB"),
    }
    rows = [(text, form(figures[key]) + unit) for key, (text, form, unit) in names.items() if key in figures]
    return [Sheet(("part of a step", "measured"), rows)]


def _labeler(figures: Figures) -> list[Sheet]:
    rows = figures.get("rows", [])
    eager = any("eager_ms" in row for row in rows)
    columns = ("classes", "bins", "ms a step", *(["launched one by one, ms"] if eager else []), "state, bytes")
    cells = [
        (
            f"{row['classes']:,}",
            str(row["bins"]),
            f"{row['ms']:.3f}",
            *([f"{row['eager_ms']:.3f}"] if eager else []),
            f"{row['state_bytes']:,}",
        )
        for row in rows
    ]
    return [Sheet(columns, cells)]


def _cache(figures: Figures) -> list[Sheet]:
    if "images_per_s" not in figures:
        return []
    size = f"{figures['size_pixels']} x {figures['size_pixels']}"
    row = (f"{figures['images']:,}", f"{figures['file_bytes'] / 1000:.0f}", size, rate(figures["images_per_s"]))
    return [Sheet(("files decoded", "kB a file", "kept at", "images/s"), [row])]


def _evaluation(figures: Figures) -> list[Sheet]:
    if "images_per_s" not in figures:
        return []
    row = (f"{figures['images']:,}", rate(figures["images_per_s"]), f"{figures['seconds_for_4952_images']:.1f}")
    return [Sheet(("images scored", "images/s", "seconds for 4,952 images"), [row])]


def _conventional(figures: Figures) -> list[Sheet]:
    if "loop_ms" not in figures:
        return []
    ours, fixed = figures["loop_ms"], figures["network_ms"]
    per_s = figures["loop_images_per_s"] * ours / fixed
    rows = [("percentmatch", ms(ours), rate(figures["loop_images_per_s"]), "1.00")]
    for row in figures["rows"]:
        name = f"conventional, {row['workers']} worker{'s' if row['workers'] > 1 else ''}"
        if "failed" in row:
            rows.append((name, f"failed: {row['failed']}", "", ""))
        else:
            rows.append((name, ms(row["ms"]), rate(row["images_per_s"]), f"{row['over_loop_ratio']:.2f}"))
    rows.append(("conventional, one batch again and again", ms(fixed), rate(per_s), f"{fixed / ours:.2f}"))
    return [Sheet(("loop", "ms a step", "images/s", "times ours"), rows)]


def _methods(figures: Figures) -> list[Sheet]:
    pairs = [
        (
            row["scores"],
            ms(row["fixmatch_ms"]),
            ms(row["percentmatch_ms"]),
            f"{row['percentmatch_over_fixmatch_ratio']:.3f}",
        )
        for row in figures.get("pairs", [])
    ]
    rows = [
        (row["method"], f"failed: {row['failed']}", "")
        if "failed" in row
        else (row["method"], ms(row["ms"]), f"{row['over_supervised_ratio']:.2f}")
        for row in figures.get("rows", [])
    ]
    return [
        Sheet(("scores of the", "FixMatch, ms", "PercentMatch, ms", "PercentMatch / FixMatch"), pairs),
        Sheet(("method", "ms a step", "times supervised"), rows),
    ]


SHEETS: dict[str, Callable[[Figures], list[Sheet]]] = {
    "network": _network,
    "loop": _loop,
    "labeler": _labeler,
    "cache": _cache,
    "evaluation": _evaluation,
    "conventional": _conventional,
    "methods": _methods,
}


def ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def rate(value: float) -> str:
    return f"{value:,.0f}"
