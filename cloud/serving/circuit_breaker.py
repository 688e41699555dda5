"""The hold-off: vehicles whose frames cost an engine its process again and again are refused for a while.

A frame on which an isolated engine dies or hangs costs two restarts, for which every other vehicle waits. Three such
frames, with less than a minute of peace between them, and the vehicle is held off for five seconds; each further one
doubles that, up to five minutes. A minute of peace afterwards, and all is forgotten.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from shared import clock
from shared.logs import get_logger

STRIKES = 3  # Frames that are enough.
_PEACE_NS = 60_000_000_000
_FIRST_NS = 5_000_000_000
_LONGEST_NS = 300_000_000_000
_MAX_VEHICLES = 1024
_LOG = get_logger("cloud")


@dataclass(slots=True)
class _Record:
    """What is held against a vehicle."""

    strikes: int = 0
    last_ns: int = 0
    until_ns: int = 0
    is_held: bool = False  # Whether the log's last line about the vehicle says that it is held off.


class CircuitBreaker:
    """Who is held off, and until when. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Record] = OrderedDict()  # The vehicle that struck last at the end.

    def strike(self, vehicle: str) -> None:
        """A frame of a vehicle cost an engine its process."""
        now_ns = clock.now_ns()
        with self._lock:
            record = self._records.setdefault(vehicle, _Record())
            self._records.move_to_end(vehicle)
            if len(self._records) > _MAX_VEHICLES:
                self._records.popitem(last=False)
            if now_ns - max(record.last_ns, record.until_ns) > _PEACE_NS:
                record.strikes = 0
            record.strikes += 1
            record.last_ns = now_ns
            if record.strikes >= STRIKES:
                doublings = min(record.strikes - STRIKES, 10)
                held_ns = min(_LONGEST_NS, _FIRST_NS << doublings)
                record.until_ns = now_ns + held_ns
                record.is_held = True
                _LOG.warning("vehicle held off", vehicle=vehicle, seconds=held_ns / 1e9, strikes=record.strikes)

    def reason(self, vehicle: str) -> str | None:
        """Why a vehicle's frames are refused now; None where they are taken."""
        if not self._records:
            return None
        now_ns = clock.now_ns()
        with self._lock:
            record = self._records.get(vehicle)
            if record is None:
                return None
            if now_ns >= record.until_ns:
                if record.is_held:
                    record.is_held = False
                    _LOG.info("vehicle no longer held off", vehicle=vehicle)
                return None
            left_s = (record.until_ns - now_ns) / 1e9
            return f"vehicle {vehicle} is held off for {left_s:.0f} s: {record.strikes} of its frames ended the engine's process"
