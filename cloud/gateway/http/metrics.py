"""The metrics of a worker for Prometheus, of all its frontends. Some have Triton's names, for existing dashboards."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily

from cloud.node import CloudNode
from cloud.serving.replies import ModelStats, part_ns
from cloud.serving.request import Request
from shared.messages.frame import ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState
from shared.network.address import Certificates
from shared.prometheus import BROKER_CONNECTED, NodeCollector, family
from shared.stages import durations_ns

_MODEL_LABELS = ("model", "version")
_BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)  # Upper bounds of the buckets of batches.


def _time_us(part: str) -> Callable[[ModelStats], float]:
    """Returns a function for the time that answered frames spent in a part of `cloud.serving.replies.TRITON_STAGES`."""
    return lambda stats: part_ns(stats.stages_ns, part) / 1e3


# Cumulative metrics of a model version: their name, text and value.
_MODEL_COUNTERS: tuple[tuple[str, str, Callable[[ModelStats], float]], ...] = (
    ("nv_inference_request_success", "Frames answered", lambda stats: stats.answered),
    ("nv_inference_count", "Frames inferred and answered", lambda stats: stats.answered),
    ("nv_inference_exec_count", "Batches of these frames", lambda stats: round(stats.executions)),
    ("nv_inference_request_duration_us", "Time from receipt to reply", lambda stats: stats.stages_ns.total() / 1e3),
    ("nv_inference_queue_duration_us", "Time in the queues of decoder and engine", _time_us("queue")),
    ("nv_inference_compute_input_duration_us", "Decoding and scaling", _time_us("compute_input")),
    ("nv_inference_compute_infer_duration_us", "Inference", _time_us("compute_infer")),
    ("nv_inference_compute_output_duration_us", "Post-processing and encoding of results", _time_us("compute_output")),
)


class WorkerCollector(NodeCollector):
    """Counts the times of frames from now on, and reads the worker's other counters at each scrape."""

    def __init__(self, worker: CloudNode) -> None:
        config = worker.config
        files = (None if config.no_broker else config.connection.certificates(config.worker)) or Certificates()
        gateway = config.gateway_tls_cert
        super().__init__("worker", authority=files.authority, client=files.certificate, gateway=gateway)
        self._worker = worker
        text = "Time from receipt to reply of answered frames"
        self._frames = self.histogram("skylane_worker_frame_seconds", text, *_MODEL_LABELS)
        text = "Part of it in the queues of decoder and engine"
        self._queues = self.histogram("skylane_worker_queue_seconds", text, *_MODEL_LABELS)
        text = "Time that answered frames spent in each stage; `inferred` is the inference"
        self._stages = self.histogram("skylane_worker_stage_seconds", text, *_MODEL_LABELS, "stage")
        name, text = "skylane_worker_batch_frames", "Frames in each inferred batch"
        self._batches = self.histogram(name, text, *_MODEL_LABELS, bounds=_BATCH_SIZES)
        worker.replier.on_batch.append(self._inferred)
        worker.replier.on_replied.append(self._replied)

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield from super().collect()
        worker, submission = self._worker, self._worker.submission
        models = worker.replier.stats.models
        for name, text, value_of in _MODEL_COUNTERS:
            values = {key: value_of(stats) for key, stats in models.items()}
            yield family(UntypedMetricFamily, name, f"{text}, cumulative", values, *_MODEL_LABELS)
        waiting = dict(submission.admission.depths())
        # The current version of a model is first; waiting frames are attributed to it.
        pending = {(card.name, card.version): waiting.pop(card.name, 0) for card in submission.cards()}
        name = "nv_inference_pending_request_count"
        yield family(GaugeMetricFamily, name, "Frames waiting", pending, *_MODEL_LABELS)
        loads = {served.key: worker.load_meter.load_of(served) for served in worker.served_models.all}
        waits = {key: load.wait_ms / 1e3 for key, load in loads.items()}
        text = "Expected wait of a frame that arrives now until the engine is free for it"
        yield family(GaugeMetricFamily, "skylane_queue_wait_seconds", text, waits, *_MODEL_LABELS)

        refused = {(model, status.value, why): n for (model, status, why), n in worker.replier.stats.refused.items()}
        if unreadable := worker.replier.counts.get("unreadable"):
            refused["", "unreadable", ""] = unreadable
        text = "Frames without a result, by outcome and reason"
        yield family(CounterMetricFamily, "skylane_frames_refused", text, refused, "model", "outcome", "reason")
        calls = {tuple(name.split(" ")): count for name, count in worker.call_counts.by_name().items()}
        text = "Calls answered by the gateway, by protocol and code"
        yield family(CounterMetricFamily, "skylane_calls", text, calls, "protocol", "code")
        text = "Messages, probes and control requests that were ignored"
        yield family(CounterMetricFamily, "skylane_ignored", text, worker.ignored, "reason")
        text = "Requests that failed with an unexpected exception"
        yield family(CounterMetricFamily, "skylane_request_errors", text, worker.replier.errors.counts, "stage")

        text = "Frames without a reply so far, of all models, those in an engine included"
        yield GaugeMetricFamily("skylane_frames_in_flight", text, worker.in_flight.total)
        admission = submission.admission
        yield GaugeMetricFamily("skylane_frames_waiting", "Frames waiting, of all models", admission.depth)
        text = "Maximum number of waiting frames"
        yield GaugeMetricFamily("skylane_frames_waiting_most", text, admission.max_frames)
        text = "1 while the worker accepts frames, 0 while it is stopping"
        yield GaugeMetricFamily("skylane_ready", text, submission.status.state is NodeState.ONLINE)
        if not worker.config.no_broker:
            is_connected = worker.bus is not None and worker.bus.is_connected
            yield GaugeMetricFamily(BROKER_CONNECTED, "1 while connected to the broker", is_connected)

    def _inferred(self, card: ModelCard, frames: int) -> None:
        self._batches.labels(card.name, card.version).observe(frames)

    def _replied(self, request: Request, reply: ResultMessage) -> None:
        if reply.status is not Status.ANSWERED:
            return
        model = reply.model, reply.model_version
        durations = durations_ns(request.own_times)
        for stage, duration_ns in durations.items():
            self._stages.labels(*model, stage).observe(duration_ns / 1e9)
        self._queues.labels(*model).observe(part_ns(durations, "queue") / 1e9)
        self._frames.labels(*model).observe(sum(durations.values()) / 1e9)
