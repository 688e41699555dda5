"""A circuit breaker per vehicle: it opens for a vehicle whose frames repeatedly end the process of an isolated engine.

Each such frame costs two restarts of the engine, during which all other vehicles wait. Three of them, each less than a
minute after the one before, open the circuit for five seconds; each further one doubles the time, up to five minutes.
A minute without such a frame resets the count.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from shared import clock
from shared.logs import get_logger

STRIKES = 3  # Frames that open the circuit.
_RESET_NS = 60_000_000_000
_FIRST_BLOCK_NS = 5_000_000_000
_LONGEST_BLOCK_NS = 300_000_000_000
_MAX_VEHICLES = 1024
_LOG = get_logger("cloud")


@dataclass(slots=True)
class _Record:
    """The state of the circuit of one vehicle."""

    strikes: int = 0
    last_strike_ns: int = 0
    blocked_until_ns: int = 0
    is_open: bool = False  # The state that was logged last.


class CircuitBreaker:
    """Knows which vehicles are blocked, and until when. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Record] = OrderedDict()  # The vehicle with the latest strike is the last.

    def strike(self, vehicle: str) -> None:
        """Records that a frame of a vehicle ended the process of an engine."""
        now_ns = clock.now_ns()
        with self._lock:
            record = self._records.setdefault(vehicle, _Record())
            self._records.move_to_end(vehicle)
            if len(self._records) > _MAX_VEHICLES:
                self._records.popitem(last=False)
            if now_ns - max(record.last_strike_ns, record.blocked_until_ns) > _RESET_NS:
                record.strikes = 0
            record.strikes += 1
            record.last_strike_ns = now_ns
            if record.strikes >= STRIKES:
                doublings = min(record.strikes - STRIKES, 10)
                block_ns = min(_LONGEST_BLOCK_NS, _FIRST_BLOCK_NS << doublings)
                record.blocked_until_ns = now_ns + block_ns
                record.is_open = True
                _LOG.warning("vehicle blocked", vehicle=vehicle, seconds=block_ns / 1e9, strikes=record.strikes)

    def reason(self, vehicle: str) -> str | None:
        """The reason why frames of a vehicle are refused now; None while its circuit is closed."""
        if not self._records:
            return None
        now_ns = clock.now_ns()
        with self._lock:
            record = self._records.get(vehicle)
            if record is None:
                return None
            if now_ns >= record.blocked_until_ns:
                if record.is_open:
                    record.is_open = False
                    _LOG.info("vehicle unblocked", vehicle=vehicle)
                return None
            left_s = (record.blocked_until_ns - now_ns) / 1e9
            return f"vehicle {vehicle} is blocked for {left_s:.0f} s: {record.strikes} of its frames ended the engine's process"
