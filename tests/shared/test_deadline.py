import pytest

from shared import clock
from shared.clock import Deadline

MS = 1_000_000


def test_a_deadline_has_passed_after_its_time() -> None:
    """At the very nanosecond a result is still in time; without a time, the question is about now."""
    deadline = Deadline.after_ms(1.5, since_ns=1000)
    assert deadline.at_ns == 1_501_000
    assert [deadline.is_expired(now_ns) for now_ns in (0, 1_501_000, 1_501_001)] == [False, False, True]
    assert Deadline(clock.now_ns() - 1).is_expired()
    assert not Deadline.after_ms(60_000).is_expired()


@pytest.mark.parametrize(
    ("remaining_ns", "remaining_ms", "expiry_s"),
    [(-5 * MS, 0, 0), (0, 0, 0), (999_999, 0, 0), (1 * MS, 1, 1), (1000 * MS, 1000, 1), (1001 * MS, 1001, 2)],
)
def test_messages_carry_the_time_that_remains(remaining_ns: int, remaining_ms: int, expiry_s: int) -> None:
    """It is never negative, and a broker keeps a message at least until its deadline."""
    deadline = Deadline(10**18 + remaining_ns)
    assert (deadline.remaining_ms(10**18), deadline.expiry_s(10**18)) == (remaining_ms, expiry_s)
    assert deadline.remaining_s(10**18) == max(0, remaining_ns) / 1e9


def test_the_receiver_counts_the_remaining_time_by_its_own_clock() -> None:
    """Two nodes whose clocks differ by hours agree about the deadline, up to the rounding and the time of travel."""
    vehicle_ns, worker_ns = 10**18, 2 * 10**18
    sent = Deadline.after_ms(500.7, vehicle_ns)
    received = Deadline.after_ms(sent.remaining_ms(vehicle_ns + 100 * MS), worker_ns)
    assert received.at_ns == worker_ns + 400 * MS


@pytest.mark.parametrize("duration_ms", [None, float(1 << 80)])
def test_a_frame_without_a_deadline_never_expires(duration_ms: float | None) -> None:
    """No field is sent then, and every other deadline is earlier; gRPC reports an immense time for a call without one."""
    never = Deadline.after_ms(duration_ms)
    assert never == Deadline.NEVER
    assert never > Deadline.after_ms(86_400_000)
    assert not never.is_expired()
    assert never.remaining_ms() is never.expiry_s() is None
