"""The metrics of a vehicle for Prometheus: `--metrics HOST:PORT`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import RunCounts
from edge.transports.transport import MQTT, Transport
from shared.frame_reasons import reason_label
from shared.logs import get_logger
from shared.messages.results import ModelResult
from shared.network.address import Certificates
from shared.prometheus import BROKER_CONNECTED, NodeCollector, family, serve_metrics
from shared.runlog.latency_log import WITH_RESULT
from shared.stages import Stage, durations_ns

_LOG = get_logger("edge")
_CROSSING = "crossing"  # The stage of the latency log: round trip minus the worker's time.


class VehicleCollector(NodeCollector):
    """Adds up the frames of a run. No label contains a name: the scraping server knows which vehicle it scrapes."""

    def __init__(self, config: EdgeConfig, transport: Transport) -> None:
        self._transport = transport
        self._uses_broker = config.transport == MQTT
        files = (config.connection.certificates(config.vehicle) if self._uses_broker else None) or Certificates()
        super().__init__("vehicle", authority=files.authority, client=files.certificate)
        self.counts: Callable[[], RunCounts] = lambda: RunCounts(0, 0, {}, {}, None)  # Returns the totals of the run.
        self._clock_error_s: float | None = None
        self._ended = Counter(
            "skylane_vehicle_frames", "Frames by outcome and reason", ("outcome", "reason"), registry=self.counted
        )
        self._frames = self.histogram("skylane_vehicle_frame_seconds", "Time from due to the result", "outcome")
        text = "Time that frames spent in each stage, the worker's included; `crossing` is broker and link"
        self._stages = self.histogram("skylane_vehicle_stage_seconds", text, "stage")

    def ended(self, record: FrameRecord, _: ModelResult | None) -> None:
        """Adds a frame that has ended. See FrameListener."""
        row = record.row
        self._ended.labels(row.outcome, reason_label(row.reason)).inc()
        times = row.edge_times
        edge, cloud = durations_ns(times), durations_ns(row.cloud_times)
        for stage, duration_ns in (*edge.items(), *cloud.items()):
            self._stages.labels(stage).observe(duration_ns / 1e9)
        if cloud and Stage.RETURNED in edge:
            self._stages.labels(_CROSSING).observe((edge[Stage.RETURNED] - sum(cloud.values())) / 1e9)
        if row.outcome in WITH_RESULT:
            self._frames.labels(row.outcome).observe((max(times.values()) - times[Stage.DUE]) / 1e9)
        if row.clock is not None:
            self._clock_error_s = row.clock.error_ns / 1e9

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield from super().collect()
        counts = self.counts()
        yield GaugeMetricFamily("skylane_vehicle_frames_in_flight", "Frames sent and not ended", counts.in_flight)
        yield CounterMetricFamily("skylane_vehicle_frames_retried", "Frames sent a second time", counts.retried)
        name, text = "skylane_vehicle_answers_ignored", "Replies, echoes and loads that were ignored"
        yield family(CounterMetricFamily, name, text, counts.ignored_answers, "reason")
        if self._clock_error_s is not None:
            text = "Error bound of the offset of a worker's clock, at the latest reply"
            yield GaugeMetricFamily("skylane_vehicle_clock_error_seconds", text, self._clock_error_s)
        if self._uses_broker:
            yield GaugeMetricFamily(BROKER_CONNECTED, "1 while connected to the broker", self._transport.is_connected)


@contextmanager
def open_metrics(config: EdgeConfig, transport: Transport) -> Iterator[VehicleCollector]:
    """Serves the metrics of a run at the configured address.

    Raises:
        SkylaneError: the address cannot be listened on.
    """
    assert config.metrics is not None
    collector = VehicleCollector(config, transport)
    with serve_metrics(config.metrics, collector) as address:
        _LOG.info("metrics ready", address=address)
        yield collector
