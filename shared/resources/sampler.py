"""What a run used beside its time: CPU, memory, bytes and GPU of every node, sampled once a second into a CSV."""

import csv
import errno
import io
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from shared import clock
from shared.errors import SkylaneError
from shared.resources.containers import containers
from shared.resources.gpus import gpus
from shared.resources.processes import MachineUsage, ProcessUsage
from shared.resources.tcp_bytes import TcpTable
from shared.resources.usage import USAGE_FIELDS, ProbeGoneError, Usage, Watched
from shared.runtime.threads import ThreadGroup

RESOURCES_NAME = "resources.csv"
COLUMNS = ("at_ns", "node", *USAGE_FIELDS)
MACHINE = "machine"

_END_S = 10.0  # A Docker engine that does not answer is waited for half as long.


class ResourcesError(SkylaneError):
    """What is sampled cannot be written."""


class ResourceSampler:
    """Samples processes, the machine, its GPUs and named containers in a thread of its own, while the block lasts.

    Every look appends one row a node: one as the block begins, which knows no `cpu_percent` yet, then one an interval,
    and one as it ends. What ends is no longer sampled, and a disk that is full ends the sampling: neither hurts the run.
    The thread keeps its priority: one that is put behind others while it holds Python's lock would hold them all up.
    """

    def __init__(
        self,
        path: Path,
        processes: Mapping[str, int],
        *,
        containers: Sequence[str] = (),  # By their names.
        interval_s: float = 1.0,
    ) -> None:
        """`processes`: their numbers by node, `vehicle/<name>`, `worker/<name>`, `broker` or `link`.

        A process is sampled without those that it started: name those as well.
        """
        self.samples = 0
        self.cpu_us = 0.0  # Of processor time that a sample took on average.
        self.fault: OSError | None = None  # Why nothing more was written.
        self.remarks: list[str] = []  # What is not sampled, and why.
        self._path = path
        self._processes = dict(processes)
        self._containers = tuple(containers)
        self._interval_s = interval_s
        self._watched: dict[str, Watched] = {MACHINE: MachineUsage()}
        self._sources = ExitStack()  # GPUs and containers are asked through connections that must end.
        self._tcp = TcpTable()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = ThreadGroup(self._ended.set)

    def __enter__(self) -> Self:
        """Raises ResourcesError where the file cannot be made, or is there already."""
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError as error:
            raise ResourcesError(f"{self._path} is there already: choose another file") from error
        except OSError as error:
            raise ResourcesError(f"{self._path} cannot be written: {error.strerror}: choose another file") from error
        try:
            self._append([dict(zip(COLUMNS, COLUMNS, strict=True))])
            self._open_sources()
            self._look()
        except BaseException:
            self._close()
            raise
        self._threads.start("resources", self._sample)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        try:
            self._threads.join(_END_S)
        finally:
            self._close()

    def watch(self, node: str, pid: int) -> None:
        """Sample one more process from now on."""
        with self._lock:
            self._processes[node] = pid

    def account(self) -> dict[str, Any]:
        """What the sampling was and cost, for the manifest of a run."""
        return {
            "samples": self.samples,
            "interval_s": self._interval_s,
            "cpu_us_per_sample": round(self.cpu_us),
            "fault": self.fault and str(self.fault),
            "remarks": list(self.remarks),
        }

    def told(self) -> list[str]:
        """The same in lines for a user."""
        lines = [f"{self._path}: {self.samples} samples, each cost {self.cpu_us / 1e3:.1f} ms of one core"]
        if self.fault:
            lines.append(f"{self._path} ends early: {self.fault}")
        return lines + self.remarks

    def _open_sources(self) -> None:
        self._watched |= self._sources.enter_context(gpus())
        if self._containers:
            try:
                self._watched |= self._sources.enter_context(containers(self._containers))
            except ProbeGoneError as error:
                self.remarks.append(f"containers are not sampled: {error}")

    def _close(self) -> None:
        os.close(self._file)
        self._sources.close()

    def _sample(self) -> None:
        next_s = time.monotonic()
        ended = False
        while not ended and self.fault is None:
            next_s = max(next_s + self._interval_s, time.monotonic())
            ended = self._ended.wait(next_s - time.monotonic())
            self._look()

    def _look(self) -> None:
        began_ns = time.thread_time_ns()
        self._take_up()
        self._tcp.refresh()
        self._append([_fields(at_ns, node, usage) for at_ns, node, usage in self._usages()])
        spent_us = (time.thread_time_ns() - began_ns) / 1e3
        self.samples += 1
        self.cpu_us += (spent_us - self.cpu_us) / self.samples

    def _take_up(self) -> None:
        with self._lock:
            processes, self._processes = self._processes, {}
        for node, pid in processes.items():
            try:
                self._watched[node] = ProcessUsage(pid, self._tcp)
            except ProbeGoneError as error:
                self.remarks.append(f"{node} is not sampled: {error}")

    def _usages(self) -> list[tuple[int, str, Usage]]:
        usages = []
        for node, watched in list(self._watched.items()):
            at_ns = clock.now_ns()
            try:
                usages.append((at_ns, node, watched.look(at_ns)))
            except (ProbeGoneError, OSError) as error:  # An OSError: this process may open no more files, say.
                del self._watched[node]
                self.remarks.append(f"{node} is sampled no longer: {error}")
        return usages

    def _append(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Write rows by one system call, so that a kill leaves whole ones; none any more once one could not be written."""
        if self.fault:
            return
        text = io.StringIO()
        csv.DictWriter(text, COLUMNS, lineterminator="\n").writerows(rows)
        data = text.getvalue().encode()
        try:
            written = os.write(self._file, data)
            if written < len(data):  # A disk that fills may take half a row: take that half back.
                os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_END) - written)
                self.fault = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.fault = error


def _fields(at_ns: int, node: str, usage: Usage) -> dict[str, str]:
    known = {name: getattr(usage, name) for name in USAGE_FIELDS}
    texts = {
        name: f"{value:.2f}" if isinstance(value, float) else str(value)
        for name, value in known.items()
        if value is not None
    }
    return {"at_ns": str(at_ns), "node": node} | texts
