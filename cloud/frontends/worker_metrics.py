"""The worker's report of its last minute, for `skylane status` and `skylane top`."""

import os
from collections.abc import Mapping
from contextlib import ExitStack

from cloud.node import CloudNode
from shared import clock
from shared.messages.node_metrics import WorkerMetrics, pack_worker_metrics
from shared.messages.topics import WORKER_METRICS
from shared.mqtt.bus import Bus
from shared.resources.tcp_bytes import TcpTable
from shared.resources.usage import ProbeGoneError, ProcessUsage, ResourceUsage, gpus

INTERVAL_NS = 2_000_000_000


class MetricsReports:
    """Publishes reports, of which one is due in two seconds. One thread uses it."""

    def __init__(self, worker: CloudNode, bus: Bus) -> None:
        self._node = worker
        self._bus = bus
        self._topic = WORKER_METRICS.of(worker=worker.name)
        self.due_ns = 0  # Time of the next report.
        self._tcp = TcpTable()
        self._processes: dict[int, ProcessUsage] = {}
        self._sources = ExitStack()
        self._gpus = self._sources.enter_context(gpus())

    def publish(self) -> None:
        """Publishes the last minute; call it when it is due."""
        now_ns = clock.now_ns()
        self.due_ns = now_ns + INTERVAL_NS
        recent = self._node.replier.recent.summary()
        usages = [usage for pid in self._pids() if (usage := self._usage(pid, now_ns)) is not None]
        devices = [probe.sample(now_ns) for probe in self._gpus.values()]
        report = WorkerMetrics(
            session=self._node.session,
            seconds=recent.seconds,
            frames=recent.frames,
            queue=recent.times.get("queue"),
            inference=recent.times.get("inference"),
            cpu_percent=sum(usage.cpu_percent or 0.0 for usage in usages) if usages else None,
            memory_bytes=sum(usage.rss_bytes or 0 for usage in usages) if usages else None,
            gpu_percent=max((usage.gpu_percent or 0.0 for usage in devices), default=None),
            gpu_memory_bytes=sum(usage.gpu_memory_bytes or 0 for usage in devices) if devices else None,
        )
        self._bus.publish(self._topic, pack_worker_metrics(report), qos=WORKER_METRICS.qos)

    def close(self) -> None:
        """Ends the measurement of the GPUs."""
        self._sources.close()

    def _pids(self) -> set[int]:
        engines: Mapping[str, int] = self._node.engine_processes
        pids = {os.getpid(), *engines.values()}
        self._processes = {pid: usage for pid, usage in self._processes.items() if pid in pids}
        return pids

    def _usage(self, pid: int, now_ns: int) -> ResourceUsage | None:
        try:
            if pid not in self._processes:
                self._processes[pid] = ProcessUsage(pid, self._tcp)
            return self._processes[pid].sample(now_ns)
        except ProbeGoneError:  # An engine that has ended.
            self._processes.pop(pid, None)
            return None
