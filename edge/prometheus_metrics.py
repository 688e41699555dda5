"""The metrics of a vehicle for Prometheus: `--metrics HOST:PORT`."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edge.config import EdgeConfig
from edge.ledger import RunCounts
from edge.transports.transport import MQTT, Transport
from shared.errors import install_command
from shared.frame_reasons import reason_label
from shared.histogram import Histogram
from shared.logs import get_logger
from shared.prometheus import BROKER_CONNECTED, counters, histograms, node_families, serve_metrics
from shared.runlog.latency_log import WITH_RESULT, LatencyRow, Outcome
from shared.stages import Stage, durations_ns

_LOG = get_logger("edge")
_CROSSING = "crossing"  # As in the latency log: the time away minus the worker's.


class VehicleCollector(Collector):
    """Adds up the frames of a run. No label contains a name: the scraping server knows which vehicle it scrapes."""

    def __init__(self, config: EdgeConfig, transport: Transport) -> None:
        self.counts: Callable[[], RunCounts] = lambda: RunCounts(0, 0, {}, {}, None)  # Returns the totals of the run.
        self._transport = transport
        self._uses_broker = config.transport == MQTT
        files = config.connection.certificates(config.vehicle) if self._uses_broker else None
        if files is not None and find_spec("cryptography") is None:
            _LOG.warning("expiry of certificates is not measured", reason=install_command("broker"))
            files = None
        self._certificates = {} if files is None else {"authority": files.authority, "client": files.certificate}
        self._lock = threading.Lock()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._frames: defaultdict[Outcome, Histogram] = defaultdict(Histogram)
        self._stages: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._clock_error_s: float | None = None

    def ended(self, row: LatencyRow) -> None:
        """Adds a frame that has ended."""
        times = row.edge_times
        edge, cloud = durations_ns(times), durations_ns(row.cloud_times)
        stages = {stage.value: duration_ns for stage, duration_ns in (*edge.items(), *cloud.items())}
        if cloud and Stage.RETURNED in edge:
            stages[_CROSSING] = edge[Stage.RETURNED] - sum(cloud.values())
        with self._lock:
            self._ended[row.outcome.value, reason_label(row.reason)] += 1
            for stage, duration_ns in stages.items():
                self._stages[stage].add(duration_ns / 1e9)
            if row.outcome in WITH_RESULT:
                self._frames[row.outcome].add((max(times.values()) - times[Stage.DUE]) / 1e9)
            if row.clock is not None:
                self._clock_error_s = row.clock.error_ns / 1e9

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        counts = self.counts()
        with self._lock:
            metrics = [
                counters(
                    "skylane_vehicle_frames", "Frames by outcome and reason", ("outcome", "reason"), dict(self._ended)
                ),
                histograms(
                    "skylane_vehicle_frame_seconds",
                    "Time from due to the result",
                    ("outcome",),
                    {(outcome.value,): each for outcome, each in self._frames.items()},
                ),
                histograms(
                    "skylane_vehicle_stage_seconds",
                    "Time that frames spent in each stage, the worker's included; `crossing` is broker and link",
                    ("stage",),
                    {(stage,): each for stage, each in self._stages.items()},
                ),
            ]
            clock_error_s = self._clock_error_s
        yield from metrics
        yield GaugeMetricFamily("skylane_vehicle_frames_in_flight", "Frames sent and not ended", counts.in_flight)
        yield counters("skylane_vehicle_frames_retried", "Frames sent a second time", (), {(): counts.retried})
        ignored = {(reason,): count for reason, count in counts.ignored_answers.items()}
        text = "Replies, echoes and loads that were ignored"
        yield counters("skylane_vehicle_answers_ignored", text, ("reason",), ignored)
        if clock_error_s is not None:
            text = "Error bound of the offset of a worker's clock, at the latest reply"
            yield GaugeMetricFamily("skylane_vehicle_clock_error_seconds", text, clock_error_s)
        if self._uses_broker:
            yield GaugeMetricFamily(BROKER_CONNECTED, "1 while connected to the broker", self._transport.is_connected)
        yield from node_families("vehicle", self._certificates)


@contextmanager
def open_metrics(config: EdgeConfig, transport: Transport) -> Iterator[VehicleCollector]:
    """Serves the metrics of a run at the configured address.

    Raises:
        SkylaneError: nothing can listen there, or a library is missing.
    """
    assert config.metrics is not None
    collector = VehicleCollector(config, transport)
    with serve_metrics(config.metrics, collector) as address:
        _LOG.info("metrics ready", address=address)
        yield collector
