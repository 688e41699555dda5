"""A fleet of made nodes at a real broker: each sends the messages of a node, and does no work."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from click.testing import CliRunner, Result

from ops.fleet.cli import status
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels
from shared.messages.load import LoadReport, WorkerLoad, pack_load
from shared.messages.model_card import ModelCard
from shared.messages.node_metrics import (
    Quantiles,
    VehicleMetrics,
    WorkerMetrics,
    pack_vehicle_metrics,
    pack_worker_metrics,
)
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import LOADS, VEHICLE_METRICS, VEHICLE_STATUS, WORKER_METRICS, WORKER_STATUS
from shared.mqtt.bus import Bus
from tests.support.mqtt_bus import connect

LABELS = Labels(("a",), ((1, 2, 3),))
CARD = ModelCard(
    "road", "2", "ab" * 32, "segmentation", 8, 12, Layout.RGB8, Resize.CROP, LABELS, trained=True, engine="tensorflow",
    precision="fp32",
)  # fmt: skip


def worker(bus: Bus, name: str, inference_ms: float = 20.0, *, session: str = "s1", **frames: int) -> None:
    """Announces a worker and sends its load and its metrics."""
    online = NodeStatus(NodeState.ONLINE, "s1", 64, (CARD,))
    bus.publish(WORKER_STATUS.of(worker=name), pack_status(online), qos=1, retained=True)
    load = LoadReport("s1", {"road": WorkerLoad(1, 63, 10.0, inference_ms, inference_ms)})
    bus.publish(LOADS.of(worker=name), pack_load(load), qos=0, retained=True)
    counts = frames or {"answered": 600}
    metrics = WorkerMetrics(
        session, 60.0, counts, Quantiles(2.0, 4.0), Quantiles(inference_ms, 2 * inference_ms), 80.0, 1 << 30, None, None
    )
    bus.publish(WORKER_METRICS.of(worker=name), pack_worker_metrics(metrics), qos=0)


def vehicle(bus: Bus, name: str, reason: str = "", **frames: int) -> None:
    """Announces a vehicle and sends its metrics."""
    online = NodeStatus(NodeState.ONLINE, "s1")
    bus.publish(VEHICLE_STATUS.of(vehicle=name), pack_status(online), qos=1, retained=True)
    metrics = VehicleMetrics("s1", "road", 60.0, frames or {"answered": 300}, reason, Quantiles(80.0, 90.0), 1, 0.4)
    bus.publish(VEHICLE_METRICS.of(vehicle=name), pack_vehicle_metrics(metrics), qos=0)


@contextmanager
def reporting(url: str, send: Any) -> Iterator[Bus]:
    """Calls `send(bus)`, and again every half a second in a thread of its own, during the block."""
    ended = threading.Event()
    with ExitStack() as stack:
        bus = stack.enter_context(connect(url))

        def run() -> None:
            while not ended.wait(0.5):
                send(bus)

        send(bus)
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield bus
        finally:
            ended.set()
            thread.join()


def run_status(url: str, *options: str) -> Result:
    """Runs `skylane status`."""
    return CliRunner().invoke(status, ["--broker", url, *options])


def state_of(url: str) -> Mapping[str, Any]:
    """Returns what `skylane status --json` prints."""
    ended = run_status(url, "--json")
    assert ended.exit_code == 0, ended.output
    return dict(json.loads(ended.output))


def problems(state: Mapping[str, Any], kind: str) -> dict[str, list[str]]:
    """Returns the problems by node, of nodes that have some."""
    return {row["name"]: row["problems"] for row in state[kind] if row["problems"]}
