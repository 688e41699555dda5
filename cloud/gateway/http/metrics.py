"""The metrics of a worker for Prometheus, of all its frontends. Some have Triton's names, for existing dashboards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.registry import Collector

from cloud.node import CloudNode
from cloud.serving.replies import ModelStats
from shared.histogram import Histogram
from shared.messages.node_status import NodeState
from shared.network.tls import CertificateError
from shared.prometheus import BROKER_CONNECTED, counters, family, histograms, node_families

_MODEL_LABELS = ("model", "version")
_REFUSED_LABELS = ("model", "outcome", "reason")


def _time_us(part: str) -> Callable[[ModelStats], float]:
    """Returns a function for the time that answered frames spent in a part of `cloud.serving.replies.TRITON_STAGES`."""
    return lambda stats: stats.stage_ns(part) / 1e3


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

_MODEL_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelStats], Histogram]], ...] = (
    ("skylane_worker_frame_seconds", "Time from receipt to reply of answered frames", lambda stats: stats.frames),
    ("skylane_worker_queue_seconds", "Part of it in the queues of decoder and engine", lambda stats: stats.queues),
    ("skylane_worker_batch_frames", "Frames in each inferred batch", lambda stats: stats.batches),
)


class WorkerCollector(Collector):
    """Reads a worker's counters at each scrape."""

    def __init__(self, worker: CloudNode) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        worker, submission = self._worker, self._worker.submission
        models = worker.replier.stats.models
        for name, text, value_of in _MODEL_COUNTERS:
            values = {key: value_of(stats) for key, stats in models.items()}
            yield family(UntypedMetricFamily, name, f"{text}, cumulative", _MODEL_LABELS, values)
        waiting = dict(submission.admission.depths())
        # The current version of a model is first; waiting frames are attributed to it.
        pending = {(card.name, card.version): waiting.pop(card.name, 0) for card in submission.cards()}
        name = "nv_inference_pending_request_count"
        yield family(GaugeMetricFamily, name, "Frames waiting", _MODEL_LABELS, pending)

        loads = {served.key: worker.load_meter.load_of(served) for served in worker.served_models.all}
        waits = {key: load.wait_ms / 1e3 for key, load in loads.items()}
        text = "Expected wait of a frame that arrives now until the engine is free for it"
        yield family(GaugeMetricFamily, "skylane_queue_wait_seconds", text, _MODEL_LABELS, waits)

        for name, text, histogram_of in _MODEL_HISTOGRAMS:
            yield histograms(name, text, _MODEL_LABELS, {key: histogram_of(stats) for key, stats in models.items()})
        stages = {(*key, stage.value): each for key, stats in models.items() for stage, each in stats.stages.items()}
        text = "Time that answered frames spent in each stage; `inferred` is the inference"
        yield histograms("skylane_worker_stage_seconds", text, (*_MODEL_LABELS, "stage"), stages)

        refused = {(model, status.value, why): n for (model, status, why), n in worker.replier.stats.refused.items()}
        if unreadable := worker.replier.counts.get("unreadable"):
            refused["", "unreadable", ""] = unreadable
        calls = {tuple(name.split(" ")): count for name, count in worker.call_counts.by_name().items()}
        ignored = {(reason,): count for reason, count in worker.ignored.items()}
        errors = {(stage,): count for stage, count in worker.replier.errors.counts.items()}
        counts: tuple[tuple[str, str, tuple[str, ...], Mapping[Any, int]], ...] = (
            ("skylane_frames_refused", "Frames without a result, by outcome and reason", _REFUSED_LABELS, refused),
            ("skylane_calls", "Calls answered by the gateway, by protocol and code", ("protocol", "code"), calls),
            ("skylane_ignored", "Messages, probes and control requests that were ignored", ("reason",), ignored),
            ("skylane_request_errors", "Requests that failed with an unexpected exception", ("stage",), errors),
        )
        for each in counts:
            yield counters(*each)

        is_ready = submission.status.state is NodeState.ONLINE
        gauges = (
            (
                "skylane_frames_in_flight",
                "Frames without a reply so far, of all models, those in an engine included",
                worker.in_flight.total,
            ),
            ("skylane_frames_waiting", "Frames waiting, of all models", submission.admission.depth),
            ("skylane_frames_waiting_most", "Maximum number of waiting frames", submission.admission.max_frames),
            ("skylane_ready", "1 while the worker accepts frames, 0 while it is stopping", is_ready),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value)
        if not worker.config.no_broker:
            yield GaugeMetricFamily(BROKER_CONNECTED, "1 while connected to the broker", worker.is_connected)
        yield from node_families("worker", self._certificates())

    def _certificates(self) -> Mapping[str, Any]:
        config = self._worker.config
        with suppress(CertificateError):  # A file was removed since the start.
            files = None if config.no_broker else config.connection.certificates(config.worker)
            own = {} if files is None else {"authority": files.authority, "client": files.certificate}
            return {**own, "gateway": config.gateway_tls_cert}
        return {"gateway": config.gateway_tls_cert}
