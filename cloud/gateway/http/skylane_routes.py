"""Skylane's own messages over HTTP: what a vehicle that sends frames by REST must know of a worker."""

from typing import Any

from fastapi import APIRouter, Request, Response

from cloud.gateway.common.clock_probe import echo
from cloud.gateway.context import WorkerContext
from cloud.gateway.http.call import read, response
from shared.messages.node_status import pack_status

_BINARY = "application/octet-stream"
_BYTES: dict[str, Any] = {_BINARY: {"schema": {"type": "string", "format": "binary"}}}


def router(parts: WorkerContext) -> APIRouter:
    """`/skylane/v1/…`."""
    routes = APIRouter(prefix="/skylane/v1", tags=["skylane"], default_response_class=Response)

    @routes.get(
        "/status",
        summary="The worker's state, session, capacity and model cards",
        responses={200: {"content": _BYTES, "description": "A NodeStatus, as the broker retains it."}},
    )
    async def status(request: Request) -> Response:
        call = await read(request, parts)
        return await response(call, pack_status(parts.door.status), _BINARY)

    @routes.post(
        "/probe",
        summary="What the worker's clock says",
        openapi_extra={"requestBody": {"required": True, "content": _BYTES}},
        responses={200: {"content": _BYTES, "description": "An Echo."}},
    )
    async def probe(request: Request) -> Response:
        call = await read(request, parts)
        return Response(echo(parts, call.caller, call.body, call.received_ns), media_type=_BINARY)

    return routes
