"""A gRPC call, independent of its service, and the methods of a service; requests and responses are bytes."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import grpc

from cloud.gateway.common.inference import CallTerms, InferenceReply, PendingInference, server_timing
from cloud.node import CloudNode
from cloud.serving.errors import ErrorCode, converting_errors
from shared.clock import Deadline
from shared.compression import Buffer
from shared.messages.frame import FrameMessage, pack_result, unpack_frame
from shared.messages.protobuf import ProtobufError, message_class, parse

FRAME_KEY = "skylane-frame-bin"  # Metadata: a vehicle's frame message without data.
MASK_KEY = "skylane-mask-bin"  # Trailing metadata: the mask message without data.
VEHICLE_KEY = "skylane-vehicle"
TIMING_KEY = "server-timing"


@dataclass(frozen=True)
class GrpcCall:
    """A call of a worker, with its metadata and deadline, and a message."""

    worker: CloudNode = field(repr=False)
    stopping: threading.Event = field(repr=False)  # Set when the server stops.
    context: grpc.ServicerContext = field(repr=False)
    data: Buffer = b""  # The message; empty until it has arrived.
    received_ns: int = 0

    @cached_property
    def metadata(self) -> Mapping[str, str | bytes]:
        """The metadata by key in lower case; values are bytes if the key ends in `-bin`."""
        return dict(self.context.invocation_metadata())

    @property
    def host(self) -> str:
        """The caller's address, without its port."""
        address = unquote(self.context.peer()).partition(":")[2]  # For example ipv4:127.0.0.1:5000 or ipv6:[::1]:5000.
        return address.rpartition(":")[0].strip("[]") or "unknown"

    def text(self, key: str) -> str | None:
        """Returns a text value of the metadata."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    @cached_property
    def frame(self) -> FrameMessage | None:
        """The vehicle's frame message without data, if the metadata has one."""
        packed = self.metadata.get(FRAME_KEY)
        if not isinstance(packed, bytes):
            return None
        with converting_errors(ErrorCode.INVALID, f"{FRAME_KEY}: "):
            return unpack_frame(packed, self.received_ns)

    def authenticate(self, claimed: str | None = None) -> str:
        """Returns the caller's name; `claimed` is the vehicle name in the message, which precedes that in the metadata.

        Raises:
            ApiError: the token is missing or unknown, or does not allow the claimed name.
        """
        if claimed is None:
            claimed = self.frame.id.vehicle if self.frame is not None else self.text(VEHICLE_KEY)
        return self.worker.authenticator.authenticate(self.text("authorization"), claimed, self.host)

    def check_token(self) -> None:
        """Checks the token alone, if one is needed, before the message has arrived."""
        if self.worker.authenticator.requires_token:
            self.worker.authenticator.authenticate(self.text("authorization"), None, self.host)

    def terms(self, frontend: str, caller: str) -> CallTerms:
        """Describes the sender and the limits of an inference call."""
        remaining_s = self.context.time_remaining()
        deadline = Deadline.after_ms(None if remaining_s is None else remaining_s * 1e3)
        max_bytes = self.worker.config.max_message_bytes
        return CallTerms(frontend, caller, self.received_ns, max_bytes, deadline, self.frame)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Registers a function to be called when the call ends; calls it at once if the call has ended."""
        if not self.context.add_callback(callback):  # type: ignore[arg-type]  # gRPC ignores what it returns.
            callback()

    def wait_for(self, pending: PendingInference) -> InferenceReply:
        """Waits for the reply and sets its trailing metadata; the frames are cancelled if the call ends earlier.

        Raises:
            ApiError: the inference failed, or the caller's deadline has passed.
        """
        self.on_end(pending.cancel)
        with converting_cancellation():
            reply = pending.reply()
        trailing: list[tuple[str, str | bytes]] = [(TIMING_KEY, server_timing(reply.first))]
        if pending.is_vehicle:
            trailing.append((MASK_KEY, pack_result(reply.first)))
        self.context.set_trailing_metadata(tuple(trailing))
        return reply


@dataclass(frozen=True, slots=True)
class Method:
    """A method with one request."""

    respond: Callable[[GrpcCall], Any]  # Returns the response, or an iterator of responses; raises ApiError.
    streams_responses: bool = False
    needs_token: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class PendingResponse:
    """A request of a stream that is being processed."""

    futures: Sequence[Future[Any]]  # `respond` may be called when all are done; they are cancelled with the stream.
    respond: Callable[[], bytes]  # Returns the response, which may report an error.


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A method with a stream of requests and a stream of responses."""

    open: Callable[[GrpcCall], Callable[[GrpcCall], PendingResponse]]  # Returns the function that starts a request.


Services = Mapping[str, Mapping[str, Method | StreamMethod]]  # By the full name in the .proto file, and by method name.


def converting_cancellation() -> AbstractContextManager[None]:
    """Converts the cancellation of a call's frame to an `ApiError`."""
    return converting_errors(ErrorCode.LATE, "the caller's deadline has passed", (CancelledError,))


def parse_message(full_name: str, data: Buffer) -> Any:
    """Parses a protobuf message by its full name."""
    article = "an" if full_name[0] in "aeiou" else "a"
    with converting_errors(ErrorCode.INVALID, f"not {article} {full_name}: ", (ProtobufError,)):
        return parse(message_class(full_name), data)
