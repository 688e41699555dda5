"""The connection to a worker over gRPC, by the grpcio library."""

import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol

from edge.transports.channel import ChannelError, Dialect, Done, Outcome, Refused, Returned, Silent, Unsent
from edge.transports.credentials import Security
from edge.transports.transport import EncodedRequest
from shared import clock
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES
from shared.encoding.protobuf_wire import PackedError, pack, unpack
from shared.messages.frame import Status
from shared.network.endpoint import Endpoint
from shared.sanitize import printable

grpc: Any = import_module("grpc")  # Any: it ships no types.

_MOST_ANSWER = MAX_MESSAGE_BYTES + (1 << 20)  # The result, and what is beside it.
_PROBE_S = 2.0  # An echo that took longer would tell nothing of the clocks.
_ASK_S = 5.0
_LOOK_S = 0.2
_TOLD_CHARACTERS = 300  # Characters of what a server says.
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),  # A worker that is back is found within this.
    ("grpc.use_local_subchannel_pool", 1),  # A connection of its own each.
    ("grpc.enable_http_proxy", 0),  # A worker is named by its own address.
    ("grpc.max_receive_message_length", _MOST_ANSWER),
    ("grpc.max_send_message_length", -1),  # The worker says what is too large.
)
_FINAL = ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")
_REFUSALS = {
    "INVALID_ARGUMENT": Status.REJECTED,
    "NOT_FOUND": Status.REJECTED,
    "FAILED_PRECONDITION": Status.REJECTED,
    "OUT_OF_RANGE": Status.REJECTED,
    "UNAUTHENTICATED": Status.REJECTED,
    "PERMISSION_DENIED": Status.REJECTED,
    "UNIMPLEMENTED": Status.REJECTED,
    "RESOURCE_EXHAUSTED": Status.OVERLOADED,
}
_NOT_CONNECTED = "failed to connect"  # The library's words where no connection stood: the worker got nothing.
_OUR_LIMITS = ("CLIENT: Received message larger", "Decompressed message larger")  # Its words where an answer is.
_CLOSED = "the line is closed"  # gRPC then raises ValueError.
_BY_NAME = "dns:///"  # Before a host; without it gRPC would take one called `unix` for a file.
_KIND_KEY = "skylane-refusal"  # The worker's own word, as against its library's and ours.


class GrpcAdapter(Dialect, Protocol):
    """A dialect, and the method that takes it."""

    method: str  # With its service: /package.Service/Method.


class GrpcChannel:
    """A worker's gRPC door. Frames have connections of their own, so that what is beside them does not wait for them."""

    def __init__(self, address: Endpoint, dialect: GrpcAdapter, security: Security, vehicle: str) -> None:
        """Nothing is sent yet.

        Raises:
            WorkerAddressError: a token would travel in the clear, or the authority cannot be read.
        """
        security.context(address)
        self._metadata = tuple(security.headers(vehicle, address).items())
        self._frame_channel = _channel(f"{_BY_NAME}{address}", security)
        self._frames = self._frame_channel.unary_unary(dialect.method, response_deserializer=_stamped)
        self._channel = _channel(f"{_BY_NAME}{address}", security)
        self._probe = self._channel.unary_unary("/skylane.v1.Worker/Probe", response_deserializer=_stamped)
        self._status = self._channel.unary_stream("/skylane.v1.Worker/Status")

    def call(self, parcel: EncodedRequest, budget_ms: int | None, timeout_s: float, done: Done) -> None:  # noqa: ARG002 - as every line.
        """See Line. gRPC's own deadline carries the budget."""
        try:
            asked = self._frames.future(parcel.body, timeout=timeout_s, metadata=(*self._metadata, *parcel.beside))
        except ValueError:  # The channel is closed.
            done(Silent(is_broken=False))
            return
        asked.add_done_callback(lambda future: done(_outcome(future)))

    def probe(self, payload: bytes, echoed: Callable[[bytes, int], None]) -> None:
        """See Line."""

        def ended(future: Any) -> None:
            if future.code() is grpc.StatusCode.OK:
                returned_ns, body = future.result()
                try:
                    echoed(bytes(unpack(body)), returned_ns)
                except PackedError:
                    echoed(b"", returned_ns)

        try:
            asked = self._probe.future(pack(payload), timeout=_PROBE_S, metadata=self._metadata)
        except ValueError:  # The channel is closed.
            return
        asked.add_done_callback(ended)

    def echo(self, payload: bytes) -> bytes:
        """See Line."""
        try:
            _, body = self._probe(pack(payload), timeout=_ASK_S, metadata=self._metadata)
            return bytes(unpack(body))
        except grpc.RpcError as error:
            raise _line_error(error) from error
        except PackedError as error:
            raise ChannelError(str(error)) from error
        except ValueError as error:
            raise ChannelError(_CLOSED) from error

    def statuses(self, stop: threading.Event) -> Iterator[bytes]:
        """See Line."""
        try:
            told = self._status(b"", metadata=self._metadata)
        except ValueError as error:
            raise ChannelError(_CLOSED) from error
        over = threading.Thread(target=_cancel_when, args=(stop, told), name="grpc-status", daemon=True)
        over.start()
        try:
            for body in told:
                yield bytes(unpack(body))
        except grpc.RpcError as error:
            if not stop.is_set():
                raise _line_error(error) from error
        except PackedError as error:
            raise ChannelError(str(error)) from error
        finally:
            told.cancel()
            over.join()

    def close(self) -> None:
        """See Line."""
        self._frame_channel.close()
        self._channel.close()


def _channel(address: str, security: Security) -> Any:
    if security.authority is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(security.authority), options=_OPTIONS)


def _stamped(body: bytes) -> tuple[int, bytes]:
    """When the bytes were here: reading them is the vehicle's own time."""
    return clock.now_ns(), body


def _cancel_when(stop: threading.Event, call: Any) -> None:
    """The iterator of a stream knows no timeout."""
    while call.is_active() and not stop.wait(_LOOK_S):
        pass
    call.cancel()


def _outcome(call: Any) -> Outcome:
    """The outcome of a frame whose call has ended."""
    metadata = dict(call.trailing_metadata() or ())
    if call.code() is grpc.StatusCode.OK:
        returned_ns, body = call.result()
        return Returned(body, metadata, returned_ns)
    return _refused(call.code().name, call.details(), metadata.get(_KIND_KEY))


def _refused(code: str, details: str | None, kind: str | bytes | None) -> Outcome:
    """The outcome for a code other than OK. `kind`: the worker's own refusal; None: the code is the library's."""
    now_ns, told = clock.now_ns(), _told(details)
    match code:
        case "UNAVAILABLE":
            if kind is not None:
                return Unsent(is_stopping=True)
            return Unsent(is_stopping=False) if _NOT_CONNECTED in told else Silent(is_broken=True)
        case "CANCELLED" | "DEADLINE_EXCEEDED":  # A server that was just ending cancels what came last.
            return Silent(is_broken=code == "CANCELLED")
        case "RESOURCE_EXHAUSTED" if kind is None and any(limit in told for limit in _OUR_LIMITS):
            return Refused(Status.FAILED, f"too_large: {told}", now_ns)
        case "RESOURCE_EXHAUSTED" if kind == "too_large" or "larger than max" in told:
            return Refused(Status.REJECTED, f"too_large: {told}", now_ns)
    return Refused(_REFUSALS.get(code, Status.FAILED), f"{code.lower()}: {told}", now_ns)


def _line_error(error: Any) -> ChannelError:
    name, told = error.code().name, _told(error.details())
    if _NOT_CONNECTED in told:
        why = told.removesuffix(": OK").rpartition(": ")[
            2
        ]  # Of a certificate the library says so behind what is wrong.
        return ChannelError(f"it cannot be reached ({why})")
    return ChannelError(f"{name.lower()}: {told}", is_final=name in _FINAL)


def _told(details: str | None) -> str:
    """What a server, or the library, says of an error, in one line."""
    lines = (details or "").strip().splitlines()
    return printable(lines[0].strip()[:_TOLD_CHARACTERS]) if lines else "nothing is said"
