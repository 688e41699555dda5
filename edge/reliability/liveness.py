"""Silence: whether every worker that serves the model stands still, though the broker has it online.

A process that hangs, or is stopped, keeps its connection: only after one and a half keepalives does the broker say that
it is gone. But it echoes no probes, and an echo waits for nothing but the worker's network thread. A link that carries
nothing looks the same from here, so the broker is asked for a sign; and when a link carries again, all that was on it
comes, but one thing after the other, so a silence has to be seen for a while.
"""

from collections.abc import Callable, Sequence

from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_stats import WorkerStats
from shared import clock

SILENCE_S = 10.0
_ASK_NS = 1_000_000_000

_Workers = Sequence[tuple[str, str]]  # Each with the session of its process.


class Silence:
    """Tells when nobody is left to answer. Used by one thread at a time."""

    def __init__(
        self,
        pulse: WorkerStats,
        clocks: Clocks,
        *,
        last_received_ns: Callable[[], int],
        ask: Callable[[], None],
        enough_s: float = SILENCE_S,
        seen_s: float = 1.0,
    ) -> None:
        """`last_received_ns`: when the broker was last heard; `ask` has it give a sign.

        `enough_s`: without any sign of a worker that gave some before. `seen_s`: how long that has to be seen.
        """
        self._pulse = pulse
        self._clocks = clocks
        self._heard_ns = last_received_ns
        self._ask = ask
        self._enough_ns = round(enough_s * 1e9)
        self._least_seen_ns = round(seen_s * 1e9)
        self._seen_ns: int | None = None  # Since when all are silent, as it looks; None: they are not.
        self._asked_ns = 0

    def is_total(self, workers: _Workers) -> bool:
        """Whether all of these workers stand still; one that never echoed a probe may only take long to answer."""
        now_ns = clock.now_ns()
        signs_ns = [self._sign_ns(*worker) for worker in workers]
        if not signs_ns or not all(signs_ns) or now_ns - max(signs_ns) < self._enough_ns:
            self._seen_ns = None
            return False
        if self._heard_ns() - max(signs_ns) < self._enough_ns:
            if now_ns - self._asked_ns >= _ASK_NS:
                self._asked_ns = now_ns
                self._ask()
            self._seen_ns = None
            return False
        if self._seen_ns is None:
            self._seen_ns = now_ns
        return now_ns - self._seen_ns >= self._least_seen_ns

    def _sign_ns(self, name: str, session: str) -> int:
        """When a worker last echoed or answered; 0 where it never echoed."""
        echoed_ns = self._clocks.echoed_ns(f"cloud/{name}/{session}")
        return max(echoed_ns, self._pulse.answered_ns(name)) if echoed_ns else 0
