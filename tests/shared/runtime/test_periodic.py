"""Periodic work: an exception ends one round, is logged and counted."""

import pytest

from shared.runtime import periodic
from shared.runtime.periodic import FAILURES, run_round
from shared.threads import Counts


def fail() -> None:
    """Fails as a round without a free file does."""
    raise OSError(24, "Too many open files")


def test_an_exception_ends_one_round_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A metrics sample without a free file once ended a worker. A round that fails each time does not fill the log."""
    for _ in range(30):
        assert not run_round("a sample", fail)
    assert run_round("a sample", lambda: None)
    assert FAILURES.by_name()["a sample"] == 30
    assert caplog.text.count("periodic work failed") == 1
    assert "Too many open files" in caplog.text


def test_twenty_failures_have_a_traceback(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that fails for days must not fill the log with tracebacks."""
    monkeypatch.setattr(periodic, "FAILURES", Counts())
    for number in range(25):
        assert not run_round(f"work {number}", fail)
    assert ["exc_info" in entry.msg for entry in caplog.records] == [True] * 20 + [False] * 5


def test_an_interrupt_is_no_failure() -> None:
    """Ctrl-C ends the node."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_round("interrupted", interrupt)
    assert "interrupted" not in FAILURES.by_name()
