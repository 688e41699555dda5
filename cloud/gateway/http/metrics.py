"""`GET /metrics`: what the worker has done, for Prometheus; frames of all doors, the broker's among them.

What Triton tells too has Triton's name and unit, so that its dashboards work as they are; all else begins with
`skylane_`. Triton's counters lack the ending that the library gives to its own, so they are written as untyped ones.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.registry import Collector

from cloud.gateway.context import WorkerContext
from cloud.gateway.http.call import read, response
from cloud.serving.model_stats import ModelStats
from shared.messages.node_status import NodeState

_MODEL = ("model", "version")


class _Sum(NamedTuple):
    """A number of a version of a model that only grows."""

    name: str
    text: str
    value: Callable[[ModelStats], float]


def _spent(part: str) -> Callable[[ModelStats], float]:
    """Microseconds that answered frames spent in one of cloud.serving.model_stats.SPENT."""
    return lambda tally: tally.stage_ns(part) / 1e3


_SUMS = (
    _Sum("nv_inference_request_success", "Frames answered", lambda tally: tally.answered),
    _Sum("nv_inference_count", "Frames inferred and answered", lambda tally: tally.answered),
    _Sum("nv_inference_exec_count", "Batches they were inferred in", lambda tally: round(tally.executions)),
    _Sum("nv_inference_request_duration_us", "From received to replied", lambda tally: tally.stages_ns.total() / 1e3),
    _Sum(
        "nv_inference_queue_duration_us",
        "Waiting: for a decoder, and decoded for the engine",
        _spent("queue"),
    ),
    _Sum("nv_inference_compute_input_duration_us", "Decoding and scaling", _spent("compute_input")),
    _Sum("nv_inference_compute_infer_duration_us", "Inference", _spent("compute_infer")),
    _Sum(
        "nv_inference_compute_output_duration_us",
        "Making results and encoding them",
        _spent("compute_output"),
    ),
)


class WorkerCollector(Collector):
    """Reads a worker's counts whenever it is asked."""

    def __init__(self, parts: WorkerContext) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield from self._of_models()
        yield from self._of_frames()
        yield from self._of_calls()

    def _of_models(self) -> Iterator[Metric]:
        models = self._parts.tally.models
        for each in _SUMS:
            told = UntypedMetricFamily(each.name, f"{each.text}, cumulative", labels=_MODEL)
            for key, tally in models.items():
                told.add_metric(key, each.value(tally))
            yield told
        waiting = self._parts.door.depths()
        pending = GaugeMetricFamily("nv_inference_pending_request_count", "Frames that wait", labels=_MODEL)
        seen: set[str] = set()
        for card in self._parts.door.cards():  # Of each model the current version first: frames that name none are its.
            pending.add_metric((card.name, card.version), 0 if card.name in seen else waiting.get(card.name, 0))
            seen.add(card.name)
        yield pending

    def _of_frames(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "skylane_frames_refused", "Frames that got no result, by what became of them", labels=("model", "outcome")
        )
        for (model, status), count in self._parts.tally.refused.items():
            refused.add_metric((model, status.value), count)
        yield refused
        ignored = CounterMetricFamily(
            "skylane_ignored", "Messages, probes and orders that came and were not taken", labels=("reason",)
        )
        for reason, count in self._parts.refused().items():
            ignored.add_metric((reason,), count)
        yield ignored
        yield GaugeMetricFamily("skylane_frames_waiting", "Frames that wait, of all models", self._parts.door.depth)
        yield GaugeMetricFamily("skylane_frames_waiting_most", "How many may", self._parts.door.max_images)

    def _of_calls(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "skylane_calls", "Calls answered at the gateway, by protocol and code", labels=("protocol", "code")
        )
        for name, count in self._parts.calls.by_name().items():
            calls.add_metric(name.split(" "), count)
        yield calls
        errors = CounterMetricFamily(
            "skylane_request_errors", "Requests that failed by an unexpected exception", labels=("stage",)
        )
        for stage, count in self._parts.errors.counts.items():
            errors.add_metric((stage,), count)
        yield errors
        is_online = self._parts.door.status.state is NodeState.ONLINE
        yield GaugeMetricFamily("skylane_ready", "1 while the worker takes frames, 0 when it is stopping", is_online)


def router(parts: WorkerContext) -> APIRouter:
    """`/metrics`."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(parts))
    ProcessCollector(registry=registry)
    routes = APIRouter(tags=["health"])

    @routes.get(
        "/metrics",
        summary="What the worker has done, for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(request: Request) -> Response:
        call = await read(request, parts)
        told = await asyncio.to_thread(generate_latest, registry)
        return await response(call, told, CONTENT_TYPE_LATEST)

    return routes
