"""`GET /metrics` for Prometheus: frames of all frontends, MQTT included.

Metrics that Triton also has carry Triton's name and unit, so that its dashboards work unchanged; all others begin with
`skylane_`. Triton's counters lack the suffix that the library appends to counters, so they are written as untyped.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.registry import Collector

from cloud.gateway.context import WorkerContext
from cloud.gateway.http.call import read_call, respond
from cloud.serving.model_stats import ModelStats
from shared.messages.node_status import NodeState

_MODEL_LABELS = ("model", "version")


class _ModelCounter(NamedTuple):
    """A cumulative metric of a model version."""

    name: str
    text: str
    value: Callable[[ModelStats], float]


def _time_us(part: str) -> Callable[[ModelStats], float]:
    """Returns a function for the time that answered frames spent in a part of `cloud.serving.model_stats.SPENT`."""
    return lambda stats: stats.stage_ns(part) / 1e3


_MODEL_COUNTERS = (
    _ModelCounter("nv_inference_request_success", "Frames answered", lambda stats: stats.answered),
    _ModelCounter("nv_inference_count", "Frames inferred and answered", lambda stats: stats.answered),
    _ModelCounter("nv_inference_exec_count", "Batches of these frames", lambda stats: round(stats.executions)),
    _ModelCounter(
        "nv_inference_request_duration_us", "Time from receipt to reply", lambda stats: stats.stages_ns.total() / 1e3
    ),
    _ModelCounter("nv_inference_queue_duration_us", "Time in the queues of decoder and engine", _time_us("queue")),
    _ModelCounter("nv_inference_compute_input_duration_us", "Decoding and scaling", _time_us("compute_input")),
    _ModelCounter("nv_inference_compute_infer_duration_us", "Inference", _time_us("compute_infer")),
    _ModelCounter(
        "nv_inference_compute_output_duration_us", "Post-processing and encoding of results", _time_us("compute_output")
    ),
)


class WorkerCollector(Collector):
    """Reads a worker's counters at each scrape."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield from self._models()
        yield from self._frames()
        yield from self._calls()

    def _models(self) -> Iterator[Metric]:
        models = self._worker.model_stats.models
        for each in _MODEL_COUNTERS:
            counter = UntypedMetricFamily(each.name, f"{each.text}, cumulative", labels=_MODEL_LABELS)
            for key, stats in models.items():
                counter.add_metric(key, each.value(stats))
            yield counter
        waiting = self._worker.submission.depths()
        pending = GaugeMetricFamily("nv_inference_pending_request_count", "Frames waiting", labels=_MODEL_LABELS)
        seen: set[str] = set()
        # The current version of a model is first; waiting frames are attributed to it.
        for card in self._worker.submission.cards():
            pending.add_metric((card.name, card.version), 0 if card.name in seen else waiting.get(card.name, 0))
            seen.add(card.name)
        yield pending

    def _frames(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "skylane_frames_refused", "Frames without a result, by outcome", labels=("model", "outcome")
        )
        for (model, status), count in self._worker.model_stats.refused.items():
            refused.add_metric((model, status.value), count)
        yield refused
        ignored = CounterMetricFamily(
            "skylane_ignored", "Messages, probes and control requests that were ignored", labels=("reason",)
        )
        for reason, count in self._worker.ignored_messages().items():
            ignored.add_metric((reason,), count)
        yield ignored
        submission = self._worker.submission
        yield GaugeMetricFamily("skylane_frames_waiting", "Frames waiting, of all models", submission.depth)
        yield GaugeMetricFamily(
            "skylane_frames_waiting_most", "Maximum number of waiting frames", submission.max_images
        )

    def _calls(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "skylane_calls", "Calls answered by the gateway, by protocol and code", labels=("protocol", "code")
        )
        for name, count in self._worker.call_counts.by_name().items():
            calls.add_metric(name.split(" "), count)
        yield calls
        errors = CounterMetricFamily(
            "skylane_request_errors", "Requests that failed with an unexpected exception", labels=("stage",)
        )
        for stage, count in self._worker.request_errors.counts.items():
            errors.add_metric((stage,), count)
        yield errors
        is_online = self._worker.submission.status.state is NodeState.ONLINE
        yield GaugeMetricFamily("skylane_ready", "1 while the worker accepts frames, 0 while it is stopping", is_online)


def router(worker: WorkerContext) -> APIRouter:
    """Creates the route `/metrics`."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker))
    ProcessCollector(registry=registry)
    routes = APIRouter(tags=["health"])

    @routes.get(
        "/metrics",
        summary="Metrics of the worker for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(request: Request) -> Response:
        call = await read_call(request, worker)
        text = await asyncio.to_thread(generate_latest, registry)
        return await respond(call, text, CONTENT_TYPE_LATEST)

    return routes
