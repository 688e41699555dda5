"""The contracts for calls to one worker without a broker (channel, protocol adapter, outcomes), and what they share."""

import base64
import binascii
import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from edge.transports.transport import EncodedRequest
from shared.clock import Deadline
from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.files import read_file
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.msgpack_reader import MessageError
from shared.network import endpoint
from shared.network.endpoint import Endpoint

TOKEN_VARIABLE = endpoint.WORKER
_VALUE_MARKS = (b"[", b"{", b",")  # Two bytes of JSON can become a list that takes 30 times as much memory.


class WorkerAddressError(SkylaneError):
    """A worker's certificate authority or token cannot be used."""


@dataclass(frozen=True, slots=True)
class WorkerCredentials:
    """The certificate authority that signs the workers' certificates, and this vehicle's token."""

    authority: bytes | None = None  # PEM; None: no TLS.
    token: str | None = field(default=None, repr=False)

    @classmethod
    def read(cls, authority: Path | None) -> "WorkerCredentials":
        """Reads the authority from a file, and the token from the environment variable SKYLANE_WORKER_TOKEN.

        Raises:
            WorkerAddressError: the file cannot be read, or has no certificate.
        """
        pem = None
        if authority is not None:
            try:
                pem = read_file(authority)
            except OSError as error:
                raise WorkerAddressError(f"the authority {authority} cannot be read: {error.strerror}") from error
            if b"-----BEGIN CERTIFICATE-----" not in pem:
                raise WorkerAddressError(f"the authority {authority} holds no certificate in PEM")
        return cls(pem, os.environ.get(TOKEN_VARIABLE) or None)

    def context(self, address: Endpoint) -> ssl.SSLContext | None:
        """Returns the TLS settings for a connection, or None without an authority.

        Raises:
            WorkerAddressError: the authority is no valid certificate.
        """
        if self.authority is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # The authority may be an intermediate one, as in gRPC.
        try:
            context.load_verify_locations(cadata=self.authority.decode())
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise WorkerAddressError(f"the authority for {address} holds no certificate in PEM: {error}") from error
        return context

    def headers(self, vehicle: str, address: Endpoint) -> dict[str, str]:
        """Returns the headers that identify this vehicle to a worker.

        Raises:
            WorkerAddressError: the token would travel unencrypted to another machine.
        """
        headers = {"skylane-vehicle": vehicle}
        if self.token is not None:
            if self.authority is None and not address.is_local:
                raise WorkerAddressError(
                    f"{TOKEN_VARIABLE} would travel to {address} in the clear: give the worker's authority with "
                    "--worker-tls-ca"
                )
            headers["authorization"] = f"Bearer {self.token}"
        return headers


class ChannelError(SkylaneError):
    """A worker cannot be called. `is_final`: True if a retry would fail as well."""

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        self.is_final = is_final
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class RpcReply:
    """A successful call; the reply is not decoded yet."""

    body: Buffer
    metadata: Mapping[str, str | bytes]  # Trailing metadata of gRPC, or HTTP headers.
    returned_ns: int  # Arrival of the reply, by `shared.clock`.


@dataclass(frozen=True, slots=True)
class RpcRefusal:
    """The call ended with an error code of the protocol."""

    status: Status  # The error code as a frame status.
    reason: str
    returned_ns: int


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """The worker did not get the frame, so another worker may get it. `is_stopping`: the worker is shutting down."""

    is_stopping: bool


@dataclass(frozen=True, slots=True)
class Indeterminate:
    """The worker may have got the frame. `is_broken`: True if the connection broke, False if the call timed out."""

    is_broken: bool


CallOutcome = RpcReply | RpcRefusal | NotDelivered | Indeterminate
OnOutcome = Callable[[CallOutcome], None]  # Runs on a thread of the channel, or on the one that closes it.


class ProtocolAdapter(Protocol):
    """Translates frames and results to and from the messages of one inference protocol."""

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """Encodes a frame as a request."""

    def read(self, reply: RpcReply) -> ResultMessage:
        """Decodes a reply.

        Raises:
            MessageError: the reply is malformed.
        """


class RpcChannel(Protocol):
    """The connection to one worker. Any thread may use it."""

    def call(self, request: EncodedRequest, deadline: Deadline, timeout_s: float, on_outcome: OnOutcome) -> None:
        """Sends a frame and calls `on_outcome` once, unless it is closed before; returns before the frame is on the wire.

        Args:
            deadline: Deadline of the frame, passed on to the worker.
            timeout_s: Time limit of the call.
        """

    def probe(self, payload: bytes, on_echo: Callable[[bytes, int], None]) -> None:
        """Sends a packed clock probe; returns at once. `on_echo` gets the packed echo and its arrival time in ns."""

    def echo(self, payload: bytes) -> bytes:
        """Sends a packed clock probe and waits for the packed echo.

        Raises:
            ChannelError: no echo arrived in time.
        """

    def statuses(self) -> Iterator[bytes]:
        """Yields the worker's packed status: the current one, then each change until interrupted.

        Raises:
            ChannelError: the worker cannot be reached, or the connection is lost.
        """

    def interrupt(self) -> None:
        """Ends the current `statuses`, so that its caller asks for the current status again."""

    def close(self) -> None:
        """Closes the connection and cancels calls in progress."""


FRAME_KEY, MASK_KEY = "skylane-frame-bin", "skylane-mask-bin"  # gRPC metadata, binary.
FRAME_HEADER, MASK_HEADER = "Skylane-Frame", "Skylane-Mask"  # HTTP headers, base64url without padding.
IMAGE, RESULT = "image_bytes", "result_bytes"  # Tensors of the packed form in which a worker offers every model.


def pack_metadata(message: FrameMessage) -> bytes:
    """Encodes a frame message without its image, for gRPC metadata."""
    return pack_frame(replace(message, data=b""))


def pack_header(message: FrameMessage) -> str:
    """Encodes a frame message without its image, for an HTTP header."""
    return base64.urlsafe_b64encode(pack_metadata(message)).decode().rstrip("=")


def read_mask(metadata: Mapping[str, str | bytes], read_result: Callable[[], Buffer | None]) -> ResultMessage:
    """Decodes the result message in a reply's metadata and adds its data.

    Args:
        metadata: gRPC metadata or HTTP headers of the reply.
        read_result: Returns the result tensor of the reply's body, or None if it is missing.

    Raises:
        MessageError: the result message is missing or malformed, or the result that it announces is missing.
    """
    packed = metadata.get(MASK_KEY) or _decode_header(metadata.get(MASK_HEADER, ""))
    if not isinstance(packed, bytes) or not packed:
        raise MessageError(f"the reply has no {MASK_HEADER}: the server is no Skylane worker")
    message = unpack_result(packed)
    if message.status is not Status.ANSWERED:
        return message
    data = read_result()
    if data is None:
        raise MessageError(f"the reply lacks the {RESULT} that its {MASK_HEADER} announces")
    return replace(message, data=data)


def _decode_header(text: str | bytes) -> bytes:
    """Decodes base64url without padding; returns no bytes for malformed text."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""


class JsonError(ValueError):
    """The input is not JSON, or would need far more memory than its size."""


def parse_json(data: Buffer, max_values: int) -> Any:
    """Parses untrusted JSON of approximately `max_values` values at most.

    Args:
        data: ASCII text: a single other character makes Python use four bytes for each character of its string.
        max_values: Limit of opening brackets, opening braces and commas together.

    Raises:
        JsonError: the input is not JSON, has too many values or other characters.
    """
    text = bytes(data)
    if not text.isascii():
        raise JsonError("it is not in ASCII")
    if sum(map(text.count, _VALUE_MARKS)) > max_values:
        raise JsonError(f"it has more than {max_values} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"{type(error).__name__} {error}"[:200]) from error
