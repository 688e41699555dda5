"""The worker's report of its last minute."""

import queue
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from cloud.config import CloudConfig
from cloud.frontends import worker_metrics
from cloud.frontends.worker_metrics import MetricsReports
from cloud.node import CloudNode
from shared.messages.node_metrics import WorkerMetrics, unpack_worker_metrics
from shared.messages.topics import WORKER_METRICS
from shared.mqtt.bus import Delivery
from shared.resources.usage import ProbeGoneError, ResourceUsage
from tests.support.memory_bus import MemoryBus

WAIT_S = 60.0


def published(node: CloudNode) -> WorkerMetrics:
    """Returns the report that a worker publishes."""
    deliveries: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    with MemoryBus() as bus:
        bus.subscribe(WORKER_METRICS.of(worker="w"), 0, deliveries.put)
        reports = MetricsReports(node, bus)
        reports.publish()
        reports.close()
        return unpack_worker_metrics(deliveries.get(timeout=WAIT_S).payload)


def test_an_engine_that_has_ended_is_left_out() -> None:
    """Its process may end between two reports, which must not end those of the worker."""
    ended = subprocess.Popen(["true"])
    ended.wait()

    class Node(CloudNode):
        """A worker with that engine."""

        @property
        def engine_processes(self) -> Mapping[str, int]:
            return {"tiny-1": ended.pid}

    memory_bytes = published(Node([], CloudConfig(worker="w"), session="s9")).memory_bytes
    assert memory_bytes is not None
    assert memory_bytes > 0


def test_a_gpu_that_is_lost_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose other GPU works goes on."""

    class Gpu:
        """One that works, or is lost."""

        def __init__(self, percent: float | None) -> None:
            self._percent = percent

        def sample(self, _: int) -> ResourceUsage:
            if self._percent is None:
                raise ProbeGoneError("NVML: GPU is lost")
            return ResourceUsage(gpu_percent=self._percent, gpu_memory_bytes=1 << 30)

    @contextmanager
    def gpus() -> Iterator[dict[str, Gpu]]:
        yield {"gpu/0": Gpu(None), "gpu/1": Gpu(40.0)}

    monkeypatch.setattr(worker_metrics, "gpus", gpus)
    report = published(CloudNode([], CloudConfig(worker="w"), session="s9"))
    assert (report.gpu_percent, report.gpu_memory_bytes) == (40.0, 1 << 30)
