"""The worker's own HTTP routes: its health and metrics, and what a vehicle that sends frames over HTTP needs to know."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel

from cloud.gateway.http.call import Call, respond, worker_of
from cloud.node import CloudNode
from cloud.serving.replies import ModelStats
from shared.messages.node_status import NodeState, pack_status

_MODEL_LABELS = ("model", "version")

routes = APIRouter()


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


class _WorkerCollector(Collector):
    """Reads a worker's counters at each scrape."""

    def __init__(self, worker: CloudNode) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        worker, submission = self._worker, self._worker.submission
        models = worker.replier.stats.models
        for name, text, value_of in _MODEL_COUNTERS:
            values = {key: value_of(stats) for key, stats in models.items()}
            yield _family(UntypedMetricFamily, name, f"{text}, cumulative", _MODEL_LABELS, values)
        waiting = dict(submission.admission.depths())
        # The current version of a model is first; waiting frames are attributed to it.
        pending = {(card.name, card.version): waiting.pop(card.name, 0) for card in submission.cards()}
        name = "nv_inference_pending_request_count"
        yield _family(GaugeMetricFamily, name, "Frames waiting", _MODEL_LABELS, pending)

        loads = {served.key: worker.load_meter.load_of(served) for served in worker.served_models.all}
        waits = {key: load.wait_ms / 1e3 for key, load in loads.items()}
        text = "Expected wait of a frame that arrives now until the engine is free for it"
        yield _family(GaugeMetricFamily, "skylane_queue_wait_seconds", text, _MODEL_LABELS, waits)

        refused = {(model, status.value): count for (model, status), count in worker.replier.stats.refused.items()}
        calls = {tuple(name.split(" ")): count for name, count in worker.call_counts.by_name().items()}
        ignored = {(reason,): count for reason, count in worker.ignored.items()}
        errors = {(stage,): count for stage, count in worker.replier.errors.counts.items()}
        counters: tuple[tuple[str, str, tuple[str, ...], Mapping[Any, int]], ...] = (
            ("skylane_frames_refused", "Frames without a result, by outcome", ("model", "outcome"), refused),
            ("skylane_calls", "Calls answered by the gateway, by protocol and code", ("protocol", "code"), calls),
            ("skylane_ignored", "Messages, probes and control requests that were ignored", ("reason",), ignored),
            ("skylane_request_errors", "Requests that failed with an unexpected exception", ("stage",), errors),
        )
        for name, text, labels, counts in counters:
            yield _family(CounterMetricFamily, name, text, labels, counts)

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


def _family(kind: Any, name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """Creates a metric with a sample for each combination of the labels."""
    family: Metric = kind(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)  # type: ignore[attr-defined]  # Each kind has this method.
    return family


@routes.get(
    "/metrics",
    tags=["health"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(call: Call) -> Response:
    """Returns the metrics of the worker for Prometheus."""
    registry = CollectorRegistry()
    registry.register(_WorkerCollector(call.worker))
    ProcessCollector(registry=registry)
    return await respond(call, await asyncio.to_thread(generate_latest, registry), CONTENT_TYPE_LATEST)


_BINARY = "application/octet-stream"
_BINARY_CONTENT: dict[str, Any] = {_BINARY: {"schema": {"type": "string", "format": "binary"}}}


class Health(BaseModel):
    """State of the worker."""

    status: Literal["ready", "unhealthy", "stopping"]
    worker: str
    models: list[str]


@routes.head("/healthz", include_in_schema=False)
@routes.get(
    "/healthz",
    tags=["health"],
    responses={
        503: {"model": Health, "description": "It is stopping, or many requests failed unexpectedly within a minute."}
    },
)
async def health(request: Request, response: Response) -> Health:
    """Tells supervisors and load balancers, which need no token, whether the worker accepts calls."""
    worker = worker_of(request)
    status = worker.submission.status
    state: Literal["ready", "unhealthy", "stopping"] = "stopping"
    if status.state is NodeState.ONLINE:
        state = "ready" if worker.replier.errors.is_healthy else "unhealthy"
    response.status_code = 200 if state == "ready" else 503
    names = list(dict.fromkeys(card.name for card in status.cards))
    return Health(status=state, worker=worker.name, models=names)


@routes.get(
    "/skylane/v1/status",
    tags=["skylane"],
    response_class=Response,
    responses={200: {"content": _BINARY_CONTENT, "description": "A NodeStatus, as the broker retains it."}},
)
async def status(call: Call) -> Response:
    """Returns the worker's state, session, capacity and model cards."""
    return await respond(call, pack_status(call.worker.submission.status), _BINARY)


@routes.post(
    "/skylane/v1/probe",
    tags=["skylane"],
    response_class=Response,
    openapi_extra={"requestBody": {"required": True, "content": _BINARY_CONTENT}},
    responses={200: {"content": _BINARY_CONTENT, "description": "An Echo."}},
)
async def probe(call: Call) -> Response:
    """Measures the offset of the worker's clock."""
    return Response(call.worker.clock_responder.echo_call(call.caller, call.body, call.received_ns), media_type=_BINARY)
