"""An HTTP call as its route sees it, whatever its body means: how it is read, waited for and answered."""

import asyncio
import base64
import binascii
import gzip
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Asked, Reply, server_timing
from cloud.gateway.context import WorkerContext
from cloud.gateway.http.middleware import Passage
from shared import clock
from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.messages.frame import FrameMessage, ResultMessage, pack_result, unpack_frame

FRAME_HEADER = "Skylane-Frame"  # A vehicle's frame message without its data, and
MASK_HEADER = "Skylane-Mask"  # the mask message without its, beside the answer; both base64url without padding.
VEHICLE_HEADER = "Skylane-Vehicle"
TIMEOUT_HEADER = "Skylane-Timeout-Ms"
TIMING_HEADER = "Server-Timing"

_LONGEST_MS = 86_400_000
_BRIEF_BYTES = 1 << 16  # What is (un)folded within a millisecond stays on the server's thread.
_FOLDED_FROM_BYTES = 1 << 10
MAX_COMPRESSED_MEMBERS = 16  # Of a folded body: what is behind each is copied.
_JSON = "application/json"
_CODINGS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_NEVER = re.compile(r"q=0(\.0*)?")  # How a caller says that it does not take a coding.

T = TypeVar("T")


class ErrorAnswer(BaseModel):
    """What a refused call is answered with."""

    error: str


# For a router's `responses`: what any call that takes a body may be refused with.
ERRORS: Mapping[int | str, dict[str, Any]] = {
    kind.http_status: {"model": ErrorAnswer, "description": text}
    for kind, text in {
        Kind.INVALID: "The call cannot be read, or asks for what is not.",
        Kind.UNAUTHENTICATED: "There is no token, or none of this worker's.",
        Kind.FORBIDDEN: "The token is for another name.",
        Kind.NOT_FOUND: "There is no such model or version.",
        Kind.LATE: "The call did not come, or could not be answered, within its time.",
        Kind.TOO_LARGE: "The call is larger than is taken.",
        Kind.UNSUPPORTED: "The body is of a kind or coding that is not taken.",
        Kind.UNPROCESSABLE: "The call can be read, but no picture can be made of it.",
        Kind.BUSY: "Too much is under way: ask again.",
        Kind.STOPPING: "The worker is stopping: ask another one.",
    }.items()
}


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A call that has been read."""

    body: bytes = field(repr=False)  # Unfolded.
    headers: Mapping[str, str] = field(repr=False)  # By name, in any case.
    received_ns: int
    caller: str
    address: str  # Of the caller, without its port.
    frame: FrameMessage | None  # A vehicle's, without data.
    budget_ms: int | None

    @property
    def content_type(self) -> str:
        """Of the body, without parameters and in small letters; "" where none is told."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read(request: Request, parts: WorkerContext) -> HttpCall:
    """Read a call: who it is from first, then its body, within the worker's bounds.

    From here on it counts as under way, until it has been answered.

    Raises:
        RefusedError: it may not call, or is too large, too slow, or cannot be read.
    """
    headers = request.headers
    frame = _frame(headers.get(FRAME_HEADER))
    claimed = frame.id.vehicle if frame else headers.get(VEHICLE_HEADER)
    peer = request.client.host if request.client else "nobody"
    caller = parts.callers.name(headers.get("authorization"), claimed, peer)
    budget_ms = _budget_ms(headers.get(TIMEOUT_HEADER))
    body = await _body(request, parts)
    Passage.of(request.scope).enter()
    return HttpCall(body, headers, clock.now_ns(), caller, peer, frame, budget_ms)


async def answered(asked: Asked, request: Request) -> Reply:
    """The reply, once all pictures have their answers.

    Raises:
        RefusedError: see Asked.reply.
        ClientDisconnect: the caller has gone; what had not begun was given up.
    """
    gone: asyncio.Future[Any] = asyncio.ensure_future(_gone(request))
    waiting: set[asyncio.Future[Any]] = {asyncio.wrap_future(future) for future in asked.futures}
    try:
        while waiting:
            done, _ = await asyncio.wait((gone, *waiting), return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                raise ClientDisconnect
            waiting -= done
        return asked.reply()
    finally:
        gone.cancel()
        asked.cancel()  # What is done already is not changed by it.


async def response(call: HttpCall, body: Buffer, media_type: str, reply: Reply | None = None) -> Response:
    """The answer to a call, with the worker's stages of its first picture, folded where the caller asks for that."""
    headers: dict[str, str] = {}
    if reply is not None:
        headers[TIMING_HEADER] = server_timing(reply.first)
        if call.frame is not None:
            headers[MASK_HEADER] = _mask(reply.first)
    coding = _wanted_coding(call, media_type, len(body))
    if coding is not None:
        body = await aside(_fold, coding, body, size=len(body))
        headers["Content-Encoding"] = coding
        headers["Vary"] = "Accept-Encoding"
    return Response(body if isinstance(body, bytes) else bytes(body), media_type=media_type, headers=headers)


async def aside(work: Any, *arguments: Any, size: int) -> Any:
    """What `work` returns, from a thread of its own where `size` bytes would hold the server up."""
    return work(*arguments) if size <= _BRIEF_BYTES else await asyncio.to_thread(work, *arguments)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, parts: WorkerContext) -> bytes:
    settings = parts.settings
    limit = settings.max_message_bytes
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in _CODINGS and coding != "identity":
        raise RefusedError(Kind.UNSUPPORTED, f"content-encoding {coding[:40]!r}: send gzip, deflate, or none")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    passage = Passage.of(request.scope)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(size, limit)
                passage.hold(len(chunk))
                chunks.append(chunk)
    except TimeoutError as error:
        raise RefusedError(
            Kind.LATE, f"{size} bytes of the body came within {settings.body_timeout_s:g} s: send it in one go"
        ) from error
    body = b"".join(chunks)
    if coding == "identity" or not body:
        return body
    unfolded: bytes = await aside(_unfold, coding, body, limit, size=len(body))
    passage.hold(len(unfolded))
    return unfolded


def _unfold(coding: str, folded: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    try:
        while folded:  # A gzip file may have several members.
            if len(parts) == MAX_COMPRESSED_MEMBERS:
                raise RefusedError(
                    Kind.INVALID, f"the body is more than {MAX_COMPRESSED_MEMBERS} pieces of {coding}: send one"
                )
            unfolder = zlib.decompressobj(_CODINGS[coding])
            part = unfolder.decompress(folded, left + 1)
            left -= len(part)
            if left < 0:
                raise _too_large(limit - left, limit)
            if not unfolder.eof:
                raise RefusedError(Kind.INVALID, f"the body ends within its {coding} coding: send all of it")
            parts.append(part)
            folded = unfolder.unused_data
    except zlib.error as error:
        raise RefusedError(Kind.INVALID, f"the body is no {coding} ({error}), as its content-encoding says") from error
    return b"".join(parts)


def _fold(coding: str, data: Buffer) -> bytes:
    return gzip.compress(data, 1, mtime=0) if coding == "gzip" else zlib.compress(data, 1)


def _wanted_coding(call: HttpCall, media_type: str, size: int) -> str | None:
    """Gzip or deflate where the caller takes it and it pays.

    Every client library says that it takes both, so JSON and text are folded at that; an answer in binary, which is
    pixels or masks that are folded already, only for a caller that names one coding alone.
    """
    if size < _FOLDED_FROM_BYTES:
        return None
    listed = (each.replace(" ", "").split(";") for each in call.headers.get("accept-encoding", "").lower().split(","))
    taken = [coding for coding, *weights in listed if not any(map(_NEVER.fullmatch, weights))]
    known = [coding for coding in ("gzip", "deflate") if coding in taken]
    if not known or (media_type != _JSON and len(taken) > 1):
        return None
    return known[0]


def _too_large(size: int, limit: int) -> RefusedError:
    return RefusedError(Kind.TOO_LARGE, f"a body of {size} bytes or more: at most {limit} are taken")


def _frame(header: str | None) -> FrameMessage | None:
    """A vehicle's frame message without data.

    Raises:
        RefusedError: what is there is none.
    """
    if header is None:
        return None
    try:
        return unpack_frame(base64.b64decode(header + "=" * (-len(header) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, MessageError) as error:
        raise RefusedError(Kind.INVALID, f"{FRAME_HEADER}: {error}") from error


def _mask(message: ResultMessage) -> str:
    return base64.urlsafe_b64encode(pack_result(message)).rstrip(b"=").decode()


def _budget_ms(header: str | None) -> int | None:
    if header is None:
        return None
    if not header.isascii() or not header.isdigit() or len(header) > len(str(_LONGEST_MS)):
        raise RefusedError(Kind.INVALID, f"{TIMEOUT_HEADER} {header[:40]!r}: give whole milliseconds")
    return min(int(header), _LONGEST_MS)
