"""The connection to a worker over HTTP: pooled connections, one call at a time on each.

The read timeout of urllib3 applies to each read from the socket: a server that sends one byte at a time never reaches
it. The connections here apply it to the whole reply, including its head.
"""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPResponse, RemoteDisconnected
from typing import Any, Protocol
from weakref import WeakSet

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError, SSLError

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
from shared.messages.clock_probes import MAX_PROBE_BYTES
from shared.messages.frame import Status
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES
from shared.messages.node_status import MAX_STATUS_BYTES
from shared.network.endpoint import Endpoint
from shared.sanitize import printable

_CONNECT_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 18
_SHOWN_CHARACTERS = 300  # Length of a server's text in an error message.


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete HTTP reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None  # None: larger than the caller accepts.
    returned_ns: int

    @property
    def text(self) -> str:
        """The start of the body as one printable line, for error messages."""
        return printable((self.body or b"")[:_SHOWN_CHARACTERS].decode(errors="replace")).strip() or "empty reply"


class WorkerHttpClient:
    """Sends requests to one worker over pooled connections. Any thread may use it."""

    def __init__(
        self,
        address: Endpoint,
        credentials: WorkerCredentials,
        vehicle: str,
        *,
        max_connections: int,
        connect_timeout_s: float = _CONNECT_TIMEOUT_S,
    ) -> None:
        """Opens no connection yet.

        Raises:
            WorkerAddressError: the token would travel unencrypted, or the certificate authority is invalid.
        """
        self._headers = credentials.headers(vehicle, address)
        context = credentials.context(address)
        self._sockets = _Sockets()
        settings: dict[str, Any] = {"connect_timeout_s": connect_timeout_s, "sockets": self._sockets}
        self._pool: urllib3.HTTPConnectionPool
        if context is None:
            self._pool = _Pool(address.host, address.port, maxsize=max_connections, **settings)
        else:
            self._pool = _SecurePool(
                address.host, address.port, maxsize=max_connections, **settings, ssl_context=context
            )

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
        max_bytes: int,
    ) -> HttpReply:
        """Sends a request and reads its whole reply.

        Args:
            timeout_s: Time limit for sending the request, and again for receiving the whole reply.
            max_bytes: Largest reply body to accept.

        Raises:
            HTTPError: there was no complete reply in time.
        """
        response = self._pool.urlopen(
            method,
            path,
            body,
            {**self._headers, **(headers or {})},
            retries=False,
            redirect=False,
            timeout=urllib3.Timeout(connect=timeout_s, read=timeout_s),
            preload_content=False,
            decode_content=False,
        )
        try:
            received = _read_body(response, max_bytes)
        except BaseException:
            response.close()
            raise
        returned_ns = clock.now_ns()
        if received is None:
            response.close()  # The rest of the body is still to come.
        response.release_conn()
        return HttpReply(response.status, response.headers, received, returned_ns)

    def close(self) -> None:
        """Closes the connections; requests in progress fail."""
        self._pool.close()
        self._sockets.shut_down()


def describe_error(error: Exception) -> str:
    """Returns the reason why a request failed, as one line with the user's remedy where it is known."""
    cause = error.args[-1] if error.args else None
    if isinstance(cause, RemoteDisconnected):
        return "it closes the connection without a reply: if it uses TLS, give --worker-tls-ca"
    if isinstance(cause, BadStatusLine):
        return "it does not reply in HTTP/1.1: give the address of its HTTP endpoint (skylane cloud serve --http)"
    return str(error).rpartition(": ")[2][:_SHOWN_CHARACTERS] or type(error).__name__


def _read_body(response: urllib3.BaseHTTPResponse, max_bytes: int) -> bytes | None:
    """Returns the body of a response, or None if it is larger than `max_bytes`."""
    announced = response.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        return None
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until a deadline, then raises `TimeoutError`."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._raw = connection.makefile("rb", buffering=0)
        self._deadline_s = time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    """A response that applies the socket's timeout to the whole reply."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        timeout_s = sock.gettimeout()
        if timeout_s is not None:
            self.fp.close()
            self.fp = io.BufferedReader(_DeadlineReader(sock, timeout_s))


class _Sockets:
    """The sockets of a client, which a thread can shut down while others use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connected: WeakSet[socket.socket] = WeakSet()
        self._is_closed = False

    def add(self, connected: socket.socket) -> None:
        """Adds a new socket; shuts it down at once if `shut_down` was called while it connected."""
        with self._lock:
            self._connected.add(connected)
        if self._is_closed:
            self.shut_down()

    def shut_down(self) -> None:
        """Makes the requests in progress fail."""
        self._is_closed = True
        with self._lock:
            for connected in self._connected:
                with suppress(OSError):  # It is closed already.
                    socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _Connection(HTTPConnection):
    """A connection with a shorter timeout while it connects.

    urllib3 has one timeout for connecting and sending, but sending a frame may take long.
    """

    response_class = _Response

    def __init__(self, *args: Any, connect_timeout_s: float, sockets: _Sockets, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connect_timeout_s = connect_timeout_s
        self._sockets = sockets

    def connect(self) -> None:
        send_timeout_s = self.timeout
        self.timeout = min(self._connect_timeout_s, send_timeout_s or self._connect_timeout_s)
        try:
            super().connect()
        finally:
            self.timeout = send_timeout_s
        self.sock.settimeout(send_timeout_s)
        self._sockets.add(self.sock)


class _SecureConnection(_Connection, HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


TIMEOUT_HEADER = "Skylane-Timeout-Ms"

_STATUS_PATH, _PROBE_PATH = "/skylane/v1/status", "/skylane/v1/probe"
_PROBE_TIMEOUT_S = 2.0  # A slower echo is useless for estimating the clock offset.
_CONTROL_TIMEOUT_S = 5.0
_STATUS_INTERVAL_S = 0.5
_BASE64_GROWTH = 4 / 3  # JSON replies carry the result in base64.
_MAX_REPLY_BYTES = int(MAX_MESSAGE_BYTES * _BASE64_GROWTH) + (1 << 20)
_OK = 200
_STOPPING = 503
_SERVER_ERROR = 500
_FINAL = (401, 403, 404, 405, 501)  # A later attempt would fail as well.
_REFUSALS = {408: Status.EXPIRED, 429: Status.OVERLOADED, 504: Status.EXPIRED}
_UNSENT = (NewConnectionError, ConnectTimeoutError, SSLError)


class HttpAdapter(ProtocolAdapter, Protocol):
    """A protocol adapter with the path and the content type of its requests."""

    path: str
    content_type: str


class HttpChannel:
    """The connection to a worker's HTTP endpoint. See RpcChannel."""

    def __init__(
        self, address: Endpoint, adapter: HttpAdapter, credentials: WorkerCredentials, vehicle: str, *, window: int = 1
    ) -> None:
        """Opens no connection yet. `window`: maximum number of unanswered frames.

        Raises:
            WorkerAddressError: the token would travel unencrypted, or the certificate authority is invalid.
        """
        self._adapter = adapter
        max_calls = 2 * window  # A retry runs at the same time as its first attempt.
        # The status and the probes have a connection each, so that they never wait for frames.
        self._client = WorkerHttpClient(address, credentials, vehicle, max_connections=max_calls + 2)
        self._threads = ThreadPoolExecutor(max_calls + 1, "http")
        self._probe_slot = threading.Semaphore(1)
        self._interrupted = threading.Event()

    def call(self, request: EncodedRequest, deadline: Deadline, timeout_s: float, on_outcome: OnOutcome) -> None:
        """See RpcChannel."""
        metadata = {name: value if isinstance(value, str) else value.decode() for name, value in request.metadata}
        headers = {**metadata, "content-type": self._adapter.content_type}
        if (remaining_ms := deadline.remaining_ms()) is not None:
            headers[TIMEOUT_HEADER] = str(remaining_ms)

        def call() -> None:
            on_outcome(self._post(self._adapter.path, request.body, headers, timeout_s, _MAX_REPLY_BYTES))

        self._run(call)

    def probe(self, payload: bytes, on_echo: Callable[[bytes, int], None]) -> None:
        """See RpcChannel. Sends nothing while an earlier probe waits for its echo."""
        if not self._probe_slot.acquire(blocking=False):
            return

        def call() -> None:
            try:
                outcome = self._post(_PROBE_PATH, payload, {}, _PROBE_TIMEOUT_S, MAX_PROBE_BYTES)
            finally:
                self._probe_slot.release()
            if isinstance(outcome, RpcReply):
                on_echo(bytes(outcome.body), outcome.returned_ns)

        self._run(call)

    def echo(self, payload: bytes) -> bytes:
        """See RpcChannel."""
        return self._control("POST", _PROBE_PATH, payload, MAX_PROBE_BYTES)

    def statuses(self) -> Iterator[bytes]:
        """See RpcChannel. Polls the worker."""
        last = b""
        self._interrupted.clear()
        while not self._interrupted.is_set():
            status = self._control("GET", _STATUS_PATH, b"", MAX_STATUS_BYTES)
            if status != last:
                last = status
                yield status
            self._interrupted.wait(_STATUS_INTERVAL_S)

    def interrupt(self) -> None:
        """See RpcChannel."""
        self._interrupted.set()

    def close(self) -> None:
        """See RpcChannel."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
        self._threads.shutdown()

    def _run(self, call: Callable[[], None]) -> None:
        # Raised after `close`, and if the system allows no more threads: the call then waits for a running one.
        with suppress(RuntimeError):
            self._threads.submit(call)

    def _control(self, method: str, path: str, body: bytes, max_bytes: int) -> bytes:
        try:
            reply = self._client.request(method, path, body, timeout_s=_CONTROL_TIMEOUT_S, max_bytes=max_bytes)
        except _UNSENT as error:
            problem = f"it cannot be reached ({describe_error(error)})"
            raise ChannelError(problem, is_final=isinstance(error, SSLError)) from error
        except HTTPError as error:
            raise ChannelError(describe_error(error)) from error
        if reply.body is None:
            raise ChannelError(f"its reply to {path} is larger than {max_bytes} bytes")
        if reply.status != _OK:
            raise ChannelError(f"HTTP {reply.status}: {reply.text}", is_final=reply.status in _FINAL)
        return reply.body

    def _post(self, path: str, body: bytes, headers: dict[str, str], timeout_s: float, max_bytes: int) -> CallOutcome:
        try:
            reply = self._client.request("POST", path, body, headers, timeout_s=timeout_s, max_bytes=max_bytes)
        except _UNSENT:
            return NotDelivered(is_stopping=False)
        except ReadTimeoutError:
            return Indeterminate(is_broken=False)
        except (HTTPError, OSError):
            return Indeterminate(is_broken=True)
        return _outcome(reply, max_bytes)


def _outcome(reply: HttpReply, max_bytes: int) -> CallOutcome:
    if reply.body is None:
        reason = f"too_large: the reply is larger than {max_bytes} bytes"
        return RpcRefusal(Status.FAILED, reason, reply.returned_ns)
    if reply.status == _OK:
        return RpcReply(reply.body, reply.headers, reply.returned_ns)
    if reply.status == _STOPPING:
        return NotDelivered(is_stopping=True)
    status = _REFUSALS.get(reply.status) or (Status.FAILED if reply.status >= _SERVER_ERROR else Status.REJECTED)
    return RpcRefusal(status, f"HTTP {reply.status}: {reply.text}", reply.returned_ns)
