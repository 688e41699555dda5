"""`POST /api/detect`: runs a model on one image, for people, scripts and browsers."""

import asyncio
import base64
import logging
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import numpy as np
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field as FormField
from python_multipart.multipart import File, FormParser, parse_options_header

from cloud.gateway.common.inference import InferenceReply, PendingInference, stages_ms
from cloud.gateway.common.tensors import RESULTS
from cloud.gateway.http.call import Call, HttpCall, respond, run_sized, wait_for
from cloud.node import CloudNode
from cloud.serving.errors import ApiError, ErrorCode, InvalidError, converting_errors
from shared import clock
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import UNSEEN, Geometry, Resize
from shared.imaging.image_files import ImageArray, decode_to_rgb
from shared.imaging.image_header import read_header
from shared.imaging.opencv import cv2
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage
from shared.messages.model_card import ModelCard
from shared.messages.results import Result
from shared.messages.topics import sanitize_name
from shared.models.manifest import MASK
from shared.task import TASKS, task_named
from shared.tasks.drawing import LEGIBLE_WIDTH, mark_untrained

MAX_FORM_FIELDS = 8

_IN_MEMORY = {"MAX_MEMORY_FILE_SIZE": math.inf}  # Files stay in memory: the size of the body is limited already.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # The response reports malformed forms.


def parse_form(body: bytes, content_type: str) -> dict[str, bytes]:
    """Returns the fields and files of a `multipart/form-data` body; `content_type` is the header with its parameters."""
    fields: list[tuple[str, bytes]] = []
    is_complete = False

    def add(name: bytes | None, data: bytes | None) -> None:
        if len(fields) == MAX_FORM_FIELDS:
            raise InvalidError(f"the form has more than {MAX_FORM_FIELDS} fields: send a file or a path")
        fields.append(((name or b"").decode("utf-8", "replace"), data or b""))

    def add_field(field: FormField) -> None:
        add(field.field_name, field.value)

    def add_file(file: File) -> None:
        file.file_object.seek(0)
        add(file.field_name, file.file_object.read())

    def end() -> None:
        nonlocal is_complete
        is_complete = True

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise InvalidError("the content type has no boundary: send 'multipart/form-data; boundary=…'")
    try:
        parser = FormParser("multipart/form-data", add_field, add_file, end, boundary, config=_IN_MEMORY)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidError(f"the form is malformed: {str(error)[:80]}") from error
    if not is_complete or not fields:
        raise InvalidError("the form is empty or does not end with its boundary: send all of it")
    return dict(fields)


MAX_PATH_CHARACTERS = 1024


def read_image(folder: Path | None, path: str, limit: int) -> bytes:
    """Reads the regular file at `path`, relative to `folder`; symbolic links are not followed anywhere on the way.

    Raises:
        ApiError: there is no folder, no such file, or the file has more than `limit` bytes. The message is the same for
            a missing file and for one that may not be read.
    """
    if folder is None:
        raise ApiError(ErrorCode.FORBIDDEN, "this worker has no image folder: upload the file itself")
    names = path.split("/")
    if len(path) > MAX_PATH_CHARACTERS or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise InvalidError(f"path {path[:80]!r}: send a path within the folder, such as left/0001.jpg")
    try:
        descriptor = _open(folder, names)
    except (OSError, UnicodeEncodeError) as error:
        raise _no_image(path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_image(path)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ApiError(ErrorCode.TOO_LARGE, f"image {path!r} has more than {limit} bytes: choose a smaller one")
    return data


def _open(folder: Path, names: list[str]) -> int:
    """Opens a file folder by folder, so that a folder replaced by a link in the meantime is not followed either."""
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for name in names[:-1]:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
        finally:
            os.close(current)
        current = below
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        return os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=current)
    finally:
        os.close(current)


def _no_image(path: str) -> ApiError:
    return ApiError(ErrorCode.NOT_FOUND, f"no image {path!r} in the folder")


class PictureSize(BaseModel):
    """Size of the image in pixels, after its EXIF rotation."""

    height: int
    width: int


class Detection(BaseModel):
    """A detected object."""

    box: tuple[float, float, float, float] = Field(description="x1, y1, x2, y2 in pixels of the image")
    class_id: int = Field(validation_alias="id")
    name: str
    score: float


class ScoredClass(BaseModel):
    """A class of the whole image."""

    class_id: int = Field(validation_alias="id")
    name: str
    score: float


class ClassShare(BaseModel):
    """The share of a class in the part of the image that the model processed, 0 to 1."""

    class_id: int
    name: str
    share: float


class Array(BaseModel):
    """Type and shape of an output tensor, whose values are not sent."""

    dtype: str
    shape: list[int]


class DetectAnswer(BaseModel):
    """The result for an image; the model's task determines which optional fields are present."""

    model: str
    version: str
    task: str = Field(json_schema_extra={"enum": [*TASKS]})
    trained: bool = Field(description="false: the weights are random, and the result is meaningless")
    picture: PictureSize
    detections: list[Detection] | None = None
    classes: list[ScoredClass] | None = None
    shares: list[ClassShare] | None = None
    mask: str | None = Field(
        None,
        description=f"base64 of a grey PNG of class ids, in the size of the image; {UNSEEN}: not processed by the model",
    )
    tensors: dict[str, Array] | None = None
    times_ms: dict[str, float] = Field(description="Duration of each step in the worker, and `total`")
    annotated: str | None = Field(None, description="base64 of a JPEG: the image with the result drawn on it")


def build_response(
    card: ModelCard, result: Result, message: ResultMessage, times_ms: Mapping[str, float], annotated: bytes | None
) -> bytes:
    """Builds the JSON; the mask message has the geometry by which the image was fitted to the model."""
    plan, task = message.geometry, task_named(card.task)
    assert plan is not None
    is_mask = MASK in task.heads
    answer = DetectAnswer(
        model=card.name,
        version=card.version,
        task=card.task,
        trained=card.trained,
        picture=PictureSize(height=plan.source_height, width=plan.source_width),
        times_ms=dict(times_ms),
        annotated=None if annotated is None else base64.b64encode(annotated).decode(),
        **(_mask_fields(card, result, plan) if is_mask else task.json_fields(result, plan, card.labels)),
    )
    return answer.model_dump_json(exclude_none=True).encode()


def _mask_fields(card: ModelCard, mask: Any, plan: Geometry) -> dict[str, Any]:
    processed = mask[
        plan.paste_top : plan.paste_top + plan.paste_height, plan.paste_left : plan.paste_left + plan.paste_width
    ]
    counts = np.bincount(processed.reshape(-1))
    shares = [
        ClassShare(class_id=class_id, name=card.labels.name_of(class_id), share=int(counts[class_id]) / processed.size)
        for class_id in np.argsort(-counts, kind="stable").tolist()
        if counts[class_id]
    ]
    png = image_codecs.encode_mask(np.ascontiguousarray(geometry.to_source(mask, plan, UNSEEN)), "png")
    return {"shares": shares, "mask": base64.b64encode(png).decode()}


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
        data = await asyncio.to_thread(read_image, call.worker.config.images, upload.path, limit)
    call.active.hold(_WORK_BYTES_PER_PIXEL * _pixel_count(data))
    image = await run_sized(_decode, call.worker, data, size=_DECODED_RATIO * len(data))
    pending = await run_sized(_start, call, card, image, size=image.nbytes)
    prepared_ms = (clock.now_ns() - call.received_ns) / 1e6
    reply = await wait_for(call, pending)
    media_type = _accepted_image_type(call)
    result = _decode_result(reply)
    annotated = None
    if media_type or output or upload.output:
        drawn_bytes = round(image.nbytes * _drawing_scale(image, result) ** 2)
        call.active.hold(_WORK_BYTES_PER_PIXEL * (drawn_bytes - image.nbytes) // 3)
        annotated = await run_sized(_annotate, image, reply, result, media_type or "image/jpeg", size=drawn_bytes)
    if media_type and annotated is not None:
        return await respond(call, annotated, media_type, reply)
    # The duration of decoding and scaling, of each stage in the worker, and in total since the body was received.
    total_ms = (clock.now_ns() - call.received_ns) / 1e6
    times_ms = {"prepared": prepared_ms, **stages_ms(reply.first), "total": total_ms}
    response = await run_sized(build_response, reply.card, result, reply.first, times_ms, annotated, size=image.nbytes)
    return await respond(call, response, _JSON, reply)


def _card(worker: CloudNode, model: str | None, version: str | None) -> ModelCard:
    if model is None:
        cards = worker.submission.cards()
        if not cards:
            raise ApiError(ErrorCode.NOT_FOUND, "this worker serves no model at present: call another one")
        model = cards[0].name
    return worker.submission.find(model, version).card


def _read_body(call: HttpCall) -> _Upload:
    """Reads the body according to its content type."""
    content_type = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
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
            form = parse_form(call.body, call.request.headers["content-type"])
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


def _decode(worker: CloudNode, data: bytes) -> ImageArray:
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
        stamp_ns=0,
        data=np.ascontiguousarray(geometry.apply(image, plan)).reshape(-1).data,
        deadline=call.deadline,
        options=RequestOptions(mask_codec="raw"),
    )
    max_bytes = worker.config.max_message_bytes
    # The receive time is now: the response reports the time of decoding separately.
    future = worker.submission.put(message, received_ns=clock.now_ns(), max_reply_bytes=max_bytes)
    return PendingInference(worker.submission, card, (), (future,), max_bytes, is_vehicle=False)


def _decode_result(reply: InferenceReply) -> Result:
    packed = reply.outputs[RESULTS][0]
    result: Result = task_named(reply.card.task).decode(packed, "raw", reply.first.shape)
    return result


def _accepted_image_type(call: HttpCall) -> str | None:
    """The image type that the caller accepts instead of JSON; browsers list others and receive JSON."""
    accepted = [each.partition(";")[0].strip().lower() for each in call.request.headers.get("accept", "").split(",")]
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
    return bytes(
        image_codecs.encode(mark_untrained(drawn, reply.card), Layout.RGB8, _IMAGE_CODECS[media_type], _JPEG_QUALITY)
    )


def _drawing_scale(image: ImageArray, result: Result) -> float:
    """The factor by which an image is enlarged for drawing, so that text on it is legible."""
    height, width = image.shape[:2]
    return 1.0 if isinstance(result, np.ndarray) else max(1.0, min(LEGIBLE_WIDTH / width, MAX_JPEG_SIDE / height))
