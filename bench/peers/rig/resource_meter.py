"""What a server's processes take of the machine, all together, while it is called."""

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
    """What was taken from the beginning of a block to its end."""

    wall_s: float
    cpu_s: float  # Of processor time, user's and system's.
    rss_mb: float  # The most resident at a time, 10^6 bytes; what processes share counts for each.
    pss_mb: float  # At the end; what processes share is divided among them.

    @property
    def cpu_percent(self) -> float:
        """The utilisation: 100 is one core busy all the time."""
        return 100 * self.cpu_s / self.wall_s


class Meter(AbstractContextManager["Meter"]):
    """Measures a tree of processes while the block lasts.

    A process that ends within it takes its processor time with it; one that begins is counted. Resident memory is looked
    at ten times a second, of the processes that were there at the beginning: finding others would take the time of
    the client that is measured. Proportional memory is what the kernel adds up page by page, hence once, at the end.
    """

    usage: Usage  # Once the block has ended.

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
