"""Measures CPU and memory of all processes of a server during a block."""

import threading
import time
from contextlib import AbstractContextManager, suppress
from typing import Self

import psutil

from bench.peers.rig.process_tree import ProcessTree
from shared.runtime.threads import ThreadGroup

_LOOK_S = 0.1
_END_S = 10.0


class Meter(AbstractContextManager["Meter"]):
    """Measures a process tree within the block.

    The processor time of a process that ends is lost; a process that begins is counted. Resident memory is sampled ten
    times a second for the processes that existed at the beginning, because a search would disturb the measured client.
    Proportional memory is expensive for the kernel, so it is read once at the end.

    `usage` is available after the block: `wall_s`; `cpu_s`, user and system processor time; `cpu_percent`, where 100 is one
    core that is always busy; `rss_mb`, the maximum resident memory in 10^6 bytes, in which shared memory counts for each
    process; `pss_mb`, proportional memory at the end, in which shared memory is divided among the processes.
    """

    usage: dict[str, float]

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._ended = threading.Event()
        self._threads = ThreadGroup(self._ended.set)

    def __enter__(self) -> Self:
        self._members = self._tree.members()
        self._rss_bytes = 0.0
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
        pss_bytes = sum(_read(process, "memory_full_info", "pss") for process in members)
        self.usage = {
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "cpu_percent": 100 * cpu_s / wall_s,
            "rss_mb": self._rss_bytes / 1e6,
            "pss_mb": pss_bytes / 1e6,
        }

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        self._rss_bytes = max(self._rss_bytes, sum(_read(process, "memory_info", "rss") for process in self._members))


def _cpu_s(process: psutil.Process) -> float:
    return _read(process, "cpu_times", "user", "system")


def _read(process: psutil.Process, method: str, *fields: str) -> float:
    """Returns the sum of fields that psutil reads; 0 if the process has ended."""
    with suppress(psutil.NoSuchProcess):
        values = getattr(process, method)()
        return float(sum(getattr(values, field) for field in fields))
    return 0.0
