"""The Open Inference Protocol's REST routes, version 2, with the additional calls of Triton's clients."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from cloud.gateway.common import repository_calls
from cloud.gateway.common.auth import CallerIdentity
from cloud.gateway.common.inference import start_inference
from cloud.gateway.context import WorkerContext
from cloud.gateway.http.call import HttpCall, read_call, respond, run_sized, wait_for
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.open_inference import models
from cloud.gateway.open_inference.json_messages import (
    ResponseBody,
    json_length,
    listed_bytes,
    read_request,
    write_response,
)
from cloud.gateway.open_inference.models import JsonObject
from cloud.gateway.open_inference.response import output_tensors
from shared.messages.control import ControlReply, Verb

_FRONTEND = "oip-rest"
_HEADER_LENGTH = "Inference-Header-Content-Length"
_JSON, _BINARY = "application/json", "application/octet-stream"


def router(worker: WorkerContext) -> APIRouter:
    """Creates the routes `/v2/…`."""
    routes = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])
    _add_health(routes, worker)
    _add_models(routes, worker)
    _add_infer(routes, worker)
    _add_repository(routes, worker)
    return routes


def _add_health(routes: APIRouter, worker: WorkerContext) -> None:
    """Adds health checks, which need no token. Some clients evaluate only the status, so it also reports readiness."""

    @routes.head("/health/live", include_in_schema=False)
    @routes.get("/health/live", summary="Whether the worker is running")
    async def live() -> JsonObject:
        return {"live": True}

    @routes.head("/health/ready", include_in_schema=False)
    @routes.get("/health/ready", summary="Whether the worker accepts calls", responses=_not_ready(503))
    async def ready(response: Response) -> JsonObject:
        return _readiness(response, is_ready=models.is_ready(worker.submission), status=503)

    @routes.head("/models/{model}/versions/{version}/ready", include_in_schema=False)
    @routes.head("/models/{model}/ready", include_in_schema=False)
    @routes.get("/models/{model}/ready", summary="Whether a model is served", responses=_not_ready(404))
    @routes.get(
        "/models/{model}/versions/{version}/ready", summary="Whether a version is served", responses=_not_ready(404)
    )
    async def model_ready(response: Response, model: str, version: str | None = None) -> JsonObject:
        return _readiness(response, is_ready=models.is_ready(worker.submission, model, version), status=404)


def _not_ready(status: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entry for the response of a check that fails."""
    return {status: {"model": dict[str, bool], "description": "Not ready."}}


def _readiness(response: Response, *, is_ready: bool, status: int) -> JsonObject:
    response.status_code = 200 if is_ready else status
    return {"ready": is_ready}


def _add_models(routes: APIRouter, worker: WorkerContext) -> None:
    @routes.get("", summary="Metadata of the server")
    async def server(request: Request) -> JsonObject:
        await read_call(request, worker)
        return models.server_metadata()

    # Must precede the routes of a model. A model called "stats" can be addressed with its version.
    @routes.get("/models/stats", summary="Statistics of all models since the worker started")
    @routes.get("/models/{model}/stats", summary="Statistics of a model")
    @routes.get("/models/{model}/versions/{version}/stats", summary="Statistics of a version")
    async def statistics(request: Request, model: str = "", version: str | None = None) -> JsonObject:
        await read_call(request, worker)
        return models.statistics(worker, model, version)

    @routes.get("/models/{model}", summary="Inputs and outputs of a model")
    @routes.get("/models/{model}/versions/{version}", summary="Inputs and outputs of a version")
    async def metadata(request: Request, model: str, version: str | None = None) -> JsonObject:
        await read_call(request, worker)
        return models.metadata(worker.submission, model, version)

    @routes.get("/models/{model}/config", summary="Configuration of a model, in Triton's format")
    @routes.get("/models/{model}/versions/{version}/config", summary="Configuration of a version")
    async def config(request: Request, model: str, version: str | None = None) -> JsonObject:
        await read_call(request, worker)
        return models.config(worker.submission, model, version)


def _add_infer(routes: APIRouter, worker: WorkerContext) -> None:
    @routes.post("/models/{model}/infer", summary="Infer", response_model=None)
    @routes.post("/models/{model}/versions/{version}/infer", summary="Infer with a version", response_model=None)
    async def infer(request: Request, model: str, version: str | None = None) -> Response:
        call = await read_call(request, worker)
        header_length = call.headers.get(_HEADER_LENGTH)
        infer_request = await run_sized(
            read_request, call.body, header_length, model, version, size=json_length(call.body, header_length)
        )
        pending = start_inference(worker.submission, infer_request.to_call(call.origin(_FRONTEND, worker)))
        reply = await wait_for(pending, request)
        outputs = output_tensors(infer_request, reply)
        body: ResponseBody = await run_sized(
            write_response,
            infer_request,
            reply.card.version,
            outputs,
            worker.settings.max_message_bytes,
            size=listed_bytes(infer_request, outputs),
        )
        if body.json_length is None:
            return await respond(call, body.data, _JSON, reply)
        response = await respond(call, body.data, _BINARY, reply)
        response.headers[_HEADER_LENGTH] = str(body.json_length)
        return response


def _add_repository(routes: APIRouter, worker: WorkerContext) -> None:
    @routes.post("/repository/index", summary="All models of the repository")
    async def index(request: Request) -> list[JsonObject]:
        call = await read_call(request, worker)
        only_ready = bool(_body(call).get("ready", False))
        reply = await _control(worker, call, Verb.LIST)
        return repository_calls.index(reply.models, only_ready=only_ready)

    @routes.post("/repository/models/{model}/load", summary="Load a model")
    async def load(request: Request, model: str) -> JsonObject:
        return await _change(request, Verb.LOAD, model)

    @routes.post("/repository/models/{model}/unload", summary="Unload a model")
    async def unload(request: Request, model: str) -> JsonObject:
        return await _change(request, Verb.UNLOAD, model)

    async def _change(request: Request, verb: Verb, model: str) -> JsonObject:
        call = await read_call(request, worker)
        repository_calls.check_parameters(_body(call).get("parameters") or {})
        await _control(worker, call, verb, model)
        return {}


def _body(call: HttpCall) -> JsonObject:
    return read_object(call.body) if call.body.strip() else {}


async def _control(worker: WorkerContext, call: HttpCall, verb: Verb, model: str = "") -> ControlReply:
    """Sends a request to control and waits for the reply; control completes it even if the caller disconnects."""
    caller = CallerIdentity(call.caller, call.address)
    # Control reads manifests, which would block the server's thread.
    future = await asyncio.to_thread(repository_calls.send_request, worker, caller, verb, model)
    return repository_calls.check_reply(await asyncio.shield(asyncio.wrap_future(future)))
