"""What a process, and the whole machine, used: by psutil and the kernel's account of its sockets."""

import psutil

from shared.resources.tcp_bytes import TcpCount, TcpTable
from shared.resources.usage import CpuShare, ProbeGoneError, Usage


class ProcessUsage:
    """One process: its own CPU time with all its threads, without processes that it started."""

    def __init__(self, pid: int, table: TcpTable) -> None:
        """Raises ProbeGoneError where there is no such process."""
        try:
            self._process = psutil.Process(pid)  # It knows its process again: the number may be another's one day.
        except psutil.Error as error:
            raise ProbeGoneError(str(error)) from error
        self._cpu = CpuShare()
        self._tcp = TcpCount(pid, table)

    def look(self, at_ns: int) -> Usage:
        """See `shared.resources.usage.Watched`."""
        try:
            if not self._process.is_running():
                raise ProbeGoneError(f"process {self._process.pid} has ended")
            with self._process.oneshot():
                times, rss_bytes = self._process.cpu_times(), self._process.memory_info().rss
        except psutil.Error as error:
            raise ProbeGoneError(str(error)) from error
        if not rss_bytes:
            raise ProbeGoneError(f"process {self._process.pid} has ended and waits to be reaped")
        tcp = self._tcp.look()
        return Usage(
            pid=self._process.pid,
            cpu_percent=self._cpu.of(times.user + times.system, at_ns),
            rss_bytes=rss_bytes,
            bytes_in=tcp.received if tcp else None,
            bytes_out=tcp.sent if tcp else None,
        )


class MachineUsage:
    """All cores together, and the memory that is not available."""

    def __init__(self) -> None:
        self._cpu = CpuShare()

    def look(self, at_ns: int) -> Usage:
        """See `shared.resources.usage.Watched`."""
        times, memory = psutil.cpu_times(), psutil.virtual_memory()
        # The kernel counts a guest's time in user's as well.
        busy_s = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        return Usage(cpu_percent=self._cpu.of(busy_s, at_ns), rss_bytes=memory.total - memory.available)
