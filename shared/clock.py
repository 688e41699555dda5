"""Time, read in one place; and the offset of another node's clock, with a bound that holds on any link."""

import time
from collections import deque
from dataclasses import dataclass

import numpy as np

MAX_DRIFT_PPM = 500
"""How fast two nodes' clocks may run apart; every bound here stands on it.

A crystal is within 100 ppm, so two free-running nodes are within 200. A daemon that corrects the time turns the rate
of the monotonic clock as well, though it never steps it: adjtime(3) slews by 500 ppm, and RFC 5905 lets a clock be
turned by 500 ppm in all (MAXFREQ). A relative rate of up to 500 ppm is allowed for, constant or not: two nodes as they
come, or as they are once their daemons have settled. It does not cover what chrony may do in the first minutes
(`maxslewrate`, thousands of ppm), nor a machine that sleeps or is moved; `OffsetEstimator` begins anew when it sees such.
"""
_CRYSTALS_PPM = 200  # Where the estimate, but not its bound, looks for the drift.
_SLOPES = 41  # That are tried at a time.
_LEAST_COMMON = 0.5  # Of the shortest journey,
_ENOUGH = 16  # which so many exchanges tell.
_GUESS_NS = 100_000_000  # A guess stands so long: it takes a tenth of a millisecond to make, and a row must be cheap.


class _Anchor:
    """What is added to the monotonic clock; changed only by `skew_clock`."""

    def __init__(self) -> None:
        self.offset_ns = self.right_ns = time.time_ns() - time.monotonic_ns()
        self.drift_ppb = 0
        self.since_ns = 0


_anchor = _Anchor()


def now_ns() -> int:
    """Nanoseconds since the Unix epoch by the monotonic clock, anchored once to the wall clock.

    A wall clock that is stepped while the process lives moves no duration.
    """
    at_ns = time.monotonic_ns()
    if _anchor.drift_ppb:
        return at_ns + _anchor.offset_ns + (at_ns - _anchor.since_ns) * _anchor.drift_ppb // 10**9
    return at_ns + _anchor.offset_ns


def skew_clock(offset_ns: int, drift_ppm: float) -> None:
    """Make this process's clock wrong by a known amount: `offset_ns` ahead from now on, and gaining `drift_ppm`.

    For benches and tests that hold an estimate against a known truth; `skew_clock(0, 0)` is right again.
    """
    _anchor.drift_ppb = 0  # Another thread that reads meanwhile sees no drift rather than that of the wrong moment.
    _anchor.since_ns = time.monotonic_ns()
    _anchor.offset_ns = _anchor.right_ns + offset_ns
    _anchor.drift_ppb = round(drift_ppm * 1000)


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
        return (self.least_ns + self.most_ns) // 2

    @property
    def delay_ns(self) -> int:
        """Both crossings together; needs no common clock."""
        return self.most_ns - self.least_ns

    @property
    def least_ns(self) -> int:
        """Their clock minus ours if the way back took no time at all: it cannot be less."""
        return self.replied_ns - self.returned_ns

    @property
    def most_ns(self) -> int:
        """Their clock minus ours if the way there took no time at all: it cannot be more."""
        return self.received_ns - self.sent_ns

    @property
    def is_consistent(self) -> bool:
        """Whether nothing in it was over before it began."""
        return self.sent_ns <= self.returned_ns and self.received_ns <= self.replied_ns and self.delay_ns >= 0


@dataclass(frozen=True, slots=True)
class Offset:
    """Another node's clock minus ours. The truth lies within `error_ns` on either side, however asymmetric the link."""

    offset_ns: int
    error_ns: int
    drift_ppm: float = 0.0  # What their clock is estimated to gain on ours; no bound is stated for it.


class OffsetEstimator:
    """Estimates another node's clock from the exchanges with it: a bound that holds, and a best guess within it.

    The bound. Each exchange holds the truth between `least_ns` and `most_ns`. Carried to another moment, both ends
    widen by MAX_DRIFT_PPM of the time between; the truth lies in the intersection of all (Marzullo 1984; RFC 5905,
    section 11.2.1). All widen alike, so the intersection so far is all that needs to be kept.

    The guess. Over the exchanges of the last minute the offset is a straight line, and each crossing takes some least
    time plus chance. Were chance exponential, a line would be as likely as exp(exchanges × its slack / mean chance),
    where slack is the room between the line's ceiling (the least `most_ns`) and floor (the greatest `least_ns`): a
    minimum-delay filter with a slope, as the hulls of Moon, Skelly and Towsley (INFOCOM 1999) are. The guess is the mean
    of the lines midway over all slopes that two crystals can have, by that weight; before the drift shows, it is
    therefore open, and the newest exchanges count most. Where the least times there and back are alike the guess
    converges to the truth; where they differ it is off by half their difference, and the bound says so.

    An exchange that contradicts all before it tells that a clock was changed: the estimate begins anew with it. So does
    one that all but contradicts it: what holds for all exchanges is as wide as the least way there and the least way
    back, which half of the shortest of many journeys seldom exceeds. To begin anew without need only widens the bound
    for a while.
    """

    def __init__(self, window: int = 144, window_s: float = 64.0) -> None:
        """`window`, `window_s`: how many exchanges, and how old ones, the guess looks at; the bound knows no window."""
        self._recent: deque[Exchange] = deque(maxlen=window)
        self._window_ns = round(window_s * 1e9)
        self._at_ns = 0  # The moment, by our clock, for which the following hold.
        self._least_ns = 0
        self._most_ns = 0
        self._guess: _Line | None = None

    @property
    def at_ns(self) -> int:
        """When the last of the exchanges came back, by our clock; 0 where there was none."""
        return self._at_ns

    def add(self, exchange: Exchange) -> None:
        """Take one more exchange in; they may come in any order."""
        at_ns = max(self._at_ns, exchange.returned_ns)
        least_ns, most_ns = _widened(exchange.least_ns, exchange.most_ns, at_ns - exchange.sent_ns)
        if self._recent:
            carried = _widened(self._least_ns, self._most_ns, at_ns - self._at_ns)
            common = max(least_ns, carried[0]), min(most_ns, carried[1])
            if common[1] - common[0] >= self._least_common_ns(exchange):
                least_ns, most_ns = common
            else:
                self._recent.clear()
                self._guess = None
        self._at_ns, self._least_ns, self._most_ns = at_ns, least_ns, most_ns
        self._recent.append(exchange)
        while len(self._recent) > 1 and self._recent[0].returned_ns < at_ns - self._window_ns:
            self._recent.popleft()

    def during(self, exchange: Exchange) -> Offset | None:
        """The offset while `exchange` was under way, true at its every moment; None where the two contradict each other.

        The exchange itself is a witness: no crossing of its own takes less than no time by the offset returned.
        """
        if not self._recent:
            return None
        span_ns = exchange.returned_ns - exchange.sent_ns
        away_ns = max(abs(exchange.sent_ns - self._at_ns), abs(exchange.returned_ns - self._at_ns))
        known = _widened(self._least_ns, self._most_ns, away_ns)
        own = _widened(exchange.least_ns, exchange.most_ns, span_ns)
        least_ns, most_ns = max(known[0], own[0]), min(known[1], own[1])
        if least_ns > most_ns:
            return None
        if self._guess is None or self._at_ns - self._guess.at_ns >= _GUESS_NS:
            self._guess = self._guessed()
        guess_ns = self._guess.at(exchange.sent_ns + span_ns // 2)
        offset_ns = _clamped(_clamped(guess_ns, least_ns, most_ns), exchange.least_ns, exchange.most_ns)
        return Offset(offset_ns, max(most_ns - offset_ns, offset_ns - least_ns), self._guess.slope * 1e6)

    def _least_common_ns(self, exchange: Exchange) -> float:
        """How wide the range of offsets must be that holds for `exchange` and for all before it."""
        if len(self._recent) < _ENOUGH:
            return 0.0
        return _LEAST_COMMON * min(exchange.delay_ns, *(known.delay_ns for known in self._recent))

    def _guessed(self) -> "_Line":
        ends = [(known.returned_ns, known.least_ns, known.most_ns) for known in self._recent]
        base = np.array((self._at_ns, self._least_ns, self._least_ns))  # Nanoseconds of an epoch would fill a float.
        at, least, most = (np.array(ends) - base).T.astype(float)
        mean, reach = 0.0, _CRYSTALS_PPM * 1e-6
        for _ in range(2):  # Over all slopes, then finely over the likely ones.
            slopes = np.linspace(mean - reach, mean + reach, _SLOPES)
            gained = at[:, np.newaxis] * slopes
            floors = (least[:, np.newaxis] - gained).max(axis=0)
            ceilings = (most[:, np.newaxis] - gained).min(axis=0)
            slack = ceilings - floors
            chance_ns = max(1.0, float((most - least).mean() - slack.max()) / 2)  # The mean of one crossing.
            weights = np.exp(len(ends) * (slack - slack.max()) / chance_ns)
            weights /= weights.sum()
            mean = float(slopes @ weights)
            reach = min(reach, max(4 * float((slopes - mean) ** 2 @ weights) ** 0.5, 2 * reach / (_SLOPES - 1)))
        return _Line(self._at_ns, self._least_ns + round(float((floors + ceilings) @ weights) / 2), mean)


@dataclass(frozen=True, slots=True)
class _Line:
    """An offset that changes at an even rate."""

    at_ns: int
    offset_ns: int
    slope: float

    def at(self, at_ns: int) -> int:
        """The offset at a moment."""
        return self.offset_ns + round(self.slope * (at_ns - self.at_ns))


def _widened(least_ns: int, most_ns: int, time_ns: int) -> tuple[int, int]:
    """A range of offsets after so much time in which the clocks may have drifted."""
    drift_ns = -(-time_ns * MAX_DRIFT_PPM // 1_000_000)
    return least_ns - drift_ns, most_ns + drift_ns


def _clamped(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)
