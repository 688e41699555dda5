"""`POST /api/detect`: runs a model on one image, for people, scripts and browsers."""

from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError, converting_errors
from cloud.gateway.common.inference import RESULTS, InferenceReply, PendingInference, stages_ms
from cloud.gateway.context import WorkerContext
from cloud.gateway.detect.image_folder import read_image
from cloud.gateway.detect.response import DetectAnswer, build_response
from cloud.gateway.http.call import HttpCall, read_call, respond, run_sized, wait_for
from cloud.gateway.http.concurrency_limit import CallSlot
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.http.multipart import parse_form
from shared import clock
from shared.imaging import geometry, image_codecs
from shared.imaging.drawing import LEGIBLE_WIDTH
from shared.imaging.frames import Layout
from shared.imaging.geometry import UNSEEN, Resize
from shared.imaging.image_files import ImageArray, decode_to_rgb, stamp_untrained
from shared.imaging.image_header import read_header
from shared.imaging.opencv import cv2
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.messages.results import Result
from shared.messages.topics import sanitize_name
from shared.tasks.task import task_named

MAX_JPEG_SIDE = 65_500  # Pixels; a limit of the JPEG library.
MAX_FIELDS_BYTES = 1 << 16  # Size of a body without an image.
MAX_URLENCODED_FIELDS = 8

_FRONTEND = "detect"
_JSON = "application/json"
_FORM = "multipart/form-data"
_URLENCODED = "application/x-www-form-urlencoded"
_IMAGE_CODECS = {"image/jpeg": "jpeg", "image/png": "png"}
_HINT = f"send an image as {' or '.join(_IMAGE_CODECS)}, or in {_FORM} as file"
_OPACITY = 0.5  # Opacity of a mask drawn on its image.
_JPEG_QUALITY = 90
_DECODED_RATIO = 10  # Rough ratio of a decoded image's size to that of its file.
_WORK_BYTES_PER_PIXEL = 9  # Memory for the image, the decoder's copy, and the copy that is drawn on.
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")

_PATH_SCHEMA: dict[str, Any] = {"type": "string", "description": "Path of an image in the worker's image folder"}
_OUTPUT_SCHEMA: dict[str, Any] = {"type": "integer", "enum": [0, 1], "description": "1: return the annotated image"}
_FILE_SCHEMA: dict[str, Any] = {"type": "string", "format": "binary"}
_IMAGE_CONTENT = {media_type: {"schema": _FILE_SCHEMA} for media_type in _IMAGE_CODECS}
_BY_PATH: dict[str, Any] = {
    "schema": {"type": "object", "properties": {"path": _PATH_SCHEMA, "output": _OUTPUT_SCHEMA}, "required": ["path"]}
}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        _FORM: {
            "schema": {
                "type": "object",
                "properties": {
                    "file": {**_FILE_SCHEMA, "description": "A JPEG or PNG"},
                    "path": _PATH_SCHEMA,
                    "output": _OUTPUT_SCHEMA,
                },
            }
        },
        _JSON: _BY_PATH,
        _URLENCODED: _BY_PATH,
        **_IMAGE_CONTENT,
    },
}


class _DetectRequest(NamedTuple):
    """The content of a request body: an uploaded image, or the path of one."""

    image: bytes | None = None
    path: str | None = None
    is_annotated: bool = False


def router(worker: WorkerContext) -> APIRouter:
    """Creates the route `/api/detect`."""
    routes = APIRouter(prefix="/api", tags=["detect"])

    @routes.post(
        "/detect",
        summary="Run a model on one image",
        openapi_extra={"requestBody": _BODY},
        response_model=DetectAnswer,
        responses={200: {"content": _IMAGE_CONTENT}},
    )
    async def detect(
        request: Request,
        model: Annotated[str | None, Query(description="[the first one served]")] = None,
        version: Annotated[str | None, Query(description="[the current one]")] = None,
        output: Annotated[bool, Query(description="Return the annotated image")] = False,  # noqa: FBT002  A query.
    ) -> Response:
        call = await read_call(request, worker)
        slot = CallSlot.of(request.scope)
        card = _card(worker, model, version)
        body = await run_sized(_read_body, call, size=len(call.body))
        data = await run_sized(_image_data, worker, body, size=1 << 20 if body.image is None else len(body.image))
        slot.hold(_WORK_BYTES_PER_PIXEL * _pixel_count(data))
        image = await run_sized(_decode, worker, data, size=_DECODED_RATIO * len(data))
        pending = await run_sized(_start, worker, call, card, image, size=image.nbytes)
        prepared_ms = (clock.now_ns() - call.received_ns) / 1e6
        reply = await wait_for(pending, request)
        media_type = _accepted_image_type(call)
        result = _decode_result(reply)
        annotated = None
        if media_type or output or body.is_annotated:
            drawn_bytes = round(image.nbytes * _drawing_scale(image, result) ** 2)
            slot.hold(_WORK_BYTES_PER_PIXEL * (drawn_bytes - image.nbytes) // 3)
            annotated = await run_sized(_annotate, image, reply, result, media_type or "image/jpeg", size=drawn_bytes)
        if media_type and annotated is not None:
            return await respond(call, annotated, media_type, reply)
        times_ms = _times_ms(call, reply, prepared_ms)
        response = await run_sized(_write_json, reply, result, times_ms, annotated, size=image.nbytes)
        return await respond(call, response, _JSON, reply)

    return routes


def _card(worker: WorkerContext, model: str | None, version: str | None) -> ModelCard:
    if model is None:
        cards = worker.submission.cards()
        if not cards:
            raise ApiError(ErrorCode.NOT_FOUND, "this worker serves no model at present: call another one")
        model = cards[0].name
    return worker.submission.card(model, version)


def _read_body(call: HttpCall) -> _DetectRequest:
    """Reads the body according to its content type."""
    content_type = call.content_type
    if content_type in _IMAGE_CODECS:
        return _DetectRequest(call.body)
    if content_type == _FORM:
        form = parse_form(call.body, call.headers["content-type"])
        fields = {field.name: field.data.decode("utf-8", "replace") for field in form if field.name != "file"}
        image = next((field.data for field in form if field.name == "file"), None)
        path = fields.get("path")
        is_annotated = _parse_flag(fields.get("output", ""))
        if (image is None) == (path is None):
            raise InvalidError(
                "the form needs exactly one of the fields file (an uploaded image) and path (an image of the worker)"
            )
        return _DetectRequest(image, path, is_annotated)
    if content_type not in (_JSON, _URLENCODED):
        raise ApiError(
            ErrorCode.UNSUPPORTED, f"a body of type {content_type[:80] or 'none'}: {_HINT}, or {_JSON} with a path"
        )
    if len(call.body) > MAX_FIELDS_BYTES:
        raise ApiError(
            ErrorCode.TOO_LARGE,
            f"{len(call.body)} bytes of {content_type} for a path, at most {MAX_FIELDS_BYTES} are accepted: {_HINT}",
        )
    fields = read_object(call.body) if content_type == _JSON else _read_urlencoded(call.body)
    path = fields.get("path")
    if not isinstance(path, str):
        raise InvalidError(f'a body of {content_type} without a path ({{"path": "left/0001.jpg"}}): {_HINT}')
    return _DetectRequest(None, path, _parse_flag(fields.get("output", 0)))


def _read_urlencoded(body: bytes) -> dict[str, Any]:
    try:
        values = parse_qs(body.decode(), max_num_fields=MAX_URLENCODED_FIELDS)
    except ValueError as error:
        raise InvalidError(f"the form is malformed: {error}") from error
    return {name: given[-1] for name, given in values.items()}


def _parse_flag(value: object) -> bool:
    text = str(value)[:8].strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise InvalidError(f"output {text!r}: send 1 for the annotated image, or 0")
    return text in _TRUE


def _image_data(worker: WorkerContext, body: _DetectRequest) -> bytes:
    if body.image is not None:
        return body.image
    assert body.path is not None
    return read_image(worker.settings.images, body.path, worker.image_limits.max_bytes)


def _pixel_count(data: bytes) -> int:
    """The number of pixels according to the image's header."""
    with converting_errors(ErrorCode.UNPROCESSABLE):
        header = read_header(data)
    return header.height * header.width


def _decode(worker: WorkerContext, data: bytes) -> ImageArray:
    with converting_errors(ErrorCode.UNPROCESSABLE):
        return decode_to_rgb(data, worker.image_limits)


def _start(worker: WorkerContext, call: HttpCall, card: ModelCard, image: ImageArray) -> PendingInference:
    """Submits an image as a vehicle would: cropped and scaled for the model, with the geometry."""
    height, width = image.shape[:2]
    with converting_errors(ErrorCode.UNPROCESSABLE):
        plan = geometry.plan(card.resize, height, width, card.height, card.width)
    message = FrameMessage(
        id=worker.submission.new_id(sanitize_name(call.caller), _FRONTEND),
        model=card.name,
        version=card.version,
        layout=Layout.RGB8,
        shape=(card.height, card.width, 3),
        codec="raw",
        geometry=plan,
        frame_stamp_ns=0,
        data=np.ascontiguousarray(geometry.apply(image, plan)).reshape(-1).data,
        deadline=call.deadline,
        options=RequestOptions(mask_codec="raw"),
    )
    max_bytes = worker.settings.max_message_bytes
    # The receive time is now: the response reports the time of decoding separately.
    future = worker.submission.put(message, received_ns=clock.now_ns(), max_reply_bytes=max_bytes)
    return PendingInference(worker.submission, card, (), (future,), max_bytes, is_vehicle=False)


def _decode_result(reply: InferenceReply) -> Result:
    packed = reply.outputs[RESULTS][0]
    result: Result = task_named(reply.card.task).decode(packed, "raw", reply.first.shape)
    return result


def _accepted_image_type(call: HttpCall) -> str | None:
    """The image type that the caller accepts instead of JSON; browsers list others and receive JSON."""
    accepted = [each.partition(";")[0].strip().lower() for each in call.headers.get("accept", "").split(",")]
    return next((media_type for media_type in accepted if media_type in _IMAGE_CODECS), None)


def _annotate(image: ImageArray, reply: InferenceReply, result: Result, media_type: str) -> bytes:
    """Draws the result on the whole image; parts that the model did not process are darker under a mask."""
    plan = reply.first.geometry
    assert plan is not None
    height, width = image.shape[:2]
    if max(height, width) > MAX_JPEG_SIDE:
        raise ApiError(
            ErrorCode.UNPROCESSABLE,
            f"an image of {width}×{height} pixels cannot be annotated: send at most {MAX_JPEG_SIDE} pixels per side",
        )
    if isinstance(result, np.ndarray):
        result = geometry.to_source(result, plan, UNSEEN)
    elif (scale := _drawing_scale(image, result)) > 1:
        size = (round(width * scale), round(height * scale))
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_CUBIC), np.uint8)
    whole = geometry.plan(Resize.STRETCH, height, width, height, width)
    drawn = task_named(reply.card.task).draw(image, result, reply.card.labels, whole, _OPACITY)
    if not reply.card.trained:
        drawn = stamp_untrained(drawn)
    return bytes(image_codecs.encode(drawn, Layout.RGB8, _IMAGE_CODECS[media_type], _JPEG_QUALITY))


def _drawing_scale(image: ImageArray, result: Result) -> float:
    """The factor by which an image is enlarged for drawing, so that text on it is legible."""
    height, width = image.shape[:2]
    return 1.0 if isinstance(result, np.ndarray) else max(1.0, min(LEGIBLE_WIDTH / width, MAX_JPEG_SIDE / height))


def _times_ms(call: HttpCall, reply: InferenceReply, prepared_ms: float) -> dict[str, float]:
    """The duration of decoding and scaling, of each stage in the worker, and in total since the body was received."""
    return {
        "prepared": prepared_ms,
        **stages_ms(reply.first),
        "total": (clock.now_ns() - call.received_ns) / 1e6,
    }


def _write_json(reply: InferenceReply, result: Result, times_ms: dict[str, float], annotated: bytes | None) -> bytes:
    response = build_response(reply.card, result, reply.first, times_ms, annotated)
    return response.model_dump_json(exclude_none=True).encode()
