"""What a command says while it works: no silence, nothing twice, no bar in a file."""

import time

import pytest

from percentmatch.console import notices
from percentmatch.console.notices import Working, doing, print_to_stderr
from percentmatch.console.progress import Counting, Report


def test_a_silent_command_says_what_it_does(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(notices, "SILENCE", 0.1)
    with Working("training"), Working("a part of it"):
        doing("scoring")
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert {line.split("  ")[0] for line in lines} == {"scoring"}
    time.sleep(0.3)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("silent", [True, False])
def test_one_that_speaks_or_shall_be_silent_says_no_more(silent: bool, monkeypatch, capsys) -> None:
    monkeypatch.setattr(notices, "SILENCE", 0.5)
    with Working("training", silent=silent):
        for _ in range(7):
            time.sleep(0.1)
            if not silent:
                notices.to_stderr("a line")
    assert capsys.readouterr().err == ("" if silent else "a line\n" * 7)


def test_a_notice_is_said_once_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with Working("a command"):
            print_to_stderr("skipped: \x1b.png")
            print_to_stderr("skipped: \x1b.png")
    assert capsys.readouterr().err == "skipped: \\x1b.png\n" * 2


def test_progress_in_a_file_is_plain_lines(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of the log or of ten silent seconds; the mAP is that of the validation images."""
    with Report("mine", 9, 0, 4) as report, Counting("images") as counting:
        report.row(3, mean_ap=0.5)
        report.row(3, loss=1.0)
        report.step(4)
        counting(1, 2)
        monkeypatch.setattr(notices, "SILENCE", 0)
        report.step(5)
        counting(2, 2)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("mine  step 3/9  loss 1.000  validation mAP 50.0  ")
    assert second.startswith("mine  step 5/9  loss 1.000  validation mAP 50.0  ")
    assert third == "images  2/2"


def test_bars_in_a_terminal_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich shows one at a time."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Counting("decoding") as decoding, Counting("scoring") as scoring:
        assert decoding.bar
        assert scoring.bar
        for each in (decoding, scoring, decoding):
            each(1, 2)
            each.shown = 0.0
            each(2, 2)
