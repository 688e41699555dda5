"""The gRPC server of the gateway: all services on one port, based on grpcio."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import grpc

from cloud.config import CloudConfig
from cloud.frontend import Frontend
from cloud.gateway.bind import ListenError, listen, parse_bind_address
from cloud.gateway.grpc import open_inference, skylane, tf_serving
from cloud.gateway.grpc.call import GrpcCall, Method, StreamMethod
from cloud.gateway.grpc.stream import RequestStream
from cloud.gateway.limits import MAX_HELD_MESSAGES, ActiveCall, CallLimits, grpc_pool_size, max_streams_of
from cloud.node import CloudNode
from cloud.serving.errors import ApiError, ErrorCode, InvalidError
from shared import clock
from shared.logs import RateLimitedLogger, get_logger
from shared.runtime.periodic import run_round
from shared.threads import ThreadsExhaustedError, is_thread_limit

SERVICES = {**skylane.SERVICES, **open_inference.SERVICES, **tf_serving.SERVICES}
MAX_METADATA_BYTES = 16 << 10  # Metadata of one call.
MAX_STREAMS = 16  # Concurrent calls of one connection; the caller's library holds further ones back.

ERROR_CODE_KEY = "skylane-refusal"  # Trailing metadata that marks an error as raised by the worker, not by grpcio.

_HEADER_BYTES = 1 << 16  # Size of a message in addition to its image.
_IDLE_CONNECTION_MS = 300_000  # After which a connection without calls is closed.
_HANDSHAKE_MS = 10_000
_KEEPALIVE_MS = 60_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_MIN_PING_INTERVAL_MS = 10_000  # More frequent pings of the caller end the connection.
_CHECK_INTERVAL_S = 1.0  # Maximum time between two checks for overdue calls.
P = ParamSpec("P")
T = TypeVar("T")


class GrpcServer(Frontend):
    """The gRPC server."""

    def __init__(self, worker: CloudNode, address: str) -> None:
        """Binds the port; calls are processed from `start` on.

        Raises:
            ListenError: the address or the certificate cannot be used.
        """
        config = worker.config
        max_streams = max_streams_of(config.max_calls)
        max_held_bytes = MAX_HELD_MESSAGES * (config.max_message_bytes + _HEADER_BYTES)
        self._worker = worker
        self._stopping = threading.Event()
        self._calls = CallLimits(config.max_calls, max_held_bytes)
        self._streams = CallLimits(max_streams, max_held_bytes)
        self._overdue_check = threading.Thread(target=self._cancel_overdue, name="grpc-overdue", daemon=True)
        self._threads = GrpcThreadPool(config.max_calls)
        self._server = grpc.server(
            self._threads,
            options=_options(config, worker.connection_limits["grpc"]),
            maximum_concurrent_rpcs=2 * config.max_calls + max_streams,
        )
        for service, methods in SERVICES.items():
            handlers = {name: self._handler(method) for name, method in methods.items()}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self.port = self._bind(address)

    def start(self) -> None:
        """Starts to accept calls."""
        self._overdue_check.start()
        self._server.start()

    def close(self) -> None:
        """Closes streams and the port, after a grace period for active calls."""
        self._stopping.set()
        self._server.stop(self._worker.timeouts.shutdown_grace_s).wait()
        self._threads.shutdown(wait=False)  # A call that hangs must not keep the worker from stopping.

    def _bind(self, address: str) -> int:
        certificate, key = self._worker.config.gateway_tls_cert, self._worker.config.gateway_tls_key
        listen("grpc", address).close()  # Its error message has a reason, that of grpcio has none.
        address = str(parse_bind_address(address))
        try:
            if certificate is None or key is None:
                return self._server.add_insecure_port(address)
            pair = (key.read_bytes(), certificate.read_bytes())
            return self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except (OSError, RuntimeError) as error:
            raise ListenError(f"--grpc: cannot listen at {address}: {error}") from error

    def _cancel_overdue(self) -> None:
        timeouts = self._worker.timeouts
        interval_s = min(_CHECK_INTERVAL_S, timeouts.body_s / 2, timeouts.send_s / 2)
        while not self._stopping.wait(interval_s):
            run_round("overdue calls", self._calls.cancel_overdue)
            run_round("overdue streams", self._streams.cancel_overdue)

    def _handler(self, method: Method | StreamMethod) -> Any:
        """Creates a handler that reads the request itself, so that a call can fail before its message has arrived."""
        if isinstance(method, StreamMethod):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._stream(context, self._converse(method, requests, context))
            )
        if method.streams_responses:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._stream(context, self._respond_many(method, requests, context))
            )
        return grpc.stream_unary_rpc_method_handler(
            lambda requests, context: self._respond_once(method, requests, context),
        )

    def _respond_once(self, method: Method, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            active = _enter(self._calls, context, self._worker.timeouts.body_s)
            response: bytes = method.respond(self._receive(method, requests, context, active))
            active.hold(len(response))
            active.mark_waiting(self._worker.timeouts.send_s)
        except Exception as error:  # noqa: BLE001  Only this call fails.
            self._fail(context, error)
            return b""  # gRPC sends no response of a call that has ended.
        self._worker.call_counts.add("grpc OK")
        return response

    def _respond_many(
        self, method: Method, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Yields the responses to a single request."""
        active = _enter(self._streams, context, self._worker.timeouts.body_s)
        for response in method.respond(self._receive(method, requests, context, active)):
            active.mark_waiting(self._worker.timeouts.send_s)
            yield response
            active.mark_waiting()  # The call may be evicted, but it is not overdue.

    def _converse(
        self, method: StreamMethod, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Yields the responses to a stream of requests."""
        call = GrpcCall(self._worker, self._stopping, context, received_ns=clock.now_ns())
        call.check_token()
        active = _enter(self._streams, context)
        yield from RequestStream(call, active, method.open(call)).responses(requests)

    def _stream(self, context: grpc.ServicerContext, responses: Iterator[bytes]) -> Iterator[bytes]:
        """Yields the responses; ends the call with the code of the error that they raise."""
        try:
            yield from responses
        except Exception as error:  # noqa: BLE001  Only this call fails.
            self._fail(context, error)
            return
        self._worker.call_counts.add("grpc OK")

    def _receive(
        self, method: Method, requests: Iterator[bytes], context: grpc.ServicerContext, active: ActiveCall
    ) -> GrpcCall:
        """Checks the token, if one is needed, and waits for the message.

        Raises:
            ApiError: the token is missing or unknown, there is no message, or the calls hold too many bytes.
            grpc.RpcError: the call has ended.
        """
        if method.needs_token:
            GrpcCall(self._worker, self._stopping, context).check_token()
        data = next(requests, None)
        received_ns = clock.now_ns()
        if data is None:
            raise InvalidError("the call has no message: send one")
        active.mark_busy()
        active.hold(len(data))
        return GrpcCall(self._worker, self._stopping, context, data, received_ns)

    def _fail(self, context: grpc.ServicerContext, error: Exception) -> None:
        """Ends a call with the code of an error by raising; returns if the call has ended already.

        grpcio logs a traceback of every exception that leaves the handler of such a call, at the pace of its caller.
        """
        if not context.is_active():
            self._worker.call_counts.add("grpc CANCELLED")
            return
        if not isinstance(error, ApiError):
            self._worker.replier.errors.record("grpc", error)
            error = ApiError(ErrorCode.FAILED, "internal error: the worker's log has the traceback")
        self._worker.call_counts.add(f"grpc {error.code.grpc_code}")
        context.set_trailing_metadata(((ERROR_CODE_KEY, error.code.name.lower()),))
        context.abort(grpc.StatusCode[error.code.grpc_code], str(error))


def _enter(limits: CallLimits, context: grpc.ServicerContext, max_wait_s: float = math.inf) -> ActiveCall:
    """Admits a call, which ends when gRPC reports its end."""
    call = ActiveCall(limits, context.peer(), context.cancel)
    call.enter(max_wait_s)
    if not context.add_callback(call.end):
        call.end()
    return call


def _options(config: CloudConfig, max_connections: int) -> Sequence[tuple[str, int]]:
    """Channel arguments of the server: https://grpc.github.io/grpc/core/group__grpc__arg__keys.html."""
    max_bytes = config.max_message_bytes + _HEADER_BYTES
    return (
        ("grpc.so_reuseport", 0),  # A second worker on the same port must fail instead of sharing it.
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", -1),  # The services limit their responses.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.http2.hpack_table_size.decoder", 0),  # An indexed field costs a byte to send and kilobytes to decode.
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_connection_idle_ms", _IDLE_CONNECTION_MS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
    )


class GrpcThreadPool(ThreadPoolExecutor):
    """The pool in which calls are processed; if no thread can be started, calls wait for the existing ones."""

    def __init__(self, max_calls: int) -> None:
        """Starts one thread.

        Raises:
            ThreadsExhaustedError: no thread can be started.
        """
        super().__init__(grpc_pool_size(max_calls), "grpc")
        self._log = RateLimitedLogger(get_logger("cloud"))
        try:
            super().submit(int).result()
        except RuntimeError as error:
            raise (ThreadsExhaustedError() if is_thread_limit(error) else error) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `ThreadPoolExecutor`. An exception here would end the thread in which grpcio accepts calls."""
        future: Future[T] = Future()
        try:
            super().submit(_complete, future, partial(fn, *args, **kwargs))
        except RuntimeError as error:
            if not is_thread_limit(error):
                raise
            # The executor has queued the call before it tried to start a thread for it.
            self._log.warning("threads", "gRPC calls wait for a thread", reason=str(ThreadsExhaustedError()))
        return future


def _complete(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  It is raised where the future's result is read.
        future.set_exception(error)
