"""The metrics of a fleet for Prometheus, from the reports of its nodes, with the names that nodes and rules use."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.registry import Collector

from ops.fleet.fleet import FleetMonitor
from shared.health import SILENT_AFTER_S
from shared.messages.node_status import NodeState
from shared.prometheus import BROKER_CONNECTED, family, serve_metrics
from shared.runtime.processes import interrupt_on_termination

_ANSWERED = "answered"
_NODE = ("vehicle", "worker")  # Labels; one of them is empty.
# Text, key of the row and factor. Names with colons are those of the recording rules; percentiles of a worker stand for each
# of its models.
_GAUGES = {
    "skylane_vehicle_frames_in_flight": ("Frames sent and not ended", "in_flight", 1.0),
    "skylane_vehicle_clock_error_seconds": ("Error bound of a worker's clock", "clock_error_ms", 1e-3),
    "skylane:vehicle_frame_seconds:p95": ("From due to the result, last minute", "total_ms", 1e-3),
    "skylane_frames_in_flight": ("Frames without a reply so far", "in_queue", 1.0),
    "skylane:worker_queue_seconds:p95": ("In the queues, last minute", "queue_ms", 1e-3),
    "skylane:worker_inference_seconds:p95": ("Inference, last minute", "inference_ms", 1e-3),
}


class FleetCollector(Collector):
    """Reads the state of a fleet at each scrape; offline and silent nodes are left out."""

    def __init__(self, fleet: FleetMonitor) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        state, is_connected = self._fleet.state(), self._fleet.is_connected
        rows = {(row["name"], ""): row for row in state.vehicles} | {("", row["name"]): row for row in state.workers}
        online = {node: row for node, row in rows.items() if is_connected and row["state"] == NodeState.ONLINE}
        connected = {("", ""): is_connected, **dict.fromkeys(online, 1)}  # The first one is this process.
        yield family(GaugeMetricFamily, BROKER_CONNECTED, "1 while connected to the broker", connected, *_NODE)
        fresh = {node: row for node, row in online.items() if (row["seen_s_ago"] or 0) <= SILENT_AFTER_S}
        for name, (text, key, factor) in _GAUGES.items():
            values = {
                (*node, model.partition(" ")[0]): number * factor
                for node, row in fresh.items()
                if (number := _number(row.get(key))) is not None
                for model in (row.get("models", [""]) if key.endswith("_ms") else [""])
            }
            yield family(GaugeMetricFamily, name, text, values, *_NODE, "model")
        totals = {(*node, outcome): n for node, row in fresh.items() for outcome, n in (row["totals"] or {}).items()}
        ended = {key: n for key, n in totals.items() if key[0]}
        refused = {key: n for key, n in totals.items() if key[1] and key[2] != _ANSWERED}
        answered = {key[:2]: n for key, n in totals.items() if key[1] and key[2] == _ANSWERED}
        yield family(CounterMetricFamily, "skylane_vehicle_frames", "Frames ended", ended, *_NODE, "outcome")
        yield family(CounterMetricFamily, "skylane_frames_refused", "Without a result", refused, *_NODE, "outcome")
        yield family(UntypedMetricFamily, "nv_inference_request_success", "Frames answered", answered, *_NODE)


def _number(value: Any) -> float | None:
    number: float | None = value["p95"] if isinstance(value, Mapping) else value
    return number


def serve_fleet(address: str, fleet: FleetMonitor) -> None:
    """Serves the metrics of a fleet at HOST:PORT until Ctrl-C.

    Raises:
        SkylaneError: nothing can listen there.
    """
    with suppress(KeyboardInterrupt), interrupt_on_termination(), serve_metrics(address, FleetCollector(fleet)) as url:
        click.echo(f"metrics of the fleet: {url}; Ctrl-C ends it")
        signal.pause()
