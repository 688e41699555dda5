"""The worker's report of its last minute, for `skylane status` and `skylane top`."""

import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from cloud.node import CloudNode
from shared import clock
from shared.messages.node_metrics import METRICS_INTERVAL_NS, WorkerMetrics, pack_worker_metrics
from shared.messages.topics import WORKER_METRICS
from shared.mqtt.bus import Bus
from shared.resources.tcp_bytes import TcpTable
from shared.resources.usage import ProbeGoneError, ProcessUsage, ResourceUsage, UsageProbe, gpus


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
        self.close = self._sources.close  # Ends the measurement of the GPUs.

    def publish(self) -> None:
        """Publishes the last minute; call it when it is due."""
        now_ns = clock.now_ns()
        self.due_ns = now_ns + METRICS_INTERVAL_NS
        recent = self._node.replier.recent.summary()
        usages, devices = _measured(self._process_probes(), now_ns), _measured(self._gpus.values(), now_ns)
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
            totals=self._node.replier.counts,
        )
        self._bus.publish(self._topic, pack_worker_metrics(report), qos=WORKER_METRICS.qos)

    def _process_probes(self) -> Iterable[UsageProbe]:
        """Returns the probes of this process and of those of its engines."""
        before, self._processes = self._processes, {}
        for pid in {os.getpid(), *self._node.engine_processes.values()}:
            with suppress(ProbeGoneError, OSError):
                self._processes[pid] = before.get(pid) or ProcessUsage(pid, self._tcp)
        return self._processes.values()


def _measured(probes: Iterable[UsageProbe], at_ns: int) -> list[ResourceUsage]:
    """Returns what the probes can measure now, without engines that have ended and GPUs that are lost."""
    usages = []
    for probe in probes:
        with suppress(ProbeGoneError, OSError):  # OSError: for example too many open files.
            usages.append(probe.sample(at_ns))
    return usages
