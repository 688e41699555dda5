"""Samples CPU, memory, network and GPU usage of every node of a run into a CSV file."""

import csv
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
from shared.resources.tcp_bytes import TcpTable
from shared.resources.usage import (
    USAGE_FIELDS,
    MachineUsage,
    ProbeGoneError,
    ProcessUsage,
    ResourceUsage,
    UsageProbe,
    containers,
    gpus,
)
from shared.runlog.latency_log import append_whole, log_full_disk
from shared.runtime.periodic import run_round
from shared.threads import ThreadGroup

RESOURCES_NAME = "resources.csv"
COLUMNS = ("at_ns", "node", *USAGE_FIELDS)
MACHINE = "machine"

_STOP_TIMEOUT_S = 10.0  # Twice the timeout of a request to the Docker engine.


class ResourceSampler:
    """Samples processes, the machine, its GPUs and containers in its own thread, during the `with` block.

    Each round appends one row per node: at the start of the block (without `cpu_percent`), once an interval, and at the
    end. A node that ends is no longer sampled, and a full disk ends the sampling; neither affects the run. The thread
    keeps its priority, as a low-priority thread that holds the GIL would delay all others.
    """

    def __init__(
        self,
        path: Path,
        processes: Mapping[str, int],
        *,
        containers: Sequence[str] = (),  # Container names.
        interval_s: float = 1.0,
    ) -> None:
        """`processes` maps nodes (`vehicle/<name>`, `worker/<name>`, `broker` or `link`) to process ids.

        Child processes are not included; list them separately.
        """
        self.samples = 0
        self.cpu_us = 0.0  # Mean CPU time of a round.
        self.fault: OSError | None = None  # The error that ended the sampling early.
        self.remarks: list[str] = []  # Nodes that are not sampled, with the reason.
        self._path = path
        self._processes = dict(processes)
        self._containers = tuple(containers)
        self._interval_s = interval_s
        self._probes: dict[str, UsageProbe] = {MACHINE: MachineUsage()}
        self._sources = ExitStack()  # Connections to NVML and the Docker engine.
        self._tcp = TcpTable()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = ThreadGroup(self._stopped.set)

    def __enter__(self) -> Self:
        """Creates the file and takes the first samples; raises SkylaneError if the file cannot be created."""
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError as error:
            raise SkylaneError(f"{self._path} already exists: choose another file") from error
        except OSError as error:
            raise SkylaneError(f"{self._path} cannot be written: {error.strerror}: choose another file") from error
        try:
            self._append([dict(zip(COLUMNS, COLUMNS, strict=True))])
            self._open_sources()
            self._sample_all()
        except BaseException:
            self._close()
            raise
        self._threads.start("resources", self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        try:
            self._threads.join(_STOP_TIMEOUT_S)
        finally:
            self._close()

    def watch(self, node: str, pid: int) -> None:
        """Adds a process to sample."""
        with self._lock:
            self._processes[node] = pid

    def account(self) -> dict[str, Any]:
        """Returns what was sampled and at which cost, for the manifest of a run."""
        return {
            "samples": self.samples,
            "interval_s": self._interval_s,
            "cpu_us_per_sample": round(self.cpu_us),
            "fault": self.fault and str(self.fault),
            "remarks": list(self.remarks),
        }

    def report_lines(self) -> list[str]:
        """Returns the same as lines of text."""
        lines = [f"{self._path}: {self.samples} samples, each took {self.cpu_us / 1e3:.1f} ms of CPU time"]
        if self.fault:
            lines.append(f"{self._path} ends early: {self.fault}")
        return lines + self.remarks

    def _open_sources(self) -> None:
        self._probes |= self._sources.enter_context(gpus())
        if self._containers:
            try:
                self._probes |= self._sources.enter_context(containers(self._containers))
            except ProbeGoneError as error:
                self.remarks.append(f"containers are not sampled: {error}")

    def _close(self) -> None:
        os.close(self._file)
        self._sources.close()

    def _run(self) -> None:
        next_s = time.monotonic()
        stopped = False
        while not stopped and self.fault is None:
            next_s = max(next_s + self._interval_s, time.monotonic())
            stopped = self._stopped.wait(next_s - time.monotonic())
            run_round("resources", self._sample_all)

    def _sample_all(self) -> None:
        started_ns = time.thread_time_ns()
        self._add_processes()
        self._tcp.refresh()
        self._append([_fields(at_ns, node, usage) for at_ns, node, usage in self._usages()])
        spent_us = (time.thread_time_ns() - started_ns) / 1e3
        self.samples += 1
        self.cpu_us += (spent_us - self.cpu_us) / self.samples

    def _add_processes(self) -> None:
        with self._lock:
            processes, self._processes = self._processes, {}
        for node, pid in processes.items():
            try:
                self._probes[node] = ProcessUsage(pid, self._tcp)
            except (ProbeGoneError, OSError) as error:
                self.remarks.append(f"{node} is not sampled: {error}")

    def _usages(self) -> list[tuple[int, str, ResourceUsage]]:
        usages = []
        for node, probe in list(self._probes.items()):
            at_ns = clock.now_ns()
            try:
                usages.append((at_ns, node, probe.sample(at_ns)))
            except ProbeGoneError as error:
                del self._probes[node]
                self.remarks.append(f"{node} is no longer sampled: {error}")
            except OSError as error:  # An example is too many open files.
                remark = f"{node} was not sampled at times: {error}"
                self.remarks += [remark] if remark not in self.remarks else []
        return usages

    def _append(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Writes rows; does nothing after a write error."""
        if self.fault:
            return
        text = io.StringIO()
        csv.DictWriter(text, COLUMNS, lineterminator="\n").writerows(rows)
        try:
            append_whole(self._file, text.getvalue().encode())
        except OSError as error:
            log_full_disk(self._path, error)
            self.fault = error


def _fields(at_ns: int, node: str, usage: ResourceUsage) -> dict[str, str]:
    values = {name: getattr(usage, name) for name in USAGE_FIELDS}
    texts = {
        name: f"{value:.2f}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }
    return {"at_ns": str(at_ns), "node": node} | texts
