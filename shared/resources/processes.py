"""Resource usage of processes and of the machine, from psutil and the kernel's socket statistics."""

import psutil

from shared.resources.tcp_bytes import TcpCount, TcpTable
from shared.resources.usage import CpuShare, ProbeGoneError, ResourceUsage


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
