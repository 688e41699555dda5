"""Skylane's own HTTP routes: what a vehicle that sends frames over HTTP needs to know about a worker."""

from typing import Any

from fastapi import APIRouter, Request, Response

from cloud.gateway.context import WorkerContext
from cloud.gateway.http.call import read_call, respond
from shared.messages.node_status import pack_status

_BINARY = "application/octet-stream"
_BINARY_CONTENT: dict[str, Any] = {_BINARY: {"schema": {"type": "string", "format": "binary"}}}


def router(worker: WorkerContext) -> APIRouter:
    """Creates the routes `/skylane/v1/…`."""
    routes = APIRouter(prefix="/skylane/v1", tags=["skylane"], default_response_class=Response)

    @routes.get(
        "/status",
        summary="The worker's state, session, capacity and model cards",
        responses={200: {"content": _BINARY_CONTENT, "description": "A NodeStatus, as the broker retains it."}},
    )
    async def status(request: Request) -> Response:
        call = await read_call(request, worker)
        return await respond(call, pack_status(worker.submission.status), _BINARY)

    @routes.post(
        "/probe",
        summary="Measure the offset of the worker's clock",
        openapi_extra={"requestBody": {"required": True, "content": _BINARY_CONTENT}},
        responses={200: {"content": _BINARY_CONTENT, "description": "An Echo."}},
    )
    async def probe(request: Request) -> Response:
        call = await read_call(request, worker)
        return Response(worker.answer_probe(call.caller, call.body, call.received_ns), media_type=_BINARY)

    return routes
