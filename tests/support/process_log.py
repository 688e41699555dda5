"""Samples memory, file descriptors and threads of processes once per second."""

import csv
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from analysis.statistics.samples import slope
from shared.threads import ThreadGroup

MEASURES = ("rss_bytes", "fds", "threads")
_JOIN_TIMEOUT_S = 10.0


@dataclass(slots=True)
class ProcessHistory:
    """The samples of one process; a restarted process with the same name has its own history."""

    role: str  # Such as "worker".
    name: str
    pid: int
    times_s: list[float] = field(default_factory=list)  # Times of the machine's monotonic clock.
    rss_bytes: list[int] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Time from the first to the last sample."""
        return self.times_s[-1] - self.times_s[0] if self.times_s else 0.0

    def slope(self, measure: str, *, after_s: float) -> float | None:
        """The rise of a measure per second, without the first `after_s` seconds; None if too few samples are left."""
        first = sum(at < self.times_s[0] + after_s for at in self.times_s)
        return slope(self.times_s[first:], getattr(self, measure)[first:])

    def peak(self, measure: str, *, since_s: float = 0.0) -> int | None:
        """The maximum of a measure from a time of the monotonic clock on; None without samples."""
        samples = [value for at, value in zip(self.times_s, getattr(self, measure), strict=True) if at >= since_s]
        return max(samples, default=None)


class ProcessLog(AbstractContextManager["ProcessLog"]):
    """Samples processes on a thread until the block ends, and writes the samples to a CSV file as well.

    A process that has ended is not sampled any more.
    """

    def __init__(self, path: Path, *, interval_s: float = 1.0) -> None:
        """`path`: the CSV file, which is overwritten."""
        self._path = path
        self._interval_s = interval_s
        self._histories: list[ProcessHistory] = []
        self._alive: list[tuple[ProcessHistory, psutil.Process]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = ThreadGroup(self._ended.set)

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(("at_s", "role", "name", "pid", *MEASURES))
        self._threads.start("process-log", self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        try:
            self._threads.join(_JOIN_TIMEOUT_S)
        finally:
            self._file.close()

    @property
    def histories(self) -> tuple[ProcessHistory, ...]:
        """The histories of all processes, in the order of `watch`."""
        with self._lock:
            return tuple(self._histories)

    def watch(self, role: str, name: str, pid: int) -> ProcessHistory:
        """Starts to sample a process."""
        history = ProcessHistory(role, name, pid)
        with self._lock:
            self._histories.append(history)
            if psutil.pid_exists(pid):
                self._alive.append((history, psutil.Process(pid)))
                self._sample([self._alive[-1]])
        return history

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            with self._lock:
                self._sample(self._alive)
                self._file.flush()

    def _sample(self, alive: list[tuple[ProcessHistory, psutil.Process]]) -> None:
        for history, process in list(alive):
            try:
                with process.oneshot():
                    if process.status() == psutil.STATUS_ZOMBIE:
                        raise psutil.ZombieProcess(process.pid)
                    values = (process.memory_info().rss, process.num_fds(), process.num_threads())
            except psutil.Error:
                self._alive.remove((history, process))
                continue
            if not values[0]:  # A process that is ending loses its memory first.
                continue
            history.times_s.append(time.monotonic())
            for measure, value in zip(MEASURES, values, strict=True):
                getattr(history, measure).append(value)
            self._rows.writerow((f"{history.times_s[-1]:.3f}", history.role, history.name, history.pid, *values))
