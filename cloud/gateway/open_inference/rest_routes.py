"""The Open Inference Protocol's REST routes, version 2, with the additional calls of Triton's clients."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from cloud.gateway.common import repository_calls
from cloud.gateway.common.inference import start_inference
from cloud.gateway.common.tensors import byte_size
from cloud.gateway.http.call import Call, HttpCall, respond, run_sized, wait_for, worker_of
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.open_inference import models
from cloud.gateway.open_inference.json_messages import json_length, read_request, write_response
from cloud.gateway.open_inference.models import JsonObject
from cloud.gateway.open_inference.response import output_tensors
from shared.messages.control import ControlReply, Verb

_FRONTEND = "oip-rest"
_HEADER_LENGTH = "Inference-Header-Content-Length"
_JSON, _BINARY = "application/json", "application/octet-stream"
_MODEL, _VERSION = "/models/{model}", "/models/{model}/versions/{version}"
_NOT_READY = {"model": dict[str, bool], "description": "Not ready."}  # OpenAPI's entry for a check that fails.

routes = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])


# Health checks need no token. Some clients evaluate only the status, so it also reports readiness.


@routes.head("/health/live", include_in_schema=False)
@routes.get("/health/live")
async def live() -> JsonObject:
    """Tells that the worker is running."""
    return {"live": True}


@routes.head("/health/ready", include_in_schema=False)
@routes.get("/health/ready", responses={503: _NOT_READY})
async def ready(request: Request, response: Response) -> JsonObject:
    """Tells whether the worker accepts calls."""
    return _readiness(response, is_ready=models.is_ready(worker_of(request)), status=503)


@routes.head(f"{_VERSION}/ready", include_in_schema=False)
@routes.head(f"{_MODEL}/ready", include_in_schema=False)
@routes.get(f"{_MODEL}/ready", responses={404: _NOT_READY})
@routes.get(f"{_VERSION}/ready", responses={404: _NOT_READY})
async def model_ready(request: Request, response: Response, model: str, version: str | None = None) -> JsonObject:
    """Tells whether a model, or a version of it, is served."""
    return _readiness(response, is_ready=models.is_ready(worker_of(request), model, version), status=404)


def _readiness(response: Response, *, is_ready: bool, status: int) -> JsonObject:
    response.status_code = 200 if is_ready else status
    return {"ready": is_ready}


@routes.get("")
async def server(_: Call) -> JsonObject:
    """Returns the metadata of the server."""
    return models.server_metadata()


def _describing(describe: Callable[..., JsonObject]) -> Callable[..., Any]:
    """Creates a route from a function of the worker and the name and version of a model."""

    async def respond(call: Call, model: str = "", version: str | None = None) -> JsonObject:
        return describe(call.worker, model, version)

    return respond


# Statistics of all models must precede the routes of a model. A model called "stats" can be addressed with its version.
for _path, _summary, _describe in (
    ("/models/stats", "Statistics of all models since the worker started", models.statistics),
    (f"{_MODEL}/stats", "Statistics of a model", models.statistics),
    (f"{_VERSION}/stats", "Statistics of a version", models.statistics),
    (_MODEL, "Inputs and outputs of a model", models.metadata),
    (_VERSION, "Inputs and outputs of a version", models.metadata),
    (f"{_MODEL}/config", "Configuration of a model, in Triton's format", models.config),
    (f"{_VERSION}/config", "Configuration of a version", models.config),
):
    routes.get(_path, summary=_summary)(_describing(_describe))


@routes.post(f"{_MODEL}/infer", response_model=None)
@routes.post(f"{_VERSION}/infer", response_model=None)
async def infer(call: Call, model: str, version: str | None = None) -> Response:
    """Infers with the current version of a model, or with another one."""
    header_length = call.headers.get(_HEADER_LENGTH)
    request = await run_sized(
        read_request, call.body, header_length, model, version, size=json_length(call.body, header_length)
    )
    reply = await wait_for(call, start_inference(call.worker.submission, request.to_call(call.origin(_FRONTEND))))
    outputs = output_tensors(request, reply)
    max_bytes = call.worker.settings.max_message_bytes
    size = sum(map(byte_size, reply.outputs.values()))
    body, length = await run_sized(write_response, request, reply.card.version, outputs, max_bytes, size=size)
    response = await respond(call, body, _JSON if length is None else _BINARY, reply)
    if length is not None:
        response.headers[_HEADER_LENGTH] = str(length)
    return response


@routes.post("/repository/index")
async def index(call: Call) -> list[JsonObject]:
    """Lists all models of the repository."""
    only_ready = _body(call).get("ready") is True
    return repository_calls.index((await _control(call, Verb.LIST)).models, only_ready=only_ready)


@routes.post("/repository/models/{model}/load")
async def load(call: Call, model: str) -> JsonObject:
    """Loads a model."""
    return await _change(call, Verb.LOAD, model)


@routes.post("/repository/models/{model}/unload")
async def unload(call: Call, model: str) -> JsonObject:
    """Unloads a model."""
    return await _change(call, Verb.UNLOAD, model)


async def _change(call: HttpCall, verb: Verb, model: str) -> JsonObject:
    repository_calls.check_parameters(_body(call).get("parameters"))
    await _control(call, verb, model)
    return {}


def _body(call: HttpCall) -> JsonObject:
    return read_object(call.body) if call.body.strip() else {}


async def _control(call: HttpCall, verb: Verb, model: str = "") -> ControlReply:
    """Sends a request to control and waits for the reply; control completes it even if the caller disconnects."""
    # Control reads manifests, which would block the server's thread.
    future = await asyncio.to_thread(repository_calls.send_request, call.worker, call.caller, call.address, verb, model)
    return repository_calls.check_reply(await asyncio.shield(asyncio.wrap_future(future)))
