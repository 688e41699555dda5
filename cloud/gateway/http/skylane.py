"""The worker's own HTTP routes: its health and metrics, and what a vehicle that sends frames over HTTP needs to know."""

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from cloud.gateway.http.call import Call, respond, worker_of
from shared.messages.node_status import NodeState, pack_status

routes = APIRouter()


@routes.get(
    "/metrics",
    tags=["health"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(call: Call, request: Request) -> Response:
    """Returns the metrics of the worker for Prometheus."""
    text = await asyncio.to_thread(generate_latest, request.app.state.metrics)
    return await respond(call, text, CONTENT_TYPE_LATEST)


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
