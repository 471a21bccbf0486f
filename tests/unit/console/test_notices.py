"""What a command says while it works: no silence, nothing twice, no bar in a file."""

import time

import pytest
import torch

from percentmatch.console import notices
from percentmatch.console.notices import Working, doing, print_to_stderr
from percentmatch.console.progress import Counting, Report
from percentmatch.models import Card
from percentmatch.scoring import predictions


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


class Slow(torch.nn.Module):
    """A model that takes its time."""

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        time.sleep(0.4)
        return torch.zeros(len(views), 1)


def test_it_says_how_many_images_are_scored(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Five images, two at a time; nothing is left of the count afterwards."""
    monkeypatch.setattr(notices, "SILENCE", 0.1)
    monkeypatch.setattr(predictions, "BATCH", 2)
    size = 32, 32, "squash", "multi-label"
    card = Card("test_resnet", "linear", 0.0, *size, ("cat",), (0.5,) * 3, (0.5,) * 3, "0")  # ty: ignore
    with Working("scoring"):
        predictions.logits(Slow(), torch.zeros(5, 3, 32, 32, dtype=torch.uint8), card, torch.device("cpu"))
        time.sleep(0.4)
    lines = [line.rpartition("  ")[0] for line in capsys.readouterr().err.splitlines()]
    assert [*dict.fromkeys(lines)] == ["scoring", "scoring  2/5 images scored", "scoring  4/5 images scored"]
    assert lines[-1] == "scoring"


def test_a_notice_is_said_once_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with Working("a command"):
            print_to_stderr("skipped: \x1b.png")
            print_to_stderr("skipped: \x1b.png")
    assert capsys.readouterr().err == "skipped: \\x1b.png\n" * 2


def test_progress_in_a_file_is_plain_lines(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of the log or of ten silent seconds; each loss by its name, the mAP with the step that it is of."""
    with Report("mine", 9, 0, 4) as report, Counting("images") as counting:
        report.row(3, mean_ap=0.5)
        report.row(4, losses={"supervised loss": 1.0, "unlabeled loss": 0.25})
        report.step(4)
        counting(1, 2)
        monkeypatch.setattr(notices, "SILENCE", 0)
        report.step(5)
        counting(2, 2)
    first, second, third = capsys.readouterr().err.splitlines()
    figures = "supervised loss 1.000  unlabeled loss 0.250  validation mAP 50.0 at step 3  "
    assert first.startswith(f"mine  step 4/9  {figures}")
    assert second.startswith(f"mine  step 5/9  {figures}")
    assert third == "images  2/2"


@pytest.mark.parametrize(("ago", "shown"), [(6, 0), (8, 1)])
def test_a_slow_step_is_told_before_the_seconds_alone_are(ago: int, shown: int, capsys) -> None:
    """After 7 of the 10 silent seconds; else lines without the step would always be first."""
    with Report("mine", 9, 0, 4) as report:
        notices.Working.heard = time.monotonic() - ago
        report.step(1)
    assert capsys.readouterr().err.count("step 1/9") == shown


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
