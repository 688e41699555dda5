"""A gRPC call, independent of its service and message."""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import grpc

from cloud.gateway.common.auth import Authenticator
from cloud.gateway.common.errors import ApiError, ErrorCode, converting_errors
from cloud.gateway.common.inference import CallOrigin, InferenceReply, PendingInference, server_timing
from cloud.gateway.context import WorkerContext
from shared.encoding.bounded_protobuf import ProtobufError, parse
from shared.encoding.compression import Buffer
from shared.encoding.protobuf import message_class
from shared.messages.deadline import Deadline
from shared.messages.frame import FrameMessage, pack_result, unpack_frame

FRAME_KEY = "skylane-frame-bin"  # Metadata: a vehicle's frame message without data.
MASK_KEY = "skylane-mask-bin"  # Trailing metadata: the mask message without data.
VEHICLE_KEY = "skylane-vehicle"
TIMING_KEY = "server-timing"


@dataclass(frozen=True)
class GrpcCall:
    """The bytes of a request, with its metadata and deadline."""

    data: Buffer
    received_ns: int
    context: grpc.ServicerContext = field(repr=False)

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
        """The vehicle's frame message without data, if the metadata has one.

        Raises:
            ApiError: the frame message is malformed.
        """
        packed = self.metadata.get(FRAME_KEY)
        if not isinstance(packed, bytes):
            return None
        with converting_errors(ErrorCode.INVALID, f"{FRAME_KEY}: "):
            return unpack_frame(packed, self.received_ns)

    def authenticate(self, authenticator: Authenticator, claimed: str | None = None) -> str:
        """Returns the caller's name; `claimed` is the vehicle name in the message, which precedes that in the metadata.

        Raises:
            ApiError: the token is missing or unknown, or does not allow the claimed name.
        """
        if claimed is None and self.frame is not None:
            claimed = self.frame.id.vehicle
        if claimed is None and (vehicle := self.metadata.get(VEHICLE_KEY)) is not None:
            claimed = vehicle if isinstance(vehicle, str) else vehicle.decode(errors="replace")
        return authenticator.authenticate(self.text("authorization"), claimed, self.host)

    def check_token(self, authenticator: Authenticator) -> None:
        """Checks only the token, before the message has been received.

        Raises:
            ApiError: the token is missing or unknown.
        """
        authenticator.authenticate(self.text("authorization"), None, self.host)

    def origin(self, frontend: str, caller: str, worker: WorkerContext) -> CallOrigin:
        """Describes the sender and the limits of an inference call."""
        remaining_s = self.context.time_remaining()
        deadline = Deadline.after_ms(None if remaining_s is None else remaining_s * 1e3)
        max_bytes = worker.settings.max_message_bytes
        return CallOrigin(frontend, caller, self.received_ns, max_bytes, deadline, self.frame)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Registers a function to be called when the call ends; calls it at once if the call has ended."""

        def ended() -> None:
            callback()

        if not self.context.add_callback(ended):
            callback()

    def wait_for(self, pending: PendingInference) -> InferenceReply:
        """Waits for the reply and sets its trailing metadata; the frames are cancelled if the call ends earlier.

        Raises:
            ApiError: the inference failed, or the caller's deadline has passed.
        """
        self.on_end(pending.cancel)
        try:
            reply = pending.reply()
        except CancelledError as error:
            raise ApiError(ErrorCode.LATE, "the caller's deadline has passed") from error
        trailing: list[tuple[str, str | bytes]] = [(TIMING_KEY, server_timing(reply.first))]
        if pending.is_vehicle:
            trailing.append((MASK_KEY, pack_result(reply.first)))
        self.context.set_trailing_metadata(tuple(trailing))
        return reply


def serialize(message: Any) -> bytes:
    """Serializes a protobuf message."""
    serialized: bytes = message.SerializeToString()
    return serialized


def parse_message(full_name: str, data: Buffer) -> Any:
    """Parses a protobuf message by its full name.

    Raises:
        ApiError: the bytes are malformed, or would take far more memory as a message.
    """
    article = "an" if full_name[0] in "aeiou" else "a"
    with converting_errors(ErrorCode.INVALID, f"not {article} {full_name}: ", (ProtobufError,)):
        return parse(message_class(full_name), data)
