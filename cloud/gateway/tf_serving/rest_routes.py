"""TensorFlow Serving's REST routes."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from google.protobuf.json_format import MessageToDict

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.common.inference import InferenceCall, start_inference
from cloud.gateway.common.tensors import byte_size
from cloud.gateway.http.call import Call, HttpCall, respond, run_sized, wait_for
from cloud.gateway.tf_serving.json_messages import PredictBody, read_predict, write_predict
from cloud.gateway.tf_serving.models import HIGHEST_VERSION, find_version, model_spec, model_status, signature_defs
from cloud.gateway.tf_serving.signatures import SIGNATURES

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
        origin=call.origin(_FRONTEND),
        model=model,
        inputs=body.inputs,
        version=_find_version(call, model, version, label),
        outputs=body.signature.requested_outputs(()),
        codec=call.headers.get(CODEC_HEADER),
        mask_codec=call.headers.get(MASK_CODEC_HEADER, "png"),
    )
    reply = await wait_for(call, start_inference(call.worker.submission, inference))
    write = partial(write_predict, is_row=body.is_row, max_bytes=call.worker.settings.max_message_bytes)
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
