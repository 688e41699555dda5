"""Measures CPU and memory of all processes of a server during a block."""

import threading
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Self

import psutil

from bench.peers.rig.process_tree import ProcessTree
from shared.runtime.threads import ThreadGroup

_LOOK_S = 0.1
_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU and memory of a block."""

    wall_s: float
    cpu_s: float  # User and system processor time.
    rss_mb: float  # Maximum resident memory in 10^6 bytes; shared memory counts for each process.
    pss_mb: float  # Proportional memory at the end; shared memory is divided among the processes.

    @property
    def cpu_percent(self) -> float:
        """Utilization; 100 is one core that is always busy."""
        return 100 * self.cpu_s / self.wall_s


class Meter(AbstractContextManager["Meter"]):
    """Measures a process tree within the block.

    The processor time of a process that ends is lost; a process that begins is counted. Resident memory is sampled ten
    times a second for the processes that existed at the beginning, because a search would disturb the measured client.
    Proportional memory is expensive for the kernel, so it is read once at the end.
    """

    usage: Usage  # Available after the block.

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._ended = threading.Event()
        self._threads = ThreadGroup(self._ended.set)

    def __enter__(self) -> Self:
        self._members = self._tree.members()
        self._rss_bytes = 0
        self._look()
        self._before_s = {process.pid: _cpu_s(process) for process in self._members}
        self._threads.start("meter", self._watch)
        self._begun_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall_s = time.perf_counter() - self._begun_s
        self._ended.set()
        members = self._tree.members()
        cpu_s = sum(_cpu_s(process) - self._before_s.get(process.pid, 0.0) for process in members)
        self._threads.join(_END_S)
        self._members = members
        self._look()
        self.usage = Usage(wall_s, cpu_s, self._rss_bytes / 1e6, sum(map(_pss_bytes, members)) / 1e6)

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        self._rss_bytes = max(self._rss_bytes, sum(map(_rss_bytes, self._members)))


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _rss_bytes(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def _pss_bytes(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.memory_full_info().pss)
    return 0
