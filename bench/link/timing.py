"""When a byte that enters a link comes out of it. No sockets here: times are seconds of whichever clock the caller has.

A piece of n bytes that enters a direction at t leaves it at

    max(t, free) + n / bandwidth + delay + jitter + recovery,  and never before the piece of its connection before it

- `free` is when the piece before it, of any connection, had been sent: the bandwidth is shared, first come first
  served. At most `BUFFER_S` of bytes wait there; what is more stays with its sender (TCP's back-pressure), so that the
  queue of a narrow link is bounded where that of a mobile network may hold seconds (Jiang et al., "Tackling
  bufferbloat in 3G/4G networks", IMC 2012).
- `jitter` is Lomax (a Pareto that begins at 0) of shape 3: a mean of `jitter_ms`, a median of 0.52 of it, 7.3 times it
  at p99, cut at 10 times. It belongs to the moment, not to the piece: one draw holds for 5 ms, as a mobile network's
  scheduler treats alike what it sends together.
- `recovery` is how TCP shows loss: as delay. Each segment of 1460 bytes is lost with the given probability. Where at
  least three segments follow it, their acknowledgements tell the sender, and it comes one round trip later (fast
  retransmit, RFC 5681, section 3.2); otherwise after a timeout of a round trip + 200 ms (RFC 6298, with Linux's floor
  TCP_RTO_MIN), which doubles as long as the repetition is lost too. Losses of one piece are mended beside each other
  (RFC 2018). What is not modelled: the sender's window, which loss shrinks; a bulk transfer is slower in truth.

All of it follows from the seed: the draw of jitter by its moment since the link began, loss and flipped bits by the
number of the connection and the place in its stream.
"""

import math
from collections import Counter
from random import Random

from bench.link.link import LinkSpec

SEGMENT_BYTES = 1460
BUFFER_S = 0.1
_PACE_S = 0.001  # What a piece takes to send, at most: what is finer than this a receiver cannot tell.
_PIECE_BYTES = 1 << 16
_JITTER_HOLDS_S = 0.005
_JITTER_DRAWS = 1 << 14  # 82 s of them, then they come again.
_JITTER_SHAPE = 3.0
_JITTER_CUT = 10.0
_FAST_RETRANSMIT = 3  # Segments that must follow.
_TIMEOUT_FLOOR_S = 0.2
_REPEATS = 6  # A repetition beyond these is not lost any more: no piece waits for ever.


class Lane:
    """One direction of a link, which all connections share: its bandwidth, its delay and its jitter."""

    def __init__(self, spec: LinkSpec, *, up: bool) -> None:
        self.up = up
        self._free_s = 0.0
        self.set(spec)

    def set(self, spec: LinkSpec) -> None:
        """Be like `spec` from now on."""
        draws = Random(f"{spec.seed}/{self.up}/jitter")
        self.spec = spec
        self._rate = spec.bytes_per_s(up=self.up)
        self._delay_s = spec.delay_s(up=self.up)
        self._jitter_s = [spec.jitter_ms / 1e3 * _lomax(draws) for _ in range(_JITTER_DRAWS)] if spec.jitter_ms else []

    @property
    def piece_bytes(self) -> int:
        """What is sent at a time: whole segments of at most a millisecond."""
        if self._rate is None:
            return _PIECE_BYTES
        segments = int(self._rate * _PACE_S) // SEGMENT_BYTES
        return min(_PIECE_BYTES, max(1, segments) * SEGMENT_BYTES)

    def wait_s(self, now_s: float) -> float:
        """How long a sender is kept waiting until the buffer has room."""
        return max(0.0, self._free_s - now_s - BUFFER_S)

    def release_s(self, size: int, now_s: float) -> float:
        """When a piece of so many bytes that enters now comes out, if nothing is lost."""
        self._free_s = max(self._free_s, now_s) + (size / self._rate if self._rate else 0.0)
        return self._free_s + self._delay_s + self._jitter_at(self._free_s)

    def _jitter_at(self, at_s: float) -> float:
        return self._jitter_s[int(at_s / _JITTER_HOLDS_S) % _JITTER_DRAWS] if self._jitter_s else 0.0


class Stream:
    """One connection's bytes in one direction: their order, what of them is lost, and which of their bits flip."""

    def __init__(self, lane: Lane, number: int, counted: Counter[str]) -> None:
        """`number`: of the connection, counted from the link's beginning; `counted`: where it counts what it does."""
        self._lane = lane
        self._counted = counted
        self._last_s = 0.0
        self._losses, self._flips = (
            Random(f"{lane.spec.seed}/{lane.up}/{number}/{what}") for what in ("losses", "flips")
        )
        self._until_flip: float | None = None  # Bytes.

    def release_s(self, size: int, following: int, now_s: float) -> float:
        """When a piece that enters now comes out; `following`: bytes that are known to come behind it."""
        at_s = self._lane.release_s(size, now_s)
        if self._lane.spec.loss_percent:
            at_s += self._recovery_s(math.ceil(size / SEGMENT_BYTES), math.ceil(following / SEGMENT_BYTES))
        self._last_s = max(self._last_s, at_s)
        return self._last_s

    def corrupted(self, data: bytes) -> bytes:
        """The same bytes, with a bit flipped here and there: a Poisson process over the bytes of the stream."""
        rate = self._lane.spec.corrupt_per_mb / 1e6
        if not rate:
            return data
        changed = bytearray(data)
        at = self._flips.expovariate(rate) if self._until_flip is None else self._until_flip
        while at < len(data):
            changed[int(at)] ^= 1 << self._flips.randrange(8)
            self._counted["bits_flipped"] += 1
            at += self._flips.expovariate(rate)
        self._until_flip = at - len(data)
        return bytes(changed)

    def _recovery_s(self, segments: int, following: int) -> float:
        """The longest time that the repetition of one of these segments takes; 0 where none is lost."""
        odds, round_trip_s = self._lane.spec.loss_percent / 100, self._lane.spec.round_trip_s
        longest_s = 0.0
        for behind in range(segments + following - 1, following - 1, -1):
            if self._losses.random() >= odds:
                continue
            self._counted["segments_lost"] += 1
            timeout_s = round_trip_s + _TIMEOUT_FLOOR_S
            took_s = round_trip_s if behind >= _FAST_RETRANSMIT else timeout_s
            for repeat in range(_REPEATS):
                if self._losses.random() >= odds:
                    break
                took_s += timeout_s * 2**repeat
            longest_s = max(longest_s, took_s)
        return longest_s


def _lomax(draws: Random) -> float:
    """A draw of mean 1 (but for the cut)."""
    return min(_JITTER_CUT, (_JITTER_SHAPE - 1) * (math.pow(1 - draws.random(), -1 / _JITTER_SHAPE) - 1))
