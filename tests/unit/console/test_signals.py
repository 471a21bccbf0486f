"""Which signals ask a run to stop."""

import signal

import pytest

from percentmatch.console.signals import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(number: signal.Signals) -> None:
    """As a shell does it for jobs in its background: Ctrl-C is for another command then."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            assert signal.getsignal(number) == signal.SIG_IGN
            signal.raise_signal(number)
            assert stop.number is None
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
