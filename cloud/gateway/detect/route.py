"""`POST /api/detect`: one picture in, what the model says of it out, for people, scripts and browsers."""

from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import RESULTS, Asked, Reply, stages_ms
from cloud.gateway.context import WorkerContext
from cloud.gateway.detect.image_folder import read_image
from cloud.gateway.detect.response import DetectAnswer, answer_of
from cloud.gateway.http.call import HttpCall, answered, aside, read, response
from cloud.gateway.http.json_reader import read_object
from cloud.gateway.http.middleware import Passage
from cloud.gateway.http.multipart import parts_of
from shared import clock
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.drawing import LEGIBLE_WIDTH, draw
from shared.imaging.frames import Layout
from shared.imaging.geometry import UNSEEN, Resize
from shared.imaging.image_files import Picture, decode_to_rgb, stamp_untrained
from shared.imaging.image_header import read_header
from shared.imaging.opencv import cv2
from shared.messages import results
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.messages.results import Result
from shared.messages.topics import sanitize_name

_DOOR = "detect"
_JSON = "application/json"
_FORM = "multipart/form-data"
_FIELDS = "application/x-www-form-urlencoded"
_PICTURES = {"image/jpeg": "jpeg", "image/png": "png"}
_HOW = f"send a picture as {' or '.join(_PICTURES)}, or in {_FORM} as file"
_OPACITY = 0.5  # Of a mask over its picture.
_QUALITY = 90
MAX_JPEG_SIDE = 65_500  # Pixels; the library makes no larger one.
_SCALED = 10  # Times its bytes a picture has, decoded, about.
_WORKED_BYTES = 9  # Of a pixel: the picture, its decoder's copy, and the one that is drawn on.
MAX_FIELDS_BYTES = 1 << 16  # Of a body without a picture.
MAX_URLENCODED_FIELDS = 8
_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off", "")

_PATH_SCHEMA: dict[str, Any] = {"type": "string", "description": "Of a picture in the worker's folder of images"}
_OUTPUT_SCHEMA: dict[str, Any] = {"type": "integer", "enum": [0, 1], "description": "1: with the annotated picture"}
_BY_PATH: dict[str, Any] = {
    "schema": {"type": "object", "properties": {"path": _PATH_SCHEMA, "output": _OUTPUT_SCHEMA}, "required": ["path"]}
}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        _FORM: {
            "schema": {
                "type": "object",
                "properties": {
                    "file": {"type": "string", "format": "binary", "description": "A JPEG or PNG"},
                    "path": _PATH_SCHEMA,
                    "output": _OUTPUT_SCHEMA,
                },
            }
        },
        _JSON: _BY_PATH,
        _FIELDS: _BY_PATH,
        **dict.fromkeys(_PICTURES, _BINARY),
    },
}


class _Order(NamedTuple):
    """What a body asks for."""

    picture: bytes | None = None
    path: str | None = None
    output: bool = False


def router(parts: WorkerContext) -> APIRouter:
    """`/api/detect`."""
    routes = APIRouter(prefix="/api", tags=["detect"])

    @routes.post(
        "/detect",
        summary="What a model says of one picture",
        openapi_extra={"requestBody": _BODY},
        response_model=DetectAnswer,
        responses={200: {"content": dict.fromkeys(_PICTURES, _BINARY)}},
    )
    async def detect(
        request: Request,
        model: Annotated[str | None, Query(description="[the first that is served]")] = None,
        version: Annotated[str | None, Query(description="[its current one]")] = None,
        output: Annotated[bool, Query(description="With the annotated picture")] = False,  # noqa: FBT002  A query.
    ) -> Response:
        call = await read(request, parts)
        card = _card(parts, model, version)
        order = await aside(_order, call, size=len(call.body))
        data = await aside(_data, parts, order, size=_size(order))
        Passage.of(request.scope).hold(_WORKED_BYTES * _pixels(data))
        picture = await aside(_picture, parts, data, size=_SCALED * len(data))
        asked = await aside(_ask, parts, call, card, picture, size=picture.nbytes)
        prepared_ms = (clock.now_ns() - call.received_ns) / 1e6
        reply = await answered(asked, request)
        wanted = _wanted_picture(call)
        result = _result(reply)
        annotated = None
        if wanted or output or order.output:
            drawn_bytes = round(picture.nbytes * _scale(picture, result) ** 2)
            Passage.of(request.scope).hold(_WORKED_BYTES * (drawn_bytes - picture.nbytes) // 3)
            annotated = await aside(_annotated, picture, reply, result, wanted or "image/jpeg", size=drawn_bytes)
        if wanted and annotated is not None:
            return await response(call, annotated, wanted, reply)
        times_ms = _times_ms(call, reply, prepared_ms)
        answer = await aside(_packed, reply, result, times_ms, annotated, size=picture.nbytes)
        return await response(call, answer, _JSON, reply)

    return routes


def _card(parts: WorkerContext, model: str | None, version: str | None) -> ModelCard:
    if model is not None:
        return parts.door.card(model, version)
    cards = parts.door.cards()
    if not cards:
        raise RefusedError(Kind.NOT_FOUND, "this worker serves no model just now: ask another one")
    return parts.door.card(cards[0].name, version)


def _order(call: HttpCall) -> _Order:
    """What a body of any of the kinds asks for."""
    kind = call.content_type
    if kind in _PICTURES:
        return _Order(call.body)
    if kind == _FORM:
        form = parts_of(call.body, call.headers["content-type"])
        fields = {part.name: part.data.decode("utf-8", "replace") for part in form if part.name != "file"}
        picture = next((part.data for part in form if part.name == "file"), None)
        return _checked(_Order(picture, fields.get("path"), _is_yes(fields.get("output", ""))))
    if kind not in (_JSON, _FIELDS):
        raise RefusedError(
            Kind.UNSUPPORTED,
            f"a body of type {kind[:80] or 'none'}: {_HOW}, or {_JSON} with a path",
        )
    if len(call.body) > MAX_FIELDS_BYTES:
        raise RefusedError(
            Kind.TOO_LARGE, f"{len(call.body)} bytes of {kind} to tell a path, at most {MAX_FIELDS_BYTES}: {_HOW}"
        )
    fields = read_object(call.body) if kind == _JSON else _urlencoded(call.body)
    path = fields.get("path")
    if not isinstance(path, str):
        raise RefusedError(Kind.INVALID, f'a body of {kind} that tells no path ({{"path": "left/0001.jpg"}}): {_HOW}')
    return _Order(None, path, _is_yes(fields.get("output", 0)))


def _checked(order: _Order) -> _Order:
    if (order.picture is None) == (order.path is None):
        raise RefusedError(
            Kind.INVALID, "a form with one of file, an uploaded picture, and path, one of the worker's own, is expected"
        )
    return order


def _urlencoded(body: bytes) -> dict[str, Any]:
    try:
        values = parse_qs(body.decode(), max_num_fields=MAX_URLENCODED_FIELDS)
    except ValueError as error:
        raise RefusedError(Kind.INVALID, f"the form cannot be read: {error}") from error
    return {name: given[-1] for name, given in values.items()}


def _is_yes(value: object) -> bool:
    text = str(value)[:8].strip().lower()
    if text not in (*_YES, *_NO):
        raise RefusedError(Kind.INVALID, f"output {text!r}: send 1 for the annotated picture, or 0")
    return text in _YES


def _size(order: _Order) -> int:
    """The kind of work that is done aside."""
    return 1 << 20 if order.picture is None else len(order.picture)


def _data(parts: WorkerContext, order: _Order) -> bytes:
    if order.picture is not None:
        return order.picture
    assert order.path is not None
    return read_image(parts.settings.images, order.path, parts.limits.max_bytes)


def _pixels(data: bytes) -> int:
    """Of a picture, by what its header says; a small file can be a large one."""
    try:
        header = read_header(data)
    except SkylaneError as error:
        raise RefusedError(Kind.UNPROCESSABLE, str(error)) from error
    return header.height * header.width


def _picture(parts: WorkerContext, data: bytes) -> Picture:
    try:
        return decode_to_rgb(data, parts.limits)
    except SkylaneError as error:
        raise RefusedError(Kind.UNPROCESSABLE, str(error)) from error


def _ask(parts: WorkerContext, call: HttpCall, card: ModelCard, picture: Picture) -> Asked:
    """Hand a picture in as a vehicle would: cropped and scaled for the model, with the geometry of that."""
    height, width = picture.shape[:2]
    try:
        made = geometry.plan(card.resize, height, width, card.height, card.width)
    except SkylaneError as error:
        raise RefusedError(Kind.UNPROCESSABLE, str(error)) from error
    message = FrameMessage(
        id=parts.door.new_id(sanitize_name(call.caller), _DOOR),
        model=card.name,
        version=card.version,
        layout=Layout.RGB8,
        shape=(card.height, card.width, 3),
        codec="raw",
        geometry=made,
        frame_stamp_ns=0,
        data=np.ascontiguousarray(geometry.apply(picture, made)).reshape(-1).data,
        budget_ms=call.budget_ms,
        want=RequestOptions(mask_codec="raw"),
    )
    largest = parts.settings.max_message_bytes
    # Received now: what decoding took is told by itself.
    future = parts.door.put(message, received_ns=clock.now_ns(), max_reply_bytes=largest)
    return Asked(parts.door, card, (), (future,), largest, is_vehicle=False)


def _result(reply: Reply) -> Result:
    packed = reply.outputs[RESULTS][0]
    return results.decode(reply.card.task, packed, "raw", reply.first.shape)


def _wanted_picture(call: HttpCall) -> str | None:
    """The kind of picture that the caller wants in the place of JSON; a browser, which takes all, wants JSON."""
    taken = [each.partition(";")[0].strip().lower() for each in call.headers.get("accept", "").split(",")]
    return next((kind for kind in taken if kind in _PICTURES), None)


def _annotated(picture: Picture, reply: Reply, result: Result, kind: str) -> bytes:
    """The whole picture with the result drawn on it; what the model did not see of it is darker under a mask."""
    made = reply.first.geometry
    assert made is not None
    height, width = picture.shape[:2]
    if max(height, width) > MAX_JPEG_SIDE:
        raise RefusedError(
            Kind.UNPROCESSABLE, f"a picture of {width}×{height} is drawn on up to {MAX_JPEG_SIDE} a side: scale it down"
        )
    if isinstance(result, np.ndarray):
        result = geometry.to_source(result, made, UNSEEN)
    elif (scale := _scale(picture, result)) > 1:
        size = (round(width * scale), round(height * scale))
        picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_CUBIC), np.uint8)
    whole = geometry.plan(Resize.STRETCH, height, width, height, width)
    drawn = draw(picture, result, reply.card.labels, whole, _OPACITY)
    told = drawn if reply.card.trained else stamp_untrained(drawn)
    return bytes(image_codecs.encode(told, Layout.RGB8, _PICTURES[kind], _QUALITY))


def _scale(picture: Picture, result: Result) -> float:
    """How many times larger a picture is drawn on than it came: where text is to be read, as wide as that takes."""
    height, width = picture.shape[:2]
    return 1.0 if isinstance(result, np.ndarray) else max(1.0, min(LEGIBLE_WIDTH / width, MAX_JPEG_SIDE / height))


def _times_ms(call: HttpCall, reply: Reply, prepared_ms: float) -> dict[str, float]:
    """From the body's last byte on: decoded and scaled, then the worker's stages, and all of it."""
    return {
        "prepared": prepared_ms,
        **stages_ms(reply.first),
        "total": (clock.now_ns() - call.received_ns) / 1e6,
    }


def _packed(reply: Reply, result: Result, times_ms: dict[str, float], annotated: bytes | None) -> bytes:
    return answer_of(reply.card, result, reply.first, times_ms, annotated).model_dump_json(exclude_none=True).encode()
