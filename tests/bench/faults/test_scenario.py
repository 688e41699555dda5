"""What makes a scenario red: a figure over its limit, one that could not be measured, a promise, the accounts."""

from bench.faults.scenario import Figure, Finding
from bench.harness.frame_accounting import NO_MASKS, FrameAccounts


def test_a_figure_holds_within_its_limit_and_without_one() -> None:
    """What is only told is not judged."""
    assert Figure("reconnects", 0, most=0).holds
    assert not Figure("reconnects", 1, most=0).holds
    assert Figure("goodput", 1e9).holds


def test_what_could_not_be_measured_holds_no_limit() -> None:
    """A recovery that nobody saw is no fast recovery."""
    assert not Figure("recovery p95", None, "ms", most=3000).holds
    assert str(Figure("recovery p95", None, "ms", most=3000)) == "recovery p95 none ms (at most 3000)"


def test_a_figure_reads_as_a_line() -> None:
    """Four digits say enough, and a large count is not told in powers of ten."""
    assert str(Figure("after", 1.23456, "s", most=30)) == "after 1.235 s (at most 30)"
    assert str(Figure("duplicates removed", 12345)) == "duplicates removed 12,345"


def test_every_broken_promise_is_a_failure() -> None:
    """One that is forgotten lets the bench end green."""
    accounts = FrameAccounts(read=2, masks_checked=1)
    accounts.outcomes["answered"] = 1
    accounts.unaccounted = 1
    finding = Finding((Figure("leaks", 3, most=0), Figure("told", 3)), accounts, broken=("the worker is gone",))
    assert finding.failures == [
        "the worker is gone",
        "leaks 3 (at most 0) does not hold",
        "1 frames unaccounted for: 2 read = 1 answered",
    ]
    assert Finding((Figure("leaks", 0, most=0),), FrameAccounts(masks_checked=1)).failures == []


def test_labels_that_nobody_looked_at_are_not_right() -> None:
    """A scenario in which nothing was answered has no wrong label either."""
    assert Finding(()).failures == [NO_MASKS]
    assert Finding((), keeps_masks=False).failures == []
