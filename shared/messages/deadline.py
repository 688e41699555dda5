"""The deadline of a frame: one type from the command line of the vehicle to the engine of the worker.

The clocks of two nodes differ, but a duration is the same on both. Messages and calls therefore carry the time that
remains, and the receiver counts it from the receipt by its own clock.
"""

from dataclasses import dataclass
from typing import ClassVar

from shared import clock

_LATEST_NS = 1 << 62


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """The time after which a result is useless, by `shared.clock` of this process. An earlier deadline is the smaller one.

    The methods compare it with a given time, by default with the current time.
    """

    at_ns: int

    NEVER: ClassVar["Deadline"]  # Later than all others: the frame may take any time.

    @classmethod
    def after_ms(cls, duration_ms: float | None, since_ns: int | None = None) -> "Deadline":
        """Returns the deadline for a limit in milliseconds: an option, a field of a message, a header; None is no limit."""
        if duration_ms is None:
            return cls.NEVER
        at_ns = (clock.now_ns() if since_ns is None else since_ns) + round(duration_ms * 1e6)
        return cls(min(at_ns, _LATEST_NS))

    def is_expired(self, now_ns: int | None = None) -> bool:
        """Returns whether the deadline has passed at a time, which may be the expected end of some work."""
        return self.remaining_ns(now_ns) < 0

    def remaining_ns(self, now_ns: int | None = None) -> int:
        """Returns the time until the deadline; negative if it has passed."""
        return self.at_ns - (clock.now_ns() if now_ns is None else now_ns)

    def remaining_ms(self, now_ns: int | None = None) -> int | None:
        """Returns the field of a message or header: whole milliseconds, rounded down, at least 0; None without a deadline."""
        return None if self == self.NEVER else max(0, self.remaining_ns(now_ns) // 10**6)

    def expiry_s(self, now_ns: int | None = None) -> int | None:
        """Returns MQTT's Message Expiry Interval: whole seconds, rounded up; None without a deadline."""
        remaining_ms = self.remaining_ms(now_ns)
        return None if remaining_ms is None else -(-remaining_ms // 1000)

    def remaining_s(self, now_ns: int | None = None) -> float:
        """Returns the timeout of a wait or a call in seconds, at least 0."""
        return max(0.0, self.remaining_ns(now_ns) / 1e9)


Deadline.NEVER = Deadline(_LATEST_NS)
