"""Reasons why a scenario fails: a figure over its limit, an unmeasured figure, a broken promise, the accounting."""

from analysis.logs.frame_accounting import FrameAccounts
from tests.support.faults.finding import NO_MASKS, Figure, Finding


def test_a_figure_within_its_limit_or_without_a_limit_holds() -> None:
    """A figure without a limit is only reported."""
    assert Figure("reconnects", 0, most=0).holds
    assert not Figure("reconnects", 1, most=0).holds
    assert Figure("goodput", 1e9).holds


def test_an_unmeasured_figure_with_a_limit_does_not_hold() -> None:
    """A recovery that was not observed must not count as a fast recovery."""
    assert not Figure("recovery p95", None, "ms", most=3000).holds
    assert str(Figure("recovery p95", None, "ms", most=3000)) == "recovery p95 none ms (at most 3000)"


def test_a_figure_is_formatted_as_one_line() -> None:
    """Values have four significant digits, and large counts are written without an exponent."""
    assert str(Figure("after", 1.23456, "s", most=30)) == "after 1.235 s (at most 30)"
    assert str(Figure("duplicates removed", 12345)) == "duplicates removed 12,345"


def test_every_broken_promise_is_a_failure() -> None:
    """Every scenario would pass if one of them were left out."""
    accounts = FrameAccounts(read=2, masks_checked=1)
    accounts.outcomes["answered"] = 1
    accounts.unaccounted = 1
    finding = Finding(accounts, Figure("leaks", 3, most=0), Figure("reported", 3), broken=("the worker is gone",))
    assert finding.failures == [
        "the worker is gone",
        "leaks 3 (at most 0) does not hold",
        "1 frames unaccounted for: 2 read = 1 answered",
    ]
    assert Finding(FrameAccounts(masks_checked=1), Figure("leaks", 0, most=0)).failures == []


def test_unchecked_labels_are_a_failure() -> None:
    """A scenario without any answered frame also has no wrong label, but must not pass."""
    assert Finding(FrameAccounts()).failures == [NO_MASKS]
    assert Finding(FrameAccounts(), keeps_masks=False).failures == []
