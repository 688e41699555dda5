"""The connection to a worker over gRPC, and the adapter for Skylane's own protocol."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol

from edge.transports.channel import (
    CallOutcome,
    ChannelError,
    Indeterminate,
    NotDelivered,
    OnOutcome,
    ProtocolAdapter,
    RpcRefusal,
    RpcReply,
    WorkerCredentials,
)
from edge.transports.transport import EncodedRequest
from shared import clock
from shared.clock import Deadline
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES, MessageError
from shared.messages.protobuf_fields import PackedError, pack, unpack
from shared.network.endpoint import Endpoint
from shared.sanitize import printable

grpc: Any = import_module("grpc")  # grpcio has no type annotations.

_MAX_REPLY_BYTES = MAX_MESSAGE_BYTES + (1 << 20)  # The result and its metadata.
_PROBE_TIMEOUT_S = 2.0  # A slower echo is useless for estimating the clock offset.
_CONTROL_TIMEOUT_S = 5.0
_SHOWN_CHARACTERS = 300  # Length of a server's text in an error message.
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),  # Longest delay until a restarted worker is found.
    ("grpc.use_local_subchannel_pool", 1),  # Channels share no TCP connection.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MAX_REPLY_BYTES),
    ("grpc.max_send_message_length", -1),  # The worker refuses requests that are too large.
)
_FINAL = ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")  # A later attempt would fail as well.
_REJECTED = ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", *_FINAL)
_NOT_CONNECTED = "failed to connect"  # grpcio's text when there was no connection, so nothing was sent.
_TOO_LARGE = ("CLIENT: Received message larger", "Decompressed message larger")  # grpcio's texts for a large reply.
_CLOSED = "the channel is closed"
_DNS_SCHEME = "dns:///"  # Without it, gRPC takes a host named `unix` for a socket file.
_REFUSAL_KEY = "skylane-refusal"  # Metadata that the worker sets; errors of the gRPC libraries lack it.


class GrpcAdapter(ProtocolAdapter, Protocol):
    """A protocol adapter with the gRPC method that takes its requests."""

    method: str  # "/package.Service/Method".


class GrpcChannel:
    """The connection to a worker's gRPC endpoint. Status and probes have their own connection, apart from frames."""

    def __init__(
        self, address: Endpoint, adapter: GrpcAdapter, credentials: WorkerCredentials, vehicle: str, *, window: int = 1
    ) -> None:
        """Opens no connection yet. Calls share a connection, so their number needs no limit.

        Raises:
            WorkerAddressError: the token would travel unencrypted, or the certificate authority is invalid.
        """
        del window
        credentials.context(address)
        self._metadata = tuple(credentials.headers(vehicle, address).items())
        self._frame_channel = _open_channel(f"{_DNS_SCHEME}{address}", credentials)
        self._frames = self._frame_channel.unary_unary(adapter.method, response_deserializer=_with_time)
        self._control_channel = _open_channel(f"{_DNS_SCHEME}{address}", credentials)
        self._probe = self._control_channel.unary_unary("/skylane.v1.Worker/Probe", response_deserializer=_with_time)
        self._status = self._control_channel.unary_stream("/skylane.v1.Worker/Status")
        self._stream: Any = None  # The latest stream of statuses.

    def call(self, request: EncodedRequest, deadline: Deadline, timeout_s: float, on_outcome: OnOutcome) -> None:  # noqa: ARG002  A contract's.
        """See RpcChannel. The timeout of the gRPC call carries the deadline."""
        try:
            call = self._frames.future(request.body, timeout=timeout_s, metadata=(*self._metadata, *request.metadata))
        except ValueError:  # The channel is closed.
            on_outcome(Indeterminate(is_broken=False))
            return
        call.add_done_callback(lambda future: on_outcome(_outcome(future)))

    def probe(self, payload: bytes, on_echo: Callable[[bytes, int], None]) -> None:
        """See RpcChannel."""

        def on_done(future: Any) -> None:
            if future.code() is grpc.StatusCode.OK:
                returned_ns, body = future.result()
                try:
                    on_echo(bytes(unpack(body)), returned_ns)
                except PackedError:
                    on_echo(b"", returned_ns)

        try:
            call = self._probe.future(pack(payload), timeout=_PROBE_TIMEOUT_S, metadata=self._metadata)
        except ValueError:  # The channel is closed.
            return
        call.add_done_callback(on_done)

    def echo(self, payload: bytes) -> bytes:
        """See RpcChannel."""
        try:
            _, body = self._probe(pack(payload), timeout=_CONTROL_TIMEOUT_S, metadata=self._metadata)
            return bytes(unpack(body))
        except grpc.RpcError as error:
            raise _channel_error(error) from error
        except PackedError as error:
            raise ChannelError(str(error)) from error
        except ValueError as error:
            raise ChannelError(_CLOSED) from error

    def statuses(self) -> Iterator[bytes]:
        """See RpcChannel."""
        try:
            self._stream = stream = self._status(b"", metadata=self._metadata)
        except ValueError as error:
            raise ChannelError(_CLOSED) from error
        try:
            for body in stream:
                yield bytes(unpack(body))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise _channel_error(error) from error
        except PackedError as error:
            raise ChannelError(str(error)) from error
        finally:
            stream.cancel()

    def interrupt(self) -> None:
        """See RpcChannel."""
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """See RpcChannel."""
        self._frame_channel.close()
        self._control_channel.close()


def _open_channel(address: str, credentials: WorkerCredentials) -> Any:
    if credentials.authority is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(credentials.authority), options=_OPTIONS)


def _with_time(body: bytes) -> tuple[int, bytes]:
    """Pairs a reply with its arrival time, before it waits for the thread that decodes it."""
    return clock.now_ns(), body


def _outcome(call: Any) -> CallOutcome:
    metadata = dict(call.trailing_metadata() or ())
    if call.code() is grpc.StatusCode.OK:
        returned_ns, body = call.result()
        return RpcReply(body, metadata, returned_ns)
    return _failure(call.code().name, _first_line(call.details()), metadata.get(_REFUSAL_KEY))


def _failure(code: str, details: str, refusal: str | bytes | None) -> CallOutcome:
    """Maps a gRPC status code other than OK. `refusal`: the worker's own reason; None if a gRPC library set the code."""
    now_ns = clock.now_ns()
    match code:
        case "UNAVAILABLE":
            if refusal is not None:
                return NotDelivered(is_stopping=True)
            return NotDelivered(is_stopping=False) if _NOT_CONNECTED in details else Indeterminate(is_broken=True)
        case "CANCELLED" | "DEADLINE_EXCEEDED":  # A server that shuts down cancels its latest calls.
            return Indeterminate(is_broken=code == "CANCELLED")
        case "RESOURCE_EXHAUSTED" if refusal is None and any(text in details for text in _TOO_LARGE):
            return RpcRefusal(Status.FAILED, f"too_large: {details}", now_ns)
        case "RESOURCE_EXHAUSTED" if refusal == "too_large" or "larger than max" in details:
            return RpcRefusal(Status.REJECTED, f"too_large: {details}", now_ns)
        case "RESOURCE_EXHAUSTED":
            status = Status.OVERLOADED
        case _:
            status = Status.REJECTED if code in _REJECTED else Status.FAILED
    return RpcRefusal(status, f"{code.lower()}: {details}", now_ns)


def _channel_error(error: Any) -> ChannelError:
    name, details = error.code().name, _first_line(error.details())
    if _NOT_CONNECTED in details:
        # grpcio puts the cause of a failed TLS handshake behind the general problem.
        cause = details.removesuffix(": OK").rpartition(": ")[2]
        return ChannelError(f"it cannot be reached ({cause})")
    return ChannelError(f"{name.lower()}: {details}", is_final=name in _FINAL)


def _first_line(details: str | None) -> str:
    lines = (details or "").strip().splitlines()
    return printable(lines[0].strip()[:_SHOWN_CHARACTERS]) if lines else "no details"


class SkylaneAdapter:
    """Encodes frames for `skylane.v1.Worker.Answer`."""

    method = "/skylane.v1.Worker/Answer"

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See ProtocolAdapter."""
        return EncodedRequest(pack(pack_frame(message)))

    def read(self, reply: RpcReply) -> ResultMessage:
        """See ProtocolAdapter."""
        try:
            packed = unpack(reply.body)
        except PackedError as error:
            raise MessageError(str(error)) from error
        return unpack_result(packed)
