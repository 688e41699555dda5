"""Computes when bytes that enter a link leave it. It uses no sockets; times are seconds of the caller's clock.

A piece of n bytes that enters a direction at t leaves it at

    max(t, free) + n / bandwidth + delay + jitter + recovery,  but not before the previous piece of its connection

- `free` is the time at which the previous piece of any connection had been sent: the bandwidth is shared in order of
  arrival. At most `BUFFER_S` of bytes wait in the link; the others stay with the sender (TCP's back-pressure). The queue of
  a real mobile network may hold seconds (Jiang et al., "Tackling bufferbloat in 3G/4G networks", IMC 2012).
- `jitter` has a Lomax distribution (a Pareto distribution that begins at 0) of shape 3: its mean is `jitter_ms`, its median
  0.52 and its p99 7.3 times the mean, its maximum 10 times. One value holds for 5 ms, because the scheduler of a mobile
  network treats bytes that it sends together alike.
- `recovery` is the delay by which TCP shows loss. Each segment of 1460 bytes is lost with the given probability. If at least
  three segments follow it, it arrives one round trip later (fast retransmit, RFC 5681, section 3.2); otherwise after a
  timeout of a round trip + 200 ms (RFC 6298, with Linux's minimum TCP_RTO_MIN), which doubles with every lost
  retransmission. Losses of one piece are repaired in parallel (RFC 2018). The sender's window, which shrinks with loss, is
  not modelled: real bulk transfers are slower.

Everything is determined by the seed: jitter by the time since the start of the link, loss and flipped bits by the number of
the connection and the position in its stream.
"""

import math
from collections import Counter
from random import Random

from shared.network.link_spec import LinkSpec

SEGMENT_BYTES = 1460
BUFFER_S = 0.1
_MAX_PIECE_S = 0.001  # Maximum time to send a piece; a receiver does not notice finer steps.
_MAX_PIECE_BYTES = 1 << 16
_JITTER_HOLDS_S = 0.005
_JITTER_DRAWS = 1 << 14  # Values for 82 s, after which they repeat.
_JITTER_SHAPE = 3.0
_JITTER_CUT = 10.0
_FAST_RETRANSMIT = 3  # Number of segments that must follow.
_TIMEOUT_FLOOR_S = 0.2
_MAX_RETRANSMISSIONS = 6  # The last one always arrives, so that no piece waits endlessly.


class LinkDirection:
    """One direction of a link, shared by all connections: its bandwidth, delay and jitter."""

    def __init__(self, spec: LinkSpec, *, up: bool) -> None:
        self.up = up
        self._free_s = 0.0
        self.set(spec)

    def set(self, spec: LinkSpec) -> None:
        """Changes the properties of the link."""
        draws = Random(f"{spec.seed}/{self.up}/jitter")
        self.spec = spec
        self._rate = spec.bytes_per_s(up=self.up)
        self._delay_s = spec.delay_s(up=self.up)
        self._jitter_s = [spec.jitter_ms / 1e3 * _lomax(draws) for _ in range(_JITTER_DRAWS)] if spec.jitter_ms else []

    @property
    def piece_bytes(self) -> int:
        """The size of a piece: whole segments of at most a millisecond."""
        if self._rate is None:
            return _MAX_PIECE_BYTES
        segments = int(self._rate * _MAX_PIECE_S) // SEGMENT_BYTES
        return min(_MAX_PIECE_BYTES, max(1, segments) * SEGMENT_BYTES)

    def wait_s(self, now_s: float) -> float:
        """The time until the buffer has room for more bytes."""
        return max(0.0, self._free_s - now_s - BUFFER_S)

    def release_s(self, size: int, now_s: float) -> float:
        """Returns when a piece of `size` bytes that enters now leaves, without loss."""
        self._free_s = max(self._free_s, now_s) + (size / self._rate if self._rate else 0.0)
        return self._free_s + self._delay_s + self._jitter_at(self._free_s)

    def _jitter_at(self, at_s: float) -> float:
        return self._jitter_s[int(at_s / _JITTER_HOLDS_S) % _JITTER_DRAWS] if self._jitter_s else 0.0


class StreamTiming:
    """The order, the losses and the flipped bits of one connection in one direction."""

    def __init__(self, direction: LinkDirection, number: int, counted: Counter[str]) -> None:
        """`number`: number of the connection since the start of the link; `counted`: counters to increment."""
        self._direction = direction
        self._counted = counted
        self._last_s = 0.0
        self._losses, self._flips = (
            Random(f"{direction.spec.seed}/{direction.up}/{number}/{what}") for what in ("losses", "flips")
        )
        self._until_flip: float | None = None  # Bytes until the next flipped bit.

    def release_s(self, size: int, following: int, now_s: float) -> float:
        """Returns when a piece that enters now leaves; `following`: bytes known to follow it."""
        at_s = self._direction.release_s(size, now_s)
        if self._direction.spec.loss_percent:
            at_s += self._recovery_s(math.ceil(size / SEGMENT_BYTES), math.ceil(following / SEGMENT_BYTES))
        self._last_s = max(self._last_s, at_s)
        return self._last_s

    def corrupted(self, data: bytes) -> bytes:
        """Returns the bytes with randomly flipped bits: a Poisson process over the bytes of the stream."""
        rate = self._direction.spec.corrupt_per_mb / 1e6
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
        """The longest retransmission time of these segments; 0 if all arrive."""
        odds, round_trip_s = self._direction.spec.loss_percent / 100, self._direction.spec.round_trip_s
        longest_s = 0.0
        for behind in range(segments + following - 1, following - 1, -1):
            if self._losses.random() >= odds:
                continue
            self._counted["segments_lost"] += 1
            timeout_s = round_trip_s + _TIMEOUT_FLOOR_S
            retransmission_s = round_trip_s if behind >= _FAST_RETRANSMIT else timeout_s
            for repeat in range(_MAX_RETRANSMISSIONS):
                if self._losses.random() >= odds:
                    break
                retransmission_s += timeout_s * 2**repeat
            longest_s = max(longest_s, retransmission_s)
        return longest_s


def _lomax(draws: Random) -> float:
    """A random value with a mean of 1 (before its cut)."""
    return min(_JITTER_CUT, (_JITTER_SHAPE - 1) * (math.pow(1 - draws.random(), -1 / _JITTER_SHAPE) - 1))
