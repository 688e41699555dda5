"""What something used, as one look at it tells; and how a share of a processor follows from two looks."""

from dataclasses import dataclass, fields
from typing import Protocol

_LEAST_NS = 100_000_000  # The kernel tells times in ticks of 10 ms.


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at a process, a container, a GPU or the machine; None: not known, or not a thing it has.

    `cpu_percent`: 100 is one core busy since the last look. Bytes in and out: TCP payload since the first look.
    """

    pid: int | None = None
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_power_w: float | None = None


USAGE_FIELDS = tuple(field.name for field in fields(Usage))


class ProbeGoneError(Exception):
    """What is looked at is no more, or cannot be looked at; it is not looked at again."""


class Watched(Protocol):
    """Something that can be looked at again and again."""

    def look(self, at_ns: int) -> Usage:
        """What it used until now, `at_ns`.

        Raises:
            ProbeGoneError: it cannot be told any more.
        """


class CpuShare:
    """How busy something kept the processor between two looks."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def of(self, busy_s: float, at_ns: int) -> float | None:
        """Percent of one core since the last look, from the seconds of CPU it has had in all.

        None at the first look, and where the last was so short ago that a tick of the kernel's account would be much.
        """
        last = self._last
        if last is not None and at_ns - last[1] < _LEAST_NS:
            return None
        self._last = (busy_s, at_ns)
        return None if last is None else max(0.0, (busy_s - last[0]) * 1e11 / (at_ns - last[1]))
