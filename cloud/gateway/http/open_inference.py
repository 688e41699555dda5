"""The Open Inference Protocol's REST routes, version 2, with the additional calls of Triton's clients."""

import asyncio
import base64
import binascii
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response

from cloud.gateway.common import open_inference
from cloud.gateway.common.inference import start_inference
from cloud.gateway.common.open_inference import (
    InferRequest,
    InputTensor,
    JsonObject,
    OutputTensor,
    RequestedOutput,
    output_tensors,
    read_input,
)
from cloud.gateway.common.tensors import IMAGES, RESULTS, SizeBudget, Tensor, byte_size
from cloud.gateway.http.call import Call, HttpCall, respond, run_sized, wait_for, worker_of
from cloud.gateway.http.json_body import read_object, write_array
from cloud.serving.errors import InvalidError
from shared.compression import Buffer
from shared.messages.control import ControlReply, Verb
from shared.messages.open_inference_tensors import BYTES, check_shape
from shared.messages.tensors import MAX_TENSORS, TensorsError, cast_checked

_SIZE, _BINARY_DATA, _ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
_BASE64 = {"content_type": "base64"}  # MLServer's parameter for strings that are not text.


class _JsonOutput(msgspec.Struct):
    """A requested output."""

    name: str
    parameters: dict[str, Any] | None = None


class _JsonInput(msgspec.Struct):
    """An input; lists of whole numbers are arrays."""

    name: str
    datatype: str
    shape: Any
    parameters: dict[str, Any] | None = None
    data: Any = None


class _JsonRequest(msgspec.Struct):
    """The JSON of a request."""

    inputs: Annotated[list[_JsonInput], msgspec.Meta(max_length=MAX_TENSORS)]
    outputs: Annotated[list[_JsonOutput], msgspec.Meta(max_length=MAX_TENSORS)] | None = None
    id: str | None = None
    parameters: dict[str, Any] | None = None


def read_request(body: bytes, header_length: str | None, model: str, version: str | None) -> InferRequest:
    """Parses the body of a request; `header_length` is the header Inference-Header-Content-Length."""
    end = json_length(body, header_length)
    try:
        request = msgspec.convert(read_object(body[:end]), _JsonRequest)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the JSON is not an inference request: {error}") from error
    except AttributeError as error:  # msgspec takes an array for a mapping.
        raise InvalidError("the JSON has a list of numbers in place of an object: send an object") from error
    inputs: list[InputTensor] = []
    binary = memoryview(body)[end:]
    for each in request.inputs:
        size = (each.parameters or {}).get(_SIZE)
        raw = None
        if size is not None:
            raw, binary = _split(binary, each.name, size)
        inputs.append(_input(each, raw))
    if binary:
        raise InvalidError(f"{len(binary)} bytes of the body belong to no input: send each input's {_SIZE}")
    outputs = tuple(RequestedOutput(each.name, each.parameters or {}) for each in request.outputs or ())
    return InferRequest(model, version, request.id or "", request.parameters or {}, tuple(inputs), outputs)


def json_length(body: bytes, header_length: str | None) -> int:
    """Returns the number of bytes of a request's body that are JSON."""
    size = len(body)
    if header_length is None:
        return size
    is_number = header_length.isascii() and header_length.isdigit() and len(header_length) <= len(str(size))
    if not is_number or int(header_length) > size:
        raise InvalidError(
            f"Inference-Header-Content-Length is {header_length[:40]!r}: send the number of JSON bytes, at most {size}"
        )
    return int(header_length)


def write_response(
    request: InferRequest, version: str, outputs: tuple[OutputTensor, ...], max_bytes: int
) -> tuple[bytes, int | None]:
    """Writes the body of a response; each output is binary or JSON, as requested.

    Returns the body, and the number of bytes of JSON at its start if binary data follows.
    """
    has_json_output = any(not _is_binary(request, output.name) for output in outputs)
    budget = SizeBudget(max_bytes, ", as JSON and binary", f", or set {_ALL_BINARY}" if has_json_output else "")
    entries: list[dict[str, Any]] = []
    binary_parts: list[Buffer] = []
    for output in outputs:
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if _is_binary(request, output.name):
            raw = output.raw()
            size = sum(len(part) for part in raw)
            budget.charge(size)
            entry["parameters"] = {_SIZE: size}
            binary_parts += raw
        elif isinstance(output.values, np.ndarray):
            entry["data"] = msgspec.Raw(write_array(output.values.reshape(-1), budget))
        else:
            if output.name == RESULTS:
                entry["parameters"] = _BASE64
                texts = [base64.b64encode(each).decode() for each in output.values]
            else:
                texts = [bytes(each).decode(errors="replace") for each in output.values]
            entry["data"] = msgspec.Raw(budget.charged(msgspec.json.encode(texts)))
        entries.append(entry)
    head = {"model_name": request.model, "model_version": version} | ({"id": request.id} if request.id else {})
    text = msgspec.json.encode({**head, "outputs": entries})
    if not binary_parts:
        return text, None
    return b"".join([text, *binary_parts]), len(text)  # The only copy of the numbers.


def _is_binary(request: InferRequest, output: str) -> bool:
    value = next(
        (
            each.parameters[_BINARY_DATA]
            for each in request.outputs
            if each.name == output and _BINARY_DATA in each.parameters
        ),
        request.parameters.get(_ALL_BINARY),
    )
    return isinstance(value, int) and bool(value)  # bool is an int, an array is not.


def _split(data: memoryview, name: str, size: Any) -> tuple[memoryview, memoryview]:
    """Splits the binary data of an input from that of the following ones."""
    if type(size) is not int or not 0 <= size <= len(data):
        raise InvalidError(
            f"input {name[:40]!r}: {_SIZE} is {str(size)[:40]!r}, but {len(data)} bytes of the body remain: send all data"
        )
    return data[:size], data[size:]


def _input(entry: _JsonInput, raw: Buffer | None) -> InputTensor:
    if raw is not None and entry.data is not None:
        raise InvalidError(f"input {entry.name[:40]!r} has both data and {_SIZE}: send one of them")
    shape = entry.shape.tolist() if isinstance(entry.shape, np.ndarray) and entry.shape.ndim == 1 else entry.shape
    if not isinstance(shape, list) or (shape and shape is entry.shape):
        raise InvalidError(f"input {entry.name[:40]!r}: shape must be a list of whole numbers: send that")
    return read_input(
        entry.name, entry.datatype, shape, entry.parameters or {}, raw=raw, read_values=lambda: _tensor(entry, shape)
    )


def _tensor(entry: _JsonInput, shape: list[int]) -> Tensor:
    """Converts values in JSON, which are a flat list or nested as the shape.

    Raises:
        TensorsError: their number or type does not match.
    """
    if entry.data is None:
        raise TensorsError(f"has neither data nor {_SIZE}: send one of them")
    dtype, size = check_shape(entry.datatype, shape)
    if entry.datatype == BYTES:
        return _strings(entry.name, size, entry.data)
    if not isinstance(entry.data, np.ndarray):
        raise TensorsError("data has values that are not whole numbers: send a list of whole numbers, flat or nested")
    if entry.data.size != size:
        raise TensorsError(f"data has {entry.data.size} numbers, shape {shape} needs {size}: send that many")
    return cast_checked(entry.data, dtype).reshape(shape)


def _strings(name: str, size: int, data: Any) -> list[Buffer]:
    """Converts strings in JSON: images are in base64, all others are plain text."""
    listed = data if isinstance(data, list) else []
    texts = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in listed]
    if listed is not data or len(texts) != size or not all(isinstance(each, str) for each in texts):
        raise TensorsError(f"data must be a list of {size} strings, as the shape says: send that")
    if name != IMAGES:
        return [each.encode() for each in texts]
    try:
        return [base64.b64decode(each, validate=True) for each in texts]
    except (binascii.Error, ValueError) as error:
        raise TensorsError(f"a string is not base64 ({error}): send images in base64 or as binary data") from error


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
    return _readiness(response, is_ready=open_inference.is_ready(worker_of(request)), status=503)


@routes.head(f"{_VERSION}/ready", include_in_schema=False)
@routes.head(f"{_MODEL}/ready", include_in_schema=False)
@routes.get(f"{_MODEL}/ready", responses={404: _NOT_READY})
@routes.get(f"{_VERSION}/ready", responses={404: _NOT_READY})
async def model_ready(request: Request, response: Response, model: str, version: str | None = None) -> JsonObject:
    """Tells whether a model, or a version of it, is served."""
    return _readiness(response, is_ready=open_inference.is_ready(worker_of(request), model, version), status=404)


def _readiness(response: Response, *, is_ready: bool, status: int) -> JsonObject:
    response.status_code = 200 if is_ready else status
    return {"ready": is_ready}


@routes.get("")
async def server(_: Call) -> JsonObject:
    """Returns the metadata of the server."""
    return open_inference.server_metadata()


def _describing(describe: Callable[..., JsonObject]) -> Callable[..., Any]:
    """Creates a route from a function of the worker and the name and version of a model."""

    async def respond(call: Call, model: str = "", version: str | None = None) -> JsonObject:
        return describe(call.worker, model, version)

    return respond


# Statistics of all models must precede the routes of a model. A model called "stats" can be addressed with its version.
for _path, _summary, _describe in (
    ("/models/stats", "Statistics of all models since the worker started", open_inference.statistics),
    (f"{_MODEL}/stats", "Statistics of a model", open_inference.statistics),
    (f"{_VERSION}/stats", "Statistics of a version", open_inference.statistics),
    (_MODEL, "Inputs and outputs of a model", open_inference.metadata),
    (_VERSION, "Inputs and outputs of a version", open_inference.metadata),
    (f"{_MODEL}/config", "Configuration of a model, in Triton's format", open_inference.config),
    (f"{_VERSION}/config", "Configuration of a version", open_inference.config),
):
    routes.get(_path, summary=_summary)(_describing(_describe))


@routes.post(f"{_MODEL}/infer", response_model=None)
@routes.post(f"{_VERSION}/infer", response_model=None)
async def infer(call: Call, model: str, version: str | None = None) -> Response:
    """Infers with the current version of a model, or with another one."""
    header_length = call.request.headers.get(_HEADER_LENGTH)
    request = await run_sized(
        read_request, call.body, header_length, model, version, size=json_length(call.body, header_length)
    )
    reply = await wait_for(call, start_inference(call.worker.submission, request.to_call(call.terms(_FRONTEND))))
    outputs = output_tensors(request, reply)
    max_bytes = call.worker.config.max_message_bytes
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
    return open_inference.index((await _control(call, Verb.LIST)).models, only_ready=only_ready)


@routes.post("/repository/models/{model}/load")
async def load(call: Call, model: str) -> JsonObject:
    """Loads a model."""
    return await _change(call, Verb.LOAD, model)


@routes.post("/repository/models/{model}/unload")
async def unload(call: Call, model: str) -> JsonObject:
    """Unloads a model."""
    return await _change(call, Verb.UNLOAD, model)


async def _change(call: HttpCall, verb: Verb, model: str) -> JsonObject:
    open_inference.check_parameters(_body(call).get("parameters"))
    await _control(call, verb, model)
    return {}


def _body(call: HttpCall) -> JsonObject:
    return read_object(call.body) if call.body.strip() else {}


async def _control(call: HttpCall, verb: Verb, model: str = "") -> ControlReply:
    """Sends a request to control and waits for the reply; control completes it even if the caller disconnects."""
    # Control reads manifests, which would block the server's thread.
    future = await asyncio.to_thread(open_inference.send_request, call.worker, call.caller, call.address, verb, model)
    return open_inference.check_reply(await asyncio.shield(asyncio.wrap_future(future)))
