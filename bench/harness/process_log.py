"""What processes hold while a scenario plays: memory, file descriptors and threads, looked at once a second."""

import csv
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from bench.harness.slope import slope
from shared.runtime.threads import ThreadGroup

MEASURES = ("rss_bytes", "fds", "threads")
_END_S = 10.0


@dataclass(slots=True)
class Life:
    """One process from when it is first looked at; one that is started again by the same name is another life."""

    role: str  # Such as "worker".
    name: str
    pid: int
    times_s: list[float] = field(default_factory=list)  # Of the machine's monotonic clock.
    rss_bytes: list[int] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first look to the last."""
        return self.times_s[-1] - self.times_s[0] if self.times_s else 0.0

    def slope(self, measure: str, *, settled_s: float) -> float | None:
        """What a measure rises a second once the process is `settled_s` old; None where it was gone before."""
        first = self._first(settled_s)
        return slope(self.times_s[first:], getattr(self, measure)[first:])

    def most(self, measure: str, *, since_s: float = 0.0) -> int | None:
        """The most of a measure that was seen from a moment of the monotonic clock on."""
        seen = [value for at, value in zip(self.times_s, getattr(self, measure), strict=True) if at >= since_s]
        return max(seen, default=None)

    def _first(self, settled_s: float) -> int:
        if not self.times_s:
            return 0
        return sum(at < self.times_s[0] + settled_s for at in self.times_s)


class ProcessLog(AbstractContextManager["ProcessLog"]):
    """Looks at processes in a thread of its own until the block ends, and keeps what it saw in a CSV file as well.

    A process that is gone is no longer looked at.
    """

    def __init__(self, path: Path, *, interval_s: float = 1.0) -> None:
        """`path`: the CSV file; what it held is lost."""
        self._path = path
        self._interval_s = interval_s
        self._lives: list[Life] = []
        self._alive: list[tuple[Life, psutil.Process]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = ThreadGroup(self._ended.set)

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(("at_s", "role", "name", "pid", *MEASURES))
        self._threads.start("process-log", self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        try:
            self._threads.join(_END_S)
        finally:
            self._file.close()

    @property
    def lives(self) -> tuple[Life, ...]:
        """All that were looked at, in the order in which they were named."""
        with self._lock:
            return tuple(self._lives)

    def watch(self, role: str, name: str, pid: int) -> Life:
        """Look at a process from now on."""
        life = Life(role, name, pid)
        with self._lock:
            self._lives.append(life)
            if psutil.pid_exists(pid):
                self._alive.append((life, psutil.Process(pid)))
                self._look_at_all([self._alive[-1]])
        return life

    def _watch(self) -> None:
        while not self._ended.wait(self._interval_s):
            with self._lock:
                self._look_at_all(self._alive)
                self._file.flush()

    def _look_at_all(self, alive: list[tuple[Life, psutil.Process]]) -> None:
        for life, process in list(alive):
            try:
                with process.oneshot():
                    if process.status() == psutil.STATUS_ZOMBIE:
                        raise psutil.ZombieProcess(process.pid)
                    seen = (process.memory_info().rss, process.num_fds(), process.num_threads())
            except psutil.Error:
                self._alive.remove((life, process))
                continue
            if not seen[0]:  # It is just ending: its memory is gone before itself is.
                continue
            life.times_s.append(time.monotonic())
            for measure, value in zip(MEASURES, seen, strict=True):
                getattr(life, measure).append(value)
            self._rows.writerow((f"{life.times_s[-1]:.3f}", life.role, life.name, life.pid, *seen))


def children(pid: int, module: str) -> set[int]:
    """The numbers of a process's children that run a module; none where one of them ends while it is looked at."""
    try:
        return {child.pid for child in psutil.Process(pid).children() if module in child.cmdline()}
    except psutil.Error:
        return set()
