"""`POST /api/detect`: runs a model on one image, for people, scripts and browsers."""

import asyncio
from typing import Annotated, Any
from urllib.parse import parse_qs

import numpy as np
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError, converting_errors
from cloud.gateway.common.inference import InferenceReply, PendingInference, stages_ms
from cloud.gateway.common.tensors import RESULTS
from cloud.gateway.context import WorkerContext
from cloud.gateway.detect.image_folder import read_image
from cloud.gateway.detect.response import DetectAnswer, build_response
from cloud.gateway.http.call import Call, HttpCall, respond, run_sized, wait_for
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
_BINARY_SCHEMA: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_IMAGE_CONTENT = dict.fromkeys(_IMAGE_CODECS, _BINARY_SCHEMA)

routes = APIRouter(prefix="/api", tags=["detect"])


class _ImagePath(BaseModel):
    """The path of an image, in JSON or in a form."""

    path: str = Field("", description="Path of an image in the worker's image folder")
    output: Annotated[bool, BeforeValidator(lambda given: given or False)] = Field(
        default=False, description="1: return the annotated image"
    )


class _Upload(_ImagePath):
    """An image, or the path of one, in a form with files."""

    file: bytes = Field(b"", description="A JPEG or PNG")


_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        _FORM: {"schema": _Upload.model_json_schema()},
        **{media_type: {"schema": _ImagePath.model_json_schema()} for media_type in (_JSON, _URLENCODED)},
        **_IMAGE_CONTENT,
    },
}


@routes.post(
    "/detect",
    openapi_extra={"requestBody": _BODY},
    response_model=DetectAnswer,
    responses={200: {"content": _IMAGE_CONTENT}},
)
async def detect(
    call: Call,
    model: Annotated[str | None, Query(description="[the first one served]")] = None,
    version: Annotated[str | None, Query(description="[the current one]")] = None,
    output: Annotated[bool, Query(description="Return the annotated image")] = False,  # noqa: FBT002  A query.
) -> Response:
    """Runs a model on one image."""
    card = _card(call.worker, model, version)
    upload = await run_sized(_read_body, call, size=len(call.body))
    data = upload.file
    if not data:
        limit = call.worker.image_limits.max_bytes
        data = await asyncio.to_thread(read_image, call.worker.settings.images, upload.path, limit)
    call.slot.hold(_WORK_BYTES_PER_PIXEL * _pixel_count(data))
    image = await run_sized(_decode, call.worker, data, size=_DECODED_RATIO * len(data))
    pending = await run_sized(_start, call, card, image, size=image.nbytes)
    prepared_ms = (clock.now_ns() - call.received_ns) / 1e6
    reply = await wait_for(call, pending)
    media_type = _accepted_image_type(call)
    result = _decode_result(reply)
    annotated = None
    if media_type or output or upload.output:
        drawn_bytes = round(image.nbytes * _drawing_scale(image, result) ** 2)
        call.slot.hold(_WORK_BYTES_PER_PIXEL * (drawn_bytes - image.nbytes) // 3)
        annotated = await run_sized(_annotate, image, reply, result, media_type or "image/jpeg", size=drawn_bytes)
    if media_type and annotated is not None:
        return await respond(call, annotated, media_type, reply)
    # The duration of decoding and scaling, of each stage in the worker, and in total since the body was received.
    total_ms = (clock.now_ns() - call.received_ns) / 1e6
    times_ms = {"prepared": prepared_ms, **stages_ms(reply.first), "total": total_ms}
    response = await run_sized(build_response, reply.card, result, reply.first, times_ms, annotated, size=image.nbytes)
    return await respond(call, response, _JSON, reply)


def _card(worker: WorkerContext, model: str | None, version: str | None) -> ModelCard:
    if model is None:
        cards = worker.submission.cards()
        if not cards:
            raise ApiError(ErrorCode.NOT_FOUND, "this worker serves no model at present: call another one")
        model = cards[0].name
    return worker.submission.find(model, version).card


def _read_body(call: HttpCall) -> _Upload:
    """Reads the body according to its content type."""
    content_type = call.content_type
    if content_type in _IMAGE_CODECS:
        return _Upload.model_validate({"file": call.body})
    if content_type not in (_FORM, _JSON, _URLENCODED):
        raise ApiError(
            ErrorCode.UNSUPPORTED, f"a body of type {content_type[:80] or 'none'}: {_HINT}, or {_JSON} with a path"
        )
    if content_type != _FORM and len(call.body) > MAX_FIELDS_BYTES:
        raise ApiError(
            ErrorCode.TOO_LARGE,
            f"{len(call.body)} bytes of {content_type} for a path, at most {MAX_FIELDS_BYTES} are accepted: {_HINT}",
        )
    try:
        if content_type == _FORM:
            form = parse_form(call.body, call.headers["content-type"])
            texts = {name: data.decode("utf-8", "replace") for name, data in form.items() if name != "file"}
            upload = _Upload.model_validate({**texts, "file": form.get("file", b"")})
        elif content_type == _JSON:
            upload = _Upload(**_ImagePath.model_validate_json(call.body).model_dump())
        else:
            fields = parse_qs(call.body.decode(), max_num_fields=MAX_URLENCODED_FIELDS)
            path = _ImagePath.model_validate({name: given[-1] for name, given in fields.items()})
            upload = _Upload(**path.model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        given = ".".join(str(part) for part in first["loc"]) or "the body"
        raise InvalidError(f"{given}: {first['msg']} ({str(first['input'])[:40]!r}): {_HINT}") from error
    except ValueError as error:
        raise InvalidError(f"the form is malformed: {error}") from error
    if bool(upload.file) == bool(upload.path):
        raise InvalidError("send exactly one of file (an uploaded image) and path (an image of the worker)")
    return upload


def _pixel_count(data: bytes) -> int:
    """The number of pixels according to the image's header."""
    with converting_errors(ErrorCode.UNPROCESSABLE):
        header = read_header(data)
    return header.height * header.width


def _decode(worker: WorkerContext, data: bytes) -> ImageArray:
    with converting_errors(ErrorCode.UNPROCESSABLE):
        return decode_to_rgb(data, worker.image_limits)


def _start(call: HttpCall, card: ModelCard, image: ImageArray) -> PendingInference:
    """Submits an image as a vehicle would: cropped and scaled for the model, with the geometry."""
    worker = call.worker
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
