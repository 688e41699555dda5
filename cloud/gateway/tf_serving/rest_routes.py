"""TensorFlow Serving's REST, answered by the worker."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from google.protobuf.json_format import MessageToDict

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Call, ask
from cloud.gateway.context import WorkerContext
from cloud.gateway.http.call import HttpCall, answered, aside, read, response
from cloud.gateway.tf_serving.json_messages import PredictBody, listed_bytes, read_predict, write_predict
from cloud.gateway.tf_serving.models import model_spec, signature_defs, version_statuses
from cloud.gateway.tf_serving.signatures import SIGNATURES
from cloud.gateway.tf_serving.versions import HIGHEST, find

CODEC_HEADER = "Skylane-Codec"  # Of `image_bytes` whose codec their first bytes do not tell: raw, lz4 or zstd.
MASK_CODEC_HEADER = "Skylane-Mask-Codec"  # Of a segmentation's `result_bytes`.

_DOOR = "tfs-rest"
_JSON = "application/json"
_MODEL = "/{model}"
_CHOICES = ("", "/versions/{version}", "/labels/{label}")  # Behind the model's name.
_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "signature_name": {"type": "string", "enum": list(SIGNATURES)},
        "instances": {"type": "array", "description": "Row format: one entry a picture."},
        "inputs": {"description": "Column format: a tensor, or an object of one by its name."},
    },
}

Told = dict[str, Any]


def router(parts: WorkerContext) -> APIRouter:
    """`/v1/models/…`."""
    routes = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"])
    _add_predict(routes, parts)
    _add_models(routes, parts)
    return routes


def _add_predict(routes: APIRouter, parts: WorkerContext) -> None:
    async def predict(request: Request, model: str, version: str | None = None, label: str | None = None) -> Response:
        call = await read(request, parts)
        told: PredictBody = await aside(_read, call, size=len(call.body))
        told.signature.check(told.inputs)
        asked = ask(
            parts.door,
            Call(
                door=_DOOR,
                caller=call.caller,
                model=model,
                inputs=told.inputs,
                received_ns=call.received_ns,
                max_reply_bytes=parts.settings.max_message_bytes,
                version=_version(parts, model, version, label),
                outputs=told.signature.wanted(()),
                codec=call.headers.get(CODEC_HEADER),
                mask_codec=call.headers.get(MASK_CODEC_HEADER, "png"),
                budget_ms=call.budget_ms,
                frame=call.frame,
            ),
        )
        reply = await answered(asked, request)
        write = partial(write_predict, is_row=told.is_row, largest=parts.settings.max_message_bytes)
        body = await aside(write, reply.outputs, size=listed_bytes(reply.outputs))
        return await response(call, body, _JSON, reply)

    async def unspoken(request: Request) -> Response:
        await read(request, parts)
        raise RefusedError(Kind.UNIMPLEMENTED, "this worker neither classifies nor regresses features: call :predict")

    content = {"requestBody": {"required": True, "content": {_JSON: {"schema": _BODY}}}}
    for choice in _CHOICES:
        path = _MODEL + choice
        routes.add_api_route(
            f"{path}:predict", predict, methods=["POST"], summary="Infer", openapi_extra=content, response_model=None
        )
        for verb in ("classify", "regress"):
            routes.add_api_route(f"{path}:{verb}", unspoken, methods=["POST"], include_in_schema=False)


def _add_models(routes: APIRouter, parts: WorkerContext) -> None:
    async def status(request: Request, model: str, version: str | None = None, label: str | None = None) -> Told:
        await read(request, parts)
        numbers = version_statuses(parts.door, model, _version(parts, model, version, label))
        well = {"error_code": "OK", "error_message": ""}
        return {
            "model_version_status": [
                {"version": str(number), "state": "AVAILABLE", "status": well} for number in numbers
            ]
        }

    async def metadata(request: Request, model: str, version: str | None = None, label: str | None = None) -> Told:
        await read(request, parts)
        card = parts.door.card(model, _version(parts, model, version, label))
        spec = model_spec(card)
        return {
            "model_spec": {"name": spec.name, "signature_name": "", "version": str(spec.version.value)},
            "metadata": {
                "signature_def": MessageToDict(
                    signature_defs(card, parts.door),
                    preserving_proto_field_name=True,
                    always_print_fields_with_no_presence=True,
                )
            },
        }

    for choice in _CHOICES:
        path = _MODEL + choice
        routes.add_api_route(path, status, methods=["GET"], summary="Which versions are served")
        routes.add_api_route(f"{path}/metadata", metadata, methods=["GET"], summary="A model's signatures")


def _read(call: HttpCall) -> PredictBody:
    return read_predict(call.body, is_vehicle=call.frame is not None)


def _version(parts: WorkerContext, model: str, version: str | None, label: str | None) -> str | None:
    """The version that a path names.

    Raises:
        RefusedError: it is no number, or is not served.
    """
    if version is None:
        return find(parts.door, model, None, label)
    if not version.isascii() or not version.isdecimal() or len(version) > len(str(HIGHEST)):
        raise RefusedError(
            Kind.INVALID, f"version {version[:40]!r} is no whole number: ask for /labels/NAME by its name"
        )
    return find(parts.door, model, int(version), None)
