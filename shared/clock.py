"""The clock of this process, deadlines, and estimates of another node's clock with a guaranteed error bound."""

import time
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

MAX_DRIFT_PPM = 500
"""Largest relative rate of two nodes' clocks, in parts per million; all error bounds assume it.

A crystal is accurate to 100 ppm, so two free-running nodes are within 200 ppm. A time daemon also changes the rate of
the monotonic clock, although it never steps it: adjtime(3) slews by 500 ppm, and RFC 5905 limits the frequency
correction to 500 ppm (MAXFREQ). The limit does not cover chrony's first minutes (`maxslewrate`, thousands of ppm) or a
machine that sleeps or migrates; `OffsetEstimator` restarts when it detects such a change.
"""
_CRYSTALS_PPM = 200  # Range of drifts that the estimate considers; its error bound assumes MAX_DRIFT_PPM.
_SLOPES = 41  # Drifts evaluated at a time.
_CONSISTENT_SHARE = 0.5  # A consistent exchange leaves at least this share of the shortest delay as common range,
_CONSISTENCY_COUNT = 16  # once this many exchanges are known.
_NEW_SHARE = 0.125  # Weight of the newest exchange in the smoothed round trip.
_ESTIMATE_NS = 100_000_000  # Lifetime of an estimate, which takes 0.1 ms to compute.


class _Anchor:
    """The offset from the monotonic clock; only `skew_clock` changes it."""

    def __init__(self) -> None:
        self.offset_ns = self.correct_ns = time.time_ns() - time.monotonic_ns()
        self.drift_ppb = 0
        self.since_ns = 0


_anchor = _Anchor()


def now_ns() -> int:
    """Returns nanoseconds since the Unix epoch, by the monotonic clock, which was set to the wall clock at import.

    Later steps of the wall clock therefore do not change measured durations.
    """
    at_ns = time.monotonic_ns()
    if _anchor.drift_ppb:
        return at_ns + _anchor.offset_ns + (at_ns - _anchor.since_ns) * _anchor.drift_ppb // 10**9
    return at_ns + _anchor.offset_ns


def skew_clock(offset_ns: int, drift_ppm: float) -> None:
    """Sets this process's clock wrong by a known amount: `offset_ns` ahead, and gaining `drift_ppm` from now on.

    Benches and tests compare estimates with this truth; `skew_clock(0, 0)` corrects the clock.
    """
    _anchor.drift_ppb = 0  # Concurrent readers see no drift instead of a wrong one.
    _anchor.since_ns = time.monotonic_ns()
    _anchor.offset_ns = _anchor.correct_ns + offset_ns
    _anchor.drift_ppb = round(drift_ppm * 1000)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The four times of a round trip: `sent`, `returned` by our clock, `received`, `replied` by the other node's."""

    sent_ns: int
    received_ns: int
    replied_ns: int
    returned_ns: int

    @property
    def offset_ns(self) -> int:
        """Their clock minus ours if both directions take equally long (RFC 5905, section 8)."""
        return (self.min_offset_ns + self.max_offset_ns) // 2

    @property
    def delay_ns(self) -> int:
        """Travel time in both directions, which needs no common clock."""
        return self.max_offset_ns - self.min_offset_ns

    @property
    def min_offset_ns(self) -> int:
        """Lower bound of their clock minus ours, reached if the reply took no time."""
        return self.replied_ns - self.returned_ns

    @property
    def max_offset_ns(self) -> int:
        """Upper bound of their clock minus ours, reached if the request took no time."""
        return self.received_ns - self.sent_ns

    @property
    def is_consistent(self) -> bool:
        """True if every step ends after it begins."""
        return self.sent_ns <= self.returned_ns and self.received_ns <= self.replied_ns and self.delay_ns >= 0


@dataclass(frozen=True, slots=True)
class Offset:
    """Another node's clock minus ours. The true value is within ±`error_ns`, however asymmetric the link is."""

    offset_ns: int
    error_ns: int
    drift_ppm: float = 0.0  # Estimated gain of their clock on ours; it has no error bound.


class OffsetEstimator:
    """Estimates another node's clock from round trips: a best estimate, and an error bound that always holds.

    The error bound: each exchange limits the true offset to the range from `min_offset_ns` to `max_offset_ns`. At
    another time that range is wider on both sides by MAX_DRIFT_PPM of the elapsed time, and the true offset lies in the
    intersection of all ranges (Marzullo 1984; RFC 5905, section 11.2.1). Since all ranges widen alike, only the
    intersection is kept.

    The estimate: over the exchanges of the last minute the offset is a straight line, and each crossing takes a minimum
    time plus a random delay. If that delay is exponential, the likelihood of a line is exp(exchanges × slack / mean
    delay), where slack is the distance between the line's ceiling (the least `max_offset_ns`) and its floor (the
    greatest `min_offset_ns`). This is a minimum-delay filter with a slope, like the convex hulls of Moon, Skelly and
    Towsley (INFOCOM 1999). The estimate is the mean, weighted by likelihood, of the lines in the middle of the slack
    for all slopes that two crystals can have. If the minimum times in both directions are equal, it converges to the
    true offset; otherwise it is wrong by half their difference, which the error bound covers.

    An exchange that contradicts, or almost contradicts, the earlier ones means that a clock was changed, and the
    estimator restarts from it: the ranges of correct exchanges overlap by the sum of the minimum times, which is seldom
    less than half of the shortest delay. An unneeded restart only widens the error bound for a while.
    """

    def __init__(self, window: int = 144, window_s: float = 64.0) -> None:
        """The estimate uses the last `window` exchanges of the last `window_s`; the error bound uses all."""
        self._recent: deque[Exchange] = deque(maxlen=window)
        self._window_ns = round(window_s * 1e9)
        self.round_trip_ns = 0  # Smoothed travel time of the exchanges in both directions.
        self.at_ns = 0  # Time at which the last exchange returned, by our clock: the following range holds for it.
        self._min_ns = 0
        self._max_ns = 0
        self._line: _Line | None = None

    def add(self, exchange: Exchange) -> None:
        """Adds an exchange; the order does not matter."""
        at_ns = max(self.at_ns, exchange.returned_ns)
        min_ns, max_ns = _widened(exchange.min_offset_ns, exchange.max_offset_ns, at_ns - exchange.sent_ns)
        if self._recent:
            earlier = _widened(self._min_ns, self._max_ns, at_ns - self.at_ns)
            common = max(min_ns, earlier[0]), min(max_ns, earlier[1])
            if common[1] - common[0] >= self._min_common_ns(exchange):
                min_ns, max_ns = common
            else:
                self._recent.clear()
                self._line = None
        self.at_ns, self._min_ns, self._max_ns = at_ns, min_ns, max_ns
        change_ns = exchange.delay_ns - self.round_trip_ns
        self.round_trip_ns += round(change_ns * _NEW_SHARE) if self._recent else change_ns
        self._recent.append(exchange)
        while len(self._recent) > 1 and self._recent[0].returned_ns < at_ns - self._window_ns:
            self._recent.popleft()

    def offset_during(self, exchange: Exchange) -> Offset | None:
        """Returns the offset during `exchange`, valid at each of its times; None if it contradicts the earlier ones.

        By the returned offset, neither direction of the exchange takes a negative time.
        """
        if not self._recent:
            return None
        span_ns = exchange.returned_ns - exchange.sent_ns
        away_ns = max(abs(exchange.sent_ns - self.at_ns), abs(exchange.returned_ns - self.at_ns))
        known = _widened(self._min_ns, self._max_ns, away_ns)
        own = _widened(exchange.min_offset_ns, exchange.max_offset_ns, span_ns)
        min_ns, max_ns = max(known[0], own[0]), min(known[1], own[1])
        if min_ns > max_ns:
            return None
        if self._line is None or self.at_ns - self._line.at_ns >= _ESTIMATE_NS:
            self._line = self._fit()
        estimate_ns = self._line.at(exchange.sent_ns + span_ns // 2)
        in_range_ns = min(max(estimate_ns, min_ns), max_ns)
        offset_ns = min(max(in_range_ns, exchange.min_offset_ns), exchange.max_offset_ns)
        return Offset(offset_ns, max(max_ns - offset_ns, offset_ns - min_ns), self._line.slope * 1e6)

    def _min_common_ns(self, exchange: Exchange) -> float:
        """Returns how wide the common range of `exchange` and all earlier ones must be."""
        if len(self._recent) < _CONSISTENCY_COUNT:
            return 0.0
        return _CONSISTENT_SHARE * min(exchange.delay_ns, *(known.delay_ns for known in self._recent))

    def _fit(self) -> "_Line":
        ends = [(known.returned_ns, known.min_offset_ns, known.max_offset_ns) for known in self._recent]
        base = np.array((self.at_ns, self._min_ns, self._min_ns))  # Epoch nanoseconds exceed the precision of a float.
        at, lower, upper = (np.array(ends) - base).T.astype(float)
        mean, reach = 0.0, _CRYSTALS_PPM * 1e-6
        for _ in range(2):  # First over all slopes, then over the likely ones.
            slopes = np.linspace(mean - reach, mean + reach, _SLOPES)
            gained = at[:, np.newaxis] * slopes
            floors = (lower[:, np.newaxis] - gained).max(axis=0)
            ceilings = (upper[:, np.newaxis] - gained).min(axis=0)
            slack = ceilings - floors
            delay_ns = max(1.0, float((upper - lower).mean() - slack.max()) / 2)  # Mean random delay of one crossing.
            weights = np.exp(len(ends) * (slack - slack.max()) / delay_ns)
            weights /= weights.sum()
            mean = float(slopes @ weights)
            reach = min(reach, max(4 * float((slopes - mean) ** 2 @ weights) ** 0.5, 2 * reach / (_SLOPES - 1)))
        return _Line(self.at_ns, self._min_ns + round(float((floors + ceilings) @ weights) / 2), mean)


@dataclass(frozen=True, slots=True)
class _Line:
    """An offset that changes at a constant rate."""

    at_ns: int
    offset_ns: int
    slope: float

    def at(self, at_ns: int) -> int:
        """Returns the offset at a time."""
        return self.offset_ns + round(self.slope * (at_ns - self.at_ns))


def _widened(min_ns: int, max_ns: int, elapsed_ns: int) -> tuple[int, int]:
    """Returns a range of offsets, widened by the possible drift in `elapsed_ns`."""
    drift_ns = -(-elapsed_ns * MAX_DRIFT_PPM // 1_000_000)
    return min_ns - drift_ns, max_ns + drift_ns


LONGEST_PAUSE_NS = 1_800 * 10**9  # A longer pause passes for a jump: clocks are wrong by half a time zone or more.
_LARGEST_STEP_BACK_NS = 10**9  # Recorders write messages of several topics up to a second out of order.

_UNITS_S = {"years": 365.25 * 86400, "days": 86400, "hours": 3600, "minutes": 60}


def clock_jump(latest_ns: int, time_ns: int) -> str:
    """Describes the jump of a clock between the latest recording time so far and the next one; empty without a jump."""
    ahead_ns = time_ns - latest_ns
    if -_LARGEST_STEP_BACK_NS <= ahead_ns <= LONGEST_PAUSE_NS:
        return ""
    side = "after" if ahead_ns > 0 else "before"
    return f"recorded {format_span(abs(ahead_ns))} {side} the latest one so far: the recorder's clock was probably set"


def format_span(span_ns: int) -> str:
    """Returns a time span in its largest unit, such as "54.0 years"."""
    span_s = span_ns / 1e9
    for unit, unit_s in _UNITS_S.items():
        if span_s >= unit_s:
            return f"{span_s / unit_s:.1f} {unit}"
    return f"{span_s:.1f} s"


_LATEST_NS = 1 << 62  # Later than all times of a clock.


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """The time after which a result is useless, by the clock of this process. An earlier deadline is the smaller one.

    The clocks of two nodes differ, but a duration is the same on both. Messages and calls therefore carry the time that
    remains, and the receiver counts it from the receipt by its own clock. The methods compare the deadline with a given
    time, by default with the current time.
    """

    at_ns: int

    NEVER: ClassVar["Deadline"]  # Later than all others: the frame may take any time.

    @classmethod
    def after_ms(cls, duration_ms: float | None, since_ns: int | None = None) -> "Deadline":
        """Returns the deadline for a limit in milliseconds: an option, a field of a message, a header; None is no limit."""
        if duration_ms is None:
            return cls.NEVER
        at_ns = (now_ns() if since_ns is None else since_ns) + round(duration_ms * 1e6)
        return cls(min(at_ns, _LATEST_NS))

    def is_expired(self, then_ns: int | None = None) -> bool:
        """Returns whether the deadline has passed at a time, which may be the expected end of some work."""
        return self.remaining_ns(then_ns) < 0

    def remaining_ns(self, then_ns: int | None = None) -> int:
        """Returns the time until the deadline; negative if it has passed."""
        return self.at_ns - (now_ns() if then_ns is None else then_ns)

    def remaining_ms(self, then_ns: int | None = None) -> int | None:
        """Returns the field of a message or header: whole milliseconds, rounded down, at least 0; None without a deadline."""
        return None if self == self.NEVER else max(0, self.remaining_ns(then_ns) // 10**6)

    def expiry_s(self, then_ns: int | None = None) -> int | None:
        """Returns MQTT's Message Expiry Interval: whole seconds, rounded up; None without a deadline."""
        remaining_ms = self.remaining_ms(then_ns)
        return None if remaining_ms is None else -(-remaining_ms // 1000)

    def remaining_s(self, then_ns: int | None = None) -> float:
        """Returns the timeout of a wait or a call in seconds, at least 0."""
        return max(0.0, self.remaining_ns(then_ns) / 1e9)


Deadline.NEVER = Deadline(_LATEST_NS)
