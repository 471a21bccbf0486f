"""Tables for the terminal."""

import io

import pytest
from rich.console import Console

from percentmatch.console.tables import figures, show

NAME = "a_class_with_a_very_long_name_that_differs_only_at_its_end"


def test_names_are_folded_and_figures_kept_in_a_narrow_terminal() -> None:
    table = figures("class", "mAP", "gain")
    for end in "ab":
        table.add_row(f"{NAME}_{end}", "12.3 ± 4.5", "+1.0")
    console = Console(width=40, file=io.StringIO())
    console.print(table)
    shown = console.file.getvalue()
    names = "".join(line[:20].strip() for line in shown.splitlines())
    assert f"{NAME}_a" in names
    assert f"{NAME}_b" in names
    assert shown.count("12.3 ± 4.5") == 2


def test_elsewhere_a_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = figures("class", "mAP")
    table.add_row(NAME, "12.3 ± 4.5")
    show(table)
    assert capsys.readouterr().out.splitlines()[1].split("  ")[0] == NAME
