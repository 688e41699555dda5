"""TensorFlow Serving's REST routes."""

import base64
import binascii
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Response
from google.protobuf.json_format import MessageToDict

from cloud.gateway.common.inference import InferenceCall, start_inference
from cloud.gateway.common.tensors import SizeBudget, Tensor, byte_size
from cloud.gateway.common.tf_serving import (
    HIGHEST_VERSION,
    SIGNATURES,
    Signature,
    find_signature,
    find_version,
    model_spec,
    model_status,
    signature_defs,
    tensorflow_type,
)
from cloud.gateway.http.call import Call, HttpCall, respond, run_sized, wait_for
from cloud.gateway.http.json_body import read_object, write_array
from cloud.serving.errors import ApiError, ErrorCode, InvalidError, converting_errors
from shared.compression import Buffer
from shared.messages.tensors import cast_checked

_BASE64 = "b64"
_SHOWN = 60  # Characters of a name in an error message.
_KINDS = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", np.ndarray: "a list"}


class PredictBody(NamedTuple):
    """The parsed body of a predict call."""

    signature: Signature
    inputs: Mapping[str, Tensor]
    is_row: bool  # Row format, `instances` (a list of images); otherwise column format, `inputs` (whole tensors).


def read_predict(body: bytes, *, is_vehicle: bool = False) -> PredictBody:
    """Parses a body in row or column format; the input's name may be omitted."""
    request = read_object(body)
    formats = [key for key in ("instances", "inputs") if key in request]
    if len(formats) != 1:
        raise InvalidError(
            f"the body has {' and '.join(formats) or 'neither instances nor inputs'}: send one of the two"
        )
    name = request.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidError(f"signature_name is {_describe(name)}: send a string")
    signature = find_signature(name, is_vehicle=is_vehicle)
    is_row = formats[0] == "instances"
    values = request[formats[0]]
    columns = _columns(values, signature.input) if is_row else values
    inputs = columns if _is_named(columns) else {signature.input: columns}
    return PredictBody(signature, {key: _tensor(key, value) for key, value in inputs.items()}, is_row)


def write_predict(outputs: Mapping[str, Tensor], *, is_row: bool, max_bytes: int) -> bytes:
    """Writes the response: a single output without its name, several by name; in row format for each image separately."""
    for name, tensor in outputs.items():
        tensorflow_type(name, tensor)
    budget = SizeBudget(max_bytes, ", as JSON", ", or use gRPC")
    value: Any
    if len(outputs) < 2:
        value = _json_value(next(iter(outputs.values()), []), budget)
    elif is_row:
        rows = zip(*outputs.values(), strict=True)
        value = [{name: _json_value(each, budget) for name, each in zip(outputs, row, strict=True)} for row in rows]
    else:
        value = {name: _json_value(tensor, budget) for name, tensor in outputs.items()}
    return msgspec.json.encode({"predictions" if is_row else "outputs": value})


def _columns(rows: Any, default_name: str) -> dict[str, Any]:
    """Converts the row format to the values of each input; rows are objects by name, or values of the only input."""
    if isinstance(rows, np.ndarray):
        return {default_name: rows}
    if not isinstance(rows, list):
        raise InvalidError(f"instances is {_describe(rows)}: send a list, one entry per image")
    if not any(_is_named(row) for row in rows):
        return {default_name: rows}
    names = rows[0].keys() if _is_named(rows[0]) else set()
    if any(not _is_named(row) or row.keys() != names for row in rows):
        raise InvalidError("instances have different names: send the same inputs in each")
    return {name: [row[name] for row in rows] for name in names}


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() != {_BASE64}


def _tensor(name: str, value: Any) -> Tensor:
    """Converts an input's values to pixels or byte strings."""
    if isinstance(value, list) and value and all(isinstance(each, (dict, str)) for each in value):
        return [_string(name, each) for each in value]
    with converting_errors(ErrorCode.INVALID, f"{name[:_SHOWN]} "):
        return cast_checked(value if isinstance(value, np.ndarray) else _stack(name, value), "uint8")


def _string(name: str, value: Any) -> Buffer:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    encoded = value.get(_BASE64) if value.keys() == {_BASE64} else None
    if not isinstance(encoded, str):
        raise InvalidError(f'{name[:_SHOWN]} has an object that is not {{"b64": "…"}}: send that')
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f"{name[:_SHOWN]}: the value of b64 is not base64 ({error})") from error


def _stack(name: str, rows: Any) -> npt.NDArray[Any]:
    """Joins the arrays, or the single numbers, of several images."""
    if not isinstance(rows, list):
        raise InvalidError(f"{name[:_SHOWN]} is {_describe(rows)}: send a list, one entry per image")
    if odd := [each for each in rows if type(each) not in (int, np.ndarray) and each != []]:
        raise InvalidError(f"{name[:_SHOWN]} has {_describe(odd[0])}: send uint8 pixels, whole numbers 0 to 255")
    if len({np.shape(each) for each in rows}) > 1:
        raise InvalidError(f"{name[:_SHOWN]} is ragged: send nested lists of equal lengths")
    return np.array(rows)


def _json_value(value: Any, budget: SizeBudget) -> Any:
    """Converts a tensor or one image's part of it; byte strings are in base64, as TensorFlow Serving writes `…_bytes`."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return msgspec.Raw(write_array(value, budget))
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {_BASE64: msgspec.Raw(budget.charged(b'"' + base64.b64encode(value) + b'"'))}
    return [_json_value(each, budget) for each in value]


def _describe(value: Any) -> str:
    """Describes a value, or the first one in nested lists, in terms of JSON."""
    while isinstance(value, list) and value:
        value = value[0]
    if type(value) in (int, float):
        return f"the number {str(value)[:20]}"
    return _KINDS.get(type(value), "an object")


CODEC_HEADER = "Skylane-Codec"  # Codec of `image_bytes` that are neither JPEG nor PNG: raw, lz4 or zstd.
MASK_CODEC_HEADER = "Skylane-Mask-Codec"  # Codec of the masks in `result_bytes`.

_FRONTEND = "tfs-rest"
_JSON = "application/json"
_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "signature_name": {"type": "string", "enum": list(SIGNATURES)},
        "instances": {"type": "array", "description": "Row format: one entry per image."},
        "inputs": {"description": "Column format: a tensor, or an object with tensors by name."},
    },
}

JsonObject = dict[str, Any]


async def _predict(call: Call, model: str, version: str | None = None, label: str | None = None) -> Response:
    read = partial(read_predict, is_vehicle=call.frame is not None)
    body: PredictBody = await run_sized(read, call.body, size=len(call.body))
    body.signature.check_inputs(body.inputs)
    inference = InferenceCall(
        terms=call.terms(_FRONTEND),
        model=model,
        inputs=body.inputs,
        version=_find_version(call, model, version, label),
        outputs=body.signature.requested_outputs(()),
        codec=call.request.headers.get(CODEC_HEADER),
        mask_codec=call.request.headers.get(MASK_CODEC_HEADER, "png"),
    )
    reply = await wait_for(call, start_inference(call.worker.submission, inference))
    write = partial(write_predict, is_row=body.is_row, max_bytes=call.worker.config.max_message_bytes)
    response = await run_sized(write, reply.outputs, size=sum(map(byte_size, reply.outputs.values())))
    return await respond(call, response, _JSON, reply)


async def _unsupported(_: Call) -> None:
    raise ApiError(ErrorCode.UNIMPLEMENTED, "this worker does not support classify and regress: call :predict")


async def _status(call: Call, model: str, version: str | None = None, label: str | None = None) -> JsonObject:
    status = _to_json(model_status(call.worker.submission, model, _find_version(call, model, version, label)))
    for each in status["model_version_status"]:
        each["status"]["error_code"] = "OK"  # The .proto file here has a number instead of TensorFlow's enum.
    return status


async def _metadata(call: Call, model: str, version: str | None = None, label: str | None = None) -> JsonObject:
    served = call.worker.submission.find(model, _find_version(call, model, version, label))
    return {
        "model_spec": _to_json(model_spec(served.card)),
        "metadata": {"signature_def": _to_json(signature_defs(served))},
    }


def _to_json(message: Any) -> JsonObject:
    """Converts a protobuf message as TensorFlow Serving does."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _find_version(call: HttpCall, model: str, version: str | None, label: str | None) -> str | None:
    """Returns the name of the version in a path."""
    if version is None:
        return find_version(call.worker.submission, model, None, label)
    if not version.isascii() or not version.isdecimal() or len(version) > len(str(HIGHEST_VERSION)):
        raise InvalidError(f"version {version[:40]!r} is not a whole number: request a name with /labels/NAME")
    return find_version(call.worker.submission, model, int(version), None)


routes = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"])
for _path in ("/{model}", "/{model}/versions/{version}", "/{model}/labels/{label}"):
    routes.post(
        f"{_path}:predict",
        summary="Infer",
        openapi_extra={"requestBody": {"required": True, "content": {_JSON: {"schema": _BODY}}}},
        response_model=None,
    )(_predict)
    for _verb in ("classify", "regress"):
        routes.post(f"{_path}:{_verb}", include_in_schema=False)(_unsupported)
    routes.get(_path, summary="Versions that are served")(_status)
    routes.get(f"{_path}/metadata", summary="Signatures of a model")(_metadata)
