"""Samples of resource usage, the probes that take them, and those of a process and of the machine."""

from dataclasses import dataclass, fields
from typing import Protocol

import psutil

from shared.resources.tcp_bytes import TcpCount, TcpTable

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


class ProcessUsage:
    """One process with all its threads, without its child processes."""

    def __init__(self, pid: int, table: TcpTable) -> None:
        """Raises ProbeGoneError if the process does not exist."""
        try:
            self._process = psutil.Process(pid)  # Detects a reused process id.
        except psutil.Error as error:
            raise ProbeGoneError(str(error)) from error
        self._cpu = CpuShare()
        self._tcp = TcpCount(pid, table)

    def sample(self, at_ns: int) -> ResourceUsage:
        """See `UsageProbe`."""
        try:
            if not self._process.is_running():
                raise ProbeGoneError(f"process {self._process.pid} has ended")
            with self._process.oneshot():
                times, rss_bytes = self._process.cpu_times(), self._process.memory_info().rss
        except psutil.Error as error:
            raise ProbeGoneError(str(error)) from error
        if not rss_bytes:
            raise ProbeGoneError(f"process {self._process.pid} has ended and waits to be reaped")
        tcp = self._tcp.sample()
        return ResourceUsage(
            pid=self._process.pid,
            cpu_percent=self._cpu.percent(times.user + times.system, at_ns),
            rss_bytes=rss_bytes,
            bytes_in=tcp.received if tcp else None,
            bytes_out=tcp.sent if tcp else None,
        )


class MachineUsage:
    """All cores of the machine, and the memory that is not available."""

    def __init__(self) -> None:
        self._cpu = CpuShare()

    def sample(self, at_ns: int) -> ResourceUsage:
        """See `UsageProbe`."""
        times, memory = psutil.cpu_times(), psutil.virtual_memory()
        # Guest time is also contained in user time.
        busy_s = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        return ResourceUsage(cpu_percent=self._cpu.percent(busy_s, at_ns), rss_bytes=memory.total - memory.available)
