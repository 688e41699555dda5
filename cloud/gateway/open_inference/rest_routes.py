"""The Open Inference Protocol's REST, version 2, with the calls that Triton's clients make besides."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from cloud.gateway.common import repository_calls
from cloud.gateway.common.auth import Caller
from cloud.gateway.common.inference import Reply, ask
from cloud.gateway.context import WorkerContext
from cloud.gateway.http.call import HttpCall, answered, aside, read, response
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.open_inference import models
from cloud.gateway.open_inference.json_messages import Written, json_bytes, listed_bytes, read_request, write_answer
from cloud.gateway.open_inference.request import InferRequest
from cloud.gateway.open_inference.response import outputs
from shared.messages.control import ControlReply, Verb

_DOOR = "oip-rest"
_HEADER_LENGTH = "Inference-Header-Content-Length"
_JSON, _BINARY = "application/json", "application/octet-stream"

Told = dict[str, Any]


def router(parts: WorkerContext) -> APIRouter:
    """`/v2`."""
    routes = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])
    _add_health(routes, parts)
    _add_models(routes, parts)
    _add_infer(routes, parts)
    _add_repository(routes, parts)
    return routes


def _add_health(routes: APIRouter, parts: WorkerContext) -> None:
    """Whoever watches a worker needs no token, and some watchers want the status alone."""

    @routes.head("/health/live", include_in_schema=False)
    @routes.get("/health/live", summary="Whether the worker is there")
    async def live() -> Told:
        return {"live": True}

    @routes.head("/health/ready", include_in_schema=False)
    @routes.get("/health/ready", summary="Whether it takes calls", responses=_not_ready(503))
    async def ready(answer: Response) -> Told:
        return _readiness(answer, is_ready=models.is_ready(parts.door), absent=503)

    @routes.head("/models/{model}/versions/{version}/ready", include_in_schema=False)
    @routes.head("/models/{model}/ready", include_in_schema=False)
    @routes.get("/models/{model}/ready", summary="Whether it takes calls of a model", responses=_not_ready(404))
    @routes.get("/models/{model}/versions/{version}/ready", summary="The same, of a version", responses=_not_ready(404))
    async def model_ready(answer: Response, model: str, version: str | None = None) -> Told:
        return _readiness(answer, is_ready=models.is_ready(parts.door, model, version), absent=404)


def _not_ready(status: int) -> dict[int | str, dict[str, Any]]:
    """How a route's document tells that it says so by a status too."""
    return {status: {"model": dict[str, bool], "description": "It does not."}}


def _readiness(answer: Response, *, is_ready: bool, absent: int) -> Told:
    answer.status_code = 200 if is_ready else absent
    return {"ready": is_ready}


def _add_models(routes: APIRouter, parts: WorkerContext) -> None:
    @routes.get("", summary="What the server is")
    async def server(request: Request) -> Told:
        await read(request, parts)
        return models.server()

    # Before the routes of a model, of which none can be called so: it would be asked for by its version.
    @routes.get("/models/stats", summary="What each model has done since the worker started")
    @routes.get("/models/{model}/stats", summary="The same, of a model")
    @routes.get("/models/{model}/versions/{version}/stats", summary="The same, of a version")
    async def statistics(request: Request, model: str = "", version: str | None = None) -> Told:
        await read(request, parts)
        return models.statistics(parts, model, version)

    @routes.get("/models/{model}", summary="A model's inputs and outputs")
    @routes.get("/models/{model}/versions/{version}", summary="The same, of a version")
    async def metadata(request: Request, model: str, version: str | None = None) -> Told:
        await read(request, parts)
        return models.metadata(parts.door, model, version)

    @routes.get("/models/{model}/config", summary="A model's configuration, as Triton tells it")
    @routes.get("/models/{model}/versions/{version}/config", summary="The same, of a version")
    async def config(request: Request, model: str, version: str | None = None) -> Told:
        await read(request, parts)
        return models.config(parts.door, model, version)


def _add_infer(routes: APIRouter, parts: WorkerContext) -> None:
    @routes.post("/models/{model}/infer", summary="Infer", response_model=None)
    @routes.post("/models/{model}/versions/{version}/infer", summary="Infer by a version", response_model=None)
    async def infer(request: Request, model: str, version: str | None = None) -> Response:
        call = await read(request, parts)
        header_length = call.headers.get(_HEADER_LENGTH)
        wanted = await aside(
            read_request, call.body, header_length, model, version, size=json_bytes(call.body, header_length)
        )
        asked = ask(
            parts.door,
            wanted.call(
                _DOOR,
                call.caller,
                received_ns=call.received_ns,
                max_reply_bytes=parts.settings.max_message_bytes,
                budget_ms=call.budget_ms,
                frame=call.frame,
            ),
        )
        return await _answer(call, wanted, await answered(asked, request), parts.settings.max_message_bytes)


async def _answer(call: HttpCall, wanted: InferRequest, reply: Reply, largest: int) -> Response:
    found = outputs(wanted, reply)
    size = listed_bytes(wanted, found)
    written: Written = await aside(write_answer, wanted, reply.card.version, found, largest, size=size)
    if written.header_length is None:
        return await response(call, written.body, _JSON, reply)
    answer = await response(call, written.body, _BINARY, reply)
    answer.headers[_HEADER_LENGTH] = str(written.header_length)
    return answer


def _add_repository(routes: APIRouter, parts: WorkerContext) -> None:
    @routes.post("/repository/index", summary="The models that there are")
    async def index(request: Request) -> list[Told]:
        call = await read(request, parts)
        ready_alone = bool(_body(call).get("ready", False))
        reply = await _ordered(parts, call, Verb.LIST)
        return repository_calls.index(reply.models, ready_alone=ready_alone)

    @routes.post("/repository/models/{model}/load", summary="Load a model")
    async def load(request: Request, model: str) -> Told:
        return await _change(request, Verb.LOAD, model)

    @routes.post("/repository/models/{model}/unload", summary="Unload a model")
    async def unload(request: Request, model: str) -> Told:
        return await _change(request, Verb.UNLOAD, model)

    async def _change(request: Request, verb: Verb, model: str) -> Told:
        call = await read(request, parts)
        repository_calls.check_parameters(_body(call).get("parameters") or {})
        await _ordered(parts, call, verb, model)
        return {}


def _body(call: HttpCall) -> Told:
    return read_object(call.body) if call.body.strip() else {}


async def _ordered(parts: WorkerContext, call: HttpCall, verb: Verb, model: str = "") -> ControlReply:
    """What control replies; what is ordered is done even where nobody waits for it any more."""
    future = await asyncio.to_thread(
        repository_calls.order, parts, Caller(call.caller, call.address), verb, model
    )  # It reads manifests.
    return repository_calls.checked_reply(await asyncio.shield(asyncio.wrap_future(future)))
