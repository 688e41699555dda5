"""Samples of resource usage, and the probes that take them."""

from dataclasses import dataclass, fields
from typing import Protocol

_MIN_INTERVAL_NS = 100_000_000  # CPU times have a resolution of 10 ms, too coarse for a shorter interval.


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """One sample of a process, a container, a GPU or the machine; None: unknown or not applicable.

    `cpu_percent` is relative to one core, since the previous sample. `bytes_in` and `bytes_out` are TCP payload since
    the first sample.
    """

    pid: int | None = None
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_power_w: float | None = None


USAGE_FIELDS = tuple(field.name for field in fields(ResourceUsage))


class ProbeGoneError(Exception):
    """The target of a probe has ended or cannot be measured; the probe is not used again."""


class UsageProbe(Protocol):
    """Measures one process, container, GPU or machine repeatedly."""

    def sample(self, at_ns: int) -> ResourceUsage:
        """Measures the usage; `at_ns` is the current time.

        Raises:
            ProbeGoneError: the target has ended or cannot be measured.
        """


class CpuShare:
    """Computes CPU usage from successive CPU times."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def percent(self, busy_s: float, at_ns: int) -> float | None:
        """Returns the percentage of one core since the previous call; `busy_s` is the total CPU time so far.

        None for the first call, and if the previous one was too recent for the resolution of CPU times.
        """
        last = self._last
        if last is not None and at_ns - last[1] < _MIN_INTERVAL_NS:
            return None
        self._last = (busy_s, at_ns)
        return None if last is None else max(0.0, (busy_s - last[0]) * 1e11 / (at_ns - last[1]))
