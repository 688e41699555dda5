"""TensorFlow Serving's REST routes."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from google.protobuf.json_format import MessageToDict

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.common.inference import InferenceCall, start_inference
from cloud.gateway.context import WorkerContext
from cloud.gateway.http.call import HttpCall, read_call, respond, run_sized, wait_for
from cloud.gateway.tf_serving.json_messages import PredictBody, listed_bytes, read_predict, write_predict
from cloud.gateway.tf_serving.models import (
    HIGHEST_VERSION,
    find_version,
    model_spec,
    signature_defs,
    version_numbers,
)
from cloud.gateway.tf_serving.signatures import SIGNATURES

CODEC_HEADER = "Skylane-Codec"  # Codec of `image_bytes` that are neither JPEG nor PNG: raw, lz4 or zstd.
MASK_CODEC_HEADER = "Skylane-Mask-Codec"  # Codec of the masks in `result_bytes`.

_FRONTEND = "tfs-rest"
_JSON = "application/json"
_MODEL_PATHS = tuple("/{model}" + choice for choice in ("", "/versions/{version}", "/labels/{label}"))
_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "signature_name": {"type": "string", "enum": list(SIGNATURES)},
        "instances": {"type": "array", "description": "Row format: one entry per image."},
        "inputs": {"description": "Column format: a tensor, or an object with tensors by name."},
    },
}

JsonObject = dict[str, Any]


def router(worker: WorkerContext) -> APIRouter:
    """Creates the routes `/v1/models/…`."""
    routes = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"])
    _add_predict(routes, worker)
    _add_models(routes, worker)
    return routes


def _add_predict(routes: APIRouter, worker: WorkerContext) -> None:
    async def predict(request: Request, model: str, version: str | None = None, label: str | None = None) -> Response:
        call = await read_call(request, worker)
        body: PredictBody = await run_sized(_read_body, call, size=len(call.body))
        body.signature.check_inputs(body.inputs)
        inference = InferenceCall(
            origin=call.origin(_FRONTEND, worker),
            model=model,
            inputs=body.inputs,
            version=_find_version(worker, model, version, label),
            outputs=body.signature.requested_outputs(()),
            codec=call.headers.get(CODEC_HEADER),
            mask_codec=call.headers.get(MASK_CODEC_HEADER, "png"),
        )
        reply = await wait_for(start_inference(worker.submission, inference), request)
        write = partial(write_predict, is_row=body.is_row, max_bytes=worker.settings.max_message_bytes)
        response = await run_sized(write, reply.outputs, size=listed_bytes(reply.outputs))
        return await respond(call, response, _JSON, reply)

    async def unsupported(request: Request) -> Response:
        await read_call(request, worker)
        raise ApiError(ErrorCode.UNIMPLEMENTED, "this worker does not support classify and regress: call :predict")

    content = {"requestBody": {"required": True, "content": {_JSON: {"schema": _BODY}}}}
    for path in _MODEL_PATHS:
        routes.add_api_route(
            f"{path}:predict", predict, methods=["POST"], summary="Infer", openapi_extra=content, response_model=None
        )
        for verb in ("classify", "regress"):
            routes.add_api_route(f"{path}:{verb}", unsupported, methods=["POST"], include_in_schema=False)


def _add_models(routes: APIRouter, worker: WorkerContext) -> None:
    async def status(request: Request, model: str, version: str | None = None, label: str | None = None) -> JsonObject:
        await read_call(request, worker)
        numbers = version_numbers(worker.submission, model, _find_version(worker, model, version, label))
        ok = {"error_code": "OK", "error_message": ""}
        return {
            "model_version_status": [{"version": str(number), "state": "AVAILABLE", "status": ok} for number in numbers]
        }

    async def metadata(
        request: Request, model: str, version: str | None = None, label: str | None = None
    ) -> JsonObject:
        await read_call(request, worker)
        served = worker.submission.find(model, _find_version(worker, model, version, label))
        spec = model_spec(served.card)
        return {
            "model_spec": {"name": spec.name, "signature_name": "", "version": str(spec.version.value)},
            "metadata": {
                "signature_def": MessageToDict(
                    signature_defs(served),
                    preserving_proto_field_name=True,
                    always_print_fields_with_no_presence=True,
                )
            },
        }

    for path in _MODEL_PATHS:
        routes.add_api_route(path, status, methods=["GET"], summary="Versions that are served")
        routes.add_api_route(f"{path}/metadata", metadata, methods=["GET"], summary="Signatures of a model")


def _read_body(call: HttpCall) -> PredictBody:
    return read_predict(call.body, is_vehicle=call.frame is not None)


def _find_version(worker: WorkerContext, model: str, version: str | None, label: str | None) -> str | None:
    """Returns the name of the version in a path."""
    if version is None:
        return find_version(worker.submission, model, None, label)
    if not version.isascii() or not version.isdecimal() or len(version) > len(str(HIGHEST_VERSION)):
        raise InvalidError(f"version {version[:40]!r} is not a whole number: request a name with /labels/NAME")
    return find_version(worker.submission, model, int(version), None)
