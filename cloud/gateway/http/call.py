"""An HTTP call, independent of its route: authentication, reading and writing of bodies, and waiting for a reply."""

import asyncio
import base64
import binascii
import gzip
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cloud.gateway.common.inference import CallTerms, InferenceReply, PendingInference, server_timing
from cloud.gateway.limits import ActiveCall
from cloud.node import CloudNode
from cloud.serving.errors import ApiError, ErrorCode, InvalidError
from shared import clock
from shared.clock import Deadline
from shared.compression import Buffer
from shared.messages.frame import FrameMessage, ResultMessage, pack_result, unpack_frame
from shared.messages.msgpack_reader import MessageError

FRAME_HEADER = "Skylane-Frame"  # A vehicle's frame message without data, in base64url without padding.
MASK_HEADER = "Skylane-Mask"  # The mask message without data, in the same form.
VEHICLE_HEADER = "Skylane-Vehicle"
TIMEOUT_HEADER = "Skylane-Timeout-Ms"
TIMING_HEADER = "Server-Timing"
MAX_COMPRESSED_MEMBERS = 16  # Of a compressed body: what follows a member is copied.

_TIMEOUT_DIGITS = 8  # Of TIMEOUT_HEADER: up to a day.
_INLINE_BYTES = 1 << 16  # Work on up to this size takes about a millisecond and runs in the server's thread.
_MIN_COMPRESSED_BYTES = 1 << 10  # Smaller responses are not compressed.
_JSON = "application/json"
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_ZERO_WEIGHT = re.compile(r"q=0(\.0*)?")  # Excludes a coding (RFC 9110, 12.4.2).


class ErrorAnswer(BaseModel):
    """The body of an error response."""

    error: str


# The `responses` of a router whose routes accept a body.
ERROR_RESPONSES: Mapping[int | str, dict[str, Any]] = {
    code.http_status: {"model": ErrorAnswer, "description": text}
    for code, text in {
        ErrorCode.INVALID: "The request is malformed or has invalid values.",
        ErrorCode.UNAUTHENTICATED: "The token is missing or unknown.",
        ErrorCode.FORBIDDEN: "The token is for another name.",
        ErrorCode.NOT_FOUND: "The worker does not serve this model or version.",
        ErrorCode.LATE: "The request did not arrive, or could not be processed, in time.",
        ErrorCode.TOO_LARGE: "The request is too large.",
        ErrorCode.UNSUPPORTED: "The body has an unsupported type or coding.",
        ErrorCode.UNPROCESSABLE: "The request is well formed, but its image cannot be processed.",
        ErrorCode.BUSY: "The worker is overloaded: try again later.",
        ErrorCode.STOPPING: "The worker is stopping: call another one.",
    }.items()
}


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A request whose body has been received."""

    request: Request = field(repr=False)
    worker: CloudNode = field(repr=False)
    active: ActiveCall = field(repr=False)
    body: bytes = field(repr=False)  # Decompressed.
    received_ns: int
    caller: str
    address: str  # The caller's, without its port.
    frame: FrameMessage | None  # A vehicle's frame message, without data.
    deadline: Deadline

    def terms(self, frontend: str) -> CallTerms:
        """Describes the sender and the limits of an inference call."""
        max_bytes = self.worker.config.max_message_bytes
        return CallTerms(frontend, self.caller, self.received_ns, max_bytes, self.deadline, self.frame)


def worker_of(request: Request) -> CloudNode:
    """Returns the worker of the application that handles a request."""
    worker: CloudNode = request.app.state.worker
    return worker


async def read_call(request: Request) -> HttpCall:
    """Authenticates a request, then receives its body and counts the call as active.

    Raises:
        ApiError: the caller is not allowed to call, or the request is malformed, too large or too slow.
    """
    worker, active, headers = worker_of(request), request.state.active_call, request.headers
    frame = _frame(headers.get(FRAME_HEADER))
    claimed = frame.id.vehicle if frame else headers.get(VEHICLE_HEADER)
    address = request.client.host if request.client else "unknown"
    caller = worker.authenticator.authenticate(headers.get("authorization"), claimed, address)
    deadline = _deadline(headers.get(TIMEOUT_HEADER))
    body = await _read_body(request, worker, active)
    active.enter()
    return HttpCall(request, worker, active, body, clock.now_ns(), caller, address, frame, deadline)


Call = Annotated[HttpCall, Depends(read_call)]  # The parameter of a route that needs a token.


async def wait_for(call: HttpCall, pending: PendingInference) -> InferenceReply:
    """Waits for the reply; the frames are cancelled if the caller disconnects earlier.

    Raises:
        ApiError: the inference failed.
        ClientDisconnect: the caller has disconnected.
    """
    disconnected: asyncio.Future[Any] = asyncio.ensure_future(_wait_for_disconnect(call.request))
    waiting: set[asyncio.Future[Any]] = {asyncio.wrap_future(future) for future in pending.futures}
    try:
        while waiting:
            done, _ = await asyncio.wait((disconnected, *waiting), return_when=asyncio.FIRST_COMPLETED)
            if disconnected in done:
                raise ClientDisconnect
            waiting -= done
        return pending.reply()
    finally:
        disconnected.cancel()
        pending.cancel()


async def respond(call: HttpCall, body: Buffer, media_type: str, reply: InferenceReply | None = None) -> Response:
    """Creates the response, compressed if the caller accepts that; with the stage durations of a reply's first image."""
    headers: dict[str, str] = {}
    if reply is not None:
        headers[TIMING_HEADER] = server_timing(reply.first)
        if call.frame is not None:
            headers[MASK_HEADER] = _mask_header(reply.first)
    coding = _response_coding(call, media_type, len(body))
    if coding is not None:
        body = await run_sized(_compress, coding, body, size=len(body))
        headers["Content-Encoding"] = coding
        headers["Vary"] = "Accept-Encoding"
    return Response(body if isinstance(body, bytes) else bytes(body), media_type=media_type, headers=headers)


async def run_sized(work: Any, *arguments: Any, size: int) -> Any:
    """Runs `work`; in another thread if its input of `size` bytes would block the server's thread for too long."""
    return work(*arguments) if size <= _INLINE_BYTES else await asyncio.to_thread(work, *arguments)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read_body(request: Request, worker: CloudNode, active: ActiveCall) -> bytes:
    limit, timeout_s = worker.config.max_message_bytes, worker.timeouts.body_s
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in _WINDOW_BITS and coding != "identity":
        raise ApiError(ErrorCode.UNSUPPORTED, f"content-encoding {coding[:40]!r}: send gzip, deflate, or none")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(size, limit)
                active.hold(len(chunk))
                chunks.append(chunk)
    except TimeoutError as error:
        raise ApiError(
            ErrorCode.LATE,
            f"{size} bytes of the body arrived within {timeout_s:g} s: send all of it within that time",
        ) from error
    body = b"".join(chunks)
    if coding == "identity" or not body:
        return body
    decompressed: bytes = await run_sized(_decompress, coding, body, limit, size=len(body))
    active.hold(len(decompressed))
    return decompressed


def _decompress(coding: str, compressed: bytes, limit: int) -> bytes:
    body = b""
    try:
        for _ in range(MAX_COMPRESSED_MEMBERS):  # A gzip file may have several members.
            decompressor = zlib.decompressobj(_WINDOW_BITS[coding])
            body += decompressor.decompress(compressed, limit + 1 - len(body))
            if len(body) > limit:
                raise _too_large(len(body), limit)
            if not decompressor.eof:
                raise InvalidError(f"the body's {coding} data is incomplete: send all of it")
            compressed = decompressor.unused_data
            if not compressed:
                return body
    except zlib.error as error:
        raise InvalidError(f"the body is not valid {coding} ({error}), as its content-encoding says") from error
    raise InvalidError(f"the body consists of more than {MAX_COMPRESSED_MEMBERS} {coding} members: send one")


def _compress(coding: str, data: Buffer) -> bytes:
    return gzip.compress(data, 1, mtime=0) if coding == "gzip" else zlib.compress(data, 1)


def _response_coding(call: HttpCall, media_type: str, size: int) -> str | None:
    """Chooses gzip or deflate if the caller accepts it and it saves bytes.

    Binary responses are mostly compressed already. They are compressed only for a caller that accepts a single coding,
    because client libraries accept both by default.
    """
    if size < _MIN_COMPRESSED_BYTES:
        return None
    listed = (
        each.replace(" ", "").split(";") for each in call.request.headers.get("accept-encoding", "").lower().split(",")
    )
    accepted = [coding for coding, *weights in listed if not any(map(_ZERO_WEIGHT.fullmatch, weights))]
    known = [coding for coding in ("gzip", "deflate") if coding in accepted]
    if not known or (media_type != _JSON and len(accepted) > 1):
        return None
    return known[0]


def _too_large(size: int, limit: int) -> ApiError:
    return ApiError(ErrorCode.TOO_LARGE, f"a body of {size} bytes or more: send at most {limit}")


def _frame(header: str | None) -> FrameMessage | None:
    """Parses the header with a vehicle's frame message."""
    if header is None:
        return None
    try:
        return unpack_frame(base64.b64decode(header + "=" * (-len(header) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, MessageError) as error:
        raise InvalidError(f"{FRAME_HEADER}: {error}") from error


def _mask_header(message: ResultMessage) -> str:
    return base64.urlsafe_b64encode(pack_result(message)).rstrip(b"=").decode()


def _deadline(header: str | None) -> Deadline:
    if header is None:
        return Deadline.NEVER
    if not header.isascii() or not header.isdigit() or len(header) > _TIMEOUT_DIGITS:
        raise InvalidError(f"{TIMEOUT_HEADER} {header[:40]!r}: send whole milliseconds")
    return Deadline.after_ms(int(header))
