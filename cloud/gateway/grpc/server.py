"""The gRPC server: every service of the gateway on one port, by the grpcio library."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from cloud.gateway.bind import ListenError, endpoint, listen
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.context import WorkerContext
from cloud.gateway.grpc.call import GrpcCall
from cloud.gateway.grpc.limits import ActiveCall, ActiveCalls, OverdueCheck
from cloud.gateway.grpc.service import Method, Service, StreamMethod
from cloud.gateway.grpc.skylane_service import SkylaneService
from cloud.gateway.grpc.stream import RequestStream
from cloud.gateway.grpc.threads import GrpcThreadPool, max_streams_of
from cloud.gateway.open_inference.grpc_service import OpenInferenceService
from cloud.gateway.settings import GatewaySettings
from cloud.gateway.tf_serving.grpc_service import ModelService, PredictionService
from shared import clock

MAX_CONNECTIONS = 4096
MAX_METADATA_BYTES = 16 << 10  # Of one call.
MAX_STREAMS = 16  # Calls of one connection at a time; its caller's library holds further ones back.

ERROR_CODE_KEY = "skylane-refusal"  # Trailing metadata that marks a refusal by the worker, not by the library.

_HEAD_BYTES = 1 << 16  # What a message may hold beside the picture.
_MESSAGES_HELD = 4  # Messages of the largest size that all calls may hold together.
_IDLE_CONNECTION_MS = 300_000  # After which a connection without calls is closed.
_HANDSHAKE_MS = 10_000
_KEEPALIVE_MS = 60_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_MIN_PING_INTERVAL_MS = 10_000  # Of the caller's pings; more frequent ones end the connection.


class GrpcServer:
    """Serves from `start` until `close`."""

    def __init__(self, parts: WorkerContext, on_fault: Callable[[BaseException], None]) -> None:  # noqa: ARG002  See Server.
        """Binds the port; calls are answered from `start` on.

        Raises:
            ListenError: the address or the certificate cannot be used.
        """
        settings = parts.settings
        self._stopping = threading.Event()
        self._calls = ActiveCalls(settings.max_calls, _MESSAGES_HELD * (settings.max_message_bytes + _HEAD_BYTES))
        max_streams = max_streams_of(settings.max_calls)
        self._streams = ActiveCalls(max_streams, _MESSAGES_HELD * (settings.max_message_bytes + _HEAD_BYTES))
        self._check = OverdueCheck(
            self._calls, self._streams, interval_s=min(settings.body_timeout_s, settings.answer_s) / 2
        )
        self._parts = parts
        services: Sequence[Service] = (
            SkylaneService(parts, self._stopping),
            PredictionService(parts),
            ModelService(parts),
            OpenInferenceService(parts),
        )
        handlers = {
            f"/{service.name}/{name}": self._handler(method)
            for service in services
            for name, method in service.methods().items()
        }
        self._threads = GrpcThreadPool(settings.max_calls)
        self._server = grpc.server(
            self._threads, options=_options(settings), maximum_concurrent_rpcs=2 * settings.max_calls + max_streams
        )
        self._server.add_generic_rpc_handlers((_Handlers(handlers),))
        self.port = self._bound(settings)

    def start(self) -> None:
        """Starts taking calls."""
        self._check.start()
        self._server.start()

    def close(self) -> None:
        """Ends streams, gives calls under way a moment, and closes the port."""
        self._stopping.set()
        self._server.stop(self._parts.settings.shutdown_grace_s).wait()
        self._check.stop()
        self._threads.shutdown(wait=False)  # Idle threads end; a call that hangs does not keep the worker.

    def _bound(self, settings: GatewaySettings) -> int:
        listen("grpc", settings.grpc or "").close()  # Its error says why; that of the library does not.
        where = endpoint(settings.grpc or "")
        address = f"{f'[{where.host}]' if ':' in where.host else where.host}:{where.port}"
        try:
            if settings.tls_cert is None or settings.tls_key is None:
                return self._server.add_insecure_port(address)
            pair = (settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())
            return self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except (OSError, RuntimeError) as error:
            raise ListenError(f"--grpc: cannot listen at {settings.grpc}: {error}") from error

    def _handler(self, method: Method | StreamMethod) -> Any:
        """A handler that reads the request itself: a caller can be refused before its message has arrived."""
        if isinstance(method, StreamMethod):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._stream(context, lambda: self._conversation(method, requests, context))
            )
        if method.is_stream:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._stream(context, lambda: self._answers(method, requests, context))
            )
        return grpc.stream_unary_rpc_method_handler(
            lambda requests, context: self._unary(method, requests, context),
        )

    def _unary(self, method: Method, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            active = self._calls.enter(context, self._parts.settings.body_timeout_s)
            answer: bytes = method.answer(self._received(method, requests, context, active))
            active.hold(len(answer))
            active.wait_for_caller(self._parts.settings.answer_s)
        except Exception as error:  # noqa: BLE001  The call fails, the worker goes on.
            self._abort(context, error)
        self._parts.calls.add("grpc OK")
        return answer

    def _answers(self, method: Method, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """The messages of a method that answers one message with a stream."""
        active = self._streams.enter(context, self._parts.settings.body_timeout_s)
        for answer in method.answer(self._received(method, requests, context, active)):
            active.wait_for_caller(self._parts.settings.answer_s)
            yield answer
            active.wait_for_caller(None)  # It may be evicted, but not for being silent.

    def _conversation(
        self, method: StreamMethod, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        call = GrpcCall(b"", clock.now_ns(), context)
        if self._parts.callers.requires_token:
            call.admit(self._parts.callers)
        active = self._streams.enter(context, None)
        settings = self._parts.settings
        stream = RequestStream(
            method.open(call),
            context,
            active,
            stopping=self._stopping,
            max_idle_s=settings.silent_s,
            max_send_s=settings.answer_s,
        )
        yield from stream.answers(requests)

    def _stream(self, context: grpc.ServicerContext, answers: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        try:
            yield from answers()
        except Exception as error:  # noqa: BLE001  The call fails, the worker goes on.
            self._abort(context, error)
        self._parts.calls.add("grpc OK")

    def _received(
        self, method: Method, requests: Iterator[bytes], context: grpc.ServicerContext, active: ActiveCall
    ) -> GrpcCall:
        """The call with its message, whose caller has shown a token if one is needed.

        Raises:
            RefusedError: the token is missing or wrong, no message came, or the calls hold too many bytes.
            grpc.RpcError: the call has ended.
        """
        if self._parts.callers.requires_token and not method.is_open:
            GrpcCall(b"", 0, context).admit(self._parts.callers)
        data = next(requests, None)
        received_ns = clock.now_ns()
        if data is None:
            raise RefusedError(Kind.INVALID, "no message came: send one")
        active.work()
        active.hold(len(data))
        return GrpcCall(data, received_ns, context)

    def _abort(self, context: grpc.ServicerContext, error: Exception) -> None:
        """Ends a call with the code of an error; always raises."""
        if not context.is_active():
            self._parts.calls.add("grpc CANCELLED")
            raise grpc.RpcError from error
        if not isinstance(error, RefusedError):
            self._parts.errors.record("grpc", error)
            error = RefusedError(Kind.FAILED, "internal error: the worker's log has the traceback")
        self._parts.calls.add(f"grpc {error.kind.grpc_code}")
        context.set_trailing_metadata(((ERROR_CODE_KEY, error.kind.name.lower()),))
        context.abort(grpc.StatusCode[error.kind.grpc_code], str(error))


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of a method; grpcio answers UNIMPLEMENTED where there is none."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any | None:
        """See grpc.GenericRpcHandler."""
        return self._handlers.get(handler_call_details.method)


def _options(settings: GatewaySettings) -> Sequence[tuple[str, int]]:
    """Channel arguments of the server: https://grpc.github.io/grpc/core/group__grpc__arg__keys.html."""
    max_bytes = settings.max_message_bytes + _HEAD_BYTES
    return (
        ("grpc.so_reuseport", 0),  # A second worker on the same port must fail instead of sharing it.
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", -1),  # Answers have limits of their own.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.http2.hpack_table_size.decoder", 0),  # An indexed field costs a byte to send and kilobytes to decode.
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.max_connection_idle_ms", _IDLE_CONNECTION_MS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
    )
