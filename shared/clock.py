"""Time, read in one place; and the offset of another node's clock with its error bound."""

import time
from collections import deque
from dataclasses import dataclass

_ANCHOR_NS = time.time_ns() - time.monotonic_ns()

DRIFT_PPM = 100  # What two crystal clocks may drift apart at worst; widens a bound with its age.


def now_ns() -> int:
    """Nanoseconds since the Unix epoch by the monotonic clock, anchored once to the wall clock.

    A wall clock that is stepped while the process lives moves no duration.
    """
    return time.monotonic_ns() + _ANCHOR_NS


@dataclass(frozen=True, slots=True)
class Exchange:
    """The four times of one journey there and back; `sent` and `returned` by our clock, the others by theirs."""

    sent_ns: int
    received_ns: int
    replied_ns: int
    returned_ns: int

    @property
    def offset_ns(self) -> int:
        """Their clock minus ours, if both crossings took equally long (RFC 5905, section 8)."""
        return ((self.received_ns - self.sent_ns) + (self.replied_ns - self.returned_ns)) // 2

    @property
    def delay_ns(self) -> int:
        """Both crossings together; needs no common clock."""
        return (self.returned_ns - self.sent_ns) - (self.replied_ns - self.received_ns)


@dataclass(frozen=True, slots=True)
class Offset:
    """Another node's clock minus ours. The truth lies within `error_ns` on either side, however asymmetric the link."""

    offset_ns: int
    error_ns: int


class OffsetEstimator:
    """Estimates another node's clock offset from the exchanges of the last frames: the quickest one bounds it best."""

    def __init__(self, window: int = 64) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=window)

    def add(self, exchange: Exchange) -> Offset:
        """Take one more exchange in and return the estimate as of its return."""
        self._exchanges.append(exchange)
        at_ns = exchange.returned_ns
        best = min(self._exchanges, key=lambda known: _error_ns(known, at_ns))
        return Offset(best.offset_ns, _error_ns(best, at_ns))


def _error_ns(exchange: Exchange, at_ns: int) -> int:
    """Half the delay (RFC 5905's bound for any asymmetry) plus what the clocks may have drifted since."""
    return exchange.delay_ns // 2 + (at_ns - exchange.returned_ns) * DRIFT_PPM // 1_000_000
