import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import clock
from shared.clock import Exchange, OffsetEstimator

SECOND_NS = 10**9
NS = st.integers(0, SECOND_NS)


def test_time_never_decreases_and_is_close_to_the_wall_clock() -> None:
    """Stamps are compared with the sensor's wall-clock stamps and subtracted from each other."""
    read = [clock.now_ns() for _ in range(1000)]
    assert all(earlier <= later for earlier, later in pairwise(read))
    assert abs(read[-1] - time.time_ns()) < 3600 * SECOND_NS


def test_a_stepped_wall_clock_moves_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    """NTP steps clocks on the first fix after boot: a negative latency would follow."""
    before = clock.now_ns()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert before <= clock.now_ns() < before + 60 * SECOND_NS


@given(offset=st.integers(-(10**15), 10**15), up=NS, at_work=NS, down=NS)
def test_the_true_offset_lies_within_the_bound_however_asymmetric_the_link(
    offset: int, up: int, at_work: int, down: int
) -> None:
    """`clock_error_ms` is a promise: uplink and downlink are true to within it."""
    received = up + offset
    exchange = Exchange(0, received, received + at_work, up + at_work + down)
    assert exchange.delay_ns == up + down
    estimate = OffsetEstimator().add(exchange)
    assert abs(estimate.offset_ns - offset) <= estimate.error_ns + 1  # The halves are whole nanoseconds.


def test_the_quickest_exchange_bounds_the_offset_until_its_age_outweighs_it() -> None:
    """A frame that queued for a second must not spoil what a quick one told; yet clocks drift."""
    estimator = OffsetEstimator()
    quick = Exchange(0, 1_000, 2_000, 3_000)
    slow_ns = 2_000_000
    assert estimator.add(quick).error_ns == 1_000
    soon = estimator.add(Exchange(10_000, 20_000, 30_000, 10_000 + slow_ns))
    assert soon.offset_ns == quick.offset_ns
    later = 3600 * SECOND_NS
    fresh = Exchange(later, later + 500_000, later + 600_000, later + slow_ns)
    assert estimator.add(fresh).offset_ns == fresh.offset_ns


def test_an_estimator_forgets_what_is_older_than_its_window() -> None:
    """It lives as long as the node."""
    estimator = OffsetEstimator(window=2)
    estimator.add(Exchange(0, 10, 10, 20))
    for start in (100, 200):
        last = estimator.add(Exchange(start, start + 50, start + 50, start + 100))
    assert last.error_ns >= 50
